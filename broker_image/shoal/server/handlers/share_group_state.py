"""Common parts of the share coordinator's RPCs, which other brokers send (KIP-932)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from shoal.coordinator.contract import Result
from shoal.coordinator.share.records import ShareKey
from shoal.coordinator.share.state_store import ShareStateShard
from shoal.server.network.responses import combined
from shoal.server.share.state_coordinator import keys_of, outcomes_by_topic

if TYPE_CHECKING:
    from shoal.protocol.errors import ErrorCode
    from shoal.server.broker import Broker
    from shoal.server.network.api import Answer, Body, Request

#: Decides on one partition of a request: (shard, now_ms, key, entry) -> (response fields, records).
Decide = Callable[[ShareStateShard, int, ShareKey, Any], tuple[dict[str, Any], Result]]


def _one(
    decide: Decide, key: ShareKey, entry: Any, shard: ShareStateShard, now_ms: int
) -> tuple[dict[str, Any], Result]:
    return decide(shard, now_ms, key, entry)


def refuse(request: Request, code: ErrorCode, message: str | None) -> Body:
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


def for_each_partition(
    broker: Broker, request: Request, decide: Decide, *, ordered: bool = True, resets: bool = False
) -> Answer:
    """Call `decide` for each share partition in the request, on the shard of its state.

    With `ordered` a request that the sender may have replaced is refused. With `resets` a leader on
    this broker reads the state again.
    """
    if ordered:
        broker.share.state_coordinator.check_in_time(request)
    keys = list(keys_of(request.body))
    entries = [entry for topic in request.body.topics for entry in topic.partitions]
    replies = [
        broker.share.state_coordinator.decide(key, partial(_one, decide, key, entry))
        for key, entry in zip(keys, entries, strict=True)
    ]
    if resets:
        broker.share.drop(request.body.group_id, [(key.topic_id, key.partition) for key in keys])
    return combined(replies, lambda found: {"results": outcomes_by_topic(keys, found)})
