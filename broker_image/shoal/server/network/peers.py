"""Requests of this broker to other brokers of its cluster.

There is one connection to each broker, which opens at the first request. A replica fetch, which may
wait at its leader, has a link of its own.

The image has the address of a broker, at the inter-broker listener. A broker that has moved to
another address gets a new connection.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shoal.client.errors import Unreachable
from shoal.client.net.connection import BrokerIdentity
from shoal.server.network.links import Link, SetupTimeouts, make_plaintext

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from shoal.client.security.security import Security
    from shoal.client.settings import Address
    from shoal.protocol.api import ApiKey
    from shoal.server.metadata_cache import MetadataCache
    from shoal.server.node import Node

REQUEST_TIMEOUT_MS = 5_000


class BrokerPeers:
    """Owns the connections to other brokers."""

    def __init__(
        self,
        node: Node,
        cache: MetadataCache,
        timeouts: SetupTimeouts,
        security: Callable[[str], Security] = make_plaintext,
        cluster_id: Callable[[], str] = str,
    ) -> None:
        """`security` returns the settings for connections to a listener of that name. `cluster_id`
        returns the id of the cluster once it is known."""
        self._cluster_id = cluster_id
        self._security = security
        self._node = node
        self._cache = cache
        self._timeouts = timeouts
        self._links: dict[int, Link] = {}

    def find_address(self, broker_id: int) -> Address | None:
        """Return the address for other brokers, or None if the broker is not registered."""
        broker = self._cache.image.brokers.get(broker_id)
        if broker is None:
            return None
        endpoint = broker.find_endpoint(self._node.cluster.inter_broker)
        if endpoint is None and broker.endpoints:
            endpoint = broker.endpoints[0]
        return None if endpoint is None else (endpoint.host, endpoint.port)

    def _find_listener(self, address: Address) -> str:
        """Return the name of the listener at an address. It is another one than this node's while
        the cluster moves to other listeners."""
        inter_broker = self._node.cluster.inter_broker
        names = {
            endpoint.name
            for broker in self._cache.image.brokers.values()
            for endpoint in broker.endpoints
            if (endpoint.host, endpoint.port) == address
        }
        return inter_broker if inter_broker in names or not names else min(names)

    def _find_identity(self, address: Address) -> BrokerIdentity | None:
        """Return the broker that should answer at an address."""
        ids = [
            broker.broker_id
            for broker in self._cache.image.brokers.values()
            if any((e.host, e.port) == address for e in broker.endpoints)
        ]
        cluster_id = self._cluster_id()
        return BrokerIdentity(cluster_id, ids[0]) if cluster_id and len(ids) == 1 else None

    def make_link(
        self,
        address: Address,
        request_timeout_ms: int = REQUEST_TIMEOUT_MS,
        on_lost: Callable[[], None] | None = None,
    ) -> Link:
        """Return a new link to `address`. The caller closes it. For `on_lost` see `Link`."""
        client_id = f"broker-{self._node.id}"
        return Link(
            address,
            client_id=client_id,
            request_timeout_ms=request_timeout_ms,
            timeouts=self._timeouts,
            security=lambda: self._security(self._find_listener(address)),
            on_lost=on_lost,
            find_identity=lambda: self._find_identity(address),
        )

    async def request(
        self,
        broker_id: int,
        api_key: ApiKey,
        fields: Mapping[str, Any],
        *,
        timeout_ms: int | None = None,
    ) -> Any:
        """Send a request to a broker. Return kio's entity of the response. Raises `ClientError`."""
        address = self.find_address(broker_id)
        if address is None:
            raise Unreachable(f"broker {broker_id} is not registered")
        link = self._links.get(broker_id)
        if link is None or link.address != address:
            if link is not None:
                link.close()
            link = self._links[broker_id] = self.make_link(address)
        return await link.request(api_key, fields, timeout_ms=timeout_ms)

    def close(self) -> None:
        for link in self._links.values():
            link.close()
        self._links.clear()
