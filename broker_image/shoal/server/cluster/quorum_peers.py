"""The quorum's requests to other nodes: who listens where, and a connection to each.

A fetch waits at the leader until there is something to fetch, so fetches have a connection of their
own; votes and the like go by another one. A request that gets no answer is `RequestFailed`. The
connection of a request that the quorum has given up is closed: the next request would wait for it.

The quorum's log says where a voter listens, and so does this node's setting. Where they differ, and
the node does not answer as a member of the quorum at one address, the next request tries the other:
voters may have moved while this node was down.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from shoal.client.errors import ClientError, Refused, Unreachable, Unsupported
from shoal.client.settings import Address
from shoal.log.directory import LogDirectory
from shoal.protocol.api import ApiKey
from shoal.protocol.errors import ErrorCode
from shoal.quorum import wire
from shoal.quorum.events import Event, PeerDown, Received, RequestFailed
from shoal.quorum.messages import FetchRequest, FetchSnapshotRequest, Message, Request, Response
from shoal.quorum.voters import Endpoint
from shoal.server.network.links import Link, SetupTimeouts
from shoal.server.node import Node

#: Answers to a Fetch of the metadata log from a listener that does not serve it.
_NO_METADATA_LOG = frozenset({ErrorCode.unknown_topic_id, ErrorCode.unknown_topic_or_partition})


class QuorumEndpoints(Protocol):
    """Where this node serves the quorum (`cluster.registration`)."""

    def quorum_endpoints(self) -> tuple[Endpoint, ...]: ...


class Peers:
    """Owns the connections to the other nodes of the quorum."""

    def __init__(
        self,
        node: Node,
        directory: LogDirectory,
        endpoints: QuorumEndpoints,
        timeouts: SetupTimeouts,
        step: Callable[[Event], object],
    ) -> None:
        """`step` is the quorum's: it gets the answers."""
        self._node_id = node.id
        self._settings = node.cluster.settings
        self._directory = directory
        self._endpoints = endpoints
        self._timeouts = timeouts
        self._step = step
        self._addresses: dict[int, Address] = {}
        #: Where `controller.quorum.voters` has the nodes, and those that are asked there.
        self.configured: dict[int, Address] = {}
        self._elsewhere: set[int] = set()
        #: By node, and whether it is the one for fetches.
        self._links: dict[tuple[int, bool], Link] = {}
        self._asking: dict[tuple[int, bool], asyncio.Task[None]] = {}
        #: Called with a node that refused a request as a whole, and its error.
        self.on_refused: list[Callable[[int, ErrorCode], None]] = []
        #: Called with a node and an address at which it does not serve the quorum.
        self.on_unserved: list[Callable[[int, Address], None]] = []
        for voter in node.cluster.voters or ():
            address = voter.endpoints[0].host, voter.endpoints[0].port
            self.learn(voter.key.id, address)
            self.configured[voter.key.id] = address

    def address_of(self, id: int) -> Address | None:
        """Where the node is asked: at the address that was learned last, or the configured one."""
        known, configured = self._addresses.get(id), self.configured.get(id)
        return configured if known is None or id in self._elsewhere else known

    def _try_elsewhere(self, id: int) -> None:
        """The node did not answer where it was asked: the next request takes its other address."""
        other = self.configured.get(id)
        if other is None or other == self._addresses.get(id):
            return
        self._elsewhere ^= {id}
        for fetches in (False, True):
            self._hang_up((id, fetches))

    def learn(self, id: int, address: Address) -> None:
        """Where a node listens, by its own word or another's."""
        if id == self._node_id or self._addresses.get(id) == address:
            return
        self._addresses[id] = address
        self._elsewhere.discard(id)
        for fetches in (False, True):
            self._hang_up((id, fetches))

    def send(self, message: Message) -> None:
        way = message.to, _fetches(message.body)
        given_up = self._asking.pop(way, None)
        if given_up is not None:
            given_up.cancel()
            self._hang_up(way)
        self._asking[way] = asyncio.ensure_future(self._ask(message, way))

    def _hang_up(self, way: tuple[int, bool]) -> None:
        link = self._links.pop(way, None)
        if link is not None:
            link.close()

    def close(self) -> None:
        for task in list(self._asking.values()):
            task.cancel()
        for link in self._links.values():
            link.close()

    async def _ask(self, message: Message, way: tuple[int, bool]) -> None:
        request, to = message.body, message.to
        assert not isinstance(request, Response)
        response = await self.ask(to, request)
        if self._asking.get(way) is asyncio.current_task():
            # What the quorum sends because of the answer goes the same way.
            del self._asking[way]
        if response is None:
            self._step(RequestFailed(to, message.correlation))
        else:
            self._step(Received(Message(to, self._node_id, message.correlation, response)))

    async def ask(self, to: int, request: Request) -> Response | None:
        """The answer of another node; None when there is none."""
        settings = self._settings
        timeout_ms = settings.request_timeout_ms
        if isinstance(request, FetchRequest):
            timeout_ms += request.max_wait_ms
        fields = wire.request_fields(
            request,
            cluster_id=self._directory.cluster_id,
            endpoints=self._endpoints.quorum_endpoints(),
            max_bytes=settings.fetch_max_bytes,
        )
        try:
            link = self._link(to, _fetches(request))
            entity = await link.request(wire.API_KEYS[type(request)], fields, timeout_ms=timeout_ms)
        except Refused:
            self._try_elsewhere(to)
            self._step(PeerDown(to))
            return None
        except ClientError as failure:
            self._unanswered(to, failure)
            return None
        response, error, nodes = wire.read_response(request, entity)
        for id, address in nodes.items():
            self.learn(id, address)
        if response is None:
            for refused in self.on_refused:
                refused(to, error)
        elif response.error in _NO_METADATA_LOG:
            self._unanswered(to, Unsupported(""))
            return None
        return response

    def _unanswered(self, to: int, failure: ClientError) -> None:
        address = self.address_of(to)
        if isinstance(failure, Unsupported) and address is not None:
            for unserved in self.on_unserved:
                unserved(to, address)
        self._try_elsewhere(to)

    def _link(self, to: int, fetches: bool) -> Link:
        link = self._links.get((to, fetches))
        if link is None:
            address = self.address_of(to)
            if address is None:
                raise Unreachable(f"it is not known where node {to} listens")
            link = self._links[(to, fetches)] = Link(
                address,
                client_id=f"quorum-{self._node_id}",
                request_timeout_ms=self._settings.request_timeout_ms,
                timeouts=self._timeouts,
                needs=ApiKey.VOTE,
            )
        return link


def _fetches(body: Request | Response) -> bool:
    return isinstance(body, FetchRequest | FetchSnapshotRequest)
