"""Requests, and responses in the order of requests, on connections without sockets."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

import pytest
import uvloop
from shoal.protocol.api import ApiKey
from shoal.record.records import build_batch
from shoal.security.requirements import PUBLIC
from shoal.server import logs
from shoal.server.config import resolve
from shoal.server.network.api import Answer, Api, Body, Request
from shoal.server.network.connection import (
    PENDING_MAX,
    REQUEST_COST,
    TURN_COST_MAX,
)
from shoal.server.network.error_counts import make_counted_body
from shoal.server.process import compose
from support.brokers.connections import Server, Wire, request_frame
from support.runs.conditions import eventually_async

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

VERSION = 4
FRAME = request_frame(ApiKey.INIT_PRODUCER_ID, VERSION, {})


def in_loop(test: Callable[[], None]) -> None:
    async def main() -> None:
        test()

    logs.configure(json=True, level="critical")
    uvloop.run(main())


class Handler:
    """Answers InitProducerId on request of the test: the nth request gets the producer id n."""

    def __init__(self) -> None:
        self.due: list[asyncio.Future[Body]] = []

    def handle(self, server: Server, request: Request) -> Answer:
        self.due.append(server.node.loop.create_future())
        return self.due[-1]

    def row(self) -> Api:
        return Api(ApiKey.INIT_PRODUCER_ID, range(6), PUBLIC, self.handle)


def count(_server: Server, _request: Request) -> Answer:
    """Answer at once."""
    return {"producer_id": 1}


AT_ONCE = Api(ApiKey.INIT_PRODUCER_ID, range(6), PUBLIC, count)


@pytest.mark.parametrize("size", [1, 3, len(FRAME), len(FRAME) + 1, 10 * len(FRAME)])
def test_requests_arrive_in_parts_of_any_size(size: int) -> None:
    def test() -> None:
        server = Server(AT_ONCE)
        wire, data = server.connect(), 10 * FRAME
        for at in range(0, len(data), size):
            wire.receive(data[at : at + size])
        responses = b"".join(wire.written)
        assert len(responses) == 10 * (4 + int.from_bytes(responses[:4], "big"))
        assert server.listener.bytes_in == len(data)
        assert server.listener.bytes_out == len(responses)

    in_loop(test)


def test_responses_leave_in_the_order_of_requests() -> None:
    async def main() -> None:
        handler = Handler()
        wire = Server(handler.row()).connect()
        wire.receive(3 * FRAME)
        first, second, third = handler.due
        third.set_result({"producer_id": 3})
        second.set_result({"producer_id": 2})
        await asyncio.sleep(0)
        assert not wire.written
        first.set_result({"producer_id": 1})
        await asyncio.sleep(0)
        (data,) = wire.written
        size = 4 + int.from_bytes(data[:4], "big")
        ids = [data[at : at + size] for at in range(0, len(data), size)]
        assert [n.to_bytes(8, "big") in part for n, part in enumerate(ids, 1)] == 3 * [True]

    uvloop.run(main())


def test_reading_stops_while_many_requests_wait() -> None:
    async def main() -> None:
        handler = Handler()
        wire = Server(handler.row()).connect()
        wire.receive((PENDING_MAX + 5) * FRAME)
        await eventually_async(lambda: len(handler.due) >= PENDING_MAX)
        await asyncio.sleep(0)
        assert len(handler.due) == PENDING_MAX
        assert wire.reading_paused
        for future in handler.due[: PENDING_MAX // 2 + 1]:
            future.set_result({"producer_id": 1})
        await asyncio.sleep(0)
        assert len(handler.due) == PENDING_MAX + 5
        assert not wire.reading_paused

    uvloop.run(main())


def test_a_connection_with_many_requests_lets_others_have_their_turn() -> None:
    """A producer's turn took 60 ms: libuv reads up to 32 times before it looks at other sockets."""
    turns_of_the_first: list[int] = []

    async def main() -> None:
        server = Server(AT_ONCE)
        first, second = server.connect(), server.connect()
        requests = 3 * TURN_COST_MAX // REQUEST_COST
        first.receive(requests * FRAME)
        while first.reading_paused:
            turns_of_the_first.append(len(first.written))
            answered = len(second.written)
            second.receive(FRAME)
            assert len(second.written) == answered + 1
            await asyncio.sleep(0)
        responses = b"".join(first.written)
        assert len(responses) == requests * (4 + int.from_bytes(responses[:4], "big"))
        # Turns do not add up.
        for _ in range(requests):
            first.receive(FRAME)
            assert not first.reading_paused
            turn_s = server.node.loop.time()
            await eventually_async(lambda at_s=turn_s: server.node.loop.time() > at_s)

    uvloop.run(main())
    assert len(turns_of_the_first) == 3


