"""The loads of `deployed_loads.py` on NATS: `python nats_loads.py NAME ADDRESSES [SCALE]`.

A load has one stream with three replicas in files and, for jobs, one durable consumer that members
pull from. Neither has partitions. A producer or consumer that runs alone connects to the leader of
the stream, several take the servers in turn. A job that is acknowledged one by one waits until the
server confirms it (`ack_sync`), as `commit_sync` does. Acknowledgements by poll are sent together
and not waited for, because NATS has none for several messages of a shared consumer.
"""

from __future__ import annotations

import multiprocessing
import time
import uuid
from functools import partial
from typing import TYPE_CHECKING, Any

from deployed_loads import count_paced, pace
from load_checks import LoadFailed, Stall, Work, random_values
from load_setup import BEGIN, END, QUIET, Figures, Run, mark
from loads import LOAD_TIMEOUT_S, SYNCHRONOUS_WARM, Load, main, percentiles, time_workers
from nats_client import Connection, Message, check_stored

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.queues import Queue
    from multiprocessing.synchronize import Event

MEMBERS = 8
#: Messages of a pull, and of a pull whose messages are acknowledged together.
PULLED, POLLED = 100, 500
#: The longest time that a pull of a member waits for messages, in seconds.
WAIT_S = 0.2
#: Messages that a producer sends before it waits for their acknowledgements.
FILLED = 500
#: Messages of a producer with a pace whose acknowledgements it has not read.
AHEAD = 100
CONSUMER = "jobs"


class Stream:
    """A stream of a load, which `with` deletes. `address` is that of its leader."""

    def __init__(self, bootstrap: str) -> None:
        self.addresses = bootstrap.split(",")
        name = uuid.uuid4().hex[:10]
        self.name, self.subject = f"bench-{name}", f"bench.{name}"
        self.connection = Connection(self.addresses[0], QUIET)

    def __enter__(self) -> Stream:
        found = self.connection.call(
            f"STREAM.CREATE.{self.name}",
            name=self.name,
            subjects=[self.subject],
            retention="limits",
            storage="file",
            num_replicas=min(3, len(self.addresses)),
        )
        leader = found.get("cluster", {}).get("leader") or self._find_leader()
        self.address = self.addresses[int(leader.removeprefix("n")) - 1]
        return self

    def __exit__(self, *_: object) -> None:
        self.connection.call(f"STREAM.DELETE.{self.name}")
        self.connection.close()

    def _find_leader(self) -> str:
        stall = Stall(1)
        while True:
            found = self.connection.call(f"STREAM.INFO.{self.name}")["cluster"]
            if leader := found.get("leader"):
                return str(leader)
            stall.look(0)
            time.sleep(0.02)

    def add_consumer(self) -> None:
        config = {
            "name": CONSUMER,
            "durable_name": CONSUMER,
            "deliver_policy": "all",
            "ack_policy": "explicit",
            "max_ack_pending": MEMBERS * POLLED,
        }
        name = f"CONSUMER.CREATE.{self.name}.{CONSUMER}"
        self.connection.call(name, stream_name=self.name, config=config)

    def fill(self, count: int) -> None:
        """Store `count` messages of 100 B. Raises `LoadFailed`."""
        values, one = random_values(100), Connection(self.address, QUIET)
        reply = f"{one.inbox}.stored"
        for first in range(0, count, FILLED):
            numbers = range(first, min(first + FILLED, count))
            one.send((self.subject, reply, values[n % len(values)]) for n in numbers)
            for _ in numbers:
                check_stored(one.take())
        one.close()

    def verify(self, count: int) -> None:
        """Raise `LoadFailed` unless the stream has `count` messages."""
        found = self.connection.call(f"STREAM.INFO.{self.name}")["state"]["messages"]
        if found != count:
            raise LoadFailed(f"the stream has {found} of {count} messages")

    def wait_for_acknowledgements(self) -> None:
        """Wait until the server has the acknowledgements of all messages."""
        stall = Stall(1)
        while True:
            found = self.connection.call(f"CONSUMER.INFO.{self.name}.{CONSUMER}")
            left = int(found["num_ack_pending"] + found["num_pending"])
            if not left:
                return
            stall.look(left)
            time.sleep(0.002)


def _pull(one: Connection, stream: str, batch: int) -> list[Message]:
    """Return a pull's messages, at least those that are there at once."""
    one.pull(stream, CONSUMER, batch, WAIT_S)
    found: list[Message] = []
    while len(found) < batch:
        message = one.take()
        if not message.is_stored:
            break
        found.append(message)
    return found


def _worker(address: str, stream: str, each: bool, go: Event, done: Event, work: Work) -> None:
    """One member: acknowledges each message, or those of a pull."""
    one = Connection(address, QUIET)
    go.wait()
    while not done.is_set():
        if each:
            _work_one_by_one(one, stream, work)
        elif messages := _pull(one, stream, POLLED):
            one.send((message.reply, "", b"") for message in messages)
            work.finish(messages)
    one.close()


def _work_one_by_one(one: Connection, stream: str, work: Work) -> None:
    """Acknowledge the messages of a pull as they come, and wait for each confirmation."""
    one.pull(stream, CONSUMER, PULLED, WAIT_S)
    for _ in range(PULLED):
        message = one.take()
        if not message.is_stored:
            return
        one.request(message.reply)
        work.finish((message,))


