"""Share partitions' state, wherever its coordinator is (Kafka's Persister, KIP-932).

Where this broker leads the state's partition of `__share_group_state` its own shard decides, in
this turn of the loop. Otherwise the request goes to the broker that leads it, and is sent again
while that one moves or loads: each of them says what is to be, so a second time changes nothing.

Answers are mappings, with `error_code` and what the RPC's answer has of one partition.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from shoal.client.errors import ClientError
from shoal.coordinator.contract import Result
from shoal.coordinator.share.backoff import Delay
from shoal.coordinator.share.records import ShareKey
from shoal.coordinator.share.share_partition import StateBatch
from shoal.coordinator.share.state_store import NONE, Change, ShareStateShard
from shoal.protocol.api import ApiKey
from shoal.protocol.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from shoal.server.broker import Broker
    from shoal.server.share.state_coordinator import StateCoordinator

Answer = Mapping[str, Any]
Decide = Callable[[ShareStateShard, int], tuple[Answer, Result]]
#: How long a coordinator may take to move, and the pauses between two tries.
PATIENCE_MS = 5_000
_PAUSE_MS, _PAUSE_MAX_MS = 10, 200
#: What passes once the coordinator has been found, or has loaded.
_RETRIED = {
    ErrorCode.coordinator_not_available,
    ErrorCode.not_coordinator,
    ErrorCode.coordinator_load_in_progress,
    ErrorCode.request_timed_out,
}


class Persister:
    """Owns nothing: the states are `StateCoordinator`', the connections `Peers`'."""

    def __init__(self, broker: Broker, states: StateCoordinator) -> None:
        self._broker = broker
        self._states = states

    def is_here(self, key: ShareKey) -> bool:
        """Whether this broker is, or is about to be, the coordinator of that key."""
        if len(self._broker.image.brokers) == 1:
            return True
        try:
            return self._states.coordinator_of(key.coordinator_key()) == self._broker.node_id
        except ApiError:
            return False

    def ask(
        self, key: ShareKey, decide: Decide, api_key: ApiKey, row: Mapping[str, Any]
    ) -> asyncio.Future[Any]:
        """Have `decide` decided here, or the RPC with that row of a partition answered."""
        if not self.is_here(key):
            return asyncio.ensure_future(self._carried(key, decide, api_key, row))
        reply = self._states.decide(key, decide)
        if reply.done() and _is_retried(reply):
            return asyncio.ensure_future(self._carried(key, decide, api_key, row))
        return reply

    def _ask_patiently(
        self, key: ShareKey, decide: Decide, api_key: ApiKey, row: Mapping[str, Any]
    ) -> asyncio.Future[Any]:
        """`ask`, repeated for `PATIENCE_MS` while a coordinator moves or loads, also a local one.

        Admin requests use it: after a restart the group is there before its state is.
        """
        return asyncio.ensure_future(self._carried(key, decide, api_key, row))

    def initialize(
        self, key: ShareKey, *, state_epoch: int, start_offset: int
    ) -> asyncio.Future[Any]:
        """InitializeShareGroupState."""
        row = {"state_epoch": state_epoch, "start_offset": start_offset}
        return self._ask_patiently(
            key,
            lambda shard, now_ms: answer_of(
                shard.initialize(now_ms, key, state_epoch=state_epoch, start_offset=start_offset)
            ),
            ApiKey.INITIALIZE_SHARE_GROUP_STATE,
            row,
        )

    def delete(self, key: ShareKey) -> asyncio.Future[Any]:
        """DeleteShareGroupState."""
        return self._ask_patiently(
            key,
            lambda shard, _: answer_of(shard.delete(key)),
            ApiKey.DELETE_SHARE_GROUP_STATE,
            {},
        )

    def summary(self, key: ShareKey) -> asyncio.Future[Any]:
        """ReadShareGroupStateSummary."""
        return self._ask_patiently(
            key,
            lambda shard, _: (summary_of(shard, key), Result()),
            ApiKey.READ_SHARE_GROUP_STATE_SUMMARY,
            {"leader_epoch": 0},
        )

    def write_elsewhere(
        self,
        key: ShareKey,
        *,
        state_epoch: int,
        leader_epoch: int,
        start_offset: int,
        delivery_complete_count: int,
        batches: Sequence[StateBatch],
        delays: Sequence[Delay],
        decide: Decide,
    ) -> asyncio.Future[Any]:
        """WriteShareGroupState at another broker; `decide` where this one has come to be it."""
        row = {
            "state_epoch": state_epoch,
            "leader_epoch": leader_epoch,
            "start_offset": start_offset,
            "delivery_complete_count": delivery_complete_count,
            "state_batches": [
                {
                    "first_offset": first,
                    "last_offset": last,
                    "delivery_state": state,
                    "delivery_count": count,
                }
                for first, last, state, count in batches
            ],
            "delays": delay_rows(delays),
        }
        return asyncio.ensure_future(
            self._carried(key, decide, ApiKey.WRITE_SHARE_GROUP_STATE, row)
        )

    async def _carried(
        self, key: ShareKey, decide: Decide, api_key: ApiKey, row: Mapping[str, Any]
    ) -> Answer:
        loop = self._broker.loop
        end = loop.time() + PATIENCE_MS / 1000
        pause_ms = _PAUSE_MS
        while True:
            answer: Answer
            try:
                answer = await self._try(key, decide, api_key, row)
            except ApiError as refused:
                answer = {"error_code": refused.code, "error_message": refused.message}
            except ClientError as error:
                code = ErrorCode.coordinator_not_available
                answer = {"error_code": code, "error_message": str(error)}
            if answer["error_code"] not in _RETRIED or loop.time() >= end:
                return answer
            await asyncio.sleep(pause_ms / 1000)
            pause_ms = min(2 * pause_ms, _PAUSE_MAX_MS)

    async def _try(
        self, key: ShareKey, decide: Decide, api_key: ApiKey, row: Mapping[str, Any]
    ) -> Answer:
        made = self._states.ready()
        if made is not None:
            await made
        coordinator = self._states.coordinator_of(key.coordinator_key())
        if coordinator == self._broker.node_id:
            return await self._states.decide(key, decide)
        topic = {
            "topic_id": key.topic_id,
            "partitions": [{"partition": key.partition, **row}],
        }
        fields = {"group_id": key.group_id, "topics": [topic]}
        answer = await self._broker.peers.request(coordinator, api_key, fields)
        found = answer.results[0].partitions[0]
        told = {
            name: ErrorCode(value) if name == "error_code" else value
            for name in _ANSWERED
            if (value := getattr(found, name, None)) is not None
        }
        return told | {"delays": delays_of(found)}


def _is_retried(reply: asyncio.Future[Any]) -> bool:
    """Whether the shard refused for a reason that passes."""
    error = None if reply.cancelled() else reply.exception()
    return isinstance(error, ApiError) and error.code in _RETRIED


#: What answers have of a partition, over all of the RPCs.
_ANSWERED = (
    "error_code",
    "error_message",
    "state_epoch",
    "leader_epoch",
    "start_offset",
    "delivery_complete_count",
    "state_batches",
)


def delay_rows(delays: Iterable[Delay]) -> list[dict[str, int]]:
    """Waits as the RPCs carry them between our brokers (`codec.OWN_TAGS`)."""
    return [
        {
            "first_offset": first,
            "last_offset": last,
            "delivery_count": count,
            "available_timestamp": due_ms,
        }
        for first, last, count, due_ms in delays
    ]


def delays_of(entry: Any) -> list[Delay]:
    """The waits that an entry of a partition tells of."""
    return [
        (d.first_offset, d.last_offset, d.delivery_count, d.available_timestamp)
        for d in getattr(entry, "delays", ())
    ]


def answer_of(change: Change) -> tuple[dict[str, Any], Result]:
    """What is answered of one share partition, and the record behind it."""
    if change.refusal is not None:
        code, message = change.refusal
        return {"error_code": code, "error_message": message}, Result()
    records = () if change.record is None else (change.record,)
    return {"error_code": ErrorCode.none}, Result(records)


def summary_of(shard: ShareStateShard, key: ShareKey) -> dict[str, Any]:
    """One partition's entry of ReadShareGroupStateSummary; of delays it tells those that are held
    until they are freed."""
    state, refusal = shard.summary(key)
    if refusal is not None:
        return {"error_code": refusal.code, "error_message": refusal.message}
    return {
        "error_code": ErrorCode.none,
        "start_offset": NONE if state is None else state.start_offset,
        "state_epoch": 0 if state is None else state.state_epoch,
        "leader_epoch": 0 if state is None else state.leader_epoch,
        "delivery_complete_count": NONE if state is None else state.delivery_complete_count,
        "delays": [] if state is None else state.key_holders(),
    }
