"""ReadShareGroupState: a leader loads its share partitions (KIP-932)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from shoal.coordinator.share.backoff import select_pending_delays
from shoal.server.handlers.share.share_group_state import decide_each_partition
from shoal.server.share.persister import build_answer, build_delay_entries

if TYPE_CHECKING:
    from shoal.coordinator.contract import CoordinatorResult
    from shoal.coordinator.share.records import ShareKey
    from shoal.coordinator.share.state_store import ShareStateShard
    from shoal.protocol.responses import share as responses
    from shoal.server.broker import Broker
    from shoal.server.network.api import BodyOrFuture, Request


def handle(broker: Broker, request: Request) -> BodyOrFuture[responses.ReadShareGroupStateResponse]:
    def decide(
        shard: ShareStateShard, now_ms: int, key: ShareKey, entry: Any
    ) -> tuple[responses.ReadShareGroupStatePartitionResult, CoordinatorResult]:
        state, change = shard.read(now_ms, key, entry.leader_epoch)
        outcome, result = build_answer(change)
        answer = cast("responses.ReadShareGroupStatePartitionResult", outcome)
        if state is not None:
            answer["state_epoch"] = state.state_epoch
            answer["start_offset"] = state.start_offset
            answer["state_batches"] = [
                {
                    "first_offset": first,
                    "last_offset": last,
                    "delivery_state": delivery_state,
                    "delivery_count": count,
                }
                for first, last, delivery_state, count in state.batches
            ]
            waits = select_pending_delays(
                state.delays, now_ms=now_ms, start_offset=state.start_offset
            )
            answer["delays"] = build_delay_entries(waits)
        return answer, result

    return decide_each_partition(broker, request, decide)
