"""Share partitions' state, on whichever broker is its coordinator (Kafka's Persister, KIP-932).

If this broker leads the state's partition of `__share_group_state`, its own shard decides in this
turn of the loop. Otherwise the persister sends the RPC to the leader of that partition, and retries
while the coordinator moves or loads. Each request states the result, so a retry changes nothing.

Answers are mappings with `error_code` and the fields of the RPC's answer for one partition.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from shoal.client.errors import ClientError
from shoal.coordinator.contract import CoordinatorResult
from shoal.coordinator.share.backoff import Delay, select_pending_delays
from shoal.coordinator.share.state_store import NONE, ShareStateShard, StateChange
from shoal.protocol.api import ApiKey
from shoal.protocol.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from shoal.coordinator.share.records import ShareKey
    from shoal.protocol.responses import share as responses
    from shoal.server.metadata_cache import MetadataCache
    from shoal.server.node import Node
    from shoal.server.share.state_write import StateWrite

Answer = Mapping[str, Any]
Decide = Callable[[ShareStateShard, int], tuple[Answer, CoordinatorResult]]
#: How long a coordinator may take to move, and the pauses between two tries.
PATIENCE_MS = 5_000
_PAUSE_MS, _PAUSE_MAX_MS = 10, 200
#: How long writes are decided before other work gets its turn.
FLUSH_STEP_S = 0.005
#: Errors that end once the coordinator has been found, or has loaded.
_RETRIED = {
    ErrorCode.coordinator_not_available,
    ErrorCode.not_coordinator,
    ErrorCode.coordinator_load_in_progress,
    ErrorCode.request_timed_out,
}


class StateCoordinatorPort(Protocol):
    """The share coordinator on this broker (`state_coordinator`)."""

    def find_coordinator(self, key: str) -> int:
        """The broker that coordinates a key. Raises COORDINATOR_NOT_AVAILABLE."""

    def ensure_topic(self) -> asyncio.Future[Any] | None:
        """None, or a future to wait for while the topic of the state is created."""

    def decide(self, key: ShareKey, decide: Decide) -> asyncio.Future[Any]:
        """Run `decide` on the shard of a key. The future gets the answer, or an `ApiError`."""

    def begin_writes(self) -> None:
        """Collect the records of the writes that follow, until `end_writes`."""

    def write(self, index: int, write: StateWrite, now_ms: int) -> None:
        """Decide on a write to a state partition."""

    def end_writes(self) -> None:
        """Append what was decided since `begin_writes`."""


class PeersPort(Protocol):
    """Requests to other brokers (`network.peers`)."""

    async def request(self, broker_id: int, api_key: ApiKey, fields: Mapping[str, Any]) -> Any:
        """The answer of that broker. Raises `ClientError`."""


class Persister:
    """Owns the writes that wait for the end of this turn, or for an earlier write of their key."""

    def __init__(
        self, node: Node, cache: MetadataCache, peers: PeersPort, states: StateCoordinatorPort
    ) -> None:
        self._node = node
        self._cache = cache
        self._peers = peers
        self._states = states
        self._queue: deque[StateWrite] = deque()
        #: By key, while a write is under way to another broker: the next write, if there is one.
        self._remote: dict[ShareKey, StateWrite | None] = {}

    def is_here(self, key: ShareKey) -> bool:
        """Whether this broker is, or is about to be, the coordinator of that key."""
        if len(self._cache.image.brokers) == 1:
            return True
        try:
            return self._states.find_coordinator(key.coordinator_key) == self._node.id
        except ApiError:
            return False

    # Writes of leaders.

    def write(self, write: StateWrite) -> None:
        """Send a write at the end of this turn of the loop, and close it then."""
        if not self._queue:
            self._node.loop.call_soon(self._flush)
        self._queue.append(write)

    def _flush(self) -> None:
        queue, loop, states = self._queue, self._node.loop, self._states
        now_ms = self._node.clock.now_ms()
        end = loop.time() + FLUSH_STEP_S
        states.begin_writes()
        try:
            while queue:
                self._send(queue.popleft(), now_ms)
                if loop.time() >= end:
                    break
        finally:
            if queue:
                loop.call_soon(self._flush)
            # In the same turn, since every turn polls the sockets.
            states.end_writes()

    def _send(self, write: StateWrite, now_ms: int) -> None:
        if write.is_closed:
            return  # Its leader was dropped.
        if self._remote and write.key in self._remote:
            self._remote[write.key] = write
            return
        write.is_closed = True
        if write.partition is not None and self.is_here(write.key):
            self._states.write(write.partition, write, now_ms)
            return
        self._remote[write.key] = None
        fields = {
            "state_epoch": write.state_epoch,
            "leader_epoch": write.leader_epoch,
            "start_offset": write.start_offset,
            "delivery_complete_count": write.delivery_complete_count,
            "state_batches": [
                {
                    "first_offset": first,
                    "last_offset": last,
                    "delivery_state": state,
                    "delivery_count": count,
                }
                for first, last, state, count in write.changes
            ],
            "delays": build_delay_entries(write.delays),
        }
        sent = asyncio.ensure_future(
            self._carry_out(
                write.key, _make_decision(write), ApiKey.WRITE_SHARE_GROUP_STATE, fields
            )
        )
        sent.add_done_callback(lambda done: self._on_sent(write, done))

    def _on_sent(self, write: StateWrite, future: asyncio.Future[Answer]) -> None:
        """Another broker has answered a write."""
        following = self._remote.pop(write.key)
        if future.cancelled():
            return
        answer = future.result()
        code = answer["error_code"]
        write.set_result({"refusal": (code, answer.get("error_message")) if code else None})
        if following is not None and not following.is_closed:
            self.write(following)

    # Requests.

    def read(self, key: ShareKey, leader_epoch: int) -> asyncio.Future[Answer]:
        """ReadShareGroupState, for a leader. State batches and delays are tuples."""

        def decide(shard: ShareStateShard, now_ms: int) -> tuple[Answer, CoordinatorResult]:
            state, change = shard.read(now_ms, key, leader_epoch)
            outcome, result = build_answer(change)
            answer: dict[str, Any] = {**outcome}
            if state is not None:
                start_offset = state.start_offset
                answer["start_offset"] = start_offset
                answer["state_epoch"] = state.state_epoch
                answer["state_batches"] = list(state.batches)
                waits = select_pending_delays(
                    state.delays, now_ms=now_ms, start_offset=start_offset
                )
                answer["delays"] = waits
            return answer, result

        fields = {"leader_epoch": leader_epoch}
        return self._ask(key, decide, ApiKey.READ_SHARE_GROUP_STATE, fields)

    def initialize(
        self, key: ShareKey, *, state_epoch: int, start_offset: int
    ) -> asyncio.Future[Answer]:
        """InitializeShareGroupState."""
        fields = {"state_epoch": state_epoch, "start_offset": start_offset}
        return self._ask(
            key,
            lambda shard, now_ms: build_answer(
                shard.initialize(now_ms, key, state_epoch=state_epoch, start_offset=start_offset)
            ),
            ApiKey.INITIALIZE_SHARE_GROUP_STATE,
            fields,
        )

    def delete(self, key: ShareKey) -> asyncio.Future[Answer]:
        """DeleteShareGroupState."""
        return self._ask(
            key,
            lambda shard, _: build_answer(shard.delete(key)),
            ApiKey.DELETE_SHARE_GROUP_STATE,
            {},
        )

    def read_summary(self, key: ShareKey) -> asyncio.Future[Answer]:
        """ReadShareGroupStateSummary."""
        return self._ask(
            key,
            lambda shard, _: (build_summary(shard, key), CoordinatorResult()),
            ApiKey.READ_SHARE_GROUP_STATE_SUMMARY,
            {"leader_epoch": 0},
        )

    def _ask(
        self, key: ShareKey, decide: Decide, api_key: ApiKey, fields: Mapping[str, Any]
    ) -> asyncio.Future[Answer]:
        """Run `decide` locally, or send the RPC with these `fields` of a partition.

        A local answer without an error that passes is there when this returns.
        """
        local = self._states.decide(key, decide) if self.is_here(key) else None
        if local is not None and local.done() and not _is_retried(local):
            return local
        return asyncio.ensure_future(self._carry_out(key, decide, api_key, fields, local))

    async def _carry_out(
        self,
        key: ShareKey,
        decide: Decide,
        api_key: ApiKey,
        fields: Mapping[str, Any],
        local: asyncio.Future[Answer] | None = None,
    ) -> Answer:
        """Repeat a request for `PATIENCE_MS` while a coordinator moves or loads, also a local one.
        `local` is the first try."""
        loop = self._node.loop
        end = loop.time() + PATIENCE_MS / 1000
        pause_ms = _PAUSE_MS
        while True:
            answer: Answer
            try:
                answer = await (local or self._try(key, decide, api_key, fields))
            except ApiError as refused:
                answer = {"error_code": refused.code, "error_message": refused.message}
            except ClientError as error:
                code = ErrorCode.coordinator_not_available
                answer = {"error_code": code, "error_message": str(error)}
            if answer["error_code"] not in _RETRIED or loop.time() >= end:
                return answer
            local = None
            await asyncio.sleep(pause_ms / 1000)
            pause_ms = min(2 * pause_ms, _PAUSE_MAX_MS)

    async def _try(
        self, key: ShareKey, decide: Decide, api_key: ApiKey, fields: Mapping[str, Any]
    ) -> Answer:
        created = self._states.ensure_topic()
        if created is not None:
            await created
        coordinator = self._states.find_coordinator(key.coordinator_key)
        if coordinator == self._node.id:
            return await self._states.decide(key, decide)
        topic = {
            "topic_id": key.topic_id,
            "partitions": [{"partition": key.partition, **fields}],
        }
        request = {"group_id": key.group_id, "topics": [topic]}
        response = await self._peers.request(coordinator, api_key, request)
        entry = response.results[0].partitions[0]
        answer = {
            name: value for name in _ANSWERED if (value := getattr(entry, name, None)) is not None
        }
        answer["error_code"] = ErrorCode(entry.error_code)
        answer["delays"] = parse_delays(entry)
        answer["state_batches"] = [
            (b.first_offset, b.last_offset, b.delivery_state, b.delivery_count)
            for b in getattr(entry, "state_batches", ())
        ]
        return answer


def _is_retried(reply: asyncio.Future[Any]) -> bool:
    """Whether the shard refused for a reason that passes."""
    error = None if reply.cancelled() else reply.exception()
    return isinstance(error, ApiError) and error.code in _RETRIED


def _make_decision(write: StateWrite) -> Decide:
    """Return how this broker decides on a write if it becomes the coordinator meanwhile."""

    def decide(shard: ShareStateShard, now_ms: int) -> tuple[Answer, CoordinatorResult]:
        result = shard.decide_update(now_ms, write)
        code, message = result.replies[0].response["refusal"] or (ErrorCode.none, None)
        return {"error_code": code, "error_message": message}, CoordinatorResult(result.records)

    return decide


#: Fields of a partition in the answers of all these RPCs.
_ANSWERED = (
    "error_message",
    "state_epoch",
    "leader_epoch",
    "start_offset",
    "delivery_complete_count",
)


def build_delay_entries(delays: Iterable[Delay]) -> list[responses.ReadShareGroupStateDelay]:
    """Return delays as the RPCs between our brokers carry them (`protocol.extensions`)."""
    return [
        {
            "first_offset": first,
            "last_offset": last,
            "delivery_count": count,
            "available_timestamp": due_ms,
        }
        for first, last, count, due_ms in delays
    ]


def parse_delays(entry: Any) -> list[Delay]:
    """Return the delays in the entry of a partition."""
    return [
        Delay(d.first_offset, d.last_offset, d.delivery_count, d.available_timestamp)
        for d in getattr(entry, "delays", ())
    ]


def build_answer(
    change: StateChange,
) -> tuple[responses.WriteShareGroupStatePartitionResult, CoordinatorResult]:
    """Return the answer for one share partition, and the record behind it."""
    if change.refusal is not None:
        code, message = change.refusal
        return {"error_code": code, "error_message": message}, CoordinatorResult()
    records = () if change.record is None else (change.record,)
    return {"error_code": ErrorCode.none}, CoordinatorResult(records)


def build_summary(shard: ShareStateShard, key: ShareKey) -> dict[str, Any]:
    """Return one partition's entry of ReadShareGroupStateSummary. Its delays are the dead letters
    that hold keys."""
    state, refusal = shard.read_summary(key)
    if refusal is not None:
        return {"error_code": refusal.code, "error_message": refusal.message}
    return {
        "error_code": ErrorCode.none,
        "start_offset": NONE if state is None else state.start_offset,
        "state_epoch": 0 if state is None else state.state_epoch,
        "leader_epoch": 0 if state is None else state.leader_epoch,
        "delivery_complete_count": NONE if state is None else state.delivery_complete_count,
        "delays": [] if state is None else state.find_key_holders(),
    }
