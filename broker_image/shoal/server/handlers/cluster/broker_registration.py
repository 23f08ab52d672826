"""BrokerRegistration: a broker registers with the controller (KIP-631)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.metadata.image import BrokerEndpoint, BrokerImage
from shoal.protocol.errors import ApiError, ErrorCode
from shoal.server.network.responses import map_reply

if TYPE_CHECKING:
    from shoal.protocol.responses import quorum as responses
    from shoal.server.broker import Broker
    from shoal.server.network.api import BodyOrFuture, Request


def handle(broker: Broker, request: Request) -> BodyOrFuture[responses.BrokerRegistrationResponse]:
    body = request.body
    if body.cluster_id != broker.cluster_id:
        raise ApiError(
            ErrorCode.inconsistent_cluster_id,
            f"This is the controller of cluster {broker.cluster_id}, not of {body.cluster_id}.",
        )
    image = BrokerImage(
        body.broker_id,
        body.incarnation_id,
        -1,
        tuple(BrokerEndpoint(e.name, e.host, e.port, e.security_protocol) for e in body.listeners),
        {f.name: (f.min_supported_version, f.max_supported_version) for f in body.features},
        body.rack,
        fenced=True,
        log_dirs=tuple(d for d in body.log_dirs if d is not None),
    )
    epoch = broker.controller.register(
        image, previous_epoch=getattr(body, "previous_broker_epoch", -1)
    )
    return map_reply(epoch, _build_response)


def _build_response(epoch: int) -> responses.BrokerRegistrationResponse:
    return {"error_code": ErrorCode.none, "broker_epoch": epoch}
