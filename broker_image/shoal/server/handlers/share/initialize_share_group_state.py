"""InitializeShareGroupState: create the state of share partitions (KIP-932)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shoal.server.handlers.share.share_group_state import decide_each_partition
from shoal.server.share.persister import build_answer

if TYPE_CHECKING:
    from shoal.coordinator.contract import CoordinatorResult
    from shoal.coordinator.share.records import ShareKey
    from shoal.coordinator.share.state_store import ShareStateShard
    from shoal.protocol.responses import share as responses
    from shoal.server.broker import Broker
    from shoal.server.network.api import BodyOrFuture, Request


def handle(
    broker: Broker, request: Request
) -> BodyOrFuture[responses.InitializeShareGroupStateResponse]:
    def decide(
        shard: ShareStateShard, now_ms: int, key: ShareKey, entry: Any
    ) -> tuple[responses.InitializeShareGroupStatePartitionResult, CoordinatorResult]:
        return build_answer(
            shard.initialize(
                now_ms, key, state_epoch=entry.state_epoch, start_offset=entry.start_offset
            )
        )

    return decide_each_partition(broker, request, decide, resets=True)
