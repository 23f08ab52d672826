"""Common parts of the share coordinator's RPCs, which other brokers send (KIP-932)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from shoal.coordinator.contract import CoordinatorResult
from shoal.coordinator.share.records import ShareKey
from shoal.coordinator.share.state_store import ShareStateShard
from shoal.server.network.responses import combine_replies
from shoal.server.share.state_coordinator import group_by_topic, iterate_keys

if TYPE_CHECKING:
    from shoal.protocol.errors import ErrorCode
    from shoal.protocol.responses import share as responses
    from shoal.server.broker import Broker
    from shoal.server.network.api import BodyOrFuture, Request

#: Decides on one partition of a request: (shard, now_ms, key, entry) -> (response fields, records).
Decide = Callable[
    [ShareStateShard, int, ShareKey, Any], tuple[Mapping[str, Any], CoordinatorResult]
]


def _decide_entry(
    decide: Decide, key: ShareKey, entry: Any, shard: ShareStateShard, now_ms: int
) -> tuple[Mapping[str, Any], CoordinatorResult]:
    return decide(shard, now_ms, key, entry)


def refuse(
    request: Request, code: ErrorCode, message: str | None
) -> responses.WriteShareGroupStateResponse:
    """The error of the whole request, for every partition."""
    return {
        "results": [
            {
                "topic_id": topic.topic_id,
                "partitions": [
                    {"partition": p.partition, "error_code": code, "error_message": message}
                    for p in topic.partitions
                ],
            }
            for topic in request.body.topics
        ]
    }


def decide_each_partition(
    broker: Broker, request: Request, decide: Decide, *, ordered: bool = True, resets: bool = False
) -> BodyOrFuture[Any]:
    """Call `decide` for each share partition in the request, on the shard of its state.

    With `ordered` a request that the sender may have replaced is refused. With `resets` a leader on
    this broker reads the state again.
    """
    if ordered:
        broker.share.state_coordinator.check_in_time(request)
    keys = list(iterate_keys(request.body))
    entries = [entry for topic in request.body.topics for entry in topic.partitions]
    replies = [
        broker.share.state_coordinator.decide(key, partial(_decide_entry, decide, key, entry))
        for key, entry in zip(keys, entries, strict=True)
    ]
    if resets:
        broker.share.drop(request.body.group_id, [(key.topic_id, key.partition) for key in keys])
    return combine_replies(replies, lambda found: {"results": group_by_topic(keys, found)})
