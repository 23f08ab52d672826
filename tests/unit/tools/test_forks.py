"""Commands that tests start as forks are as if a shell had started them."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest
from shoal.testing.server_process import without_configs
from support.brokers import forks
from support.brokers.forks import PROGRAM, Fork
from support.runs import leaks


def start(*words: str, **environment: str) -> Fork:
    started = forks.start([*PROGRAM, *words], environment=without_configs() | environment)
    assert isinstance(started, Fork)
    return started


def read_to_end(process: Fork) -> tuple[int, str, str]:
    assert process.stdout is not None
    assert process.stderr is not None
    with process.stdout, process.stderr:
        return process.wait(60), process.stdout.read(), process.stderr.read()


def test_a_fork_has_arguments_environment_folder_and_streams_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("broker.properties").write_text("log.retention.ms=soon")
    status, out, err = read_to_end(start("server", SHOAL_CONFIG="broker.properties"))
    assert (status, out) == (1, "")
    assert "broker.properties" in err
    assert "soon" in err
    status, out, _ = read_to_end(start("server", "--help"))
    assert status == 0
    assert "Usage: python -m shoal.cli server [OPTIONS]" in out


def test_a_signal_ends_a_fork(tmp_path: Path) -> None:
    broker = start("server", "--listener=127.0.0.1:0", f"--data-dir={tmp_path}")
    with pytest.raises(subprocess.TimeoutExpired):
        broker.wait(0)
    broker.kill()
    assert read_to_end(broker)[0] == -signal.SIGKILL
    broker.kill()  # It has ended.


def test_a_fork_that_is_left_running_is_found() -> None:
    running = start("produce", "a-topic", SHOAL_BOOTSTRAP_SERVERS="127.0.0.1:1")
    (left,) = leaks.started()
    assert left.pid == running.pid
    assert left.command.endswith("-m shoal.cli produce a-topic")
    assert left.test.startswith(os.path.relpath(__file__))
    running.kill()
    read_to_end(running)
    assert leaks.started() == []


@pytest.mark.parametrize(
    ("words", "variables"),
    [
        (["server", "--add-scram=SCRAM-SHA-256=[name=a,password=b]"], {}),
        (["server"], {"PYTHONPATH": "/other"}),
        (["server"], {"PURE_PYTHON": "1"}),
    ],
)
def test_what_a_fork_could_hide_is_an_interpreter(
    words: list[str], variables: dict[str, str]
) -> None:
    environment = without_configs() | variables
    process = forks.start([*PROGRAM, *words, "--log-level=no"], environment=environment)
    assert not isinstance(process, Fork)
    process.communicate()
