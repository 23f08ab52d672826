"""ReadShareGroupStateSummary: where share partitions start and their lag (KIP-932, KIP-1226).

Another leader of a topic asks by a field of ours what this one lends it of tenants' limits. Such a
request names no partitions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from shoal.coordinator.contract import CoordinatorResult
from shoal.server.handlers.share.share_group_state import decide_each_partition
from shoal.server.share.persister import build_delay_entries, build_summary

if TYPE_CHECKING:
    from shoal.coordinator.share.records import ShareKey
    from shoal.coordinator.share.state_store import ShareStateShard
    from shoal.protocol.responses import share as responses
    from shoal.server.broker import Broker
    from shoal.server.network.api import BodyOrFuture, Request

    _Result = responses.ReadShareGroupStateSummaryPartitionResult


def handle(
    broker: Broker, request: Request
) -> BodyOrFuture[responses.ReadShareGroupStateSummaryResponse]:
    if getattr(request.body, "tenant_wishes", None) is not None:
        return {"results": [], "tenant_loans": broker.share.loans.lend(request.body)}

    def decide(
        shard: ShareStateShard, _now_ms: int, key: ShareKey, _entry: Any
    ) -> tuple[_Result, CoordinatorResult]:
        summary = build_summary(shard, key)
        fields = summary | {"delays": build_delay_entries(summary.get("delays", ()))}
        return cast("_Result", fields), CoordinatorResult()

    return decide_each_partition(broker, request, decide, ordered=False)
