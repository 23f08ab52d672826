"""Limits on requests over all connections, on connections without sockets."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import uvloop
from conditions import eventually_async
from shoal.protocol import codec, frames
from shoal.protocol.api import ApiKey
from shoal.record.records import build_batch
from shoal.server import logs
from shoal.server.broker import Broker
from shoal.server.config import resolve
from shoal.server.network import request_limits
from shoal.server.network.connection import Connection

SIZE = 200_000


class Wire:
    """A transport that counts what is written, and whether the connection was closed."""

    def __init__(self, broker: Broker) -> None:
        self.answers = 0
        self.closed = self.reading_paused = False
        listener = broker.listeners[0]
        self.connection = Connection(listener, listener._dispatch)
        self.connection.connection_made(self)  # type: ignore[arg-type]

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 1) if name == "peername" else default

    def set_write_buffer_limits(self, **_: int) -> None: ...

    def pause_reading(self) -> None:
        self.reading_paused = True

    def resume_reading(self) -> None:
        self.reading_paused = False

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self.connection.connection_lost(None)

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return self.closed

    def write(self, data: bytes) -> None:
        self.answers += 1

    def writelines(self, parts: list[bytes]) -> None:
        self.write(b"".join(parts))

    def take(self, data: bytes) -> None:
        """Receive these bytes, as far as the connection reads."""
        while data and not self.reading_paused:
            buffer = self.connection.get_buffer(-1)
            part, data = data[: len(buffer)], data[len(buffer) :]
            buffer[: len(part)] = part
            self.connection.buffer_updated(len(part))


def produce() -> bytes:
    rows = [{"index": 0, "records": bytes(build_batch([(1, None, bytes(SIZE), ())]))}]
    body = {
        "acks": 1,
        "timeout_ms": 1_000,
        "topic_data": [{"name": "none", "partition_data": rows}],
    }
    frame = frames.request_head(ApiKey.PRODUCE, 9, 1, "t")
    frame += bytes(codec.write_request(ApiKey.PRODUCE, 9, body))
    return len(frame).to_bytes(4, "big") + frame


def run(tmp_path: Path, test: Any, **configs: str) -> None:
    async def main() -> None:
        logs.configure(json=False, level="error")
        given = {"log.dirs": str(tmp_path), "listeners": "PLAINTEXT://127.0.0.1:0"}
        given |= {name.replace("_", "."): value for name, value in configs.items()}
        broker = Broker(resolve(given, {}), asyncio.get_running_loop())
        await broker.start()
        try:
            await test(broker)
        finally:
            await broker.stop()

    uvloop.run(main())


BYTES = {"queued_max_request_bytes": "300000", "socket_request_max_bytes": "300000"}


def test_connections_go_on_in_the_order_in_which_they_stopped(tmp_path: Path) -> None:
    """queued.max.request.bytes: never more than the limit and one request are in memory."""
    frame = produce()

    async def test(broker: Broker) -> None:
        limits, order = broker.request_limits, []
        first = [Wire(broker) for _ in range(2)]
        for wire in first:
            wire.take(frame[: SIZE // 2])
        assert limits.is_full and limits.bytes == 2 * (len(frame) - 4)
        late = [Wire(broker) for _ in range(6)]
        for number, wire in enumerate(late):
            wire.take(frame[: SIZE // 2])
            assert wire.reading_paused
            wire.resume_reading = lambda n=number, w=wire: (  # type: ignore[method-assign]
                order.append(n),
                setattr(w, "reading_paused", False),
            )
        assert limits.waiting == 6 and limits.bytes == 2 * (len(frame) - 4)
        # A connection that goes while it waits is forgotten; one that goes while its request
        # arrives gives its room back.
        late[1].close()
        first[0].close()
        first[1].take(frame[SIZE // 2 :])
        assert first[1].answers == 1
        left = [wire for number, wire in enumerate(late) if number != 1]
        while left:
            await eventually_async(lambda: any(not w.reading_paused for w in left))
            assert limits.bytes <= 300_000 + len(frame)
            for wire in [w for w in left if not w.reading_paused]:
                wire.take(frame[SIZE // 2 :])
                left.remove(wire)
        assert not left and order == [0, 2, 3, 4, 5]
        assert all(wire.answers == 1 for wire in late if wire is not late[1])
        assert (limits.bytes, limits.requests, limits.waiting) == (0, 0, 0)

    run(tmp_path, test, **BYTES)


def test_without_a_limit_nobody_waits(tmp_path: Path) -> None:
    frame = produce()

    async def test(broker: Broker) -> None:
        wires = [Wire(broker) for _ in range(20)]
        for wire in wires:
            wire.take(frame[: SIZE // 2])
            assert not wire.reading_paused
        for wire in wires:
            wire.take(frame[SIZE // 2 :])
            assert wire.answers == 1

    run(tmp_path, test)


def test_a_client_that_stalls_gives_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else two clients that send half a request and then nothing would stop all others."""
    monkeypatch.setattr(request_limits, "STALL_S", 0.05)
    monkeypatch.setattr(request_limits, "_STALL_CHECK_S", 0.02)
    frame = produce()

    async def test(broker: Broker) -> None:
        stalled = [Wire(broker) for _ in range(2)]
        for wire in stalled:
            wire.take(frame[: SIZE // 2])
        late = Wire(broker)
        late.take(frame[: SIZE // 2])
        await eventually_async(lambda: not late.reading_paused)
        late.take(frame[SIZE // 2 :])
        assert late.answers == 1 and any(wire.closed for wire in stalled)

    run(tmp_path, test, **BYTES)
