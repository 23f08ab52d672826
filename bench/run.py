"""The same loads against Shoal and Apache Kafka, alternating in one run: `make bench`.

Prints one table with medians, spread and the ratio Shoal / Kafka, and writes it as JSON and as a
picture into bench/results/. `--only WORD` picks rows by a word of their name, as often as it is
given; `--scale 0.2` makes the loads shorter; `--rounds N` sets how often each is run on each
broker, after one round that warms both and is not counted. Rows of what is aimed at by itself,
not beside Kafka, have a goal without a ratio, and some of them no figure of Kafka's. All of it is
half an hour on two cores, and 20 GB of disk: topics are deleted when their load has run.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from brokers import Broker, Kafka, Shoal
from filling import FILLED, Run
from loads import LOADS
from report import show

HERE = Path(__file__).resolve().parent
#: Ratios to Kafka that are aimed at: (figure, goal, more is better).
GOALS: dict[str, list[tuple[str, float, bool]]] = {
    "produce 1 KB": [("rate", 1.5, True)],
    "produce 100 B": [("rate", 1.1, True), ("cpu_s", 0.5, False)],
    "consume": [("rate", 1.1, True), ("cpu_s", 0.5, False)],
    "share": [("rate", 1.2, True)],
    "jobs, 2 partitions, commit a record": [("rate", 2.0, True), ("cpu_s", 0.3, False)],
    "jobs, 8 partitions, commit a record": [("rate", 2.0, True), ("cpu_s", 0.3, False)],
    "jobs, 2 partitions, commit a poll": [("rate", 1.2, True)],
    "jobs, 8 partitions, commit a poll": [("rate", 1.2, True)],
    "synchronous": [("rate", 1.4, True), ("p50_ms", 0.75, False), ("p99_ms", 0.75, False)],
    "end to end": [("p50_ms", 0.8, False), ("p99_ms", 0.8, False)],
    "1,000 partitions": [("rss_mb", 0.125, False)],
    "memory": [("idle_mb", 0.125, False), ("loaded_mb", 0.125, False)],
    "start": [("start_s", 0.25, False)],
    "restart": [("start_s", 1.0, False)],
}
#: What is aimed at by itself, by load and figure: so much at the most.
LIMITS = {
    ("1,000 partitions", "idle_cpu"): 0.01,
    ("1,000,000 records in flight", "pause_ms"): 20.0,
    ("first record of a new group", "wait_ms"): 200.0,
    ("records of a killed member", "wait_ms"): 1000.0,
}
#: A load that takes longer waits for a broker that is gone, or whose disk is full.
LOAD_TIMEOUT_S = 600
FIGURES = [
    "rate", "wait_ms", "p50_ms", "p99_ms", "cpu_s", "client_cpu_s", "rss_mb", "idle_mb",
    "loaded_mb", "idle_cpu", "start_s", "pause_ms", "record_cpu_us", "record_bytes",
    "mixed_record_bytes",
]  # fmt: skip


def goals_of(name: str) -> list[tuple[str, float, bool]]:
    if name in GOALS:
        return GOALS[name]
    return next((goals for prefix, goals in GOALS.items() if name.startswith(prefix)), [])


def run_load(broker: Broker, name: str, scale: float) -> dict[str, float]:
    """One run of a load, with the broker's CPU seconds (from where a topic is filled, if the load
    fills one first) and memory."""
    child = subprocess.Popen(
        [sys.executable, str(HERE / "loads.py"), name, broker.bootstrap, str(scale)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    before, last = broker.cpu_s(), ""
    assert child.stdout is not None
    patience = threading.Timer(LOAD_TIMEOUT_S, _end, (child,))
    patience.daemon = True
    patience.start()
    try:
        for line in child.stdout:
            if line.startswith(FILLED):
                before = broker.cpu_s()
            last = line
        _, errors = child.communicate()
    finally:
        patience.cancel()
        _end(child)
    if child.returncode < 0:
        raise SystemExit(
            f"{broker.name}: {name}: not through after {LOAD_TIMEOUT_S} s; the broker's last words:"
            f" {broker.last_words()}"
        )
    if child.returncode:
        raise SystemExit(f"{broker.name}: {name}: {errors[-2000:]}")
    figures: dict[str, float] = json.loads(last)
    return {**figures, "cpu_s": broker.cpu_s() - before, "rss_mb": broker.rss_mb()}


def _end(load: subprocess.Popen[str]) -> None:
    """Kill what is left of a load: processes that it started hold its output open."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(load.pid, signal.SIGKILL)


