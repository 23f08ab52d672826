"""A million share records in flight over 500 share partitions: pauses, CPU and memory.

`python bench/in_flight.py [PARTITIONS] [RECORDS EACH]`. The broker runs in this process. A member
without a socket sends it requests, so that no client is measured. A pause is the CPU time of one
turn of the event loop, which other processes do not distort. The bench prints the longest turns of
each event in ms.

Memory is the growth of Python's memory, including a second group's share partitions and their
persisted state. It is measured with all records acquired, and in some partitions with alternately
accepted and released records. The last line is JSON: `pause_ms` the longest turn, `record_cpu_us`
the CPU time to acquire a record, `record_bytes` and `mixed_record_bytes`.
"""

from __future__ import annotations

import asyncio
import gc
import json
import struct
import sys
import tempfile
import time
import tracemalloc
from typing import TYPE_CHECKING, Any

import uvloop
from shoal.protocol import codec, frames
from shoal.protocol.api import ApiKey
from shoal.record.records import build_batch
from shoal.server import logs
from shoal.server.config import resolve
from shoal.server.process import compose, tune_collector

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from shoal.server.broker import Broker

MEMBER, TOPIC = "A" * 22, "in-flight"
#: Lock durations: of the group whose locks expire, and of the one whose memory is traced.
LOCK_MS, TRACED_LOCK_MS = 15_000, 60_000
BATCH = 100
#: One partition in this number is mixed: tracing adds 50 us per record there.
MIXED_PART = 5


class Transport:
    """Keeps the output of a connection."""

    def __init__(self) -> None:
        self.written: list[bytes] = []

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 1) if name == "peername" else default

    def set_write_buffer_limits(self, **_: int) -> None: ...
    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...
    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return False

    def close(self) -> None: ...

    def write(self, data: bytes) -> None:
        self.written.append(bytes(data))

    def writelines(self, parts: Any) -> None:
        self.written.append(b"".join(parts))


class Turns:
    """CPU time of the loop's turns while they are watched."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._watches = False
        self.began_ns = 0
        self.longest_ms: list[float] = []
        #: The longest watched turn.
        self.pause_ms = 0.0

    def watch(self) -> None:
        self.longest_ms, self._watches = [], True
        self.began_ns = time.thread_time_ns()
        self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        now_ns = time.thread_time_ns()
        took_ms = (now_ns - self.began_ns) / 1e6
        self.longest_ms = sorted([*self.longest_ms, took_ms])[-3:]
        self.noted(took_ms)
        self.began_ns = now_ns
        if self._watches:
            self._loop.call_soon(self._turn)

    def noted(self, took_ms: float) -> None:
        """For subclasses: a turn has ended."""

    def report(self, what: str) -> None:
        self._watches = False
        self.pause_ms = max(self.pause_ms, *self.longest_ms)
        longest = ", ".join(f"{ms:.1f}" for ms in reversed(self.longest_ms))
        print(f"{what:55} {longest} ms", flush=True)


class Client:
    """The connection of a group's single member; `cpu_ns` is the loop time of its requests."""

    def __init__(self, broker: Broker, turns: Turns, group: str) -> None:
        listener = broker.listeners[0]
        self.connection = listener.make_connection()
        self.transport = Transport()
        self.connection.connection_made(self.transport)  # type: ignore[arg-type]
        self._turns = turns
        self.group = group
        self.session_epoch = 0
        self.cpu_ns = 0

    async def call(self, api: ApiKey, version: int, body: Mapping[str, Any]) -> Any:
        """Send one request and wait for its answer; the turns start when it arrives."""
        frame = frames.build_request_head(api, version, 1, "member")
        frame += bytes(codec.write_request(api, version, body))
        data = struct.pack(">i", len(frame)) + frame
        self.transport.written.clear()
        self._turns.began_ns = began_ns = time.thread_time_ns()
        for at in range(0, len(data), 200_000):
            part = data[at : at + 200_000]
            self.connection.get_buffer(-1)[: len(part)] = part
            self.connection.buffer_updated(len(part))
        while not self.transport.written:
            await asyncio.sleep(0)
        self.cpu_ns += time.thread_time_ns() - began_ns
        await asyncio.sleep(0)
        answer = b"".join(self.transport.written)
        return codec.read_response(
            api, version, answer[4:], len(frames.build_response_head(api, version, 1))
        )

    async def fetch(self, topic_id: Any, partitions: int) -> int:
        rows = [{"partition_index": n, "acknowledgement_batches": []} for n in range(partitions)]
        answer = await self.call(
            ApiKey.SHARE_FETCH,
            1,
            {
                "group_id": self.group,
                "member_id": MEMBER,
                "share_session_epoch": self.session_epoch,
                "max_wait_ms": 100,
                "min_bytes": 1,
                "max_bytes": 50 << 20,
                "max_records": 5000,
                "batch_size": 5000,
                "topics": []
                if self.session_epoch
                else [{"topic_id": topic_id, "partitions": rows}],
            },
        )
        assert not answer.error_code, answer
        self.session_epoch += 1
        ranges = (a for t in answer.responses for p in t.partitions for a in p.acquired_records)
        return sum(a.last_offset - a.first_offset + 1 for a in ranges)

    async def acknowledge(self, topic_id: Any, batches: Mapping[int, list[Any]]) -> None:
        """Acknowledge (first offset, last offset, types) by partition."""
        rows = [
            {
                "partition_index": index,
                "acknowledgement_batches": [
                    {"first_offset": first, "last_offset": last, "acknowledge_types": types}
                    for first, last, types in found
                ],
            }
            for index, found in batches.items()
        ]
        answer = await self.call(
            ApiKey.SHARE_ACKNOWLEDGE,
            1,
            {
                "group_id": self.group,
                "member_id": MEMBER,
                "share_session_epoch": self.session_epoch,
                "topics": [{"topic_id": topic_id, "partitions": rows}],
            },
        )
        self.session_epoch += 1
        codes = {p.error_code for t in answer.responses for p in t.partitions}
        assert (answer.error_code, codes) == (0, {0})


