"""Three brokers of Shoal against three of Apache Kafka in one run: `make bench-cluster`.

Prints a table of medians and ranges and writes it into bench/results/. `--only WORD` selects loads
by a word of their name. `--rounds N` sets the number of rounds per cluster, by default three.
BENCH_KILLS sets it for loads that kill a broker, by default ten. `--partitions N` is the size of
the crowded cluster, by default 10,000; 0 means none. `--side shoal` runs without Kafka. An
interrupted run prints its figures so far.

Many partitions: Kafka runs with its default heap. If it does not survive, the bench halves the
number until it does, prints that number, and compares both clusters there. Shoal also runs with
all.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import time
from functools import partial
from typing import TYPE_CHECKING

from brokers import HEAP, describe_kafka
from cluster_loads import LOADS, QUIET, create
from clusters import Cluster, KafkaNode, ShoalNode, eventually
from confluent_kafka import KafkaException, Producer
from load_checks import LoadFailed, Sent
from results import Figures, Goal, Results
from whole_run import is_wanted, options_of, run_bench

if TYPE_CHECKING:
    import argparse
    from pathlib import Path

#: Goals by load and figure, as ratios to Kafka.
GOALS: dict[str, dict[str, Goal]] = {
    "produce 1 KB, acks=all": {"rate": Goal(1.0), "cpu_s_gb": Goal(0.6, more=False)},
    "transactions of 100 ms": {"rate": Goal(1.0)},
    "kill -9 of a leader": {"pause_s": Goal(0.5, more=False)},
    "kill -9 of the controller": {"pause_s": Goal(0.5, more=False)},
    "kill -9 of a share-partition leader": {"pause_s": Goal(0.5, more=False)},
    "rolling restart": {"pause_s": Goal(1.0, more=False)},
    "create 1,000 topics x 3": {"whole_s": Goal(1.0, more=False), "rss_mb": Goal(1.0, more=False)},
}
#: Goals of the crowded cluster, whose load is named after its size.
CROWDED = {figure: Goal(1.0, more=False) for figure in ("rss_mb", "start_s", "failover_s")}
#: Loads whose first round warms up the JVM and the page cache and does not count.
WARMED = ("produce 1 KB, acks=all", "transactions of 100 ms")
#: Seconds of a round on both clusters on an idle machine of two cores, for the estimate.
ROUND_S = {
    "produce 1 KB, acks=all": 15,
    "transactions of 100 ms": 25,
    "rolling restart": 60,
    "create 1,000 topics x 3": 15,
}
KILL_ROUND_S, CROWD_S = 40, 300
#: Minimum partitions of the crowded cluster for a comparison.
PARTITIONS_MIN = 500
#: Number of single records, and of warm-up records before them.
ALONE, ALONE_WARM = 1_000, 200
FIGURES = (
    "rate",
    "cpu_s_gb",
    "pause_s",
    "errors",
    "whole_s",
    "start_s",
    "failover_s",
    "sync_s",
    "rss_mb",
    "record_cpu_ms",
    "record_ms",
    "partitions",
)


def goal_of(name: str, figure: str) -> Goal | None:
    if name.endswith(" partitions x 3"):
        return CROWDED.get(figure)
    return GOALS.get(name, {}).get(figure)


def one_by_one(cluster: Cluster) -> Figures:
    """Measure the CPU of all brokers for a single record, and its time with acks=all."""
    (topic,) = create(cluster, 1)
    producer = Producer(
        {"bootstrap.servers": cluster.bootstrap, "acks": "all", "linger.ms": 0, **QUIET}
    )
    times: list[float] = []
    sent = Sent()
    for number in range(ALONE_WARM + ALONE):
        if number == ALONE_WARM:
            before = cluster.cpu_s()
        began = time.perf_counter()
        sent.note(0, b"v")
        producer.produce(topic, b"v", partition=0, on_delivery=sent)
        sent.check(producer.flush(60))
        times.append((time.perf_counter() - began) * 1000)
    return {
        "record_cpu_ms": (cluster.cpu_s() - before) / ALONE * 1000,
        "record_ms": statistics.median(times[ALONE_WARM:]),
    }


def crowded(cluster: Cluster, partitions: int) -> Figures:
    """Measure memory with `partitions` partitions of three replicas, a broker's failure and return.

    Raises LoadFailed if a step exceeds BENCH_WAIT, or a broker ends or prints that its heap is
    full.
    """
    began = time.perf_counter()

    def note(what: str) -> None:
        print(f"  {cluster.name}: {what}, {time.perf_counter() - began:.1f} s", flush=True)
        cluster.check_alive()

    try:
        cluster.start()
        began = time.perf_counter()
        for first in range(0, partitions, 1_000):
            create(cluster, min(1_000, partitions - first))
            note(f"{min(first + 1_000, partitions)} partitions created")
        made_s = time.perf_counter() - began
        admin = cluster.admin()
        eventually(lambda: cluster.in_sync(admin), "the partitions are not in sync")
        note("in sync")
        rss_mb = cluster.rss_mb()
        record = one_by_one(cluster)
        victim = next(id for id in cluster.nodes if id != cluster.controller())
        note("single records sent")
        killed = time.perf_counter()
        cluster.nodes[victim].kill9()

        def moved() -> bool:
            topics = admin.list_topics(timeout=60).topics.values()
            leaders = {p.leader for topic in topics for p in topic.partitions.values()}
            return victim not in leaders and -1 not in leaders

        eventually(moved, "partitions are still led by a dead broker")
        failover_s = time.perf_counter() - killed
        note("led again")
        returned = time.perf_counter()
        cluster.nodes[victim].start()
        start_s = time.perf_counter() - returned
        eventually(lambda: cluster.in_sync(admin), "the restarted broker is not in sync")
        sync_s = time.perf_counter() - returned
        note("in sync again")
        return {
            "whole_s": made_s,
            "rss_mb": rss_mb,
            "failover_s": failover_s,
            "start_s": start_s,
            "sync_s": sync_s,
            **record,
        }
    except KafkaException as error:
        raise LoadFailed(str(error)) from None
    finally:
        cluster.kill9()


def crowd(
    sides: list[type[ShoalNode] | type[KafkaNode]], partitions: int, folder: Path, results: Results
) -> None:
    """Compare crowded clusters at the largest number of partitions that Kafka survives."""

    def once(kind: type[ShoalNode] | type[KafkaNode], count: int) -> Figures:
        place = folder / f"crowd-{kind.name}-{count}"
        try:
            return crowded(Cluster(kind, place), count)
        finally:
            shutil.rmtree(place, ignore_errors=True)

    survived = partitions
    while KafkaNode in sides:
        try:
            note(results, name_of(survived), "kafka", once(KafkaNode, survived))
            break
        except LoadFailed as error:
            print(f"Kafka does not survive {survived:,} partitions with a heap of {HEAP}: {error}")
            if survived // 2 < PARTITIONS_MIN:
                results.fail(name_of(survived), "kafka", error)
                return
            survived //= 2
    if KafkaNode in sides:
        results.notes.append(f"Kafka survived {survived:,} partitions with a heap of {HEAP}.")
        print(results.notes[-1], flush=True)
    for count in sorted({survived, partitions}) if ShoalNode in sides else ():
        try:
            note(results, name_of(count), "shoal", once(ShoalNode, count))
        except LoadFailed as error:
            results.fail(name_of(count), "shoal", error)


def name_of(partitions: int) -> str:
    return f"{partitions:,} partitions x 3"


def note(results: Results, name: str, side: str, figures: Figures) -> None:
    results.add(name, side, figures)
    print(f"{name:38} {side:6} {json.dumps(figures)}", flush=True)


def rounds_of(name: str, options: argparse.Namespace) -> int:
    return options.kills if name.startswith("kill -9") else options.rounds


def estimate_s(names: list[str], options: argparse.Namespace) -> float:
    """Return the seconds of a run on an idle machine of two cores."""
    rounds = {n: rounds_of(n, options) + (n in WARMED) for n in names}
    whole = sum(count * ROUND_S.get(name, KILL_ROUND_S) for name, count in rounds.items())
    return whole + (CROWD_S * options.partitions / 10_000 if "partitions" in options.runs else 0)


def measure(options: argparse.Namespace, folder: Path, results: Results) -> None:
    """Run all rounds of all loads and add them to `results`."""
    names = [n for n in LOADS if is_wanted(options.only, n)]
    sides = [k for k in (ShoalNode, KafkaNode) if options.side in ("both", k.name)]
    print(f"About {estimate_s(names, options) / 60:.0f} minutes on a quiet machine.", flush=True)
    clusters = [Cluster(kind, folder / kind.name) for kind in sides] if names else []
    try:
        for cluster in clusters:
            cluster.start()
            note(results, "start of three", cluster.name, {"start_s": cluster.start_s})
        for name in names:
            for number in range(-1 if name in WARMED else 0, rounds_of(name, options)):
                for cluster in clusters if number % 2 == 0 else clusters[::-1]:
                    _round(cluster, name, options.scale, results, counts=number >= 0)
    finally:
        for cluster in clusters:
            cluster.kill9()
    if options.partitions and "partitions" in options.runs:
        crowd(sides, options.partitions, folder, results)


def _round(cluster: Cluster, name: str, scale: float, results: Results, *, counts: bool) -> None:
    """Run one round unless the load has failed. A failed one may leave brokers down: heal them."""
    if results.has_failed(name):
        return
    try:
        figures = LOADS[name](cluster, scale)
        cluster.check_alive()
    except (LoadFailed, KafkaException) as error:
        results.fail(name, cluster.name, error)
        cluster.heal()
        return
    if counts:
        note(results, name, cluster.name, figures)


def main() -> None:
    parser = options_of(__doc__)
    parser.add_argument("--kills", type=int, default=int(os.environ.get("BENCH_KILLS", "10")))
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--partitions", type=int, default=10_000)
    options = parser.parse_args()
    options.runs = options.only or ["partitions"]
    run_bench(
        "cluster",
        partial(measure, options),
        FIGURES,
        goal_of,
        into=options.into,
        **describe_kafka(),
        scale=options.scale,
    )


if __name__ == "__main__":
    main()
