"""Shoal's additions to share groups, compared with the same load without them: `make bench-queues`.

Key order, a hot key, tenants, delayed records, dead letters with a killed broker, readers and
members of key ranges, key workers, and finished offsets. Kafka has none of them, so every figure is
Shoal's and has an absolute goal. Only members of consumer groups are compared: with a plain member,
a share group, and Confluent's Parallel Consumer. Prints one table and writes it into
bench/results/queues.json and .md. `--only WORD` selects loads, `--rounds N` repeats them. A load
that finds an error (`load_checks.py`) has a row "failed", and the exit code is 1.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import multiprocessing
import random
import resource
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import fair_tenants
from brokers import Measured
from confluent_kafka import Consumer, KafkaException, Producer, ShareConsumer
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from key_range_balance import key_range_balance
from key_workers import key_workers, parallel_consumer
from load_checks import (
    LoadFailed,
    Sent,
    Stall,
    Work,
    check_commit,
    check_errors,
    random_values,
    sent_values,
)
from load_setup import CHECKED, QUIET, Figures, Run, figures_of
from loads import check_processes, percentiles
from range_members import idle_members, working_members
from range_readers import key_ranges
from results import Goal, Results
from shoal.client.client import Client
from shoal.client.errors import ClientError
from shoal.client.share.member import AcknowledgeType, AcquireMode
from whole_run import is_wanted, options_of, run_bench

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator
    from pathlib import Path

DLQ = "errors.deadletterqueue"
WRITTEN = "shoal_share_group_dead_letters_total"


def group_with(run: Run, **configs: str) -> str:
    """Return a share group with configs; `_` in their names stands for `.`."""
    group = run.share_group()
    if configs:
        run.configure_group(group, {name.replace("_", "."): v for name, v in configs.items()})
    return group


def fill(
    run: Run,
    topic: str,
    keys: list[int],
    headers: Callable[[int], Any] = lambda _: None,
    batch: int = 10,
) -> Sent:
    """Write 100 B for each of the keys in small batches; key n goes to partition n % 2."""
    producer = Producer(
        {
            "bootstrap.servers": run.bootstrap,
            "linger.ms": 5,
            "batch.num.messages": batch,
            "queue.buffering.max.messages": 200_000,
            **QUIET,
        }
    )
    values = random_values(100)
    sent = sent_values(values, (key % 2 for key in keys))
    for n, key in enumerate(keys):
        if not n % 100:
            while len(producer) > 100_000:
                producer.poll(0.01)
            producer.poll(0)
        producer.produce(
            topic,
            values[n % len(values)],
            f"k{key}",
            partition=key % 2,
            headers=headers(n),
            on_delivery=sent,
        )
    sent.check(producer.flush(120))
    return sent


def member(bootstrap: str, group: str, **conf: Any) -> ShareConsumer:
    return ShareConsumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "share.acknowledgement.mode": "explicit",
            **CHECKED,
            **QUIET,
            **conf,
        }
    )


def _work(
    bootstrap: str,
    group: str,
    topic: str,
    work_s: float,
    polled: int,
    each: bool,
    go: Any,
    end: Any,
    work: Work,
    out: Any,
) -> None:
    """Acquire records, process each, commit each poll or record. Counts the first completions of
    key 0 and of other keys.
    """
    consumer = member(bootstrap, group, **{"max.poll.records": polled})
    consumer.subscribe([topic])
    go.wait()

    def commit(messages: Any) -> None:
        check_commit(consumer.commit_sync(10))
        finished = work.finish(messages)
        hot = sum(message.key() == b"k0" for message in finished)
        with out.get_lock():
            out[0] += hot
            out[1] += len(finished) - hot

    while not end.is_set():
        messages = consumer.poll(0.2)
        check_errors(messages)
        for message in messages:
            if work_s:
                time.sleep(work_s)
            consumer.acknowledge(message)
            if each:
                commit([message])
        if messages and not each:
            commit(messages)
    consumer.close()


def worked(
    run: Run,
    group: str,
    topic: str,
    until: Callable[[Any], bool],
    sent: Sent,
    *,
    work_s: float = 0,
    polled: int = 500,
    each: bool = False,
    warm: int = 500,
) -> tuple[float, float]:
    """Run eight members until `until` returns true; return the rates of hot and other records after
    the first `warm` ones.
    """
    out = multiprocessing.Array("q", 2)
    go, end = multiprocessing.Event(), multiprocessing.Event()
    work = Work(max(sent.counts) + 1, max(sent.counts.values()))
    words = (run.bootstrap, group, topic, work_s, polled, each, go, end, work, out)
    members = [multiprocessing.Process(target=_work, args=words) for _ in range(8)]
    for one in members:
        one.start()
    go.set()
    stall = Stall(sum(sent.counts.values()))
    while sum(out[:]) < warm:
        time.sleep(0.002)
        check_processes(members)
        stall.look(sum(out[:]))
    begun, before = time.perf_counter(), out[:]
    while not until(out):
        time.sleep(0.002)
        check_processes(members)
        stall.look(sum(out[:]))
    elapsed, after = time.perf_counter() - begun, out[:]
    end.set()
    for one in members:
        one.join(30)
    check_processes(members)
    run.verify(topic, sent)
    return (after[0] - before[0]) / elapsed, (after[1] - before[1]) / elapsed


def ended_cpu_s() -> float:
    """Return the CPU seconds of child processes that have ended, such as members."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def key_order(broker: Measured, run: Run, counts: tuple[int, int], *, each: bool) -> Figures:
    """10,000 keys, 8 members, 100 B: `counts` records unordered, and ordered by key."""
    found: Figures = {}
    kinds = (("none", "unordered"), ("key", "ordered"))
    for (ordering, kind_name), wanted in zip(kinds, counts, strict=True):
        count, topic = run.count(wanted), run.topic(2)
        sent = fill(run, topic, random.Random(1).choices(range(10_000), k=count))
        group = group_with(run, share_ordering=ordering)
        cpu, members_cpu = broker.cpu_s(), ended_cpu_s()
        rates = worked(
            run,
            group,
            topic,
            lambda out, n=count: sum(out[:]) >= n,
            sent,
            each=each,
            warm=count // 20,
        )
        found[f"{kind_name}_per_s"] = sum(rates)
        found[f"{kind_name}_cpu_us"] = (broker.cpu_s() - cpu) / count * 1e6
        found[f"{kind_name}_members_cpu_us"] = (ended_cpu_s() - members_cpu) / count * 1e6
    return {
        **found,
        "ratio": found["ordered_per_s"] / found["unordered_per_s"],
        "ratio_by_cpu": _cpu_us(found, "unordered") / _cpu_us(found, "ordered"),
    }


