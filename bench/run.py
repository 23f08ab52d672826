"""The same loads against Shoal and Apache Kafka, alternating in one run: `make bench`.

Prints one table with medians, ranges and the ratio Shoal / Kafka, and writes it as JSON and as a
picture into bench/results/. `--only WORD` selects rows by a word of their name and may be repeated.
`--scale 0.2` shortens the loads. `--rounds N` sets the number of rounds per broker, after a warm-up
round of half the size. `--side shoal` runs without Kafka. A whole run takes about 40 minutes on two
cores, and 20 GB of disk: topics are deleted after their load.

A load that finds an error (`load_checks.py`) has a row "failed", and the exit code is 1.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from brokers import Broker, Kafka, Shoal, describe_kafka
from confluent_kafka import Consumer, KafkaException, TopicPartition
from in_turn import Side
from load_checks import LoadFailed
from load_setup import BEGIN, END, QUIET, Run, figures_of
from loads import LOADS
from results import Figures, Goal, Results
from whole_run import is_wanted, options_of, run_bench

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Sequence

HERE = Path(__file__).resolve().parent
#: Goals of loads by name or its prefix: goals of ratios to Kafka, and absolute goals.
GOALS: dict[str, dict[str, Goal]] = {
    "produce 1 KB acks=all, lz4": {"rate": Goal(1.0), "cpu_s": Goal(0.7, more=False)},
    "produce 1 KB acks=all, zstd": {"rate": Goal(1.0), "cpu_s": Goal(0.7, more=False)},
    "produce 1 KB": {"rate": Goal(1.5)},
    "produce 100 B": {"rate": Goal(1.1), "cpu_s": Goal(0.5, more=False)},
    "consume": {"rate": Goal(1.1), "cpu_s": Goal(0.5, more=False)},
    "share": {"rate": Goal(1.2)},
    "jobs, 2 partitions, commit a record": {"rate": Goal(2.0), "cpu_s": Goal(0.3, more=False)},
    "jobs, 8 partitions, commit a record": {"rate": Goal(2.0), "cpu_s": Goal(0.3, more=False)},
    "jobs, 2 partitions, commit a poll": {"rate": Goal(1.2)},
    "jobs, 8 partitions, commit a poll": {"rate": Goal(1.2)},
    "synchronous": {
        "rate": Goal(1.4),
        "p50_ms": Goal(0.75, more=False),
        "p99_ms": Goal(0.75, more=False),
    },
    "end to end": {"p50_ms": Goal(0.8, more=False), "p99_ms": Goal(0.8, more=False)},
    "1,000 partitions": {
        "rss_mb": Goal(0.125, more=False),
        "idle_cpu": Goal(0.01, more=False, alone=True),
    },
    "memory": {"idle_mb": Goal(0.125, more=False), "loaded_mb": Goal(0.125, more=False)},
    "start": {"start_s": Goal(0.25, more=False)},
    "restart": {"start_s": Goal(1.0, more=False)},
    "1,000,000 records in flight": {"pause_ms": Goal(20.0, more=False, alone=True)},
    "first record of a new group": {"wait_ms": Goal(200.0, more=False, alone=True)},
    "records of a killed member": {"wait_ms": Goal(1000.0, more=False, alone=True)},
}
#: Seconds after which a load waits in vain, for a dead broker or one with a full disk.
LOAD_TIMEOUT_S = 600
FIGURES = [
    "rate",
    "wait_ms",
    "p50_ms",
    "p99_ms",
    "cpu_s",
    "client_cpu_s",
    "repeated",
    "rss_mb",
    "idle_mb",
    "loaded_mb",
    "idle_cpu",
    "start_s",
    "pause_ms",
    "record_cpu_us",
    "record_bytes",
    "mixed_record_bytes",
]


def goal_of(name: str, figure: str) -> Goal | None:
    if name in GOALS:
        return GOALS[name].get(figure)
    found = next((goals for prefix, goals in GOALS.items() if name.startswith(prefix)), {})
    return found.get(figure)


class Measurable(Side, Protocol):
    """A broker or a cluster that loads run on."""

    @property
    def bootstrap(self) -> str: ...
    @property
    def has_ended(self) -> bool: ...
    def cpu_s(self) -> float: ...
    def rss_mb(self) -> float: ...
    def last_output(self) -> str: ...


def run_load(broker: Measurable, name: str, scale: float, script: str = "loads.py") -> Figures:
    """Run a load of a script once; return its figures with the broker's memory and CPU time.

    Raises LoadFailed if the load ends with an error, or exceeds LOAD_TIMEOUT_S.
    """
    child = subprocess.Popen(
        [sys.executable, str(HERE / script), name, broker.bootstrap, str(scale)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    begin, used, last = 0.0, None, ""
    assert child.stdout is not None
    assert child.stdin is not None
    patience = threading.Timer(LOAD_TIMEOUT_S, _end, (child,))
    patience.daemon = True
    patience.start()
    try:
        for line in child.stdout:
            word = line.strip()
            if word == BEGIN:
                begin = broker.cpu_s()
            if word == END:
                used = broker.cpu_s() - begin
            if word in (BEGIN, END):
                with contextlib.suppress(BrokenPipeError):
                    child.stdin.write("\n")
                    child.stdin.flush()
            last = line
        _, errors = child.communicate()
    finally:
        patience.cancel()
        _end(child)
    if child.returncode < 0:
        raise LoadFailed(
            f"not finished after {LOAD_TIMEOUT_S} s; the broker printed: {broker.last_output()}"
        )
    if child.returncode:
        raise LoadFailed(errors.strip()[-2000:])
    figures: Figures = json.loads(last)
    if used is not None:
        figures["cpu_s"] = used
    return {**figures, "rss_mb": broker.rss_mb()}


def _end(load: subprocess.Popen[str]) -> None:
    """Kill the rest of a load: its child processes keep its output open."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(load.pid, signal.SIGKILL)


