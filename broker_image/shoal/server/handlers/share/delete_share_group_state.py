"""DeleteShareGroupState: delete the state of share partitions (KIP-932)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.server.handlers.share.share_group_state import decide_each_partition
from shoal.server.share.persister import build_answer

if TYPE_CHECKING:
    from shoal.protocol.responses import share as responses
    from shoal.server.broker import Broker
    from shoal.server.network.api import BodyOrFuture, Request


def handle(
    broker: Broker, request: Request
) -> BodyOrFuture[responses.DeleteShareGroupStateResponse]:
    return decide_each_partition(
        broker, request, lambda shard, _, key, __: build_answer(shard.delete(key)), resets=True
    )