def _cpu_us(found: Figures, kind_name: str) -> float:
    """Return CPU us per record of broker and members."""
    total: float = found[f"{kind_name}_cpu_us"] + found[f"{kind_name}_members_cpu_us"]
    return total


def hot_key(_broker: Measured, run: Run) -> Figures:
    """Half of all records have one key; 8 members with 5 ms of work. Compares the other keys' rate
    with and without the hot key.
    """
    rng, seconds = random.Random(2), max(5.0, 15 * run.scale)
    rates = {}
    for hot in (False, True):
        topic, group = run.topic(2), group_with(run, share_ordering="key")
        # The same number of other records both times, and more than are processed.
        total = 80_000 if hot else 40_000
        keys = [0 if hot and n % 2 else rng.randint(1, 10_000) for n in range(total)]
        sent = fill(run, topic, keys)
        end = []

        def over(_: Any, end: list[float] = end) -> bool:
            end[:] = end or [time.monotonic() + seconds]
            return time.monotonic() > end[0]

        rates[hot] = worked(run, group, topic, over, sent, work_s=0.005, polled=10)
    return {
        "others_per_s": rates[False][1],
        "others_beside_hot_per_s": rates[True][1],
        "hot_per_s": rates[True][0],
        "ratio": rates[True][1] / rates[False][1],
    }


