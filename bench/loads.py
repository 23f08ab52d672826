"""The loads, each a function of a bootstrap address: `python loads.py NAME HOST:PORT [SCALE]`.

The last line of the output is JSON: `rate` in records per second, `p50_ms` and `p99_ms` for single
operations, `wait_ms` for one operation, and `client_cpu_s`, the client's CPU time while a rate was
measured. The same client processes run against either broker. A rate excludes joining a group and
filling a topic. A load that finds an error exits with 1 (`load_checks.py`).
"""

from __future__ import annotations

import json
import multiprocessing
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import java_loads
import share_members
from confluent_kafka import Consumer, KafkaException, Producer, ShareConsumer, TopicPartition
from load_checks import (
    Confirmed,
    LoadFailed,
    Sent,
    Stall,
    Taken,
    Work,
    check_commit,
    check_errors,
    random_values,
    sent_values,
    text_values,
)
from load_setup import BEGIN, CHECKED, END, QUIET, Figures, Run, mark, produce
from page_cache import take_memory

#: Maximum seconds of a commit, of a produce request, and of all child processes of a load.
COMMIT_TIMEOUT_S, PRODUCE_TIMEOUT_S, LOAD_TIMEOUT_S = 10, 60, 500
#: Records of each synchronous producer that do not count.
SYNCHRONOUS_WARM = 50


def rate_of_produce(
    run: Run, records: int, size: int, acks: str, compression: str = "none"
) -> Figures:
    """Compressed loads send text: random bytes would not compress."""
    topic, count = run.topic(), run.count(records)
    values = random_values(size) if compression == "none" else text_values(size)
    conf = {"acks": acks, "compression.type": compression}
    _, sent = produce(run.bootstrap, topic, count // 10, values, **conf)
    take_memory()
    mark(BEGIN)
    elapsed, more = produce(run.bootstrap, topic, count, values, **conf)
    mark(END)
    sent.add(more)
    run.verify(topic, sent)
    return {"rate": count / elapsed}


def rate_of_consume(run: Run, records: int, size: int, partitions: int, group: str) -> Figures:
    topic, count = run.topic(partitions), run.count(records)
    _, sent = produce(
        run.bootstrap, topic, count, random_values(size), acks="all", partitions=partitions
    )
    settings = {
        "bootstrap.servers": run.bootstrap,
        "group.id": f"g-{topic}",
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "queued.min.messages": 1_000_000,
        "queued.max.messages.kbytes": 1 << 20,
        "fetch.message.max.bytes": 8 << 20,
        **CHECKED,
        **QUIET,
    }
    if group == "consumer":
        settings["group.protocol"] = "consumer"
    mark(BEGIN)
    consumer = Consumer(settings)
    consumer.subscribe([topic])
    taken, stall = Taken(partitions), Stall(count)
    while not taken.new:
        taken.add(consumer.consume(10_000, timeout=1.0))
        stall.look(taken.new)
    first, began, used = taken.new, time.perf_counter(), time.process_time()
    while taken.new < count:
        taken.add(consumer.consume(10_000, timeout=1.0))
        stall.look(taken.new)
    elapsed, client = time.perf_counter() - began, time.process_time() - used
    mark(END)
    consumer.close()
    taken.check(sent.counts)
    run.verify(topic, sent)
    return {"rate": (count - first) / elapsed, "client_cpu_s": client}


def rate_of_share(run: Run, records: int, size: int, mode: str) -> Figures:
    """The time runs until the last acknowledgement is confirmed."""
    topic, count, group = run.topic(), run.count(records), run.share_group()
    _, sent = produce(run.bootstrap, topic, count, random_values(size), acks="all")
    mark(BEGIN)
    consumer = ShareConsumer(
        {
            "bootstrap.servers": run.bootstrap,
            "group.id": group,
            "share.acknowledgement.mode": mode,
            "max.poll.records": 500,
            **CHECKED,
            **QUIET,
        }
    )
    taken, confirmed, stall = Taken(), Confirmed(), Stall(count)
    consumer.set_acknowledgement_commit_callback(confirmed)
    consumer.subscribe([topic])
    first, began = 0, 0.0
    while taken.new < count:
        messages = consumer.poll(1.0)
        taken.add_shared(messages)
        if messages and not began:
            first, began = taken.new, time.perf_counter()
        if mode == "explicit":
            for message in messages:
                consumer.acknowledge(message)
            if messages:
                consumer.commit_async()
        stall.look(taken.new)
    consumer.commit_sync(COMMIT_TIMEOUT_S)
    wanted = count + taken.redelivered
    while confirmed.count < wanted and not confirmed.errors:
        consumer.poll(0.01)
        stall.look(confirmed.count)
    elapsed = time.perf_counter() - began
    mark(END)
    consumer.close()
    taken.check(sent.counts)
    confirmed.check(wanted)
    run.verify(topic, sent)
    return {"rate": (count - first) / elapsed}


def _worker(
    bootstrap: str, group: str, topic: str, each: bool, go: Any, done: Any, work: Work
) -> None:
    """One explicit share consumer: acknowledges, and commits each record or each poll."""
    consumer = ShareConsumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "share.acknowledgement.mode": "explicit",
            "max.poll.records": 500,
            **CHECKED,
            **QUIET,
        }
    )
    consumer.subscribe([topic])
    go.wait()
    while not done.is_set():
        messages = consumer.poll(0.2)
        check_errors(messages)
        for message in messages:
            consumer.acknowledge(message)
            if each:
                check_commit(consumer.commit_sync(COMMIT_TIMEOUT_S))
                work.finish((message,))
        if messages and not each:
            check_commit(consumer.commit_sync(COMMIT_TIMEOUT_S))
            work.finish(messages)
    consumer.close()