async def fill(client: Client, partitions: int, each: int) -> Any:
    """Create a topic with `each` records in each partition; return its id."""
    answer = await client.call(
        ApiKey.CREATE_TOPICS,
        7,
        {
            "timeout_ms": 60_000,
            "topics": [{"name": TOPIC, "num_partitions": partitions, "replication_factor": 1}],
        },
    )
    now_ms = int(time.time() * 1000)
    batch = bytes(build_batch([(now_ms, None, b"x" * 10, ())] * BATCH))
    rows = [{"index": index, "records": batch} for index in range(partitions)]
    for _ in range(each // BATCH):
        await client.call(
            ApiKey.PRODUCE,
            10,
            {
                "acks": -1,
                "timeout_ms": 10_000,
                "topic_data": [{"name": TOPIC, "partition_data": rows}],
            },
        )
    return answer.topics[0].topic_id


async def join(client: Client, partitions: int, each: int, lock_ms: int) -> None:
    """Join the group with a single member, which gets all partitions."""
    configs = {
        "share.auto.offset.reset": "earliest",
        "share.record.lock.duration.ms": str(lock_ms),
        "share.partition.max.record.locks": str(max(each, 100)),
    }
    entries = [{"name": k, "config_operation": 0, "value": v} for k, v in configs.items()]
    resource = {"resource_type": 32, "resource_name": client.group, "configs": entries}
    await client.call(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, {"resources": [resource]})
    epoch, assigned = 0, 0
    while assigned < partitions:
        answer = await client.call(
            ApiKey.SHARE_GROUP_HEARTBEAT,
            1,
            {
                "group_id": client.group,
                "member_id": MEMBER,
                "member_epoch": epoch,
                "subscribed_topic_names": [TOPIC],
            },
        )
        epoch = answer.member_epoch
        assigned_topics = answer.assignment.topic_partitions if answer.assignment else ()
        assigned = sum(len(t.partitions) for t in assigned_topics)
        await asyncio.sleep(0.05)


async def acquire_all(client: Client, topic_id: Any, partitions: int) -> int:
    total = 0
    while got := await client.fetch(topic_id, partitions):
        total += got
    return total


def alternating(first: int, count: int) -> tuple[int, int, list[int]]:
    """Acknowledge `count` records individually, accepted and released in turn."""
    return first, first + count - 1, [1 + n % 2 for n in range(count)]


async def pauses(
    broker: Broker, client: Client, turns: Turns, topic_id: Any, partitions: int, each: int
) -> float:
    """Print the loop's turns for each event; return the CPU time in us to acquire a record."""

    async def unlocked(every_s: float) -> None:
        while any(x.share.locks.live for x in broker.share.leaders[client.group].values()):
            await asyncio.sleep(every_s)

    began_ns = client.cpu_ns
    turns.watch()
    total = await client.fetch(topic_id, partitions)
    turns.report("the first fetch, which loads all share partitions")
    turns.watch()
    total += await acquire_all(client, topic_id, partitions)
    turns.report(f"fetches until {total:,} records are acquired")
    record_cpu_us = (client.cpu_ns - began_ns) / 1000 / total
    for what, offset in (("one record", 5), ("one more", 7)):
        turns.watch()
        rows = {index: [(offset, offset, [1])] for index in range(partitions)}
        await client.acknowledge(topic_id, rows)
        turns.report(f"{what} of every partition acknowledged at once")
    mixed = alternating(10, each // 2)
    turns.watch()
    await client.acknowledge(topic_id, {0: [mixed]})
    turns.report(f"{each // 2:,} records of one partition, individually")
    turns.watch()
    await client.acknowledge(topic_id, {index: [mixed] for index in range(1, 21)})
    turns.report("the same of 20 partitions in one request")
    turns.watch()
    await unlocked(0.1)
    turns.report("the locks of all end")
    total = await acquire_all(client, topic_id, partitions)
    turns.watch()
    client.connection.connection_lost(None)
    await unlocked(0.01)
    await asyncio.sleep(0.01)
    turns.report(f"the member that holds {total:,} dies")
    return record_cpu_us


async def memory(client: Client, topic_id: Any, partitions: int, each: int) -> tuple[float, float]:
    """Return bytes per record in flight: all acquired, and with alternating states."""

    def held() -> int:
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    before = held()
    total = await acquire_all(client, topic_id, partitions)
    alike = held()
    some = range(max(1, partitions // MIXED_PART))
    for index in some:
        await client.acknowledge(topic_id, {index: [alternating(0, each)]})
    mixed = held()
    tracemalloc.stop()
    a_record = (alike - before) / total
    return a_record, a_record + (mixed - alike) / (len(some) * each)


async def run(broker: Broker, partitions: int, each: int) -> dict[str, float]:
    turns = Turns(asyncio.get_running_loop())
    first, second = (Client(broker, turns, group) for group in ("pauses", "memory"))
    topic_id = await fill(first, partitions, each)
    await join(first, partitions, each, LOCK_MS)
    record_cpu_us = await pauses(broker, first, turns, topic_id, partitions, each)
    await join(second, partitions, each, TRACED_LOCK_MS)
    alike, mixed = await memory(second, topic_id, partitions, each)
    return {
        "pause_ms": turns.pause_ms,
        "record_cpu_us": record_cpu_us,
        "record_bytes": alike,
        "mixed_record_bytes": mixed,
    }


async def main(run: Callable[[Broker, int, int], Awaitable[Any]], *defaults: str) -> None:
    """Run a bench of a broker in this process with two numbers of the command line; print what it
    returns as JSON."""
    words = sys.argv[1:3]
    first, second = map(int, [*words, *defaults[len(words) :]])
    logs.configure(json=True, level="error")
    with tempfile.TemporaryDirectory(prefix="shoal-bench-") as folder:
        flags = {"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": folder}
        broker = compose(resolve(flags, {}), asyncio.get_running_loop())
        await broker.start()
        tune_collector()
        try:
            print(json.dumps(await run(broker, first, second)))
        finally:
            await broker.stop()


if __name__ == "__main__":
    uvloop.run(main(run, "500", "2000"))
