"""Requests to the active controller, wherever it is: this node's own, and clients' that are passed
on to it.

A request travels in an Envelope (KIP-590), whose answer tells apart what the controller says from
the node's not being the controller. It is tried until its time is up, since a controller that is
gone is replaced soon. On the active controller itself nothing travels; what it decided and could
not commit is asked of the next one.

A controller that is gone may have committed what it did not answer. So that the second try of
CreateTopics does not find its own topic and call it another's, the request carries an id.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from shoal.protocol import codec, frames
from shoal.protocol.api import ApiKey
from shoal.protocol.errors import ApiError, ErrorCode
from shoal.server.network.api import Peer, Request

if TYPE_CHECKING:
    from shoal.client.settings import Address
    from shoal.server.broker import Broker
    from shoal.server.network.links import Link

#: Between two looks for a controller while there is none.
_RETRY_S = 0.05


class ControllerChannel:
    """Owns the connection to the active controller."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._link: Link | None = None
        self._leader_id: int | None = None
        #: Called when there is another controller.
        self.on_leader: list[Callable[[], None]] = []
        self._self = Peer("", 0, "", "User:ANONYMOUS", f"broker-{broker.node_id}", {})

    def start(self) -> None:
        self._broker.quorum.on_step.append(self._stepped)

    def _stepped(self) -> None:
        """Whoever waits for a controller of before, which may never answer, asks the new one."""
        leader_id = self._broker.quorum.leader_id
        if leader_id is not None and leader_id != self._leader_id:
            self._leader_id = leader_id
            self.close()
            for call in self.on_leader:
                call()

    async def request(
        self, api_key: ApiKey, fields: Mapping[str, Any], *, timeout_ms: int | None = None
    ) -> Any:
        """kio's entity of the controller's answer. Raises `ApiError` with REQUEST_TIMED_OUT when
        no controller answers within `timeout_ms`, request.timeout.ms unless given."""
        version = self._broker.table[api_key].versions[-1]
        head = frames.request_head(api_key, version, 0, f"broker-{self._broker.node_id}")
        frame = head + codec.write_request(api_key, version, fields)
        data = await self._answer(bytes(frame), self._self, timeout_ms)
        return codec.read_response(api_key, version, data)

    @property
    def is_local(self) -> bool:
        """Whether this node is the active controller and no other node can become it."""
        return self._broker.metadata.is_active and self._broker.quorum.alone

    def forward(self, frame: bytes | bytearray, request: Request) -> asyncio.Future[list[bytes]]:
        """The answer to a client's request, from the controller, within the request's own timeout
        where it has one that is shorter than request.timeout.ms."""
        return asyncio.ensure_future(self._parts(bytes(frame), request))

    async def _parts(self, frame: bytes, request: Request) -> list[bytes]:
        timeout = getattr(request.body, "timeout", None)
        timeout_ms = None if timeout is None else codec.ms(timeout)
        return [await self._answer(frame, request.peer, timeout_ms, of_client=True)]

    async def _answer(
        self, frame: bytes, peer: Peer, timeout_ms: int | None, *, of_client: bool = False
    ) -> bytes:
        """The body of the response to the request in `frame`.

        A client's timeout of 0 or less asks to begin and not to wait, which clients that want an
        answer send too: it is none. One that is up says nothing of the connection, which the
        broker's own requests share.
        """
        broker = self._broker
        key = frame[0] << 8 | frame[1]
        request_id = uuid4().bytes if key == ApiKey.CREATE_TOPICS else b""
        if timeout_ms is None or of_client:
            longest_ms = broker.config["request.timeout.ms"]
            if timeout_ms is None or not 0 < timeout_ms < longest_ms:
                timeout_ms, of_client = longest_ms, False
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                while True:
                    found = await self._try(frame, peer, request_id)
                    if found is not None:
                        return found
                    await asyncio.sleep(_RETRY_S)
        except TimeoutError:
            # A connection that lost its peer says nothing, and TCP tries ever more seldom.
            if not of_client:
                self.close()
            raise ApiError(
                ErrorCode.request_timed_out, "The cluster has no controller that answers."
            ) from None

    async def _try(self, frame: bytes, peer: Peer, request_id: bytes) -> bytes | None:
        """The answer, or None when the node asked is not the controller, or gone."""
        broker = self._broker
        try:
            if broker.metadata.is_active:
                return await broker.envelopes.handle(frame, peer, request_id)
            return await self._ask(frame, peer, request_id)
        except ApiError as error:
            if error.code is not ErrorCode.not_controller:
                raise
            return None

    async def _ask(self, frame: bytes, peer: Peer, request_id: bytes) -> bytes | None:
        from shoal.client.errors import ClientError

        leader_id = self._broker.quorum.leader_id
        address = None if leader_id is None else self._broker.quorum.address_of(leader_id)
        if address is None:
            return None
        fields = {
            "request_data": frame,
            "request_principal": None,
            "client_host_address": _packed(peer.host),
            "request_id": request_id,
        }
        try:
            answer = await self._to(address).request(ApiKey.ENVELOPE, fields)
        except ClientError:
            return None
        if answer.error_code:
            return None
        _, version = frame[0] << 8 | frame[1], frame[2] << 8 | frame[3]
        head = frames.response_head(frame[0] << 8 | frame[1], version, 0)
        return bytes(answer.response_data[len(head) :])

    def _to(self, address: Address) -> Link:
        from shoal.server.network.links import Link

        if self._link is None or self._link.address != address:
            self.close()
            self._link = Link(
                address,
                client_id=f"broker-{self._broker.node_id}",
                request_timeout_ms=self._broker.config["request.timeout.ms"],
                timeouts=self._broker.setup_timeouts,
            )
        return self._link

    def close(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            link.close()


def _packed(host: str) -> bytes:
    """An address as the bytes that an Envelope has."""
    try:
        return socket.inet_pton(socket.AF_INET6 if ":" in host else socket.AF_INET, host)
    except OSError:
        return b"\x00" * 4