def job_queue(run: Run, jobs: int, each: bool) -> Figures:
    """Eight members of one consumer; jobs per second."""
    count = run.count(jobs)
    work = Work(1, count)
    go, done = multiprocessing.Event(), multiprocessing.Event()
    with Stream(run.bootstrap) as stream:
        stream.add_consumer()
        places = stream.addresses * MEMBERS
        workers = [
            multiprocessing.Process(
                target=_worker, args=(places[n], stream.name, each, go, done, work)
            )
            for n in range(MEMBERS)
        ]
        for worker in workers:
            worker.start()
        stream.fill(count)
        rate = time_workers(workers, work, count, go, done, stream.wait_for_acknowledgements)
        stream.verify(count)
    return {"rate": rate, "repeated": work.repeated, "records": count}


def _synchronous(address: str, subject: str, count: int, values: list[bytes], out: Any) -> None:
    one, times = Connection(address, QUIET), []
    for n in range(count):
        began = time.perf_counter()
        one.store(subject, values[n % len(values)])
        times.append(time.perf_counter() - began)
    one.close()
    out.put(times[SYNCHRONOUS_WARM:])


def synchronous(run: Run, records: int, producers: int) -> Figures:
    """One awaited message at a time, by several producers at the same time."""
    count, values = run.count(records) // producers + SYNCHRONOUS_WARM, random_values(100)
    out: Queue[list[float]] = multiprocessing.Queue()
    with Stream(run.bootstrap) as stream:
        places = [stream.address] if producers == 1 else stream.addresses * producers
        children = [
            multiprocessing.Process(
                target=_synchronous, args=(places[n], stream.subject, count, values, out)
            )
            for n in range(producers)
        ]
        mark(BEGIN)
        for child in children:
            child.start()
        parts = [out.get(timeout=LOAD_TIMEOUT_S) for _ in children]
        mark(END)
        for child in children:
            child.join()
        stream.verify(count * producers)
    times = sorted(t for part in parts for t in part)
    rate = sum(len(part) / sum(part) for part in parts)
    return {"rate": rate, "records": count * producers, **percentiles(times)}


def _produce(
    address: str, subject: str, per_s: int, total: int, awaits: bool, go: Event, out: Any
) -> None:
    """Send a message of its time `per_s` times a second, after a first one."""
    one = Connection(address, QUIET)
    reply = f"{one.inbox}.stored"
    one.store(subject, b"0")
    go.wait()

    def send(number: int) -> None:
        value = repr(time.perf_counter()).encode()
        if awaits:
            one.store(subject, value)
            return
        one.send([(subject, reply, value)])
        if number >= AHEAD:
            check_stored(one.take())

    elapsed = pace(total, per_s, send)
    for _ in range(0 if awaits else min(AHEAD, total)):
        check_stored(one.take())
    one.close()
    out.put(total / elapsed)


def end_to_end(run: Run, per_s: int, awaits: bool) -> Figures:
    """From publishing to the member, which acknowledges without waiting."""
    total = count_paced(run, per_s)
    go = multiprocessing.Event()
    out: Queue[float] = multiprocessing.Queue()
    times: list[float] = []
    with Stream(run.bootstrap) as stream:
        stream.add_consumer()
        words = (stream.address, stream.subject, per_s, total, awaits, go, out)
        producer = multiprocessing.Process(target=_produce, args=words)
        producer.start()
        one = Connection(stream.address, QUIET)
        _take(one, stream.name, 1, times.append)
        times.clear()
        mark(BEGIN)
        go.set()
        _take(one, stream.name, total, times.append)
        rate = out.get(timeout=LOAD_TIMEOUT_S)
        stream.wait_for_acknowledgements()
        mark(END)
        producer.join()
        one.close()
        stream.verify(total + 1)
    return {"rate": rate, "records": total, **percentiles(sorted(times[total // 10 :]))}


def _take(one: Connection, stream: str, count: int, note: Callable[[float], object]) -> None:
    """Take and acknowledge `count` messages, and note the seconds that each needed."""
    left, stall = count, Stall(count)
    while left:
        one.pull(stream, CONSUMER, left, 5 * WAIT_S)
        while left and (message := one.take()).is_stored:
            note(time.perf_counter() - float(message.data))
            one.send([(message.reply, "", b"")])
            left -= 1
        stall.look(left)


#: By the names in `deployed_loads.py`.
LOADS: dict[str, Load] = {
    "jobs, 8 partitions, commit a record": partial(job_queue, jobs=20_000, each=True),
    "jobs, 8 partitions, commit a poll": partial(job_queue, jobs=100_000, each=False),
    "synchronous produce, 1 producer": partial(synchronous, records=10_000, producers=1),
    "synchronous produce, 10 producers": partial(synchronous, records=20_000, producers=10),
    "end to end, 500/s, each awaited": partial(end_to_end, per_s=500, awaits=True),
    "end to end, 100/s": partial(end_to_end, per_s=100, awaits=False),
    "end to end, 1,000/s": partial(end_to_end, per_s=1_000, awaits=False),
}


if __name__ == "__main__":
    main(LOADS)
