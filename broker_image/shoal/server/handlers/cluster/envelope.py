"""Envelope: a request of a client that another broker forwards to the controller (KIP-590)."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING

from shoal.protocol import frames
from shoal.protocol.errors import ApiError, ErrorCode, WireError
from shoal.security import principals
from shoal.security.authorizer import canonicalize_host
from shoal.security.principals import ForwardedPrincipal
from shoal.server.network.api import Peer, Request

if TYPE_CHECKING:
    from shoal.protocol.responses import quorum as responses
    from shoal.server.broker import Broker


def handle(broker: Broker, request: Request) -> asyncio.Future[responses.EnvelopeResponse]:
    if not broker.metadata.is_active:
        raise ApiError(ErrorCode.not_controller)
    return asyncio.ensure_future(_open(broker, request))


async def _open(broker: Broker, request: Request) -> responses.EnvelopeResponse:
    body = request.body
    frame = bytes(body.request_data)
    sender = request.peer
    client = _find_client(broker, request)
    if client is None:
        return {"error_code": ErrorCode.principal_deserialization_failure, "response_data": None}
    peer = Peer(
        _format_host(body.client_host_address),
        0,
        sender.listener,
        client.principal,
        sender.connection_id,
        sender.closed_calls,
        security_protocol=sender.security_protocol,
        token_authenticated=client.token_authenticated,
    )
    request_id = getattr(body, "request_id", b"")
    try:
        response = await broker.envelopes.handle(frame, peer, request_id)
    except WireError:
        return {"error_code": ErrorCode.invalid_request, "response_data": None}
    key, version = frame[0] << 8 | frame[1], frame[2] << 8 | frame[3]
    correlation_id = int.from_bytes(frame[4:8], "big", signed=True)
    head = frames.build_response_head(key, version, correlation_id)
    return {"error_code": ErrorCode.none, "response_data": head + response}


def _find_client(broker: Broker, request: Request) -> ForwardedPrincipal | None:
    """The principal of the client that sent the request to another node, or None if the Envelope
    has none that can be read. Nodes of earlier versions send none, which is enough without an
    authorizer."""
    data = request.body.request_principal
    if data is None and not broker.access.enabled:
        return ForwardedPrincipal(request.peer.principal)
    try:
        return principals.decode(bytes(data or b""))
    except WireError:
        return None


def _format_host(packed: bytes) -> str:
    family = {4: socket.AF_INET, 16: socket.AF_INET6}.get(len(packed))
    return "" if family is None else canonicalize_host(socket.inet_ntop(family, packed))
