"""The bench's own code, in seconds: tiny loads against Shoal only, and planted errors."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import ShareConsumer
from instructions import METADATA, REQUESTS, count
from load_checks import LoadFailed, Taken, random_values
from load_setup import CHECKED, QUIET, Run, produce
from support.brokers.servers import ShoalProcess
from support.runs.machine import lacking

if TYPE_CHECKING:
    from collections.abc import Iterator

BENCH = Path(__file__).parents[2] / "bench"
GOALS_OF_TIERED = 23


@pytest.mark.nightly
def test_a_run_has_figures_and_a_load_that_fails_has_a_failed_row(tmp_path: Path) -> None:
    """The second load has no jars for its Java client. The others still count."""
    works, fails = "produce 1 KB acks=all, lz4", "share 100 B explicit, Java"
    ended = subprocess.run(
        [
            sys.executable,
            str(BENCH / "run.py"),
            "--side",
            "shoal",
            "--scale",
            "0.0005",
            "--rounds",
            "1",
            "--into",
            str(tmp_path),
            "--only",
            works,
            "--only",
            fails,
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=os.environ | {"KAFKA_LIB": str(tmp_path / "nothing")},
    )
    assert ended.returncode == 1, ended.stdout + ended.stderr
    assert f"FAILED: {fails}" in ended.stdout
    assert " s in all" in ended.stdout
    rows = json.loads((tmp_path / "one-broker.json").read_text())["rows"]
    by_load = {row["load"]: row for row in rows if row["figure"] in ("rate", "")}
    assert by_load[works]["shoal"] > 0
    assert "failed" not in by_load[works]
    assert "shoal" in by_load[fails]["failed"]
    assert "shoal" not in by_load[fails]


@pytest.mark.nightly
def test_the_worker_is_compared_with_a_bare_session() -> None:
    """It starts an interpreter with a broker, which takes some seconds."""
    command = [sys.executable, str(BENCH / "worker.py"), "200", "1"]
    printed = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert "worker to bare session: " in printed.stdout


@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_every_load_runs_against_shoal_at_a_small_scale(tmp_path: Path) -> None:
    ended = subprocess.run(
        [
            sys.executable,
            str(BENCH / "run.py"),
            "--side",
            "shoal",
            "--scale",
            "0.01",
            "--rounds",
            "1",
            "--gigabytes",
            "0.05",
            "--into",
            str(tmp_path),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr


def rows_of_security(into: Path, *options: str) -> list[dict[str, Any]]:
    """Run `make bench-security` with these options, and return the rows of its result."""
    ended = subprocess.run(
        [sys.executable, str(BENCH / "run_security.py"), *options, "--into", str(into)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    rows: list[dict[str, Any]] = json.loads((into / "security.json").read_text())["rows"]
    return rows


@pytest.mark.nightly
def test_three_brokers_with_tls_everywhere(tmp_path: Path) -> None:
    options = ("--side", "shoal", "--scale", "0.01", "--rounds", "1", "--only", "three brokers")
    rows = rows_of_security(tmp_path, *options)
    assert {row["figure"] for row in rows} == {"rate", "cpu_s_gb"}
    assert all(row["load"].startswith("three brokers") and row["shoal"] > 0 for row in rows)


@pytest.mark.nightly
def test_three_brokers_as_deployed(tmp_path: Path) -> None:
    """Each load has its figures, and those with logins over TLS beside those without."""
    words = ("--side", "shoal", "--scale", "0.01", "--rounds", "1", "--into", str(tmp_path))
    ended = subprocess.run(
        [sys.executable, str(BENCH / "run_deployed.py"), *words],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    rows = json.loads((tmp_path / "deployed.json").read_text())["rows"]
    rates = [row["load"] for row in rows if row["figure"] == "rate"]
    assert len(rates) == len(set(rates)) == 21
    times = [row for row in rows if row["figure"] == "secured_times"]
    assert len(times) == 9
    assert all(row["shoal"] > 0 for row in times)


@pytest.mark.nightly
def test_an_earlier_tree_is_a_side_of_its_own(tmp_path: Path) -> None:
    words = [sys.executable, str(BENCH / "run_earlier.py"), "HEAD", "--into", str(tmp_path)]
    short = ["--scale", "0.01", "--rounds", "1", "--only", "jobs, 2 partitions, commit a record"]
    ended = subprocess.run([*words, *short], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    found = json.loads((tmp_path / "earlier.json").read_text())
    assert found["sides"] == {"shoal": "this tree", "kafka": "HEAD"}
    (row,) = (row for row in found["rows"] if row["goal"])
    assert row["figure"] == "cpu_s"
    assert row["kafka"] > 0


def test_an_unknown_earlier_tree_is_named() -> None:
    words = [sys.executable, str(BENCH / "run_earlier.py"), "no-such-commit"]
    ended = subprocess.run(words, capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert "git archive fails" in ended.stderr
    assert "no-such-commit" in ended.stderr


@pytest.mark.nightly
def test_members_of_key_ranges_and_finished_offsets(tmp_path: Path) -> None:
    """Each of their goals has its figure, at a small scale."""
    words = [sys.executable, str(BENCH / "queues.py"), "--into", str(tmp_path)]
    short = ["--scale", "0.05", "--rounds", "1", "--only", "members", "--only", "finished offsets"]
    ended = subprocess.run([*words, *short], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    rows = json.loads((tmp_path / "queues.json").read_text())["rows"]
    goals = [(row["load"], row["figure"]) for row in rows if row["goal"]]
    assert len(goals) == len(set(goals)) == 5


@pytest.mark.nightly
def test_what_security_costs(tmp_path: Path) -> None:
    """Each goal of a broker alone has its figure. The goals themselves need a quiet machine."""
    options = ("--rounds", "1", "--only", "TLS, ", "--only", "rates with", "--only", "login")
    rows = rows_of_security(tmp_path, *options)
    goals = [row for row in rows if row["goal"] is not None]
    assert len(goals) == 9
    assert {row["figure"] for row in goals} == {"tls_times", "login_cpu_ms", "lost_percent"}


@pytest.mark.nightly
def test_two_counts_of_instructions_differ_by_two_percent_at_most() -> None:
    if not shutil.which("valgrind"):
        lacking("valgrind is missing: apt-get install valgrind")
    one, other = (count(BENCH.parent / "broker_image", REQUESTS[METADATA]) for _ in range(2))
    assert 50_000 < one < 1_000_000
    assert other == pytest.approx(one, rel=0.02)


@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_each_goal_of_tiered_storage_has_its_figure(tmp_path: Path) -> None:
    """Against Shoal only, at a small scale. The goals themselves need a quiet machine."""
    words = ("--side", "shoal", "--scale", "0.001", "--rounds", "1", "--into", str(tmp_path))
    ended = subprocess.run(
        [sys.executable, str(BENCH / "tiered.py"), *words],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    found = json.loads((tmp_path / "tiered.json").read_text())
    assert any("1,000 remote segments stand for 1,000,000" in note for note in found["notes"])
    goals = [row for row in found["rows"] if row["goal"] is not None]
    # Kafka's side is missing.
    assert len([row for row in goals if row["met"] is not None]) == GOALS_OF_TIERED - 1
    assert len(goals) == GOALS_OF_TIERED


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[ShoalProcess]:
    broker = ShoalProcess(tmp_path / "broker").start()
    yield broker
    broker.kill9()


def test_a_byte_that_changed_on_disk_fails_the_verifying_pass_and_a_share_load(
    broker: ShoalProcess,
) -> None:
    run = Run(broker.bootstrap, 1.0)
    topic, group = run.topic(), run.share_group()
    _, sent = produce(run.bootstrap, topic, 100, random_values(100), acks="all")
    run.verify(topic, sent)
    (log,) = broker.data_dir.glob(f"{topic}-0/*.log")
    with log.open("r+b") as file:
        file.seek(log.stat().st_size - 50)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 1]))
    with pytest.raises(LoadFailed, match="a consumer got an error"):
        run.verify(topic, sent)
    consumer = ShareConsumer(
        {"bootstrap.servers": run.bootstrap, "group.id": group, **CHECKED, **QUIET}
    )
    consumer.subscribe([topic])
    taken = Taken()

    def take() -> None:
        while taken.new < 100:
            taken.add_shared(consumer.poll(1.0))

    with pytest.raises(LoadFailed, match="a consumer got an error"):
        take()
    consumer.close()


def test_a_topic_with_a_record_too_many_fails_the_verifying_pass(broker: ShoalProcess) -> None:
    run = Run(broker.bootstrap, 1.0)
    topic, values = run.topic(), random_values(100)
    _, sent = produce(run.bootstrap, topic, 10, values, acks="all")
    produce(run.bootstrap, topic, 1, values, acks="all")
    with pytest.raises(LoadFailed, match=r"ends at 11 instead of 10|11 of 10"):
        run.verify(topic, sent)
