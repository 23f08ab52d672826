"""AddOffsetsToTxn: add a group's partition of `__consumer_offsets` to the transaction (KIP-98)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.protocol.errors import ApiError, ErrorCode
from shoal.server.coordinators import groups
from shoal.server.network.responses import downgrade_epoch_error, map_reply
from shoal.transaction.shard import ProducerIdentity
from shoal.transaction.transactions import TV_0

if TYPE_CHECKING:
    from shoal.protocol.responses import transactions as responses
    from shoal.server.broker import Broker
    from shoal.server.network.api import BodyOrFuture, Request

FENCED_SINCE = 2


def handle(broker: Broker, request: Request) -> BodyOrFuture[responses.AddOffsetsToTxnResponse]:
    body = request.body
    index = broker.groups.find_partition(body.group_id)
    if index is None:
        broker.groups.ensure_topic()
        raise ApiError(ErrorCode.coordinator_not_available)
    writer = ProducerIdentity(body.transactional_id, body.producer_id, body.producer_epoch)
    added = broker.transactions.add_partitions(writer, [(groups.TOPIC, index)], TV_0)
    return map_reply(added, lambda reply: reply)


def refuse(
    request: Request, error: ErrorCode, _message: str | None
) -> responses.AddOffsetsToTxnResponse:
    return {"error_code": downgrade_epoch_error(error, request.version, FENCED_SINCE)}