def crowd(broker: Broker) -> dict[str, float]:
    """Memory and idle CPU (share of a core) with 1,000 partitions and 100 idle connections."""
    child = subprocess.Popen(
        [sys.executable, str(HERE / "loads.py"), "crowd", broker.bootstrap],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert child.stdout is not None and child.stdin is not None
    child.stdout.readline()
    time.sleep(3)
    before, began = broker.cpu_s(), time.perf_counter()
    time.sleep(10)
    idle = (broker.cpu_s() - before) / (time.perf_counter() - began)
    found = {"rss_mb": broker.rss_mb(), "idle_cpu": idle}
    child.stdin.write("\n")
    child.stdin.close()
    child.wait(60)
    return found


def starts(make: Callable[[Path], Broker], folder: Path, rounds: int, gigabytes: float) -> Any:
    """Times to the first metadata answer: of an empty broker, and after kill -9 with a full log."""
    empty, killed = [], []
    for number in range(rounds):
        broker = make(folder / f"start-{number}")
        broker.start()
        empty.append({"start_s": broker.start_s})
        broker.stop()
    broker = make(folder / "restart")
    broker.start()
    records = int(gigabytes * (1 << 30) / 1024)
    for _ in range(rounds):
        if records:
            run_load(broker, "produce 1 KB acks=1", records / 400_000)
        records = 0
        broker.kill9()
        broker.start()
        killed.append({"start_s": broker.start_s})
    broker.stop()
    return empty, killed


def in_flight() -> dict[str, float]:
    """What a million share records over 500 share partitions cost Shoal (`in_flight.py`): it looks
    into the broker, so there is no such figure of Kafka. Half a minute of waiting and CPU."""
    ended = subprocess.run(
        [sys.executable, str(HERE / "in_flight.py")], capture_output=True, text=True, timeout=600
    )
    if ended.returncode:
        raise SystemExit(f"in_flight.py: {ended.stderr[-2000:]}")
    print(ended.stdout, end="", flush=True)
    figures: dict[str, float] = json.loads(ended.stdout.splitlines()[-1])
    return figures


def measure(options: argparse.Namespace, folder: Path) -> dict[str, dict[str, list[Any]]]:
    """All rounds of all loads: load, then broker, then a list of figures."""
    results: dict[str, dict[str, list[Any]]] = {}

    def wanted(name: str) -> bool:
        return not options.only or any(word in name for word in options.only)

    loads = [name for name in LOADS if wanted(name)]
    if loads:
        alternate(loads, options, folder, results)
    if wanted("1,000 partitions"):
        for make in (Shoal, Kafka):
            broker = make(folder / f"crowd-{make.name}")
            broker.start()
            results.setdefault("1,000 partitions", {})[make.name] = [crowd(broker)]
            broker.stop()
    if wanted("1,000,000 records in flight"):
        results["1,000,000 records in flight"] = {"shoal": [in_flight()]}
    if wanted("start") or wanted("restart after kill -9"):
        for make in (Shoal, Kafka):
            empty, killed = starts(make, folder / make.name, options.rounds, options.gigabytes)
            results.setdefault("start", {})[make.name] = empty
            results.setdefault("restart after kill -9", {})[make.name] = killed
    return results


def alternate(
    loads: list[str],
    options: argparse.Namespace,
    folder: Path,
    results: dict[str, dict[str, list[Any]]],
) -> None:
    """Run loads on both brokers in turn; "memory" is what the brokers hold before and after."""
    brokers: list[Broker] = [Shoal(folder / "shoal"), Kafka(folder / "kafka")]
    for broker in brokers:
        broker.start()
        results.setdefault("memory", {})[broker.name] = [{"idle_mb": broker.rss_mb()}]
    for name in loads:
        for number in range(-1, options.rounds):
            order = brokers if number % 2 == 0 else brokers[::-1]
            for broker in order:
                figures = run_load(broker, name, options.scale)
                Run(broker.bootstrap, options.scale).remove_topics()
                if number < 0:
                    continue  # a round that warms the JVM and the page cache
                results.setdefault(name, {}).setdefault(broker.name, []).append(figures)
                print(f"{name:42} {broker.name:6} {json.dumps(figures)}", flush=True)
    for broker in brokers:
        results["memory"][broker.name][0]["loaded_mb"] = broker.rss_mb()
        broker.stop()


def summary(results: dict[str, dict[str, list[Any]]]) -> list[dict[str, Any]]:
    """A row a figure: medians and spread of both brokers, the ratio, the goal, and the verdict.
    Kafka's median and the ratio are None where it has no such figure."""
    rows = []
    for name, by_broker in results.items():
        goals = {figure: (goal, more) for figure, goal, more in goals_of(name)}
        for key in FIGURES:
            sides = {b: sorted(f[key] for f in found if key in f) for b, found in by_broker.items()}
            if not all(sides.values()):
                continue
            ours = statistics.median(sides["shoal"])
            theirs = statistics.median(sides["kafka"]) if "kafka" in sides else None
            ratio = None if theirs is None else ours / theirs if theirs else float("inf")
            limit = LIMITS.get((name, key))
            goal, more = goals.get(key, (limit, limit is None))
            found = ours if limit is not None else ratio
            met = None
            if goal is not None and found is not None:
                met = found >= goal if more else found <= goal
            rows.append({
                "load": name, "figure": key, "shoal": ours, "kafka": theirs, "ratio": ratio,
                "spread": {b: (v[0], v[-1]) for b, v in sides.items()}, "goal": goal,
                "by_itself": limit is not None, "more": more, "met": met,
            })  # fmt: skip
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("--gigabytes", type=float, default=5.0, help="log size of the restart")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="shoal-bench-"))
    try:
        results = measure(options, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    show(summary(results), HERE / "results")


if __name__ == "__main__":
    main()
