"""InitProducerId: assign a producer id, or bump the epoch of one (KIP-98, KIP-360).

A transactional producer gets both from the coordinator of its transactional id.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.coordinator.contract import ProducerIdAndEpoch
from shoal.protocol import codec
from shoal.protocol.errors import ApiError, ErrorCode
from shoal.security.acls import Operation, ResourceType
from shoal.server.authorization import build_cluster_permission
from shoal.server.network.responses import downgrade_epoch_error

if TYPE_CHECKING:
    from shoal.protocol.responses import transactions as responses
    from shoal.server.broker import Broker
    from shoal.server.network.api import BodyOrFuture, Request

NONE = -1
#: The first version with PRODUCER_FENCED. Older clients get INVALID_PRODUCER_EPOCH.
FENCED_SINCE = 4


def handle(broker: Broker, request: Request) -> BodyOrFuture[responses.InitProducerIdResponse]:
    body = request.body
    producer_id = getattr(body, "producer_id", NONE)
    epoch = getattr(body, "producer_epoch", NONE)
    if body.transactional_id is None:
        _check_idempotent(broker, request)
    if (producer_id == NONE) != (epoch == NONE):
        raise ApiError(ErrorCode.invalid_request)
    if body.transactional_id is None:
        # Without a transactional id there is no state of the old id, so a new one is assigned.
        return broker.producer_ids.allocate()
    expected = None if producer_id == NONE else ProducerIdAndEpoch(producer_id, epoch)
    return broker.transactions.init_producer_id(
        body.transactional_id, codec.to_ms(body.transaction_timeout), expected
    )


def _check_idempotent(broker: Broker, request: Request) -> None:
    """Check that the client may produce idempotently: IDEMPOTENT_WRITE on the cluster, or WRITE on
    any topic (KIP-679). Raises `ApiError`."""
    access = broker.access
    if access.enabled and not access.allows_any(request, Operation.WRITE, ResourceType.TOPIC):
        access.require(request, build_cluster_permission(Operation.IDEMPOTENT_WRITE))


def refuse(
    request: Request, error: ErrorCode, _message: str | None
) -> responses.InitProducerIdResponse:
    code = downgrade_epoch_error(error, request.version, FENCED_SINCE)
    return {"error_code": code, "producer_id": NONE, "producer_epoch": NONE}