def _listen(bootstrap: str, group: str, topic: str, end: Any, work: Work, out: Any) -> None:
    """Report the delay in seconds of each record that was completed for the first time."""
    consumer = member(bootstrap, group)
    consumer.subscribe([topic])
    late: list[float] = []
    while not end.is_set():
        messages = consumer.poll(0.2)
        now = time.time()
        check_errors(messages)
        for message in messages:
            consumer.acknowledge(message)
        if messages:
            check_commit(consumer.commit_sync(10))
        new = work.finish(messages)
        late += [now - float(dict(m.headers())["shoal.deliver.at"]) / 1000 for m in new]
    consumer.close()
    out.put(late)


def delayed(broker: Measured, run: Run) -> Figures:
    """100,000 records, delayed for about 40 s and due over 20 s: bytes each, lateness."""
    count = run.count(100_000)
    topic = run.topic(2)
    group = group_with(run, share_delay_max_ms="3600000")
    begin_ms = int(time.time() * 1000) + 45_000
    due = lambda n: [("shoal.deliver.at", str(begin_ms + n // 5).encode())]  # noqa: E731
    sent = fill(run, topic, list(range(count)), due, batch=1000)
    work = Work(2, max(sent.counts.values()))
    before = broker.rss_mb()
    end, out = multiprocessing.Event(), multiprocessing.Queue()
    words = (run.bootstrap, group, topic, end, work, out)
    listeners = [multiprocessing.Process(target=_listen, args=words) for _ in range(4)]
    for one in listeners:
        one.start()
    while broker.metric("shoal_share_partition_delayed_records") < count:
        if time.time() * 1000 > begin_ms:
            raise LoadFailed("the broker did not read all delayed records in time")
        check_processes(listeners)
        time.sleep(0.2)
    held_bytes = (broker.rss_mb() - before) * (1 << 20) / count
    cpu = broker.cpu_s()
    while broker.metric("shoal_share_partition_delayed_records"):
        time.sleep(0.2)
        check_processes(listeners)
    cpu_us = (broker.cpu_s() - cpu) / count * 1e6
    stall = Stall(count)
    while work.count < count:
        time.sleep(0.05)
        check_processes(listeners)
        stall.look(work.count)
    end.set()
    late = sorted(x for _ in listeners for x in out.get())
    for one in listeners:
        one.join()
    check_processes(listeners)
    if late[0] < -0.002:
        raise LoadFailed(f"a record came {-late[0]:.3f} s before it was due")
    run.verify(topic, sent)
    return {"bytes_each": held_bytes, "cpu_us": cpu_us, **percentiles(late)}


async def _reject(bootstrap: str, group: str, topic: str, end: threading.Event) -> None:
    """A member that rejects every record, and reconnects when its broker is back."""
    while not end.is_set():
        try:
            async with Client(bootstrap) as client, await client.share(group, [topic]) as session:
                acks: list[Any] = []
                while not end.is_set():
                    found = await session.acquire(
                        max_records=1000,
                        max_wait_ms=200,
                        acknowledgements=acks,
                        payload=False,
                        mode=AcquireMode.RECORD_LIMIT,
                    )
                    acks = [a for one in found for a in one.acknowledge(AcknowledgeType.REJECT)]
        except (ClientError, OSError):
            await asyncio.sleep(0.1)


def dead_letters(broker: Measured, run: Run) -> Figures:
    """Two members reject every record: letters per second."""
    count = run.count(60_000)
    group, topic, letters = _with_letters(run, count)
    cpu, begun = broker.cpu_s(), time.perf_counter()
    with _rejecters(run, group, topic):
        stall = Stall(count)
        while (written := broker.metric(WRITTEN)) < count:
            stall.look(int(written))
            begun = begun if written else time.perf_counter()
            time.sleep(0.01)
        elapsed = time.perf_counter() - begun
    cpu_us = (broker.cpu_s() - cpu) / count * 1e6
    found = _sources(run, letters)
    return {
        "rate": count / elapsed,
        "cpu_us": cpu_us,
        "lost": count - len(found),
        "twice": sum(found.values()) - len(found),
    }


def dead_letters_over_a_kill(broker: Measured, run: Run) -> Figures:
    """The same with a broker that is killed half-way: missing records in the dead-letter topic."""
    count = run.count(60_000)
    group, topic, letters = _with_letters(run, count)
    with _rejecters(run, group, topic):
        while (before := broker.metric(WRITTEN)) < count / 2:
            time.sleep(0.01)
        broker.kill9()
        broker.start()
        while broker.metric("shoal_share_partition_lag") > 0 or not broker.metric(WRITTEN):
            time.sleep(0.1)
    found = _sources(run, letters)
    return {
        "written_before": before,
        "lost": count - len(found),
        "twice": sum(found.values()) - len(found),
    }


def _with_letters(run: Run, count: int) -> tuple[str, str, str]:
    """Return a group, its topic with `count` records, and its dead-letter topic."""
    topic, letters = run.topic(2), run.topic(2, "dlq.")
    set_to = AlterConfigOpType.SET
    entry = ConfigEntry(f"{DLQ}.group.enable", "true", incremental_operation=set_to)
    resource = ConfigResource(ResourceType.TOPIC, letters, incremental_configs=[entry])
    for future in run.admin.incremental_alter_configs([resource]).values():
        future.result(30)
    fill(run, topic, list(range(count)), batch=100)
    group = group_with(
        run,
        **{
            f"{DLQ}.topic.name": letters,
            f"{DLQ}.copy.record.enable": "true",
            "share.partition.max.record.locks": "4000",
        },
    )
    return group, topic, letters


@contextlib.contextmanager
def _rejecters(run: Run, group: str, topic: str) -> Iterator[None]:
    """Run two rejecting members until the block ends."""
    end = threading.Event()
    words = (run.bootstrap, group, topic, end)
    threads = [threading.Thread(target=lambda: asyncio.run(_reject(*words))) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        end.set()
        for thread in threads:
            thread.join()


def _sources(run: Run, letters: str) -> dict[tuple[Any, Any], int]:
    """Return the number of letters of each record, by source partition and offset, once all have
    arrived or no more arrive.
    """
    consumer = Consumer(
        {
            "bootstrap.servers": run.bootstrap,
            "group.id": f"read-{letters}",
            "auto.offset.reset": "earliest",
            **CHECKED,
            **QUIET,
        }
    )
    consumer.subscribe([letters])
    found: dict[tuple[Any, Any], int] = {}
    idle_since = time.monotonic()
    while time.monotonic() - idle_since < 5:
        messages = consumer.consume(10_000, 1.0)
        check_errors(messages)
        for message in messages:
            headers = dict(message.headers())
            source = (headers["__dlq.errors.partition"], headers["__dlq.errors.offset"])
            found[source] = found.get(source, 0) + 1
            idle_since = time.monotonic()
    consumer.close()
    return found


LOADS: dict[str, Callable[[Measured, Run], Figures]] = {
    "key order, a commit a poll": lambda b, r: key_order(b, r, (400_000, 400_000), each=False),
    "key order, a commit a record": lambda b, r: key_order(b, r, (15_000, 15_000), each=True),
    "hot key with half of the records": hot_key,
    "1,000 tenants, the cost": lambda b, r: fair_tenants.cost(b, r, fill, worked, ended_cpu_s),
    "1,000 tenants, the waits": lambda _, r: fair_tenants.quiet_waits(r),
    "100,000 delayed records": delayed,
    "dead letters": dead_letters,
    "dead letters over kill -9": dead_letters_over_a_kill,
    "key ranges": lambda b, r: key_ranges(b, r, fill),
    "key ranges, Zipf keys": lambda _, r: key_range_balance(r),
    "100 key workers": lambda b, r: key_workers(b, r, fill),
    "100 key workers, Parallel Consumer": lambda b, r: parallel_consumer(b, r, fill),
    "8 members with 5 ms a record": lambda b, r: working_members(b, r, fill),
    "4 members without work": lambda b, r: idle_members(b, r, fill),
    "1,000,000 finished offsets": lambda _b, _r: figures_of("individual_commits.py"),
}
#: Goals by load and figure.
GOALS = {
    ("key order, a commit a poll", "ratio"): Goal(0.6, alone=True),
    ("key order, a commit a poll", "ratio_by_cpu"): Goal(0.6, alone=True),
    ("key order, a commit a record", "ratio"): Goal(0.6, alone=True),
    ("hot key with half of the records", "ratio"): Goal(0.9, alone=True),
    ("1,000 tenants, the cost", "ratio"): Goal(0.6, alone=True),
    ("1,000 tenants, the cost", "times_cpu"): Goal(1.5, more=False, alone=True),
    ("100,000 delayed records", "bytes_each"): Goal(200, more=False, alone=True),
    ("100,000 delayed records", "p50_ms"): Goal(100, more=False, alone=True),
    ("100,000 delayed records", "p99_ms"): Goal(500, more=False, alone=True),
    ("dead letters", "rate"): Goal(5000, alone=True),
    ("dead letters", "lost"): Goal(0, more=False, alone=True),
    ("dead letters over kill -9", "lost"): Goal(0, more=False, alone=True),
    ("key ranges", "ratio_by_readers"): Goal(1.5, more=False, alone=True),
    ("key ranges, Zipf keys", "busiest"): Goal(1.3, more=False, alone=True),
    ("100 key workers", "ratio_to_plain"): Goal(60, alone=True),
    ("100 key workers, Parallel Consumer", "ratio_to_parallel_consumer"): Goal(1.0, alone=True),
    ("8 members with 5 ms a record", "ratio_to_plain"): Goal(6, alone=True),
    ("4 members without work", "ratio_to_plain"): Goal(0.5, alone=True),
    ("4 members without work", "ratio_to_share"): Goal(1.5, alone=True),
    ("1,000,000 finished offsets", "bytes_each"): Goal(24, more=False, alone=True),
    ("1,000,000 finished offsets", "commit_cpu_ms"): Goal(1, more=False, alone=True),
}
FIGURES = (
    "rate",
    "fair_per_s",
    "fair_cpu_us",
    "plain_cpu_us",
    "fair_members_cpu_us",
    "plain_members_cpu_us",
    "times_cpu",
    "plain_p50_ms",
    "plain_p99_ms",
    "fair_p50_ms",
    "fair_p99_ms",
    "workers_per_s",
    "members_per_s",
    "plain_per_s",
    "share_per_s",
    "ratio_to_plain",
    "ratio_to_share",
    "parallel_consumer_per_s",
    "ratio_to_parallel_consumer",
    "unordered_per_s",
    "ordered_per_s",
    "ratio",
    "ratio_by_cpu",
    "unordered_cpu_us",
    "ordered_cpu_us",
    "unordered_members_cpu_us",
    "ordered_members_cpu_us",
    "others_per_s",
    "others_beside_hot_per_s",
    "hot_per_s",
    "bytes_each",
    "commit_cpu_ms",
    "p50_ms",
    "p99_ms",
    "cpu_us",
    "cpu_us_1",
    "cpu_us_2",
    "cpu_us_8",
    "ratio_by_readers",
    "busiest_before",
    "busiest",
    "moved_percent",
    "written_before",
    "lost",
    "twice",
)


def measure(options: argparse.Namespace, folder: Path, results: Results) -> None:
    for place, (name, load) in enumerate(LOADS.items()):
        if is_wanted(options.only, name):
            for number in range(options.rounds):
                broker = Measured(folder / f"{place}-{number}")
                _round(name, load, broker, options.scale, results)


def main() -> None:
    parser = options_of(__doc__, sides=())
    parser.add_argument("--scale", type=float, default=1.0)
    options = parser.parse_args()
    run_bench(
        "queues",
        partial(measure, options),
        FIGURES,
        lambda load, figure: GOALS.get((load, figure)),
        into=options.into,
        scale=options.scale,
    )


def _round(
    name: str,
    load: Callable[[Measured, Run], Figures],
    broker: Measured,
    scale: float,
    results: Results,
) -> None:
    if results.has_failed(name):
        return
    try:
        broker.start()
        figures = load(broker, Run(broker.bootstrap, scale))
        results.add(name, "shoal", figures)
        print(f"{name:40} {json.dumps(figures)}", flush=True)
    except (LoadFailed, KafkaException) as error:
        results.fail(name, "shoal", error)
    finally:
        broker.kill9()


if __name__ == "__main__":
    main()
