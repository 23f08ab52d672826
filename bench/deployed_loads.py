"""The loads of `make bench-deployed`: `python deployed_loads.py NAME ADDRESSES [SCALE]`.

Jobs and synchronous producers are those of `loads.py`. The others measure from the call that
produces a record until a share consumer has it: librdkafka's, or that of `shoal.client`, which
`shoal share-consume` has. The producer is a process of its own and sends at a steady pace. Where
each record is awaited, `rate` is the pace that it reaches.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import loads
from confluent_kafka import Producer, ShareConsumer
from load_checks import Sent, Stall, Taken
from load_setup import BEGIN, CHECKED, END, QUIET, Figures, Run, mark
from loads import COMMIT_TIMEOUT_S, LOAD_TIMEOUT_S, PRODUCE_TIMEOUT_S, percentiles
from shoal.client.client import Client
from shoal.client.settings import Settings

if TYPE_CHECKING:
    from multiprocessing.queues import Queue

#: A member: it takes a first record of each partition, calls the function, takes that many other
#: records of a topic, and returns the seconds of each.
Take = Callable[[Run, str, str, int, int, Callable[[], None]], list[float]]
#: Seconds of a load with a pace.
PACED_S = 10


def count_paced(run: Run, per_s: int) -> int:
    """Return the records of a load with a pace."""
    return int(per_s * max(2, PACED_S * run.scale))


def pace(total: int, per_s: int, send: Callable[[int], None]) -> float:
    """Call `send` with 0, 1, … at a steady pace, or as fast as it returns. Return the seconds."""
    began = time.perf_counter()
    for number in range(total):
        early_s = began + number / per_s - time.perf_counter()
        if early_s > 0:
            time.sleep(early_s)
        send(number)
    return time.perf_counter() - began


def _produce(
    bootstrap: str,
    topic: str,
    partitions: int,
    per_s: int,
    total: int,
    awaits: bool,
    go: Any,
    out: Any,
) -> None:
    """Send a record of its time `per_s` times a second, after a first one for each partition."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0, "acks": "all", **QUIET})
    sent, left = Sent(), 0

    def send(number: int, value: bytes = b"") -> None:
        nonlocal left
        value = value or repr(time.perf_counter()).encode()
        sent.note(number % partitions, value)
        producer.produce(topic, value, partition=number % partitions, on_delivery=sent)
        if awaits:
            left += producer.flush(PRODUCE_TIMEOUT_S)
        else:
            producer.poll(0)

    for number in range(partitions):
        send(number, b"0")
    producer.flush(PRODUCE_TIMEOUT_S)
    go.wait()
    elapsed = pace(total, per_s, send)
    left += producer.flush(PRODUCE_TIMEOUT_S)
    out.put((total / elapsed, left, sent))


def end_to_end(
    run: Run, per_s: int, partitions: int, take: Take, *, awaits: bool = False
) -> Figures:
    """From produce to poll. `take` is one of the members below. Joining is not measured."""
    topic, group, total = run.topic(partitions), run.share_group(), count_paced(run, per_s)
    go = multiprocessing.Event()
    out: Queue[tuple[float, int, Sent]] = multiprocessing.Queue()
    words = (run.bootstrap, topic, partitions, per_s, total, awaits, go, out)
    producer = multiprocessing.Process(target=_produce, args=words)
    producer.start()

    def begin() -> None:
        mark(BEGIN)
        go.set()

    times = take(run, topic, group, partitions, total, begin)
    rate, left, sent = out.get(timeout=LOAD_TIMEOUT_S)
    mark(END)
    producer.join()
    sent.check(left)
    run.verify(topic, sent)
    return {"rate": rate, "records": total, **percentiles(sorted(times[total // 10 :]))}


def take_by_librdkafka(
    run: Run, topic: str, group: str, partitions: int, total: int, begin: Callable[[], None]
) -> list[float]:
    """Take by librdkafka's share consumer, in implicit mode."""
    consumer = ShareConsumer(
        {"bootstrap.servers": run.bootstrap, "group.id": group, **CHECKED, **QUIET}
    )
    consumer.subscribe([topic])
    taken, stall = Taken(partitions), Stall(total)
    times: list[float] = []
    while taken.new < partitions:
        taken.add_shared(consumer.poll(1.0))
        stall.look(taken.new)
    begin()
    while len(times) < total:
        messages = consumer.poll(0.5)
        now = time.perf_counter()
        taken.add_shared(messages)
        times += [now - float(m.value()) for m in messages if m.delivery_count() == 1]
        stall.look(taken.new)
    consumer.commit_sync(COMMIT_TIMEOUT_S)
    consumer.close()
    return times


def take_by_shoal(
    run: Run, topic: str, group: str, partitions: int, total: int, begin: Callable[[], None]
) -> list[float]:
    """Take by our client, which accepts records with its next fetch."""
    return asyncio.run(_take(run, topic, group, partitions, total, begin))


async def _take(
    run: Run, topic: str, group: str, partitions: int, total: int, begin: Callable[[], None]
) -> list[float]:
    properties = {name: value for name, value in QUIET.items() if name != "log_level"}
    settings = Settings.from_bootstrap(run.bootstrap, properties)
    stall, first, begun, times = Stall(total), 0, False, list[float]()
    async with (
        Client(settings) as client,
        await client.share_consumer(group, [topic]) as consumer,
    ):
        while len(times) < total:
            records = await consumer.poll()
            now = time.perf_counter()
            consumer.accept(*records)
            values = [record.value or b"" for record in records]
            first += values.count(b"0")
            times += [now - float(value) for value in values if value != b"0"]
            if first == partitions and not begun:
                begun = True
                begin()
            stall.look(first + len(times))
    return times


#: The loads on three brokers, all of them. NATS has those without a client's name.
LOADS: dict[str, loads.Load] = {
    **{
        name: loads.LOADS[name]
        for name in (
            "jobs, 8 partitions, commit a record",
            "jobs, 8 partitions, commit a poll",
            "synchronous produce, 1 producer",
            "synchronous produce, 10 producers",
        )
    },
    "end to end, 500/s, each awaited": partial(
        end_to_end, per_s=500, partitions=1, take=take_by_shoal, awaits=True
    ),
    "end to end, 100/s": partial(end_to_end, per_s=100, partitions=4, take=take_by_shoal),
    "end to end, 1,000/s": partial(end_to_end, per_s=1_000, partitions=4, take=take_by_shoal),
    "end to end, 100/s, librdkafka": partial(
        end_to_end, per_s=100, partitions=4, take=take_by_librdkafka
    ),
    "end to end, 100/s, librdkafka, 1 partition": partial(
        end_to_end, per_s=100, partitions=1, take=take_by_librdkafka
    ),
}


if __name__ == "__main__":
    loads.main(LOADS)