def job_queue(run: Run, jobs: int, partitions: int, each: bool, members: int = 8) -> Figures:
    """`members` consumers with explicit acknowledgement on `partitions`; jobs per second."""
    topic, count, group = run.topic(partitions), run.count(jobs), run.share_group()
    work = Work(partitions, count)
    go, done = multiprocessing.Event(), multiprocessing.Event()
    workers = [
        multiprocessing.Process(
            target=_worker, args=(run.bootstrap, group, topic, each, go, done, work)
        )
        for _ in range(members)
    ]
    for worker in workers:
        worker.start()
    small = {"batch.num.messages": 10, "linger.ms": 0}
    _, sent = produce(
        run.bootstrap, topic, count, random_values(100), partitions=partitions, acks="all", **small
    )
    rate = time_workers(workers, work, count, go, done)
    run.verify(topic, sent)
    return {"rate": rate, "repeated": work.repeated, "records": count}


def time_workers(
    workers: list[Any],
    work: Work,
    count: int,
    go: Any,
    done: Any,
    settle: Callable[[], object] = lambda: None,
) -> float:
    """Set `go`, wait until the processes have done `count` records, and end them by `done`. Return
    the records per second from the first ones on. What `settle` waits for is marked as part of the
    load, but takes no time of the rate. Raises LoadFailed."""
    mark(BEGIN)
    go.set()
    first, began, stall = 0, 0.0, Stall(count)
    while work.count < count:
        time.sleep(0.002)
        if not first and work.count:
            first, began = work.count, time.perf_counter()
        check_processes(workers)
        stall.look(work.count)
    elapsed = time.perf_counter() - began
    settle()
    mark(END)
    done.set()
    for worker in workers:
        worker.join(20)
    check_processes(workers)
    return (count - first) / elapsed


def check_processes(workers: list[Any]) -> None:
    """Raise LoadFailed if a process ended with an error, which it printed."""
    codes = [worker.exitcode for worker in workers if worker.exitcode]
    if codes:
        for worker in workers:
            worker.terminate()
        raise LoadFailed(f"{len(codes)} of {len(workers)} members failed, exit code {codes[0]}")


def _synchronous(bootstrap: str, topic: str, count: int, values: list[bytes], out: Any) -> None:
    sent = sent_values(values, [0] * count)
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0, "acks": "all", **QUIET})
    times, left = [], 0
    for n in range(count):
        began = time.perf_counter()
        producer.produce(topic, values[n % len(values)], partition=0, on_delivery=sent)
        left += producer.flush(PRODUCE_TIMEOUT_S)
        times.append(time.perf_counter() - began)
    out.put((times[SYNCHRONOUS_WARM:], left, sent))


