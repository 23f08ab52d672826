"""The client on a faulty network: cut connections, lost responses, broken peers.

A relay is between client and broker. The broker advertises the relay's address, so every connection
goes through it.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from shoal.client.admin.configs import ConfigChange, ConfigResource, ConfigResourceType
from shoal.client.admin.topics import NewTopic
from shoal.client.client import Client
from shoal.client.consume.consumer import GroupConsumer
from shoal.client.errors import (
    ConnectionLost,
    KafkaError,
    RequestTimeout,
    Unreachable,
    UnsupportedVersion,
)
from shoal.client.net.connection import PIPELINE_MAX, connect
from shoal.client.settings import Settings
from shoal.client.share.member import AcknowledgeType, ShareSession
from shoal.protocol.api import ApiKey
from shoal.protocol.errors import ErrorCode
from support.brokers.ports import free_ports
from support.brokers.servers import ShoalProcess
from support.scenarios import client_scenarios

if TYPE_CHECKING:
    from pathlib import Path

PRODUCE = int(ApiKey.PRODUCE)


class Relay:
    """Forwards frames. `lose(api_key, n)` drops the next n responses of an API and disconnects."""

    def __init__(self, target: tuple[str, int]) -> None:
        self._target = target
        self._lose: dict[int, int] = {}
        self.lost = 0
        self._links: list[asyncio.StreamWriter] = []

    def lose(self, api_key: int, answers: int) -> None:
        self._lose[api_key] = answers

    def cut_all(self) -> None:
        for writer in self._links:
            writer.close()
        self._links.clear()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(*self._target)
        self._links += [writer, back]
        asked: asyncio.Queue[int] = asyncio.Queue()
        tasks = [
            asyncio.create_task(self._requests(reader, back, asked)),
            asyncio.create_task(self._answers(there, writer, asked)),
        ]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        writer.close()
        back.close()

    async def _requests(
        self, reader: asyncio.StreamReader, back: asyncio.StreamWriter, asked: asyncio.Queue[int]
    ) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                frame = await _frame(reader)
                asked.put_nowait(struct.unpack_from(">h", frame, 4)[0])
                back.write(frame)

    async def _answers(
        self, there: asyncio.StreamReader, writer: asyncio.StreamWriter, asked: asyncio.Queue[int]
    ) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                frame = await _frame(there)
                api_key = asked.get_nowait()
                if self._lose.get(api_key, 0) > 0:
                    self._lose[api_key] -= 1
                    self.lost += 1
                    return
                writer.write(frame)


async def _frame(reader: asyncio.StreamReader) -> bytes:
    size = await reader.readexactly(4)
    return size + await reader.readexactly(int.from_bytes(size, "big"))


@contextlib.asynccontextmanager
async def relayed(broker: ShoalProcess, port: int) -> AsyncIterator[Relay]:
    host, _, number = broker.bootstrap.rpartition(":")
    relay = Relay((host, int(number)))
    server = await asyncio.start_server(relay.serve, "127.0.0.1", port)
    try:
        yield relay
    finally:
        relay.cut_all()
        server.close()


def through_relay(tmp_path: Path, scenario: Callable[[Client, Relay], Awaitable[None]]) -> None:
    """Run a scenario against a broker that is reachable only through a relay."""
    (port,) = free_ports(1)
    advertised = {"advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}"}
    broker = ShoalProcess(tmp_path / "data", configs=advertised).start()

    async def run() -> None:
        async with relayed(broker, port) as relay, Client(f"127.0.0.1:{port}") as client:
            await scenario(client, relay)

    try:
        asyncio.run(run())
    finally:
        broker.kill9()


def test_idempotent_requests_are_repeated_after_a_lost_response(tmp_path: Path) -> None:
    """Also as the first request of a client, which has only the bootstrap addresses."""

    async def scenario(client: Client, relay: Relay) -> None:
        group = ConfigResource(ConfigResourceType.GROUP, "g")
        change = ConfigChange("share.auto.offset.reset", "earliest")
        admin = client.admin
        relay.lose(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1)
        assert await admin.configs.alter({group: [change]}) == {group: None}
        for api_key, call in (
            (ApiKey.DESCRIBE_CONFIGS, lambda: admin.configs.describe([group])),
            (
                ApiKey.LIST_CONFIG_RESOURCES,
                lambda: admin.configs.resources([ConfigResourceType.GROUP]),
            ),
            (ApiKey.DESCRIBE_QUORUM, admin.describe_quorum),
            (ApiKey.LIST_PARTITION_REASSIGNMENTS, admin.reassignments),
        ):
            relay.lose(api_key, 1)
            await call()
        assert relay.lost == 5
        relay.lose(ApiKey.CREATE_TOPICS, 1)
        with pytest.raises(ConnectionLost):
            await admin.topics.create([NewTopic("t")])
        assert (await client.cluster.get_topic("t")).name == "t", "it may have worked, as here"

    through_relay(tmp_path, scenario)


def test_an_idempotent_producer_stores_nothing_twice(tmp_path: Path) -> None:
    async def scenario(client: Client, relay: Relay) -> None:
        topic = await client_scenarios.new_topic(client)
        async with client.producer(linger_ms=0) as producer:
            for i in range(20):
                if i % 5 == 0:
                    relay.lose(PRODUCE, 2)
                await (await producer.send(topic, b"%d" % i))
        assert relay.lost == 8
        fetched = await client.fetch_range(topic, 0, 0, 19)
        values = [int(r.value or b"") for one in fetched for r in one.records()]
        assert values == list(range(20))
        with pytest.raises(KafkaError, match="up to its end 20"):
            await client.fetch_range(topic, 0, 20, 20)

    through_relay(tmp_path, scenario)


def test_a_record_without_an_answer_is_given_up_in_time(tmp_path: Path) -> None:
    async def scenario(client: Client, relay: Relay) -> None:
        topic = await client_scenarios.new_topic(client)
        client.cluster.settings = replace(client.cluster.settings, delivery_timeout_ms=300)
        relay.lose(PRODUCE, 1_000_000)
        async with client.producer(linger_ms=0) as producer:
            sent = await producer.send(topic, b"x")
            with pytest.raises((ConnectionLost, RequestTimeout)):
                await asyncio.wait_for(sent, 30)

    through_relay(tmp_path, scenario)


def test_a_share_session_survives_its_connection(tmp_path: Path) -> None:
    """The broker delivers the records of a lost connection to the next member, here the same
    one."""

    async def scenario(client: Client, relay: Relay) -> None:
        topic = await client_scenarios.new_topic(client)
        group = await client_scenarios.new_group(client)
        await client_scenarios.fill(client, topic, [b"x"] * 3)
        async with await client.share(group, [topic]) as session:
            (first,) = await client_scenarios.acquire(session)
            relay.cut_all()
            await asyncio.wait_for(_closed(session), 5)
            refusals = await session.acknowledge(first.acknowledge(AcknowledgeType.ACCEPT))
            assert [type(r.error) for r in refusals] == [KafkaError]
            (again,) = await client_scenarios.acquire(session)
            assert [r.offset for r in again.records()] == [0, 1, 2]
            assert await session.acknowledge(again.acknowledge(AcknowledgeType.ACCEPT)) == ()

    through_relay(tmp_path, scenario)


async def _closed(session: ShareSession) -> None:
    while not all(link.closed for link in session.links.values()):
        await asyncio.sleep(0)


Behaviour = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def against(behaviour: Behaviour, **settings: str) -> None:
    """Connect to a server with this behaviour."""
    server = await asyncio.start_server(behaviour, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    properties = {name.replace("_", "."): value for name, value in settings.items()}
    try:
        (await connect(Settings.from_bootstrap("x", properties), ("127.0.0.1", port))).close()
    finally:
        server.close()


async def _mute(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()
    writer.close()


async def _hangs_up(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.close()


async def _speaks_http(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(4)
    writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    await reader.read()
    writer.close()


async def _another_request(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await _frame(reader)
    writer.write(struct.pack(">ii", 4, 4711))
    await reader.read()
    writer.close()


@pytest.mark.parametrize(
    ("behaviour", "error", "said"),
    [
        (_hangs_up, Unreachable, "If it expects TLS or SASL"),
        (
            _speaks_http,
            Unreachable,
            "sent a frame of 1213486160 bytes. It may not be a Kafka broker",
        ),
        (_another_request, Unreachable, "answered a request that was not sent"),
    ],
)
def test_peers_that_are_no_brokers(behaviour: Behaviour, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        asyncio.run(against(behaviour))


def test_a_peer_that_never_answers() -> None:
    settings = {"socket_connection_setup_timeout_ms": "200"}
    with pytest.raises((Unreachable, RequestTimeout), match="within 200 ms"):
        asyncio.run(against(_mute, **settings))


def test_no_process_listens() -> None:
    (port,) = free_ports(1)

    async def run() -> None:
        async with Client(f"127.0.0.1:{port}") as client:
            await client.admin.describe_cluster()

    with pytest.raises(Unreachable, match="connection refused"):
        asyncio.run(run())


def test_requests_of_one_connection_are_pipelined(shared_broker: ShoalProcess) -> None:
    settings = Settings.from_bootstrap(shared_broker.bootstrap)

    async def run() -> None:
        link = await connect(settings, settings.bootstrap[0])
        answers = await asyncio.gather(
            *(link.request(ApiKey.METADATA, {"topics": []}) for _ in range(500))
        )
        assert len(answers) == 500
        with pytest.raises(UnsupportedVersion, match="share no version of VOTE"):
            link.choose_version(ApiKey.VOTE)
        link.close()
        with pytest.raises(ConnectionLost, match="this client closed the connection"):
            await link.request(ApiKey.METADATA, {"topics": []})

    asyncio.run(run())


def test_cancelled_requests_leave_room_for_others(shared_broker: ShoalProcess) -> None:
    """They wait until the broker reads again. Each one used to take one of the places for requests
    with it, until no request was sent any more."""
    settings = Settings.from_bootstrap(shared_broker.bootstrap)

    async def main() -> None:
        link = await connect(settings, settings.bootstrap[0])
        link.pause_writing()
        body = {"include_cluster_authorized_operations": False}
        asked = [
            asyncio.create_task(link.request(ApiKey.DESCRIBE_CLUSTER, body, version=0))
            for _ in range(PIPELINE_MAX)
        ]
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.gather(*asked), 0.1)
        link.resume_writing()
        answer = link.request(ApiKey.DESCRIBE_CLUSTER, body, version=0)
        assert (await asyncio.wait_for(answer, 30)).error_code == 0
        link.close()

    asyncio.run(main())


def test_a_group_of_another_kind(shared_broker: ShoalProcess) -> None:
    async def run() -> None:
        async with Client(shared_broker.bootstrap) as client:
            topic = await client_scenarios.new_topic(client)
            group = await client_scenarios.new_group(client)
            async with await client.share(group, [topic]):
                with pytest.raises(KafkaError) as caught:
                    await GroupConsumer.join(client.cluster, group, [topic])
                assert caught.value.code in (
                    ErrorCode.group_id_not_found,
                    ErrorCode.inconsistent_group_protocol,
                )

    asyncio.run(run())
