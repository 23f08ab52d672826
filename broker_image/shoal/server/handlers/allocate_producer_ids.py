"""AllocateProducerIds: allocate a block of producer ids to a broker (KIP-730)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.metadata import brokers, controller
from shoal.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from shoal.metadata.controller import Decision
    from shoal.metadata.image import MetadataImage
    from shoal.server.broker import Broker
    from shoal.server.network.api import Answer, Request


def handle(broker: Broker, request: Request) -> Answer:
    body = request.body

    def decide(image: MetadataImage) -> Decision:
        brokers.checked(image, body.broker_id, body.broker_epoch)
        return controller.allocate_producer_ids(image, body.broker_id)

    return broker.metadata.submit(
        decide,
        lambda block: {
            "error_code": ErrorCode.none,
            "producer_id_start": block.start,
            "producer_id_len": len(block),
        },
    )
