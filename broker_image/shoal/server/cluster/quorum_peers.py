"""The connections of the quorum to other nodes, and their addresses.

A leader delays fetches until there are records, so fetches have their own connection; votes and all
other requests use another one. A request without a response is a `RequestFailed` event. When the
quorum has given up a request, its connection is closed: the next request would wait behind it.

Both the quorum's log and controller.quorum.voters have addresses of voters. If they differ, and the
node at one address does not answer as a member of the quorum, the next request uses the other
address. Voters may have moved while this node was down.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Protocol

from shoal import __version__
from shoal.client.errors import ClientError, ConnectionRefused, Unreachable, UnsupportedVersion
from shoal.protocol.api import ApiKey
from shoal.protocol.errors import ErrorCode
from shoal.protocol.features import OWN_CLIENT
from shoal.quorum import wire
from shoal.quorum.events import Event, MessageReceived, PeerDown, RequestFailed
from shoal.quorum.messages import FetchRequest, FetchSnapshotRequest, RaftMessage, Request, Response
from shoal.server.network.links import Link, SetupTimeouts, make_plaintext

if TYPE_CHECKING:
    from collections.abc import Callable

    from shoal.client.security.security import Security
    from shoal.client.settings import Address
    from shoal.log.directory import LogDirectory
    from shoal.quorum.voters import VoterEndpoint
    from shoal.server.node import Node

#: Errors with which a listener that does not serve the metadata log answers a Fetch.
_NO_METADATA_LOG = frozenset({ErrorCode.unknown_topic_id, ErrorCode.unknown_topic_or_partition})


class QuorumEndpoints(Protocol):
    """Where this node serves the quorum (`cluster.registration`)."""

    def get_quorum_endpoints(self) -> tuple[VoterEndpoint, ...]: ...


class QuorumPeers:
    """Owns the connections to the other nodes of the quorum."""

    def __init__(
        self,
        node: Node,
        directory: LogDirectory,
        endpoints: QuorumEndpoints,
        timeouts: SetupTimeouts,
        step: Callable[[Event], object],
        security: Callable[[Address], Security] = make_plaintext,
    ) -> None:
        """`step` is the quorum's. It gets the responses. `security` returns the settings for a
        connection to an address."""
        self._node_id = node.id
        self._settings = node.cluster.settings
        self._directory = directory
        self._endpoints = endpoints
        self._timeouts = timeouts
        self._security = security
        self._step = step
        self._addresses: dict[int, Address] = {}
        #: The addresses of controller.quorum.voters, and the nodes that are asked there.
        self.configured: dict[int, Address] = {}
        #: Nodes that get requests at their configured address.
        self._at_configured: set[int] = set()
        #: By node, and whether it is the one for fetches.
        self._links: dict[tuple[int, bool], Link] = {}
        self._asking: dict[tuple[int, bool], asyncio.Task[None]] = {}
        self._refused_calls: list[Callable[[int, ErrorCode], None]] = []
        self._unserved_calls: list[Callable[[int, Address], None]] = []
        for voter in node.cluster.voters or ():
            address = voter.endpoints[0].host, voter.endpoints[0].port
            self.learn(voter.key.id, address)
            self.configured[voter.key.id] = address

    def find_address(self, id: int) -> Address | None:
        """Return the address for requests: the last one learned, or the configured one."""
        learned, configured = self._addresses.get(id), self.configured.get(id)
        return configured if learned is None or id in self._at_configured else learned

    def _switch_address(self, id: int) -> None:
        """Use the other address of the node for the next request."""
        other_address = self.configured.get(id)
        if other_address is None or other_address == self._addresses.get(id):
            return
        self._at_configured ^= {id}
        for fetches in (False, True):
            self._hang_up((id, fetches))

    def learn(self, id: int, address: Address) -> None:
        """Note the address of a node, as it or another node reports it."""
        if id == self._node_id or self._addresses.get(id) == address:
            return
        self._addresses[id] = address
        self._at_configured.discard(id)
        for fetches in (False, True):
            self._hang_up((id, fetches))

    def send(self, message: RaftMessage) -> None:
        way = message.to, _is_fetch(message.body)
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

    async def _ask(self, message: RaftMessage, way: tuple[int, bool]) -> None:
        request, to = message.body, message.to
        assert not isinstance(request, Response)
        response = await self.ask(to, request)
        if self._asking.get(way) is asyncio.current_task():
            # The response may lead to another request on this connection.
            del self._asking[way]
        if response is None:
            self._step(RequestFailed(to, message.correlation))
        else:
            self._step(
                MessageReceived(RaftMessage(to, self._node_id, message.correlation, response))
            )

    async def ask(self, to: int, request: Request) -> Response | None:
        """Return the response of another node, or None if it does not answer."""
        settings = self._settings
        timeout_ms = settings.request_timeout_ms
        if isinstance(request, FetchRequest):
            timeout_ms += request.max_wait_ms
        fields = wire.build_request_fields(
            request,
            cluster_id=self._directory.cluster_id,
            endpoints=self._endpoints.get_quorum_endpoints(),
            max_bytes=settings.fetch_max_bytes,
        )
        try:
            link = self._get_link(to, _is_fetch(request))
            entity = await link.request(wire.API_KEYS[type(request)], fields, timeout_ms=timeout_ms)
        except ConnectionRefused:
            self._switch_address(to)
            self._step(PeerDown(to))
            return None
        except ClientError as failure:
            self._on_unanswered(to, failure)
            return None
        response, error, nodes = wire.read_response(request, entity)
        for id, address in nodes.items():
            self.learn(id, address)
        if response is None:
            for refused in self._refused_calls:
                refused(to, error)
        elif response.error in _NO_METADATA_LOG:
            self._on_unanswered(to, UnsupportedVersion(""))
            return None
        return response

    def on_refused(self, call: Callable[[int, ErrorCode], None]) -> None:
        """Call `call` with each node that refuses a request as a whole, and its error."""
        self._refused_calls.append(call)

    def on_unserved(self, call: Callable[[int, Address], None]) -> None:
        """Call `call` with each node and the address at which it does not serve the quorum."""
        self._unserved_calls.append(call)

    async def fetch_features(self, id: int) -> dict[str, int]:
        """Return the maximum level of each feature that a node supports. Raises `ClientError`."""
        body = {"client_software_name": OWN_CLIENT, "client_software_version": __version__}
        answer = await self._get_link(id, False).request(ApiKey.API_VERSIONS, body)
        return {result.name: result.max_version for result in answer.supported_features}

    def _on_unanswered(self, to: int, failure: ClientError) -> None:
        address = self.find_address(to)
        if isinstance(failure, UnsupportedVersion) and address is not None:
            for unserved in self._unserved_calls:
                unserved(to, address)
        self._switch_address(to)

    def _get_link(self, to: int, fetches: bool) -> Link:
        link = self._links.get((to, fetches))
        if link is None:
            address = self.find_address(to)
            if address is None:
                raise Unreachable(f"it is not known where node {to} listens")
            link = self._links[(to, fetches)] = Link(
                address,
                client_id=f"quorum-{self._node_id}",
                request_timeout_ms=self._settings.request_timeout_ms,
                timeouts=self._timeouts,
                security=partial(self._security, address),
                needs=ApiKey.VOTE,
            )
        return link


def _is_fetch(body: Request | Response) -> bool:
    return isinstance(body, FetchRequest | FetchSnapshotRequest)
