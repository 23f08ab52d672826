"""The RPCs of the share coordinator: share partitions' state, for leaders and group coordinators on
other brokers (KIP-932: InitializeShareGroupState, ReadShareGroupState, WriteShareGroupState,
DeleteShareGroupState, ReadShareGroupStateSummary; KIP-1226 for the delivery complete count)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from shoal.coordinator.contract import Result
from shoal.coordinator.share.backoff import still_due
from shoal.coordinator.share.records import ShareKey
from shoal.coordinator.share.state_store import NONE, ShareStateShard
from shoal.protocol.errors import ErrorCode
from shoal.server.network.api import Answer, Request
from shoal.server.network.responses import combined
from shoal.server.share.persister import answer_of, delay_entries, delays_of, summary_of
from shoal.server.share.state_coordinator import keys_of, outcomes_by_topic

if TYPE_CHECKING:
    from shoal.server.broker import Broker

#: Decides on one partition of a request: (shard, now_ms, key, entry) -> what is answered, records.
_Decide = Callable[[ShareStateShard, int, ShareKey, Any], tuple[dict[str, Any], Result]]


def initialize(broker: Broker, request: Request) -> Answer:
    broker.share.state_coordinator.check_in_time(request)

    def one(
        shard: ShareStateShard, now_ms: int, key: ShareKey, entry: Any
    ) -> tuple[dict[str, Any], Result]:
        return answer_of(
            shard.initialize(
                now_ms, key, state_epoch=entry.state_epoch, start_offset=entry.start_offset
            )
        )

    return _for_each(broker, request, one, resets=True)


def read(broker: Broker, request: Request) -> Answer:
    broker.share.state_coordinator.check_in_time(request)

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

    return _for_each(broker, request, one)


def write(broker: Broker, request: Request) -> Answer:
    broker.share.state_coordinator.check_in_time(request)

    def one(
        shard: ShareStateShard, now_ms: int, key: ShareKey, entry: Any
    ) -> tuple[dict[str, Any], Result]:
        batches = [
            (b.first_offset, b.last_offset, b.delivery_state, b.delivery_count)
            for b in entry.state_batches
        ]
        delays = delays_of(entry)
        ranges = [*((b[0], b[1], b[3]) for b in batches), *(d[:3] for d in delays)]
        if any(first > last or first < 0 or count < 0 for first, last, count in ranges):
            message = "a state batch whose offsets are no range, or of a negative delivery count"
            return {"error_code": ErrorCode.invalid_request, "error_message": message}, Result()
        return answer_of(
            shard.write(
                now_ms,
                key,
                state_epoch=entry.state_epoch,
                leader_epoch=entry.leader_epoch,
                start_offset=entry.start_offset,
                delivery_complete_count=getattr(entry, "delivery_complete_count", NONE),
                batches=batches,
                delays=delays,
            )
        )

    return _for_each(broker, request, one)


def delete(broker: Broker, request: Request) -> Answer:
    broker.share.state_coordinator.check_in_time(request)
    return _for_each(
        broker, request, lambda shard, _, key, __: answer_of(shard.delete(key)), resets=True
    )


def summary(broker: Broker, request: Request) -> Answer:
    def one(
        shard: ShareStateShard, _now_ms: int, key: ShareKey, _entry: Any
    ) -> tuple[dict[str, Any], Result]:
        told = summary_of(shard, key)
        return told | {"delays": delay_entries(told.get("delays", ()))}, Result()

    return _for_each(broker, request, one)


def _one(
    decide: _Decide, key: ShareKey, entry: Any, shard: ShareStateShard, now_ms: int
) -> tuple[dict[str, Any], Result]:
    return decide(shard, now_ms, key, entry)


def _for_each(broker: Broker, request: Request, decide: _Decide, *, resets: bool = False) -> Answer:
    """Let the shard of each share partition in the request decide. `resets` tells that a leader on
    this broker has to read the state again."""
    keys = list(keys_of(request.body))
    entries = [entry for topic in request.body.topics for entry in topic.partitions]
    replies = [
        broker.share.state_coordinator.decide(key, partial(_one, decide, key, entry))
        for key, entry in zip(keys, entries, strict=True)
    ]
    if resets:
        broker.share.drop(request.body.group_id, [(key.topic_id, key.partition) for key in keys])
    return combined(replies, lambda found: {"results": outcomes_by_topic(keys, found)})
