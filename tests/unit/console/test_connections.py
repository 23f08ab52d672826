"""Which connections the console cuts off. `tests/hostile` shows what that is good for."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING, cast

from shoal.console.access import connections
from shoal.console.access.connections import CHECK_S, WAIT_S, HttpConnection, HttpConnectionLimits

if TYPE_CHECKING:
    import pytest


class Transport(asyncio.Transport):
    """Counts what is left to read, and notes its end."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.is_aborted = 0, False

    def get_write_buffer_size(self) -> int:
        return self.left

    def abort(self) -> None:
        self.is_aborted = True


class Limits(HttpConnectionLimits):
    """Limits with a clock that stands still, and their connections' transports."""

    def __init__(self) -> None:
        super().__init__(lambda: self.now_s)
        self.now_s = 0.0

    def connect(self) -> tuple[HttpConnection, Transport]:
        connection, transport = HttpConnection(self, asyncio.Protocol()), Transport()
        connection.connection_made(cast("asyncio.BaseTransport", transport))
        return connection, transport


def test_the_connection_that_waits_for_longest_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "CONNECTIONS_MAX", 3)
    limits = Limits()
    made = []
    for limits.now_s in range(3):
        made.append(limits.connect())
    made[0][0].begin_request()
    _, newest = limits.connect()
    assert [transport.is_aborted for _, transport in made] == [False, True, False]
    assert not newest.is_aborted
    for connection in list(limits.connections):
        connection.begin_request()
    _, refused = limits.connect()
    assert refused.is_aborted


def test_the_connection_that_holds_most_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HELD_BYTES_MAX", 100)
    limits = Limits()
    (half, begun), (reader, slow), (other, fast) = (limits.connect() for _ in range(3))
    half.data_received(bytes(30))
    slow.left = 50
    reader.pause_writing()
    with other.holding(20):
        assert limits.held_bytes == 100
        half.data_received(b"1")
        assert (begun.is_aborted, slow.is_aborted, fast.is_aborted) == (False, True, False)
        assert limits.held_bytes == 51
    half.begin_request()
    assert limits.held_bytes == 0


def test_silent_and_slow_browsers_are_cut_off() -> None:
    limits = Limits()
    (_, silent), (reader, slow), (busy, working) = (limits.connect() for _ in range(3))
    busy.begin_request()
    slow.left = 1_000_000
    reader.pause_writing()
    limits.now_s = CHECK_S
    limits.check()
    slow.left -= connections.READ_BYTES_MIN
    limits.check()
    assert not slow.is_aborted
    slow.left -= connections.READ_BYTES_MIN - 1
    limits.now_s = WAIT_S + 1
    limits.check()
    assert (silent.is_aborted, slow.is_aborted, working.is_aborted) == (True, True, False)


def test_a_browser_that_reads_on_is_not_slow() -> None:
    """Its buffer is as full at each check, but it was empty in between."""
    limits = Limits()
    reader, transport = limits.connect()
    transport.left = 1000
    for _ in range(3):
        reader.pause_writing()
        limits.check()
        reader.resume_writing()
    assert not transport.is_aborted


def test_addresses_take_turns() -> None:
    async def run() -> list[str]:
        limits, begun = Limits(), []

        async def begin(address: str) -> None:
            await limits.wait_for_turn(address)
            begun.append(address)

        await asyncio.gather(*map(begin, ["many"] * 4 + ["few"] * 2))
        return begun

    assert asyncio.run(run()) == ["many", "few", "many", "few", "many", "many"]


def test_a_turn_reads_a_few_kilobytes() -> None:
    """A body in chunks of one byte takes ten microseconds for each of them."""
    sizes: list[int] = []

    class Inner(asyncio.Protocol):
        def data_received(self, data: bytes) -> None:
            sizes.append(len(data))

    async def main() -> None:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        connection = HttpConnection(HttpConnectionLimits(), Inner())
        transport, _ = await asyncio.get_running_loop().connect_accepted_socket(
            lambda: connection, ours
        )
        with theirs:
            theirs.sendall(bytes(20_000))
            while sum(sizes) < 20_000:
                await asyncio.sleep(0)
        transport.close()

    asyncio.run(main())
    assert max(sizes) <= connections.PARSE_BYTES
