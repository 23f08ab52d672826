"""InitializeShareGroupState: create the state of share partitions (KIP-932)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shoal.server.handlers.share_group_state import for_each_partition
from shoal.server.share.persister import answer_of

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
        return answer_of(
            shard.initialize(
                now_ms, key, state_epoch=entry.state_epoch, start_offset=entry.start_offset
            )
        )

    return for_each_partition(broker, request, one, resets=True)
