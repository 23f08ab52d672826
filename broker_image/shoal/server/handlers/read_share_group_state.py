"""ReadShareGroupState: a leader loads its share partitions (KIP-932)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shoal.coordinator.share.backoff import still_due
from shoal.server.handlers.share_group_state import for_each_partition
from shoal.server.share.persister import answer_of, delay_entries

if TYPE_CHECKING:
    from shoal.coordinator.contract import Result
    from shoal.coordinator.share.records import ShareKey
    from shoal.coordinator.share.state_store import ShareStateShard
    from shoal.server.broker import Broker
    from shoal.server.network.api import Answer, Request


def handle(broker: Broker, request: Request) -> Answer:
    def one(
        shard: ShareStateShard, now_ms: int, key: ShareKey, entry: Any
    ) -> tuple[dict[str, Any], Result]:
        state, change = shard.read(now_ms, key, entry.leader_epoch)
        answer, result = answer_of(change)
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
            waits = still_due(state.delays, now_ms=now_ms, start_offset=state.start_offset)
            answer["delays"] = delay_entries(waits)
        return answer, result

    return for_each_partition(broker, request, one)
