"""Requests to the active controller: this node's own, and those forwarded for clients.

A request is sent in an Envelope (KIP-590). An error of the Envelope means that the node is not the
controller; an error of the request is inside it. The channel retries until the timeout, because a
failed controller is replaced soon. The active controller handles its own requests without a
connection; if it cannot commit a decision, the request goes to the next controller.

A failed controller may have committed a request that it did not answer. CreateTopics carries an id,
so that a retry recognizes the topic that the first attempt created.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from shoal.client.errors import ClientError
from shoal.protocol import codec, frames
from shoal.protocol.api import ApiKey
from shoal.protocol.errors import ApiError, ErrorCode
from shoal.security import principals
from shoal.security.principals import OWN, ForwardedPrincipal
from shoal.server.network.api import Api, Peer, Request
from shoal.server.network.links import Link, SetupTimeouts, make_plaintext

if TYPE_CHECKING:
    from shoal.client.security.security import Security
    from shoal.client.settings import Address
    from shoal.server.node import Node

#: The pause between two attempts.
_RETRY_S = 0.05
#: Handles a request as the active controller, given its frame, its client and its id; returns the
#: body of the response. Raises `ApiError` with NOT_CONTROLLER when this node is not the controller.
HandleLocally = Callable[[bytes, Peer, bytes], Awaitable[bytes]]


class QuorumPort(Protocol):
    """The metadata quorum (`cluster.quorum`)."""

    def on_step(self, call: Callable[[], None]) -> None:
        """Call `call` after every step."""

    @property
    def alone(self) -> bool:
        """Whether this node is the only voter."""

    @property
    def leader_id(self) -> int | None:
        """The node that leads the quorum, if it is known."""

    def find_address(self, id: int) -> Address | None:
        """Return the address of a node of the quorum, if it is known."""

    def find_listener(self, address: Address) -> str:
        """Return the name of the listener at an address of the quorum."""


class MetadataPort(Protocol):
    """The metadata log (`cluster.metadata_log`)."""

    @property
    def is_active(self) -> bool:
        """Whether this node is the active controller."""


class ControllerChannel:
    """Owns the connection to the active controller."""

    def __init__(
        self,
        node: Node,
        quorum: QuorumPort,
        metadata: MetadataPort,
        *,
        apis: Mapping[int, Api],
        handle: HandleLocally,
        timeouts: SetupTimeouts,
        security: Callable[[str], Security] = make_plaintext,
    ) -> None:
        """`handle` answers a request when this node is the active controller. `apis` has the
        versions of the requests. `security` returns the settings for connections to a listener."""
        self._node = node
        self._quorum = quorum
        self._metadata = metadata
        self._apis = apis
        self._handle = handle
        self._timeouts = timeouts
        self._security = security
        self._link: Link | None = None
        self._leader_id: int | None = None
        self._leader_calls: list[Callable[[], None]] = []
        self._self = Peer("", 0, "", OWN, f"broker-{node.id}")
        #: The controller that has refused this node's requests.
        self._refused_by: int | None = None

    def on_leader(self, call: Callable[[], None]) -> None:
        """Call `call` when another node becomes the active controller."""
        self._leader_calls.append(call)

    def start(self) -> None:
        self._quorum.on_step(self._on_quorum_step)

    def _on_quorum_step(self) -> None:
        """Close the connection to the previous controller, so that its requests are retried."""
        leader_id = self._quorum.leader_id
        if leader_id is not None and leader_id != self._leader_id:
            self._leader_id = leader_id
            self.close()
            for call in self._leader_calls:
                call()

    async def request(
        self, api_key: ApiKey, fields: Mapping[str, Any], *, timeout_ms: int | None = None
    ) -> Any:
        """Return the controller's response as an entity of kio.

        Raises `ApiError` with REQUEST_TIMED_OUT if no controller answers within `timeout_ms`, by
        default request.timeout.ms.
        """
        version = self._apis[api_key].versions[-1]
        head = frames.build_request_head(api_key, version, 0, f"broker-{self._node.id}")
        frame = head + codec.write_request(api_key, version, fields)
        data = await self._answer(bytes(frame), self._self, timeout_ms)
        return codec.read_response(api_key, version, data)

    @property
    def is_local(self) -> bool:
        """Whether this node is the active controller and no other node can become it."""
        return self._metadata.is_active and self._quorum.alone

    def forward(self, frame: bytes | bytearray, request: Request) -> asyncio.Future[list[bytes]]:
        """Forward a client's request. The future is the encoded response body.

        The timeout is the request's own, if that is shorter than request.timeout.ms.
        """
        return asyncio.ensure_future(self._get_response_parts(bytes(frame), request))

    async def _get_response_parts(self, frame: bytes, request: Request) -> list[bytes]:
        timeout = getattr(request.body, "timeout", None)
        timeout_ms = None if timeout is None else codec.to_ms(timeout)
        return [await self._answer(frame, request.peer, timeout_ms, of_client=True)]

    async def _answer(
        self, frame: bytes, peer: Peer, timeout_ms: int | None, *, of_client: bool = False
    ) -> bytes:
        """Return the body of the response to the request in `frame`.

        A client's timeout of 0 or less is ignored: clients that need a response send it too. The
        connection stays open after a client's timeout, because the broker's own requests use it.
        """
        key = frame[0] << 8 | frame[1]
        request_id = self._node.system.make_uuid().bytes if key == ApiKey.CREATE_TOPICS else b""
        if timeout_ms is None or of_client:
            longest_ms = self._node.config["request.timeout.ms"]
            if timeout_ms is None or not 0 < timeout_ms < longest_ms:
                timeout_ms, of_client = longest_ms, False
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                while True:
                    body = await self._try(frame, peer, request_id)
                    if body is not None:
                        return body
                    await asyncio.sleep(_RETRY_S)
        except TimeoutError:
            # The peer may be unreachable. TCP retransmits less and less often, so connect again.
            if not of_client:
                self.close()
            raise ApiError(
                ErrorCode.request_timed_out, "The cluster has no controller that answers."
            ) from None

    async def _try(self, frame: bytes, peer: Peer, request_id: bytes) -> bytes | None:
        """Return the response, or None if the node is not the controller or does not answer."""
        try:
            if self._metadata.is_active:
                return await self._handle(frame, peer, request_id)
            return await self._ask(frame, peer, request_id)
        except ApiError as error:
            if error.code is not ErrorCode.not_controller:
                raise
            return None

    async def _ask(self, frame: bytes, peer: Peer, request_id: bytes) -> bytes | None:
        leader_id = self._quorum.leader_id
        address = None if leader_id is None else self._quorum.find_address(leader_id)
        if address is None:
            return None
        fields = {
            "request_data": frame,
            "request_principal": principals.encode(
                ForwardedPrincipal(peer.principal, peer.token_authenticated)
            ),
            "client_host_address": _pack_address(peer.host),
            "request_id": request_id,
        }
        try:
            answer = await self._get_link(address).request(ApiKey.ENVELOPE, fields)
        except ClientError:
            return None
        if answer.error_code == ErrorCode.invalid_request:
            name = ApiKey(frame[0] << 8 | frame[1]).name
            raise ApiError(
                ErrorCode.unsupported_version,
                f"The active controller {leader_id} does not support {name}. Upgrade it.",
            )
        if answer.error_code:
            self._log_refusal(leader_id, answer.error_code)
            return None
        self._refused_by = None
        _, version = frame[0] << 8 | frame[1], frame[2] << 8 | frame[3]
        head = frames.build_response_head(frame[0] << 8 | frame[1], version, 0)
        return bytes(answer.response_data[len(head) :])

    def _log_refusal(self, leader_id: int | None, code: int) -> None:
        """Log once that a controller does not take requests of this node."""
        codes = (
            ErrorCode.cluster_authorization_failed,
            ErrorCode.principal_deserialization_failure,
        )
        if code in codes and self._refused_by != leader_id:
            self._refused_by = leader_id
            self._node.log.error(
                "the controller refuses requests of this node",
                controller=leader_id,
                error=ErrorCode(code).name,
                remedy="Add the principal of this node to super.users of all nodes, or grant it"
                " CLUSTER_ACTION on the cluster.",
            )

    def _get_link(self, address: Address) -> Link:
        if self._link is None or self._link.address != address:
            self.close()
            self._link = Link(
                address,
                client_id=f"broker-{self._node.id}",
                request_timeout_ms=self._node.config["request.timeout.ms"],
                timeouts=self._timeouts,
                security=lambda: self._security(self._quorum.find_listener(address)),
            )
        return self._link

    def close(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            link.close()


def _pack_address(host: str) -> bytes:
    """Return an address as the bytes of an Envelope."""
    try:
        return socket.inet_pton(socket.AF_INET6 if ":" in host else socket.AF_INET, host)
    except OSError:
        return b"\x00" * 4
