"""Three brokers of Shoal against three of Apache Kafka in one run: `make bench-cluster`.

Prints a table of medians with spread and writes it into bench/results/ as cluster.json, .md and
.png. `--only WORD` picks loads by a word of their name, `--rounds N` says how often each is run on
each cluster (of three unless told), `--partitions N` how many the crowded cluster has (0: none).
A load begins no round after `--bound SECONDS` of it. A run that is interrupted shows what it has.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from cluster_loads import LOADS, QUIET, create
from clusters import Cluster, KafkaNode, ShoalNode, eventually
from confluent_kafka import Producer
from report import show

HERE = Path(__file__).resolve().parent
Results = dict[str, dict[str, list[Any]]]
#: Ratios to Kafka that are aimed at: load -> figure -> (goal, more is better).
GOALS: dict[str, dict[str, tuple[float, bool]]] = {
    "produce 1 KB, acks=all": {"rate": (1.0, True), "cpu_s_gb": (0.6, False)},
    "transactions of 100 ms": {"rate": (1.0, True)},
    "kill -9 of a leader": {"pause_s": (0.5, False)},
    "kill -9 of the controller": {"pause_s": (0.5, False)},
    "kill -9 of a share-partition leader": {"pause_s": (0.5, False)},
    "rolling restart": {"pause_s": (1.0, False)},
    "create 1,000 topics x 3": {"whole_s": (1.0, False), "rss_mb": (1.0, False)},
    "many partitions": {
        "rss_mb": (1.0, False),
        "start_s": (1.0, False),
        "failover_s": (1.0, False),
    },
}
#: Loads whose first round warms the JVM and the page cache, and is not counted.
WARMED = ("produce 1 KB, acks=all", "transactions of 100 ms")
#: Records by themselves, and those before that are not counted.
ALONE, ALONE_WARM = 1_000, 200
FIGURES = ("rate", "cpu_s_gb", "pause_s", "errors", "whole_s", "start_s", "failover_s", "sync_s",
           "rss_mb", "record_cpu_ms", "record_ms")  # fmt: skip


def one_by_one(cluster: Cluster) -> dict[str, float]:
    """What a record by itself costs all brokers, and how long acks=all takes then."""
    (topic,) = create(cluster, 1)
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all", "linger.ms": 0,
                         **QUIET})  # fmt: skip
    times: list[float] = []
    for number in range(ALONE_WARM + ALONE):
        if number == ALONE_WARM:
            before = cluster.cpu_s()
        sent = time.perf_counter()
        producer.produce(topic, b"v")
        assert producer.flush(60) == 0
        times.append((time.perf_counter() - sent) * 1000)
    return {
        "record_cpu_ms": (cluster.cpu_s() - before) / ALONE * 1000,
        "record_ms": statistics.median(times[ALONE_WARM:]),
    }


def crowded(cluster: Cluster, partitions: int) -> dict[str, float]:
    """Memory with so many partitions of three replicas, a broker's death, and its return."""

    def told(what: str) -> None:
        print(f"  {cluster.name}: {what}, {time.perf_counter() - began:.1f} s", flush=True)

    cluster.start()
    try:
        began = time.perf_counter()
        for first in range(0, partitions, 1_000):
            create(cluster, min(1_000, partitions - first))
            told(f"{min(first + 1_000, partitions)} made")
        made_s = time.perf_counter() - began
        admin = cluster.admin()
        eventually(lambda: cluster.in_sync(admin), "the partitions are not in sync")
        told("in sync")
        rss_mb = cluster.rss_mb()
        record = one_by_one(cluster)
        victim = next(id for id in cluster.nodes if id != cluster.controller())
        told("records by themselves")
        killed = time.perf_counter()
        cluster.nodes[victim].kill9()

        def moved() -> bool:
            topics = admin.list_topics(timeout=60).topics.values()
            leaders = {p.leader for topic in topics for p in topic.partitions.values()}
            return victim not in leaders and -1 not in leaders

        eventually(moved, "partitions are still led by a broker that is dead")
        failover_s = time.perf_counter() - killed
        told("led again")
        began = time.perf_counter()
        cluster.nodes[victim].start()
        start_s = time.perf_counter() - began
        eventually(lambda: cluster.in_sync(admin), "the broker that is back is not in sync")
        return {
            "whole_s": made_s, "rss_mb": rss_mb, "failover_s": failover_s, "start_s": start_s,
            "sync_s": time.perf_counter() - began, **record,
        }  # fmt: skip
    finally:
        cluster.stop()


def measure(options: argparse.Namespace, folder: Path, results: Results) -> None:
    """All rounds of all loads, into `results`: load, then cluster, then a list of figures."""
    wanted = [n for n in LOADS if not options.only or any(w in n for w in options.only)]
    kinds = (ShoalNode, KafkaNode)
    clusters = [Cluster(kind, folder / kind.name) for kind in kinds] if wanted else []

    def note(name: str, cluster: Cluster, figures: dict[str, float]) -> None:
        results.setdefault(name, {}).setdefault(cluster.name, []).append(figures)
        print(f"{name:38} {cluster.name:6} {json.dumps(figures)}", flush=True)

    try:
        for cluster in clusters:
            cluster.start()
            note("start of three", cluster, {"start_s": cluster.start_s})
        for name in wanted:
            began = time.monotonic()
            for number in range(-1 if name in WARMED else 0, options.rounds):
                if options.bound and time.monotonic() - began > options.bound:
                    break
                for cluster in clusters if number % 2 == 0 else clusters[::-1]:
                    figures = LOADS[name](cluster, options.scale)
                    if number >= 0:
                        note(name, cluster, figures)
    finally:
        for cluster in clusters:
            cluster.stop()
    if options.partitions and (not options.only or "partitions" in options.only):
        for kind in kinds:
            cluster = Cluster(kind, folder / f"crowd-{kind.name}")
            note("many partitions", cluster, crowded(cluster, options.partitions))
            shutil.rmtree(folder / f"crowd-{kind.name}", ignore_errors=True)


def summary(results: Results) -> list[dict[str, Any]]:
    """A row a figure: medians and spread of both clusters, the ratio, the goal, the verdict."""
    rows = []
    for name, by_cluster in results.items():
        for figure in FIGURES:
            sides = {c: sorted(f[figure] for f in found if figure in f)
                     for c, found in by_cluster.items()}  # fmt: skip
            if not all(sides.get(c) for c in ("shoal", "kafka")):
                continue
            ours, theirs = (statistics.median(sides[c]) for c in ("shoal", "kafka"))
            ratio = ours / theirs if theirs else (1.0 if not ours else float("inf"))
            goal, more = GOALS.get(name, {}).get(figure, (None, True))
            met = None if goal is None else (ratio >= goal if more else ratio <= goal)
            rows.append({
                "load": name, "figure": figure, "shoal": ours, "kafka": theirs, "ratio": ratio,
                "spread": {c: (v[0], v[-1]) for c, v in sides.items()}, "goal": goal,
                "more": more, "met": met, "rounds": len(sides["shoal"]),
            })  # fmt: skip
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("--partitions", type=int, default=1_000)
    parser.add_argument("--bound", type=float, default=0.0)
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="shoal-bench-"))
    results: Results = {}
    try:
        measure(options, folder, results)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    show(summary(results), HERE / "results", "cluster")


if __name__ == "__main__":
    main()