def crowd(broker: Broker) -> Figures:
    """Measure memory and idle CPU (cores) with 1,000 partitions and 100 idle connections."""
    child = subprocess.Popen(
        [sys.executable, str(HERE / "loads.py"), "crowd", broker.bootstrap],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    assert child.stdin is not None
    if not child.stdout.readline():
        raise LoadFailed(f"the idle consumers ended with exit code {child.wait(60)}")
    time.sleep(3)
    before, began = broker.cpu_s(), time.perf_counter()
    time.sleep(10)
    idle = (broker.cpu_s() - before) / (time.perf_counter() - began)
    found = {"rss_mb": broker.rss_mb(), "idle_cpu": idle}
    child.stdin.write("\n")
    child.stdin.close()
    child.wait(60)
    return found


def starts(make: Callable[[Path], Broker], folder: Path, options: Any, results: Results) -> None:
    """Measure times to the first metadata answer: empty, and after kill -9 with a full log."""
    for number in range(options.rounds):
        broker = make(folder / f"start-{number}")
        broker.start()
        results.add("start", broker.name, {"start_s": broker.start_s})
        broker.stop()
    broker = make(folder / "restart")
    broker.start()
    try:
        records = int(options.gigabytes * (1 << 30) / 1024)
        filled = run_load(broker, "fill", records / 400_000)
        for _ in range(options.rounds):
            broker.kill9()
            broker.start()
            check_end(broker, filled["topic"], filled["records"])
            results.add("restart after kill -9", broker.name, {"start_s": broker.start_s})
    except (LoadFailed, KafkaException) as error:
        results.fail("restart after kill -9", broker.name, error)
    finally:
        broker.kill9()


def check_end(broker: Broker, topic: str, records: int) -> None:
    """Raise LoadFailed unless the topic's one partition still ends after all its records."""
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "end", **QUIET})
    try:
        _, end = consumer.get_watermark_offsets(TopicPartition(topic, 0), 60)
    finally:
        consumer.close()
    if end != records:
        raise LoadFailed(f"{end} of {records} records are left after kill -9")


