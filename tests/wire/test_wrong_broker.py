"""A client, or a broker, that reaches another broker than the one it means (KIP-1242)."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING
from uuid import UUID

import pytest
from shoal.client.errors import WrongBroker
from shoal.client.net.cluster import Cluster
from shoal.client.net.connection import BrokerIdentity, Connection, connect
from shoal.client.settings import Settings
from shoal.metadata.image import BrokerEndpoint, BrokerImage, ImageScope
from shoal.protocol import codec
from shoal.protocol.api import ApiKey
from shoal.server.config import resolve
from shoal.server.metadata_cache import MetadataCache
from shoal.server.network.links import SetupTimeouts
from shoal.server.network.peers import BrokerPeers
from shoal.server.node import Node
from support.brokers.ports import free_ports
from support.brokers.servers import ShoalProcess

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SASL = {
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SASL:SASL_PLAINTEXT",
    "listener.name.sasl.sasl.enabled.mechanisms": "PLAIN",
    "listener.name.sasl.plain.sasl.jaas.config": (
        'org.apache.kafka.common.security.plain.PlainLoginModule required user_a="a";'
    ),
}
LOGIN = {
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": "PLAIN",
    "sasl.username": "a",
    "sasl.password": "a",
}


async def open_to(settings: Settings, meant: BrokerIdentity | None) -> Connection:
    return await connect(settings, settings.bootstrap[0], meant)


async def check_identities(settings: Settings) -> None:
    """Connect to a broker as itself, as another one, and as one of another cluster."""
    (await open_to(settings, None)).close()
    async with Cluster(settings) as cluster:
        await cluster.refresh(())
        assert cluster.cluster_id is not None
        own = BrokerIdentity(cluster.cluster_id, 1)
    (await open_to(settings, own)).close()
    for other in (own._replace(node_id=2), own._replace(cluster_id="other")):
        with pytest.raises(WrongBroker, match=f"broker {other.node_id} of cluster"):
            await open_to(settings, other)


def test_a_connection_to_another_broker_fails(shared_broker: ShoalProcess) -> None:
    asyncio.run(check_identities(Settings.from_bootstrap(shared_broker.bootstrap)))


def test_it_fails_after_the_login(start_broker: Callable[..., ShoalProcess]) -> None:
    """Before a login, the broker does not compare identities."""
    address = f"127.0.0.1:{free_ports(1)[0]}"
    start_broker(configs=SASL, flags=(f"--listener=SASL://{address}",))
    asyncio.run(check_identities(Settings.from_bootstrap(address, LOGIN)))


def test_a_broker_that_reaches_another_one_than_registered(
    shared_broker: ShoalProcess, tmp_path: Path
) -> None:
    host, _, port = shared_broker.bootstrap.rpartition(":")
    registered = BrokerImage(
        7, UUID(int=7), 1, (BrokerEndpoint("PLAINTEXT", host, int(port)),), {}, fenced=False
    )

    async def main() -> None:
        flags = {"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": str(tmp_path)}
        node = Node(resolve(flags, {}), asyncio.get_running_loop())
        cache = MetadataCache(ImageScope(node.id, {}))
        cache.image = replace(cache.image, brokers={7: registered})
        peers = BrokerPeers(node, cache, SetupTimeouts(60_000, 60_000), cluster_id=lambda: "c")
        with pytest.raises(WrongBroker, match="not broker 7 of cluster c"):
            await peers.request(7, ApiKey.METADATA, {"topics": []})
        peers.close()
        node.timers.stop()
        node.disk.close()

    asyncio.run(main())


def test_a_client_asks_anew_where_the_brokers_are(
    start_broker: Callable[..., ShoalProcess], tmp_path: Path
) -> None:
    """A broker of another cluster now has the address. It starts two brokers, one after the other,
    on one port."""
    first, second = start_broker("first"), ShoalProcess(tmp_path / "second")

    async def main() -> None:
        async with Cluster(Settings.from_bootstrap(first.bootstrap)) as cluster:
            await cluster.refresh(())
            former = cluster.cluster_id
            await asyncio.to_thread(first.stop)
            second.bootstrap = first.bootstrap
            await asyncio.to_thread(second.start)
            with pytest.raises(WrongBroker):
                await cluster.get_connection(1)
            await cluster.retry(lambda: cluster.refresh(()))
            assert cluster.cluster_id not in (None, former)
            assert (await cluster.get_connection(1)).versions

    try:
        asyncio.run(main())
    finally:
        second.kill9()


@pytest.mark.parametrize("newest", [0, 3, 4])
def test_a_broker_without_the_newest_version_is_asked_with_its_own(newest: int) -> None:
    """A broker that supports version 4 lists its features in it. Version 0 has none."""
    asked: list[int] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while size := await reader.read(4):
            frame = await reader.readexactly(int.from_bytes(size, "big"))
            version = int.from_bytes(frame[2:4], "big")
            asked.append(version)
            listed = [{"api_key": 18, "min_version": 0, "max_version": newest}]
            body = {
                "error_code": 0 if version <= newest else 35,
                # Before KIP-511, a refusal listed nothing.
                "api_keys": listed if version <= newest or newest >= 3 else [],
                "supported_features": [{"name": "f", "min_version": 1, "max_version": 1}],
            }
            known = version if version <= newest else 0
            out = frame[4:8] + codec.write_response(ApiKey.API_VERSIONS, known, body)
            writer.write(len(out).to_bytes(4, "big") + out)

    async def main() -> None:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()
        settings = Settings.from_bootstrap(f"{host}:{port}")
        connection = await open_to(settings, BrokerIdentity("cluster", 1))
        assert asked == [5, newest]
        assert connection.versions == {ApiKey.API_VERSIONS: range(newest + 1)}
        assert bool(connection.features) is (newest >= 3)
        connection.close()
        server.close()

    asyncio.run(main())
