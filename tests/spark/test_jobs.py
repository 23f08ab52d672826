"""The jobs as users run them, in local mode and on real input. By day, `shoal demo` runs
`image_tasks` (`test_demo.py`)."""

from __future__ import annotations

import importlib.util
import json
import os
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from shoal_spark.options import BOOTSTRAP
from support.brokers.queues import read_records
from support.runs.conditions import eventually

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from pyspark.sql import SparkSession
    from shoal.client.client import SyncClient
    from support.brokers.queues import Queue

JOBS = Path(__file__).resolve().parents[2] / "spark_operator_jobs" / "jobs"


def job(name: str) -> ModuleType:
    """Load a job as a module, whose functions are pickled like those of a main program."""
    from pyspark import cloudpickle

    if str(JOBS) not in sys.path:
        sys.path.append(str(JOBS))  # as that of a main program
    spec = importlib.util.spec_from_file_location(f"job_{name}", JOBS / f"{name}.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    cloudpickle.register_pickle_by_value(module)
    return module


def shoal(*words: str, bootstrap: str) -> str:
    """Return what a `shoal` command prints."""
    done = subprocess.run(
        [sys.executable, "-m", "shoal.cli", *words], capture_output=True, text=True, check=False,
        env={**os.environ, "SHOAL_BOOTSTRAP": bootstrap},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Callable[..., ModuleType]:
    """Run a job's main with these arguments, in the session that all tests share."""
    from pyspark.sql import SparkSession

    monkeypatch.setattr(SparkSession, "stop", lambda self: None)

    def main(name: str, *words: object) -> ModuleType:
        module = job(name)
        monkeypatch.setattr(sys, "argv", [name, *map(str, words)])
        module.main()
        return module

    return main


def values(client: SyncClient, topic: str) -> list[bytes]:
    """Return all values in a topic."""
    records = client.run(read_records(client.client, topic))
    return [record.value for record in records if record.value is not None]


@pytest.mark.nightly
def test_image_tasks(
    spark: SparkSession, shoal_queue: Callable[..., Queue], run: Callable[..., ModuleType],
    tmp_path: Path, capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    queue = shoal_queue(partitions=2)
    results, output = f"{queue.topic}-results", tmp_path / "thumbnails"
    letters = f"dlq.{queue.topic}"
    where = ("--bootstrap-servers", queue.bootstrap)
    run(
        "feed_images", *where, "--topic", queue.topic, "--count", 60, "--broken-every", 20,
        "--results-topic", results, "--size", 64, "--partitions", 2,
        "--group", queue.group, "--dead-letters", letters,
    )  # fmt: skip
    run(
        "image_tasks", *where, "--topics", queue.topic, "--group", queue.group, "--tasks", 4,
        "--max-records", 40, "--checkpoint", tmp_path / "checkpoint", "--available-now",
        "--output", output, "--results-topic", results,
    )  # fmt: skip
    queue.drained()

    rows = spark.read.parquet(str(output)).collect()
    assert sorted(row["name"] for row in rows) == [
        f"image-{n:06d}" for n in range(60) if n % 20 != 19
    ]
    assert {(row["format"], row["width"], row["height"]) for row in rows} == {("JPEG", 64, 64)}
    assert all(bytes(row["thumbnail"])[:2] == b"\xff\xd8" for row in rows)
    hashes = {row["name"]: row["hash"] for row in rows}
    assert len(set(hashes.values())) > 20
    written = [json.loads(value) for value in values(queue.client, results)]
    assert {one["name"]: one["hash"] for one in written} == hashes
    said = [json.loads(line) for line in capfd.readouterr().out.splitlines() if line[0] == "{"]
    assert sum(one["images"] for one in said) == 60
    assert sum(one["rejected"] for one in said) == 3

    source = spark.read.format("sharegroup-dead-letters").option(BOOTSTRAP, queue.bootstrap)
    frame = source.option("topic", letters).load()
    eventually(lambda: frame.count() == 3, what="the broken images are dead letters")
    dead = frame.collect()
    assert {bytes(row["key"]).decode() for row in dead} == {f"image-{n:06d}" for n in (19, 39, 59)}
    assert {(row["group"], row["sourceTopic"]) for row in dead} == {(queue.group, queue.topic)}
    assert "OSError" in shoal("dlq", "reasons", letters, bootstrap=queue.bootstrap)


@pytest.mark.usefixtures("spark")
def test_check_orders(
    shoal_queue: Callable[..., Queue], run: Callable[..., ModuleType], tmp_path: Path
) -> None:
    """Its only sink is `sharegroup-outcome`, and the reasons arrive in the dead letters."""
    queue = shoal_queue(partitions=2)
    letters = f"dlq.{queue.topic}"
    where = ("--bootstrap-servers", queue.bootstrap)
    run(
        "feed_orders", *where, "--topic", queue.topic, "--count", 60, "--broken-every", 20,
        "--partitions", 2, "--group", queue.group, "--dead-letters", letters,
    )  # fmt: skip
    no_bottle = {"wine": "w", "quantity": 0}
    queue.produce(
        [
            json.dumps({"order": "order-x", "lines": []}),
            json.dumps({"order": "order-y", "lines": [no_bottle]}),
        ]
    )
    run(
        "check_orders", *where, "--topics", queue.topic, "--group", queue.group,
        "--checkpoint", tmp_path / "checkpoint", "--available-now",
    )  # fmt: skip
    queue.drained()
    words = ("dlq", "reasons", letters, "-o", "json")

    def count() -> dict[str, tuple[int, str]]:
        rows = json.loads(shoal(*words, bootstrap=queue.bootstrap))
        return {row["exception"]: (row["letters"], row["newest_message"]) for row in rows}

    eventually(lambda: sum(n for n, _ in count().values()) == 5, what="dead letters are written")
    assert count() == {
        "InvalidOrder": (3, 'it is not JSON, or lacks the field "order"'),
        "EmptyOrder": (1, "order-x has no lines"),
        "InvalidQuantity": (1, "order-y orders less than one bottle"),
    }


@pytest.mark.nightly
@pytest.mark.usefixtures("spark")
def test_fraud_check(
    shoal_queue: Callable[..., Queue], run: Callable[..., ModuleType],
    tmp_path: Path, capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """Alerts name accounts that were taken over, and state survives a restart of the query."""
    queue = shoal_queue(partitions=2)
    alerts = f"{queue.topic}-alerts"
    where = ("--bootstrap-servers", queue.bootstrap)
    feed = (*where, "--topic", queue.topic, "--accounts", 50, "--broken-every", 100)
    check = (
        *where, "--topics", queue.topic, "--group", queue.group, "--alerts-topic", alerts,
        "--checkpoint", tmp_path / "checkpoint", "--available-now",
    )  # fmt: skip
    run("feed_orders", *where, "--topic", alerts, "--count", 0)
    run("feed_orders", *feed, "--count", 400)
    run("fraud_check", *check)
    known = len(values(queue.client, alerts))
    run("feed_orders", *feed, "--count", 400, "--seed", 2)
    run("fraud_check", *check)
    queue.drained()

    written = [json.loads(value) for value in values(queue.client, alerts)]
    assert len(written) > known > 0
    assert {one["account"] for one in written} == {"account-00049"}
    assert all(one["score"] >= 70 for one in written)
    said = [json.loads(line) for line in capfd.readouterr().out.splitlines() if line[0] == "{"]
    assert sum(one["rejected"] for one in said) == 8


def registered(registry: Path) -> list[tuple]:
    with sqlite3.connect(registry) as found:
        return found.execute("SELECT order_id, number, total_cents, pdf FROM invoices").fetchall()


def printed_batches(capfd: pytest.CaptureFixture[str]) -> list[dict]:
    """Return what a job has printed about its batches since the last call."""
    return [json.loads(line) for line in capfd.readouterr().out.splitlines() if line[:1] == "{"]


@pytest.mark.usefixtures("spark")
def test_billing(
    shoal_queue: Callable[..., Queue], run: Callable[..., ModuleType],
    tmp_path: Path, capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """A batch that runs again registers nothing twice; the PDFs are complete."""
    queue = shoal_queue(partitions=2)
    registry = tmp_path / "invoices.db"
    where = ("--bootstrap-servers", queue.bootstrap)
    run("feed_orders", *where, "--topic", queue.topic, "--count", 100, "--broken-every", 25)
    words = (
        *where, "--topics", queue.topic, "--group", queue.group, "--registry", registry,
        "--checkpoint", tmp_path / "checkpoint", "--available-now",
    )  # fmt: skip
    run("billing", *words)
    # As if the driver had died between the sink and the commit log.
    commits = tmp_path / "checkpoint" / "commits"
    last = max(int(path.name) for path in commits.glob("[0-9]*"))
    for path in (commits / f"{last}", commits / f".{last}.crc"):
        path.unlink()
    module = run("billing", *words)
    queue.drained()

    assert [one["invoices"] for one in printed_batches(capfd) if one["rejected"]] == [96, 0]
    rows = registered(registry)
    assert len(rows) == 96
    for _, number, total, pdf in rows:
        assert pdf.startswith(b"%PDF-1.4")
        assert pdf.endswith(b"%%EOF\n")
        table = int(pdf.split(b"startxref\n")[1].split()[0])
        places = [int(line[:10]) for line in pdf[table:].splitlines()[3:8]]
        assert [pdf[at : at + 8] for at in places] == [b"%d 0 obj\n" % n for n in range(1, 6)]
        assert f"(Total {module.format_euros(total)})".encode() in pdf
        assert f"(Invoice {number})".encode() in pdf


@pytest.mark.nightly
@pytest.mark.usefixtures("spark")
def test_a_dead_letter_is_billed_once_it_is_redriven(
    shoal_queue: Callable[..., Queue], run: Callable[..., ModuleType],
    tmp_path: Path, capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """Long orders are poison at first. After the fix they are redriven, and none is lost."""
    queue = shoal_queue(partitions=1)
    registry, letters = tmp_path / "invoices.db", f"dlq.{queue.topic}"
    where = ("--bootstrap-servers", queue.bootstrap)
    run("feed_orders", *where, "--topic", queue.topic, "--count", 40, "--broken-every", 0,
        "--partitions", 1, "--group", queue.group, "--dead-letters", letters)  # fmt: skip
    words = (
        *where, "--topics", queue.topic, "--group", queue.group, "--registry", registry,
        "--checkpoint", tmp_path / "checkpoint", "--available-now",
    )  # fmt: skip
    run("billing", *words, "--lines-max", 3)
    queue.drained()
    rejected = sum(one["rejected"] for one in printed_batches(capfd))
    assert rejected
    assert len(registered(registry)) == 40 - rejected

    def dead() -> int:
        return len(values(queue.client, letters))

    eventually(lambda: dead() == rejected, what="the long orders are dead letters")
    for again in ((), ("--again",)):  # by mistake, twice
        shoal("share", "redrive", letters, *again, bootstrap=queue.bootstrap)
    run("billing", *words)
    queue.drained()
    rows = registered(registry)
    assert sorted(order for order, *_ in rows) == [f"order-{n:07d}" for n in range(40)]