def test_a_connection_that_is_lost_gives_up_its_requests() -> None:
    def test() -> None:
        handler = Handler()
        server = Server(handler.row())
        wire = server.connect()
        wire.receive(2 * FRAME)
        wire.close()
        assert all(future.cancelled() for future in handler.due)
        assert not server.listener.connections
        assert not server.listener.failures

    in_loop(test)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\xff\xff\xff\xff", "a request of -1 bytes"),
        (b"\x7f\xff\xff\xff", "socket.request.max.bytes is 104857600"),
        (
            b"\x16\x03\x01\x02\0\1",
            "the client speaks TLS on the listener PLAINTEXT, whose protocol",
        ),
        (b"\0\0\0\2\0\0", "a request of 2 bytes has no header"),
        (b"\0\0\0\x0a\0\x63\0\0\0\0\0\1\xff\xff", "API key 99 is not served on PLAINTEXT"),
    ],
)
def test_bytes_that_are_no_request_close_the_connection(data: bytes, reason: str) -> None:
    def test() -> None:
        server = Server(AT_ONCE)
        wire = server.connect()
        wire.receive(FRAME + data)
        assert wire.closed
        assert len(wire.written) == 1
        (failure,) = server.listener.failures
        assert reason in failure

    in_loop(test)


def test_a_node_that_joins_its_cluster_says_so_to_early_clients() -> None:
    """The log named the API as one that the listener does not serve at all."""

    def test() -> None:
        server = Server(AT_ONCE)
        server.advertised[99] = AT_ONCE
        wire = server.connect()
        wire.receive(b"\0\0\0\x0a\0\x63\0\0\0\0\0\1\xff\xff")
        assert wire.closed
        (failure,) = server.listener.failures
        assert failure.startswith(f"this node starts, and serves no {AT_ONCE.key.name} on ")

    in_loop(test)


def test_a_fetch_leaves_before_the_response_to_the_request_that_woke_it() -> None:
    def test() -> None:
        left: list[str] = []
        records: list[bytes] = []

        def produce(server: Server, _request: Request) -> Answer:
            records.append(b"a record")
            server.purgatory.wake("t")
            return {"producer_id": 1}

        def fetch(server: Server, _request: Request) -> Answer:
            return server.purgatory.park_fetch(
                ["t"],
                lambda: make_counted_body(records, {}) or None,
                lambda: make_counted_body([b"none"], {}),
                1 << 50,
            )

        server = Server(
            Api(ApiKey.INIT_PRODUCER_ID, range(6), PUBLIC, produce),
            Api(ApiKey.LIST_GROUPS, range(6), PUBLIC, fetch),
        )
        producer = server.connect(on_write=partial(left.append, "producer"))
        consumer = server.connect(on_write=partial(left.append, "consumer"))
        consumer.send(ApiKey.LIST_GROUPS, 4, {})
        assert not left
        producer.receive(FRAME)
        assert left == ["consumer", "producer"]
        assert consumer.written[0].endswith(b"a record")

    in_loop(test)


def test_a_record_leaves_before_the_response_to_its_producer(tmp_path: Path) -> None:
    """Found by profiles: half of a record's latency was the write to the socket of the producer.
    The waiting fetch was completed only after that."""
    left: list[str] = []

    async def main() -> None:
        flags = {"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": str(tmp_path)}
        broker = compose(resolve(flags, {}), asyncio.get_running_loop())
        await broker.start()
        try:
            producer, consumer = (
                Wire(broker.listeners[0], broker.dispatch, on_write=partial(left.append, name))
                for name in ("producer", "consumer")
            )
            producer.send(
                ApiKey.CREATE_TOPICS,
                7,
                {
                    "timeout_ms": 60_000,
                    "topics": [{"name": "t", "num_partitions": 1, "replication_factor": 1}],
                },
            )
            await eventually_async(lambda: left)
            left.clear()
            asked = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1000}
            consumer.send(
                ApiKey.FETCH,
                12,
                {
                    "max_wait_ms": 60_000,
                    "min_bytes": 1,
                    "max_bytes": 1000,
                    "session_epoch": -1,
                    "topics": [{"topic": "t", "partitions": [asked]}],
                },
            )
            assert not left
            batch = bytes(build_batch([(1, None, b"v", ())]))
            producer.send(
                ApiKey.PRODUCE,
                10,
                {
                    "acks": -1,
                    "timeout_ms": 1000,
                    "topic_data": [
                        {"name": "t", "partition_data": [{"index": 0, "records": batch}]}
                    ],
                },
            )
            assert left == ["consumer", "producer"]
            assert batch[61:] in consumer.written[-1]
        finally:
            await broker.stop()

    logs.configure(json=True, level="critical")
    uvloop.run(main())
