"""AllocateProducerIds: allocate a block of producer ids to a broker (KIP-730)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.metadata import brokers, controller
from shoal.protocol.errors import ErrorCode

if TYPE_CHECKING:
    import asyncio

    from shoal.metadata.controller import ControllerResult
    from shoal.metadata.image import MetadataImage
    from shoal.protocol.responses import quorum as responses
    from shoal.server.broker import Broker
    from shoal.server.network.api import Request


def handle(
    broker: Broker, request: Request
) -> asyncio.Future[responses.AllocateProducerIdsResponse]:
    body = request.body

    def decide(image: MetadataImage) -> ControllerResult:
        brokers.check_broker_epoch(image, body.broker_id, body.broker_epoch)
        return controller.allocate_producer_ids(image, body.broker_id)

    return broker.metadata.submit(decide, _build_response)


def _build_response(block: range) -> responses.AllocateProducerIdsResponse:
    return {
        "error_code": ErrorCode.none,
        "producer_id_start": block.start,
        "producer_id_len": len(block),
    }
