"""ReadShareGroupStateSummary: where share partitions start and their lag (KIP-932, KIP-1226)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shoal.coordinator.contract import Result
from shoal.server.handlers.share_group_state import for_each_partition
from shoal.server.share.persister import delay_entries, summary_of

if TYPE_CHECKING:
    from shoal.coordinator.share.records import ShareKey
    from shoal.coordinator.share.state_store import ShareStateShard
    from shoal.server.broker import Broker
    from shoal.server.network.api import Answer, Request


def handle(broker: Broker, request: Request) -> Answer:
    def one(
        shard: ShareStateShard, _now_ms: int, key: ShareKey, _entry: Any
    ) -> tuple[dict[str, Any], Result]:
        summary = summary_of(shard, key)
        return summary | {"delays": delay_entries(summary.get("delays", ()))}, Result()

    return for_each_partition(broker, request, one, ordered=False)
