"""WriteShareGroupState: a leader persists its share partitions (KIP-932, KIP-1226)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shoal.coordinator.contract import CoordinatorResult
from shoal.coordinator.share.state_store import NONE, ShareStateShard
from shoal.protocol.errors import ErrorCode
from shoal.server.handlers.share.share_group_state import decide_each_partition
from shoal.server.share.persister import build_answer, parse_delays

if TYPE_CHECKING:
    from shoal.coordinator.share.records import ShareKey
    from shoal.protocol.responses import share as responses
    from shoal.server.broker import Broker
    from shoal.server.network.api import BodyOrFuture, Request


def handle(
    broker: Broker, request: Request
) -> BodyOrFuture[responses.WriteShareGroupStateResponse]:
    def decide(
        shard: ShareStateShard, now_ms: int, key: ShareKey, entry: Any
    ) -> tuple[responses.WriteShareGroupStatePartitionResult, CoordinatorResult]:
        batches = [
            (b.first_offset, b.last_offset, b.delivery_state, b.delivery_count)
            for b in entry.state_batches
        ]
        delays = parse_delays(entry)
        ranges = [*((b[0], b[1], b[3]) for b in batches), *(d[:3] for d in delays)]
        if any(first > last or first < 0 or count < 0 for first, last, count in ranges):
            message = "A state batch has an invalid offset range or a negative delivery count."
            return {
                "error_code": ErrorCode.invalid_request,
                "error_message": message,
            }, CoordinatorResult()
        return build_answer(
            shard.write(
                now_ms,
                key,
                state_epoch=entry.state_epoch,
                leader_epoch=entry.leader_epoch,
                start_offset=entry.start_offset,
                delivery_complete_count=getattr(entry, "delivery_complete_count", NONE),
                batches=batches,
                delays=delays,
            )
        )

    return decide_each_partition(broker, request, decide)
