"""DeleteShareGroupState: delete the state of share partitions (KIP-932)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.server.handlers.share_group_state import for_each_partition
from shoal.server.share.persister import answer_of

if TYPE_CHECKING:
    from shoal.server.broker import Broker
    from shoal.server.network.api import Answer, Request


def handle(broker: Broker, request: Request) -> Answer:
    return for_each_partition(
        broker, request, lambda shard, _, key, __: answer_of(shard.delete(key)), resets=True
    )
