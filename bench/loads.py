"""The loads, each a function of a bootstrap address: `python loads.py NAME HOST:PORT [SCALE]`.

One line of JSON comes out: `rate` is records a second unless the load says otherwise, `p50_ms` and
`p99_ms` where single operations are timed, `wait_ms` where there is but one, `client_cpu_s` what
the client itself used while a rate was taken. The same client processes run against either broker.
Joining a group is left out of a rate; filling a topic is, too.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import java_loads
import share_members
from confluent_kafka import Consumer, KafkaException, Producer, ShareConsumer, TopicPartition
from filling import FILLED, QUIET, Figures, Run, produce


def rate_of_produce(run: Run, records: int, size: int, acks: str) -> Figures:
    topic, count = run.topic(), run.count(records)
    produce(run, topic, count // 10, size, acks=acks)
    return {"rate": count / produce(run, topic, count, size, acks=acks), "bytes": count * size}


def rate_of_consume(run: Run, records: int, size: int, partitions: int, group: str) -> Figures:
    topic, count = run.topic(partitions), run.count(records)
    produce(run, topic, count, size, acks="all", partitions=partitions)
    print(FILLED, flush=True)
    settings = {
        "bootstrap.servers": run.bootstrap, "group.id": f"g-{topic}",
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False, "queued.min.messages": 1_000_000,
        "queued.max.messages.kbytes": 1 << 20, "fetch.message.max.bytes": 8 << 20, **QUIET,
    }  # fmt: skip
    if group == "consumer":
        settings["group.protocol"] = "consumer"
    consumer = Consumer(settings)
    consumer.subscribe([topic])
    got, began, used = 0, 0.0, 0.0
    while got < count:
        messages = consumer.consume(10_000, timeout=1.0)
        if messages and not began:
            began, used = time.perf_counter(), time.process_time()
            count -= len(messages)
            continue
        got += len(messages)
    elapsed = time.perf_counter() - began
    client = time.process_time() - used
    consumer.close()
    return {"rate": count / elapsed, "bytes": count * size, "client_cpu_s": client}


def rate_of_share(run: Run, records: int, size: int, mode: str) -> Figures:
    topic, count, group = run.topic(), run.count(records), run.share_group()
    produce(run, topic, count, size, acks="all")
    print(FILLED, flush=True)
    consumer = ShareConsumer({
        "bootstrap.servers": run.bootstrap, "group.id": group, "share.acknowledgement.mode": mode,
        "max.poll.records": 500, **QUIET,
    })  # fmt: skip
    consumer.subscribe([topic])
    got, began = 0, 0.0
    while got < count:
        messages = consumer.poll(1.0)
        if messages and not began:
            began = time.perf_counter()
        for message in messages:
            if mode == "explicit":
                consumer.acknowledge(message)
        got += len(messages)
        if mode == "explicit" and messages:
            consumer.commit_async()
    elapsed = time.perf_counter() - began
    consumer.close()
    return {"rate": count / elapsed, "bytes": count * size}


def _worker(
    bootstrap: str, group: str, topic: str, each: bool, go: Any, done: Any, total: Any
) -> None:
    """One explicit share consumer: acknowledges, and commits each record or each poll."""
    consumer = ShareConsumer({
        "bootstrap.servers": bootstrap, "group.id": group, "share.acknowledgement.mode": "explicit",
        "max.poll.records": 500, **QUIET,
    })  # fmt: skip
    consumer.subscribe([topic])
    go.wait()
    while not done.is_set():
        messages = consumer.poll(0.2)
        for message in messages:
            consumer.acknowledge(message)
            if each:
                consumer.commit_sync(10)
                with total.get_lock():
                    total.value += 1
        if messages and not each:
            consumer.commit_sync(10)
            with total.get_lock():
                total.value += len(messages)
    consumer.close()


def job_queue(run: Run, jobs: int, partitions: int, each: bool, members: int = 8) -> Figures:
    """`members` consumers with explicit acknowledgement on `partitions`; jobs a second."""
    topic, count, group = run.topic(partitions), run.count(jobs), run.share_group()
    total = multiprocessing.Value("q", 0)
    go, done = multiprocessing.Event(), multiprocessing.Event()
    workers = [
        multiprocessing.Process(
            target=_worker, args=(run.bootstrap, group, topic, each, go, done, total)
        )
        for _ in range(members)
    ]
    for worker in workers:
        worker.start()
    produce(run, topic, count, 100, acks="all", partitions=partitions,
            **{"batch.num.messages": 10, "linger.ms": 0})  # fmt: skip
    print(FILLED, flush=True)
    go.set()
    first = None
    while total.value < count:
        time.sleep(0.002)
        if first is None and total.value:
            first = (time.perf_counter(), total.value)
    assert first is not None
    elapsed = time.perf_counter() - first[0]
    done.set()
    for worker in workers:
        worker.join(20)
    return {"rate": (count - first[1]) / elapsed}


def _synchronous(bootstrap: str, topic: str, count: int, out: Any) -> None:
    producer = Producer({
        "bootstrap.servers": bootstrap, "linger.ms": 0, "acks": "all", **QUIET
    })  # fmt: skip
    value, times = os.urandom(100), []
    for n in range(count + 50):
        began = time.perf_counter()
        producer.produce(topic, value)
        producer.flush()
        if n >= 50:
            times.append(time.perf_counter() - began)
    out.put(times)


def synchronous(run: Run, records: int, producers: int) -> Figures:
    """One record a request, each awaited, by so many producers."""
    topic, out = run.topic(), multiprocessing.Queue()
    count = run.count(records) // producers
    children = [
        multiprocessing.Process(target=_synchronous, args=(run.bootstrap, topic, count, out))
        for _ in range(producers)
    ]
    for child in children:
        child.start()
    parts = [out.get() for _ in children]
    for child in children:
        child.join()
    times = sorted(t for part in parts for t in part)
    rate = sum(len(part) / sum(part) for part in parts)
    return {"rate": rate, **percentiles(times)}


def percentiles(times: list[float]) -> Figures:
    """p50 and p99 in milliseconds of sorted seconds."""
    return {
        "p50_ms": 1000 * times[len(times) // 2],
        "p99_ms": 1000 * times[min(len(times) - 1, int(len(times) * 0.99))],
    }


def end_to_end(run: Run, seconds: int, share: bool) -> Figures:
    """1,000 records a second with linger 0: from produce to poll, in one process."""
    topic, group = run.topic(), run.share_group()
    if share:
        consumer: Any = ShareConsumer({
            "bootstrap.servers": run.bootstrap, "group.id": group, **QUIET
        })  # fmt: skip
    else:
        consumer = Consumer({
            "bootstrap.servers": run.bootstrap, "group.id": group, "fetch.wait.max.ms": 500,
            "auto.offset.reset": "earliest", **QUIET,
        })  # fmt: skip
    consumer.subscribe([topic])
    producer = Producer(
        {"bootstrap.servers": run.bootstrap, "linger.ms": 0, "acks": "all", **QUIET}
    )
    producer.produce(topic, b"0")
    producer.flush()
    while not (consumer.poll(1.0) if share else consumer.consume(1, 1.0)):
        continue
    times: list[float] = []
    total = int(1000 * max(2, seconds * run.scale))
    began, sent = time.perf_counter(), 0
    while len(times) < total:
        while sent < total and time.perf_counter() - began >= sent / 1000:
            producer.produce(topic, repr(time.perf_counter()).encode())
            sent += 1
        producer.poll(0)
        messages = consumer.poll(0.0005) if share else consumer.consume(100, 0.0005)
        now = time.perf_counter()
        times += [now - float(m.value()) for m in messages if not m.error()]
    consumer.close()
    return percentiles(sorted(times[len(times) // 10 :]))


def crowd(run: Run, partitions: int, connections: int) -> Figures:
    """Many partitions and idle connections: the runner looks at memory and CPU meanwhile."""
    topic = run.topic(partitions)
    consumers = []
    for n in range(connections):
        consumer = Consumer({"bootstrap.servers": run.bootstrap, "group.id": f"idle-{n}", **QUIET})
        consumer.assign([TopicPartition(topic, n % partitions)])
        consumer.poll(0.05)
        consumers.append(consumer)
    print("READY", flush=True)
    sys.stdin.readline()
    for consumer in consumers:
        consumer.close()
    return {}


Load = Callable[[Run], Figures]


def consumers() -> dict[str, Load]:
    """Both sizes of records, one partition and twelve, both kinds of consumer group."""
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


def main() -> None:
    name, bootstrap = sys.argv[1], sys.argv[2]
    run = Run(bootstrap, float(sys.argv[3]) if len(sys.argv) > 3 else 1.0)
    try:
        if name == "crowd":
            crowd(run, 1000, 100)
        else:
            print(json.dumps(LOADS[name](run)))
    except KafkaException as error:
        raise SystemExit(f"{name}: {error}") from None


if __name__ == "__main__":
    main()
