"""Attackers of the console's HTTP port, each beside a quiet browser, with the bar of brokers: one
attacker costs others at most `TURN_S` of CPU time at once, and the console's memory returns."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.attacks.console_attackers import (
    CATALOGUE,
    USERS,
    ConsoleTarget,
    QuietBrowser,
    find_port,
    prepare_topics,
)
from support.brokers.servers import ShoalProcess
from support.runs.conditions import eventually, fits_cpu

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

TURN_S, ATTEMPTS = 0.1, 3
#: What an attack may leave behind, and what the console may have at the worst moment, in megabytes.
MEMORY_MB, PEAK_MB = 20, 600
#: A second and more: an attacker opens hundreds of connections, or makes pages of 64 MB.
PARTS = [
    pytest.param(0.05, id="short"),
    pytest.param(1.0, id="whole", marks=[pytest.mark.nightly, pytest.mark.timeout(1800)]),
]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ShoalProcess]:
    """A broker of its own: a shared one would keep topics with bombs."""
    process = ShoalProcess(tmp_path_factory.mktemp("attacked") / "data").start()
    yield process
    process.kill9()


@pytest.fixture(scope="module")
def target(
    broker: ShoalProcess, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ConsoleTarget]:
    folder = tmp_path_factory.mktemp("console")
    (folder / "users").write_text("".join(f"{user}:{word}\n" for user, word in USERS.items()))
    prepare_topics(broker)
    words = ["--listen", "127.0.0.1:0", "--interval", "1", "--login", str(folder / "users")]
    command = [str(Path(sys.executable).with_name("shoal")), "console", "--allow-actions", *words]
    with (folder / "errors").open("w") as errors:
        console = subprocess.Popen(
            [*command, "--bootstrap-server", broker.bootstrap],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
    try:
        assert console.stdout is not None
        port = find_port(console.stdout.readline())
        target = ConsoleTarget(broker, console.pid, port, 1.0)
        yield target
        status = Path(f"/proc/{console.pid}/status").read_text()
        peak_mb = int(status.partition("VmHWM:")[2].split()[0]) * 1024 / 1e6
        assert peak_mb < PEAK_MB
        assert "Traceback" not in (folder / "errors").read_text()
    finally:
        console.terminate()
        console.wait()


@pytest.fixture
def quiet(target: ConsoleTarget) -> Iterator[QuietBrowser]:
    browser = QuietBrowser(target)
    browser.start()
    eventually(lambda: browser.answers > 3)
    browser.longest_s = 0.0
    yield browser
    browser.end()
    assert browser.failure is None


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("attack", CATALOGUE, ids=lambda attack: attack.__name__)
def test_an_attacker_of_the_console(
    target: ConsoleTarget,
    quiet: QuietBrowser,
    attack: Callable[[ConsoleTarget], None],
    part: float,
) -> None:
    attacked = target._replace(part=part)
    attack(attacked)
    before_mb = target.resident_mb()
    for _ in range(ATTEMPTS):
        quiet.longest_s = 0.0
        attack(attacked)
        if fits_cpu(quiet.longest_s, TURN_S) and target.resident_mb() - before_mb < MEMORY_MB:
            break
        before_mb = target.resident_mb()
    assert fits_cpu(quiet.longest_s, TURN_S), f"a turn of {quiet.longest_s:.2f} s of CPU time"
    eventually(lambda: target.resident_mb() - before_mb < MEMORY_MB)
    assert quiet.failure is None