def in_flight() -> Figures:
    """Measure the cost of a million share records over 500 share partitions (`in_flight.py`), in
    about half a minute. It reads the broker's internal state, so Kafka has no such figure.
    """
    return figures_of("in_flight.py")


def measure(options: argparse.Namespace, folder: Path, results: Results) -> None:
    """Run all rounds of all loads and add them to `results`."""
    kinds: list[type[Broker]] = [k for k in (Shoal, Kafka) if options.side in ("both", k.name)]

    def wanted(name: str) -> bool:
        return is_wanted(options.only, name)

    loads = [name for name in LOADS if wanted(name)]
    if loads:
        alternate(loads, options, [kind(folder / kind.name) for kind in kinds], results)
    if wanted("1,000 partitions"):
        for kind in kinds:
            broker = kind(folder / f"crowd-{kind.name}")
            broker.start()
            try:
                results.add("1,000 partitions", broker.name, crowd(broker))
            except LoadFailed as error:
                results.fail("1,000 partitions", broker.name, error)
            finally:
                broker.stop()
    if wanted("1,000,000 records in flight"):
        try:
            results.add("1,000,000 records in flight", "shoal", in_flight())
        except LoadFailed as error:
            results.fail("1,000,000 records in flight", "shoal", error)
    if wanted("start") or wanted("restart after kill -9"):
        for kind in kinds:
            starts(kind, folder / f"starts-{kind.name}", options, results)


def run_and_remove(broker: Measurable, name: str, scale: float) -> Figures | None:
    """Run a load once, and delete its topics."""
    figures = run_load(broker, name, scale)
    Run(broker.bootstrap, scale).remove_topics()
    return figures


def alternate(
    loads: list[str],
    options: argparse.Namespace,
    brokers: Sequence[Measurable],
    results: Results,
    label: str = "",
    run: Callable[[Measurable, str, float], Figures | None] = run_and_remove,
) -> None:
    """Run loads on the brokers in turn. "memory" is the brokers' memory before and after.

    `label` follows the names of the loads in the results. `run` runs a load once; it returns None
    if that broker does not have it.
    """
    idle_mb = {}
    try:
        for broker in brokers:
            broker.start()
            idle_mb[broker] = broker.rss_mb()
        for name in loads:
            for number in range(-1, options.rounds):
                for broker in brokers if number % 2 == 0 else brokers[::-1]:
                    scale = options.scale if number >= 0 else options.scale / 2
                    if not results.has_failed(name + label):
                        _round(broker, name, scale, results, label, run, counts=number >= 0)
            if ended := next((broker for broker in brokers if broker.has_ended), None):
                results.fail(name + label, ended.name, f"it ended: {ended.last_output()}")
                return
        for broker in brokers:
            found = {"idle_mb": idle_mb[broker], "loaded_mb": broker.rss_mb()}
            results.add(f"memory{label}", broker.name, found)
    finally:
        for broker in brokers:
            broker.kill9()


def _round(
    broker: Measurable,
    name: str,
    scale: float,
    results: Results,
    label: str,
    run: Callable[[Measurable, str, float], Figures | None],
    *,
    counts: bool,
) -> None:
    """Run one round. A warm-up round does not count."""
    shown = name + label
    try:
        figures = run(broker, name, scale)
    except (LoadFailed, KafkaException) as error:
        results.fail(shown, broker.name, error)
        return
    if counts and figures is not None:
        results.add(shown, broker.name, figures)
        print(f"{shown:42} {broker.name:6} {json.dumps(figures)}", flush=True)


def main() -> None:
    parser = options_of(__doc__)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--gigabytes", type=float, default=5.0, help="log size of the restart")
    options = parser.parse_args()
    run_bench(
        "one-broker",
        partial(measure, options),
        FIGURES,
        goal_of,
        into=options.into,
        **describe_kafka(),
        scale=options.scale,
    )


if __name__ == "__main__":
    main()
