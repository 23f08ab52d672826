"""Limits on requests over all connections, on connections without sockets."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import uvloop
from shoal.protocol import produce as produce_request
from shoal.protocol.api import ApiKey
from shoal.record.records import build_batch
from shoal.security.requirements import PUBLIC
from shoal.server import logs
from shoal.server.network import request_limits
from shoal.server.network.api import Answer, Api, Request
from support.brokers.connections import Server, request_frame
from support.runs.conditions import eventually_async

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    import pytest

SIZE = 200_000


def produce() -> bytes:
    rows = [{"index": 0, "records": bytes(build_batch([(1, None, bytes(SIZE), ())]))}]
    body = {
        "acks": 1,
        "timeout_ms": 1_000,
        "topic_data": [{"name": "none", "partition_data": rows}],
    }
    return request_frame(ApiKey.PRODUCE, 9, body)


def append(_server: Server, request: Request) -> Answer:
    request.release()
    return {"responses": []}


def run(test: Callable[[Server], Awaitable[None]], **configs: str) -> None:
    async def main() -> None:
        logs.configure(json=False, level="error")
        row = Api(ApiKey.PRODUCE, range(3, 14), PUBLIC, append, read=produce_request.read)
        named: dict[str, Any] = {**configs}
        await test(Server(row, **named))

    uvloop.run(main())


BYTES = {"queued_max_request_bytes": "300000", "socket_request_max_bytes": "300000"}


def test_connections_resume_in_the_order_in_which_they_stopped() -> None:
    """queued.max.request.bytes: memory never exceeds the limit by more than one request."""
    frame = produce()

    async def test(server: Server) -> None:
        limits = server.listener.request_limits
        order: list[int] = []
        first = [server.connect() for _ in range(2)]
        for wire in first:
            wire.receive(frame[: SIZE // 2])
        assert limits.is_full
        assert limits.bytes == 2 * (len(frame) - 4)
        late = [server.connect(on_resume=partial(order.append, n)) for n in range(6)]
        for wire in late:
            wire.receive(frame[: SIZE // 2])
            assert wire.reading_paused
        assert limits.waiting == 6
        assert limits.bytes == 2 * (len(frame) - 4)
        # A connection that closes while it waits leaves the queue. The bytes of one that closes
        # while it receives a request do not count any more.
        late[1].close()
        first[0].close()
        first[1].receive(frame[SIZE // 2 :])
        assert len(first[1].written) == 1
        left = [wire for number, wire in enumerate(late) if number != 1]
        while left:
            await eventually_async(lambda: any(not w.reading_paused for w in left))
            assert limits.bytes <= 300_000 + len(frame)
            for wire in [w for w in left if not w.reading_paused]:
                wire.receive(frame[SIZE // 2 :])
                left.remove(wire)
        assert not left
        assert order == [0, 2, 3, 4, 5]
        assert all(len(wire.written) == 1 for wire in late if wire is not late[1])
        assert (limits.bytes, limits.requests, limits.waiting) == (0, 0, 0)

    run(test, **BYTES)


def test_without_a_limit_no_connection_waits() -> None:
    frame = produce()

    async def test(server: Server) -> None:
        wires = [server.connect() for _ in range(20)]
        for wire in wires:
            wire.receive(frame[: SIZE // 2])
            assert not wire.reading_paused
        for wire in wires:
            wire.receive(frame[SIZE // 2 :])
            assert len(wire.written) == 1

    run(test)


def test_a_client_that_stalls_is_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise, two clients that send half a request and then nothing would stop all others."""
    monkeypatch.setattr(request_limits, "STALL_S", 0.05)
    monkeypatch.setattr(request_limits, "_STALL_CHECK_S", 0.02)
    frame = produce()

    async def test(server: Server) -> None:
        stalled = [server.connect() for _ in range(2)]
        for wire in stalled:
            wire.receive(frame[: SIZE // 2])
        late = server.connect()
        late.receive(frame[: SIZE // 2])
        await eventually_async(lambda: not late.reading_paused)
        late.receive(frame[SIZE // 2 :])
        assert len(late.written) == 1
        assert any(wire.closed for wire in stalled)

    run(test, **BYTES)
