"""The account of memory for requests that are arriving, on connections without sockets."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

import pytest
import uvloop
from shoal.protocol import produce as produce_request
from shoal.protocol.api import ApiKey
from shoal.record.records import build_batch
from shoal.security.requirements import PUBLIC
from shoal.server import logs
from shoal.server.config import resolve
from shoal.server.network import receive_memory
from shoal.server.network.api import Answer, Api, Request
from shoal.server.network.connection import FRAME_START_SIZE
from shoal.server.network.deferred import DeferredResponse
from shoal.server.network.receive_memory import (
    STRANGERS,
    TURN_BYTES_MAX,
    ReceiveMemories,
    ReceiveMemory,
)
from shoal.server.node import Node
from support.brokers.connections import Server, Wire, request_frame
from support.runs.conditions import eventually_async

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


def make_produce(size: int) -> bytes:
    """Return a produce request with a record of `size` bytes."""
    rows = [{"index": 0, "records": bytes(build_batch([(1, None, bytes(size), ())]))}]
    topics = [{"name": "t", "partition_data": rows}]
    body = {"acks": 1, "timeout_ms": 1000, "topic_data": topics}
    return request_frame(ApiKey.PRODUCE, 9, body)


FRAME = make_produce(1_000_000)
#: What a connection keeps without memory for more, and the rest.
BEGIN, REST = FRAME[:100_000], FRAME[100_000:]
SIZE = len(FRAME) - 4
#: Memory for eight requests, and as many as one client may begin: it then holds what is free.
MEMORY, OF_ONE = 8 * SIZE, 4


class World(Server):
    """A server with memory for eight requests. Produces wait while `appends` is false."""

    def __init__(self) -> None:
        row = Api(ApiKey.PRODUCE, range(3, 14), PUBLIC, World.append, read=produce_request.read)
        super().__init__(row, shoal_request_memory_bytes=str(MEMORY))
        self.memory = self.listener.receive_memory
        self.appends = True
        self.queued: list[Request] = []

    def append(self, request: Request) -> Answer:
        if self.appends:
            request.release()
            return {"responses": []}
        self.queued.append(request)
        return DeferredResponse()

    def begin(self, host: str, count: int = 1) -> list[Wire]:
        """Connect `count` times from an address, and send the begin of a request by each."""
        wires = [self.connect(host) for _ in range(count)]
        for wire in wires:
            wire.receive(BEGIN)
        return wires


async def feed(wire: Wire, data: bytes) -> None:
    """Receive these bytes in as many turns as it takes."""
    while data := wire.receive(data):
        await asyncio.sleep(0)


def run(test: Callable[[World], Awaitable[None]]) -> None:
    async def main() -> None:
        logs.configure(json=False, level="error")
        await test(World())

    uvloop.run(main())


def count_paused(wires: list[Wire]) -> int:
    return sum(wire.reading_paused for wire in wires)


def test_a_client_holds_no_more_than_is_free() -> None:
    """So another one can still send its request. Connections go on when memory is freed."""

    async def test(world: World) -> None:
        greedy = world.begin("10.0.0.1", 20)
        assert world.memory.bytes == MEMORY // 2 == OF_ONE * SIZE
        assert (world.memory.waiting, count_paused(greedy)) == (20 - OF_ONE, 20 - OF_ONE)
        (other,) = world.begin("10.0.0.2")
        other.receive(REST)
        assert len(other.written) == 1
        greedy[-1].close()  # It waits.
        greedy[0].close()  # It does not.
        left = greedy[1:-1]
        while left:
            await eventually_async(lambda: count_paused(left) < len(left))
            assert world.memory.bytes <= OF_ONE * SIZE
            for wire in [w for w in left if not w.reading_paused]:
                wire.receive(REST)
                left.remove(wire)
        assert (world.memory.bytes, world.memory.waiting) == (0, 0)
        assert not world.memory.held

    run(test)


def test_the_oldest_request_goes_on_without_memory() -> None:
    """One request at a time goes on, however large: nobody waits for ever for somebody else."""
    large = make_produce(2 * MEMORY)

    async def test(world: World) -> None:
        first, second = world.connect(), world.connect()
        for wire in (first, second):
            wire.receive(large[:100_000])
        await feed(first, large[100_000:9_000_000])
        second.receive(large[100_000:9_000_000])
        await eventually_async(lambda: not first.reading_paused)
        assert second.reading_paused
        await feed(first, large[9_000_000:])
        assert len(first.written) == 1
        await eventually_async(lambda: not second.reading_paused)

    run(test)


def test_a_turn_allocates_only_so_much() -> None:
    """Each buffer is zeroed, and gets what is received already. Nobody waits longer for that."""
    frame = make_produce(30_000_000)

    async def test(world: World) -> None:
        world.memory = world.listener.receive_memory = ReceiveMemory(world.node.loop, 1 << 40)
        wires = [world.connect(f"10.0.0.{n}") for n in range(20)]
        for wire in wires:
            wire.receive(frame[:100_000])
        before = world.memory.bytes
        assert TURN_BYTES_MAX <= before < TURN_BYTES_MAX + FRAME_START_SIZE
        await asyncio.sleep(0)
        assert before < world.memory.bytes <= 2 * before
        await eventually_async(lambda: not count_paused(wires))

    run(test)


def test_clients_take_turns_when_memory_is_free() -> None:
    """The connection of one client does not wait behind a hundred of another one."""

    async def test(world: World) -> None:
        holders = [wire for n in range(7) for wire in world.begin(f"10.0.1.{n}")]
        resumed: list[str] = []
        for host, count in (("greedy", 100), ("modest", 1)):
            for _ in range(count):
                wire = world.connect(host, on_resume=partial(resumed.append, host))
                wire.receive(BEGIN)
        assert world.memory.bytes <= MEMORY
        for wire in holders[:3]:
            wire.receive(REST)
        await eventually_async(lambda: resumed)
        assert "modest" in resumed[:2]

    run(test)


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receive_memory, "REQUEST_S", 0.05)
    monkeypatch.setattr(receive_memory, "BYTES_PER_S", 1 << 60)
    monkeypatch.setattr(receive_memory, "_CHECK_S", 0.01)


@pytest.mark.usefixtures("hurried")
def test_a_slow_request_is_closed_if_others_wait_for_its_memory() -> None:
    """Whether it sends nothing or a byte now and then. A client that holds less than the one that
    waits is not in its way."""

    async def test(world: World) -> None:
        (modest,) = world.begin("10.0.0.2")
        slow = world.begin("10.0.0.1", OF_ONE)
        (late,) = world.begin("10.0.0.1")
        assert late.reading_paused
        sent = 0

        def trickle() -> bool:
            nonlocal sent
            sent += 1
            slow[0].receive(b"\x00")
            return slow[0].closed

        await eventually_async(trickle)
        assert sent < SIZE // 2
        await eventually_async(lambda: not late.reading_paused)
        assert not modest.closed
        assert (
            "while other connections waited for shoal.request.memory.bytes"
            in (world.listener.failures[0])
        )
        assert f"a request of {SIZE} bytes was not complete after 0 s" in world.listener.failures[0]

    run(test)


@pytest.mark.usefixtures("hurried")
def test_a_client_that_reads_no_response_frees_memory_when_it_is_closed() -> None:
    """A connection may stay for as long as its responses are not read."""

    async def test(world: World) -> None:
        slow = world.begin("10.0.0.1", OF_ONE)
        for wire in slow:
            wire.connection.pause_writing()
            wire.close = lambda: None  # type: ignore[method-assign]
        world.begin("10.0.0.2", OF_ONE)
        await eventually_async(lambda: len(world.listener.failures) >= OF_ONE)
        await eventually_async(lambda: not world.memory.waiting)
        assert "10.0.0.1" not in world.memory.held

    run(test)


def test_connections_before_their_login_are_one_client_with_little() -> None:
    async def test(world: World) -> None:
        world.listener.request_size_max += 1  # Before the login, less is accepted.
        login = make_produce(200_000)
        wires = [world.connect(f"10.0.0.{n}") for n in range(3)]
        for wire in wires:
            wire.connection.serve_with(world.dispatcher, world.listener.request_size_max - 1)
            wire.receive(login[:100_000])
        assert [wire.reading_paused for wire in wires] == [False, False, True]
        assert world.memory.held == {STRANGERS: 2 * (len(login) - 4)}

    run(test)


def test_listeners_for_nodes_alone_have_memory_of_their_own() -> None:
    """Otherwise clients could stop the requests of brokers and controllers."""

    def name_those_of_nodes(listeners: str, **configs: str) -> set[str]:
        given = {name.replace("_", "."): value for name, value in configs.items()}
        given["node.id"] = "1"
        given["listeners"] = ",".join(f"{name}://127.0.0.1:0" for name in listeners.split())
        protocols = ",".join(f"{name}:PLAINTEXT" for name in listeners.split())
        given["listener.security.protocol.map"] = protocols
        node = Node(resolve(given, {}), asyncio.new_event_loop())
        node.loop.close()
        memories = ReceiveMemories(node)
        assert memories.of_clients.bytes == 0
        return {
            name for name in node.cluster.kinds if memories.get(name) is not memories.of_clients
        }

    assert name_those_of_nodes("PLAINTEXT") == set()
    assert name_those_of_nodes("A B", inter_broker_listener_name="B") == {"B"}
    combined = {"process_roles": "broker,controller", "controller_listener_names": "C"}
    assert name_those_of_nodes("A C", controller_quorum_voters="1@127.0.0.1:9", **combined) == {"C"}


def test_requests_that_wait_to_be_appended_hold_memory() -> None:
    async def test(world: World) -> None:
        world.appends = False
        for wire in [world.connect() for _ in range(9)]:
            wire.receive(FRAME)
        assert world.memory.bytes == len(world.queued) * SIZE == MEMORY
        (late,) = world.begin("10.0.0.2")
        assert late.reading_paused
        for request in world.queued:
            request.release()
        await eventually_async(lambda: not late.reading_paused)

    run(test)


def test_a_large_request_lets_others_have_their_turn() -> None:
    """The kernel may have megabytes of it, by many connections."""
    frame = make_produce(30_000_000)

    async def test(world: World) -> None:
        world.memory = world.listener.receive_memory = ReceiveMemory(world.node.loop, 1 << 40)
        wire = world.connect()
        wire.receive(frame)
        assert wire.reading_paused
        assert world.listener.bytes_in <= FRAME_START_SIZE + 4
        await eventually_async(lambda: not wire.reading_paused)

    run(test)
