"""AddOffsetsToTxn: add a group's partition of `__consumer_offsets` to the transaction (KIP-98)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.protocol.errors import ApiError, ErrorCode
from shoal.server.coordinators import groups
from shoal.server.network.responses import mapped, old_epoch_error
from shoal.transaction.shard import Writer
from shoal.transaction.transactions import TV_0

if TYPE_CHECKING:
    from shoal.server.broker import Broker
    from shoal.server.network.api import Answer, Body, Request

FENCED_SINCE = 2


def handle(broker: Broker, request: Request) -> Answer:
    body = request.body
    index = broker.groups.partition_for(body.group_id)
    if index is None:
        broker.groups.ready()
        raise ApiError(ErrorCode.coordinator_not_available)
    writer = Writer(body.transactional_id, body.producer_id, body.producer_epoch)
    added = broker.transactions.add_partitions(writer, [(groups.TOPIC, index)], TV_0)
    return mapped(added, lambda reply: reply)


def refuse(request: Request, error: ErrorCode, _message: str | None) -> Body:
    return {"error_code": old_epoch_error(error, request.version, FENCED_SINCE)}