def synchronous(run: Run, records: int, producers: int) -> Figures:
    """One awaited record per request, by several producers at the same time."""
    topic, out = run.topic(), multiprocessing.Queue()
    count, values = run.count(records) // producers + SYNCHRONOUS_WARM, random_values(100)
    children = [
        multiprocessing.Process(
            target=_synchronous, args=(run.bootstrap, topic, count, values, out)
        )
        for _ in range(producers)
    ]
    mark(BEGIN)
    for child in children:
        child.start()
    parts = [out.get(timeout=LOAD_TIMEOUT_S) for _ in children]
    mark(END)
    for child in children:
        child.join()
    sent = Sent()
    for _, left, one in parts:
        one.check(left)
        sent.add(one)
    run.verify(topic, sent)
    times = sorted(t for part, _, _ in parts for t in part)
    rate = sum(len(part) / sum(part) for part, _, _ in parts)
    return {"rate": rate, "records": count * producers, **percentiles(times)}


def percentiles(times: list[float]) -> Figures:
    """p50 and p99 in milliseconds of sorted seconds."""
    return {
        "p50_ms": 1000 * times[len(times) // 2],
        "p99_ms": 1000 * times[min(len(times) - 1, int(len(times) * 0.99))],
    }


def end_to_end(run: Run, seconds: int, share: bool) -> Figures:
    """1,000 records per second with linger 0: from produce to poll, in one process."""
    topic, group = run.topic(), run.share_group()
    base = {"bootstrap.servers": run.bootstrap, "group.id": group, **CHECKED, **QUIET}
    confirmed = Confirmed()
    if share:
        consumer: Any = ShareConsumer(base)
        consumer.set_acknowledgement_commit_callback(confirmed)
    else:
        consumer = Consumer({**base, "fetch.wait.max.ms": 500, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    producer = Producer(
        {"bootstrap.servers": run.bootstrap, "linger.ms": 0, "acks": "all", **QUIET}
    )
    taken, sent = Taken(), Sent()
    count = taken.add_shared if share else taken.add

    def send(value: bytes) -> None:
        sent.note(0, value)
        producer.produce(topic, value, partition=0, on_delivery=sent)

    send(b"0")
    producer.flush(PRODUCE_TIMEOUT_S)
    stall = Stall(1)
    while not taken.new:
        count(consumer.poll(1.0) if share else consumer.consume(1, 1.0))
        stall.look(taken.new)
    times: list[float] = []
    total = int(1000 * max(2, seconds * run.scale))
    stall = Stall(total)
    began, number = time.perf_counter(), 0
    while len(times) < total:
        while number < total and time.perf_counter() - began >= number / 1000:
            send(repr(time.perf_counter()).encode())
            number += 1
        producer.poll(0)
        messages = consumer.poll(0.0005) if share else consumer.consume(100, 0.0005)
        now = time.perf_counter()
        count(messages)
        times += [now - float(m.value()) for m in messages]
        stall.look(taken.new)
    sent.check(producer.flush(PRODUCE_TIMEOUT_S))
    if share:
        consumer.commit_sync(COMMIT_TIMEOUT_S)
    consumer.close()
    taken.check(sent.counts)
    if share:
        confirmed.check(total + 1)
    run.verify(topic, sent)
    return percentiles(sorted(times[len(times) // 10 :]))


def crowd(run: Run, partitions: int, connections: int) -> Figures:
    """Many partitions and idle connections, during which the runner reads memory and CPU."""
    topic = run.topic(partitions)
    consumers = []
    for n in range(connections):
        consumer = Consumer({"bootstrap.servers": run.bootstrap, "group.id": f"idle-{n}", **QUIET})
        # An explicit offset: a coordinator that is still loading has no committed ones.
        consumer.assign([TopicPartition(topic, n % partitions, 0)])
        message = consumer.poll(0.05)
        check_errors([message] if message else [])
        consumers.append(consumer)
    print("READY", flush=True)
    sys.stdin.readline()
    for consumer in consumers:
        consumer.close()
    return {}


def fill(run: Run) -> Figures:
    """Write 1 KB records for a log that a broker reads at its start; return topic and count."""
    topic, count = run.topic(), run.count(400_000)
    produce(run.bootstrap, topic, count, random_values(1024), acks="1")
    return {"topic": topic, "records": count}


Load = Callable[[Run], Figures]


def consumers() -> dict[str, Load]:
    """Return loads with both record sizes, one and twelve partitions, both types of group."""
    found: dict[str, Load] = {}
    for label, records, size in (("1 KB", 400_000, 1024), ("100 B", 1_000_000, 100)):
        for where, partitions in (("1 partition", 1), ("12 partitions", 12)):
            for kind, group in (("classic", "classic"), ("KIP-848", "consumer")):
                found[f"consume {label}, {where}, {kind}"] = partial(
                    rate_of_consume, records=records, size=size, partitions=partitions, group=group
                )
    return found


LOADS: dict[str, Load] = {
    "produce 1 KB acks=all": lambda r: rate_of_produce(r, 400_000, 1024, "all"),
    "produce 1 KB acks=1": lambda r: rate_of_produce(r, 400_000, 1024, "1"),
    "produce 1 KB acks=all, Java": lambda r: java_loads.rate_of_produce(r, 400_000, 1024, "all"),
    "produce 1 KB acks=1, Java": lambda r: java_loads.rate_of_produce(r, 400_000, 1024, "1"),
    "produce 1 KB acks=all, lz4": lambda r: rate_of_produce(r, 400_000, 1024, "all", "lz4"),
    "produce 1 KB acks=all, zstd": lambda r: rate_of_produce(r, 400_000, 1024, "all", "zstd"),
    "produce 100 B acks=all": lambda r: rate_of_produce(r, 1_000_000, 100, "all"),
    **consumers(),
    "share 1 KB implicit": lambda r: rate_of_share(r, 200_000, 1024, "implicit"),
    "share 1 KB explicit": lambda r: rate_of_share(r, 200_000, 1024, "explicit"),
    "share 100 B implicit": lambda r: rate_of_share(r, 500_000, 100, "implicit"),
    "share 100 B explicit": lambda r: rate_of_share(r, 500_000, 100, "explicit"),
    "share 1 KB implicit, Java": lambda r: java_loads.rate_of_share(r, 400_000, 1024, "implicit"),
    "share 1 KB explicit, Java": lambda r: java_loads.rate_of_share(r, 400_000, 1024, "explicit"),
    "share 100 B implicit, Java": lambda r: java_loads.rate_of_share(r, 800_000, 100, "implicit"),
    "share 100 B explicit, Java": lambda r: java_loads.rate_of_share(r, 800_000, 100, "explicit"),
    "jobs, 2 partitions, commit a record": lambda r: job_queue(r, 20_000, 2, True),
    "jobs, 8 partitions, commit a record": lambda r: job_queue(r, 20_000, 8, True),
    "jobs, 2 partitions, commit a poll": lambda r: job_queue(r, 100_000, 2, False),
    "jobs, 8 partitions, commit a poll": lambda r: job_queue(r, 100_000, 8, False),
    "synchronous produce, 1 producer": lambda r: synchronous(r, 10_000, 1),
    "synchronous produce, 10 producers": lambda r: synchronous(r, 20_000, 10),
    "end to end, consumer": lambda r: end_to_end(r, 10, False),
    "end to end, share consumer": lambda r: end_to_end(r, 10, True),
    "first record of a new group": share_members.first_record,
    "records of a killed member": share_members.killed_member,
}


def main(loads: dict[str, Load] = LOADS) -> None:
    name, bootstrap = sys.argv[1], sys.argv[2]
    run = Run(bootstrap, float(sys.argv[3]) if len(sys.argv) > 3 else 1.0)
    try:
        if name == "crowd":
            crowd(run, 1000, 100)
        elif name == "fill":
            print(json.dumps(fill(run)))
        else:
            print(json.dumps(loads[name](run)))
    except (KafkaException, LoadFailed) as error:
        raise SystemExit(f"{name}: {error}") from None


if __name__ == "__main__":
    main()
