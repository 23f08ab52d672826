"""Runs the shards of one coordinator: decide, replay, append, and park the replies until commit.

The records of a decision are replayed at once, so that the next decision sees them. They wait in
the shard's batch until `flush` appends it. A reply is parked under the offset of the last record
that its decision may have seen, and is sent once the high watermark has passed that offset. One
append carries all decisions of one turn of the event loop.

If the append fails, the shard has replayed records that are not in the log. It is dropped, its
waiting requests are refused, and it is loaded again. So no state is ever rolled back.

If the records of a reply are not committed in time, the reply is refused. New requests are refused
until they are committed, since their replies would wait behind them. The client then looks up the
coordinator again, which may be on another broker.

The runtime owns its partitions. Its shards are the only writers, so the offset of a record is known
before it is appended.

The runtime does no I/O: the log, the event loop and the sockets are behind `Ports`. Called by
`server.coordinators`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from shoal.coordinator.contract import (
    CoordinatorRecord,
    CoordinatorResult,
    ProducerIdAndEpoch,
    RecordOrigin,
    Shard,
    Token,
)
from shoal.protocol.errors import ApiError, ErrorCode

#: Decisions that `tick` makes for one shard before it returns to the event loop.
TICK_STEPS_MAX = 256
#: About the most records that it decides for all shards before that: 10 to 20 ms of work.
TICK_RECORDS_MAX = 1_000
#: The largest overhead of a record in a batch, beyond its key and value, in bytes.
RECORD_OVERHEAD_BYTES = 32

_ADVISE_RETRY = {
    ErrorCode.not_enough_replicas,
    ErrorCode.not_enough_replicas_after_append,
    ErrorCode.request_timed_out,
    ErrorCode.unknown_topic_or_partition,
}
_ADVISE_FIND = {ErrorCode.not_leader_or_follower, ErrorCode.kafka_storage_error}


class AppendError(Exception):
    """A batch was not appended: none of its records is in the log."""

    def __init__(self, code: ErrorCode, message: str | None = None) -> None:
        super().__init__(message or code.name)
        self.code = code


class Ports(Protocol):
    """What a runtime needs from the server."""

    def get_end_offset(self, partition: int) -> int:
        """The offset of the partition's next record."""

    def append(
        self,
        partition: int,
        records: Sequence[CoordinatorRecord],
        producer: ProducerIdAndEpoch | None = None,
    ) -> int:
        """Append one batch, in the transaction of `producer` if there is one. Returns the offset of
        its last record. Raises `AppendError`."""

    def get_high_watermark(self, partition: int) -> int:
        """The offset below which the partition's records are committed."""

    def deliver(self, token: Token, response: Mapping[str, Any]) -> None:
        """Answer a request."""

    def fail(self, token: Token, error: ApiError) -> None:
        """Refuse a request."""

    def perform(self, effect: Any) -> None:
        """Perform an effect of a decision, whose records are committed."""

    def flush_soon(self) -> None:
        """Call `flush` at the end of this turn of the event loop."""

    def reload(self, partition: int) -> None:
        """Load a shard that was dropped, with `begin`, replays and `activate`."""


#: The default of `dict.pop` for a token that does not wait; a token that waits has None.
_ABSENT = object()

S = TypeVar("S", bound=Shard)
Decide = Callable[[S, int, Token], CoordinatorResult]


class ShardPhase(Enum):
    """The phase of a shard: its log is being replayed, or it serves requests."""

    LOADING = "loading"
    ACTIVE = "active"


class _ParkedReply(NamedTuple):
    """A reply that is sent once `offset` is below the high watermark."""

    offset: int
    deadline_ms: int
    token: Token
    response: Mapping[str, Any]


class _OwnedShard(Generic[S]):
    """A shard, and the state that its runtime keeps for it."""

    __slots__ = (
        "batch",
        "batch_size",
        "effects",
        "next_offset",
        "overdue",
        "parked",
        "phase",
        "producer",
        "shard",
        "waiting",
    )

    def __init__(self, shard: S) -> None:
        self.shard = shard
        self.phase = ShardPhase.LOADING
        #: Records that are replayed and not appended yet.
        self.batch: list[CoordinatorRecord] = []
        self.batch_size = 0
        #: The producer whose transaction the batch belongs to.
        self.producer: ProducerIdAndEpoch | None = None
        #: The offset of the next record of a decision.
        self.next_offset = 0
        self.parked: deque[_ParkedReply] = deque()
        #: The last offset whose reply has timed out, until the offset is committed; else -1.
        self.overdue = -1
        #: Effects to perform once their offset is below the high watermark.
        self.effects: deque[tuple[int, Any]] = deque()
        #: Tokens without a reply, or with a parked one.
        self.waiting: dict[Token, None] = {}


class CoordinatorRuntime(Generic[S]):
    """The shards of one coordinator, by partition of its internal topic."""

    def __init__(
        self,
        ports: Ports,
        new_shard: Callable[[int], S],
        *,
        batch_bytes_max: int = 1_000_000,
        write_timeout_ms: int = 5_000,
    ) -> None:
        self._ports = ports
        self._new_shard = new_shard
        self._batch_bytes_max = batch_bytes_max
        self._write_timeout_ms = write_timeout_ms
        self._owned: dict[int, _OwnedShard[S]] = {}
        self._dirty: dict[int, None] = {}

    # Ownership.

    def begin(self, partition: int) -> S:
        """Create the shard of a partition that this broker leads now, to replay its log into it."""
        assert partition not in self._owned, partition
        owned = self._owned[partition] = _OwnedShard(self._new_shard(partition))
        return owned.shard

    def activate(self, partition: int, now_ms: int) -> None:
        """Serve requests. The log has been replayed to its end."""
        owned = self._owned[partition]
        owned.next_offset = self._ports.get_end_offset(partition)
        owned.phase = ShardPhase.ACTIVE
        owned.shard.on_loaded(now_ms)

    def get_loading(self, partition: int) -> S:
        """The shard that is being replayed into."""
        owned = self._owned[partition]
        assert owned.phase is ShardPhase.LOADING
        return owned.shard

    def resign(self, partition: int, code: ErrorCode = ErrorCode.not_coordinator) -> None:
        """Drop the shard, and refuse the requests that wait for it."""
        owned = self._owned.pop(partition, None)
        self._dirty.pop(partition, None)
        if owned is not None:
            for token in owned.waiting:
                self._ports.fail(token, ApiError(code))

    def get_phase(self, partition: int) -> ShardPhase | None:
        """The phase of a shard; None for a partition that another broker leads."""
        owned = self._owned.get(partition)
        return None if owned is None else owned.phase

    def list_active(self) -> list[tuple[int, S]]:
        """The shards that serve requests, by partition."""
        owned_shards = sorted(self._owned.items())
        return [(p, owned.shard) for p, owned in owned_shards if owned.phase is ShardPhase.ACTIVE]

    def is_overdue(self, partition: int) -> bool:
        """Whether writes to the partition are not committed in time, so that it refuses requests.
        Its leader is cut off from its replicas, or has too few of them."""
        owned = self._owned.get(partition)
        return owned is not None and owned.overdue >= 0

    @property
    def loading_partitions(self) -> list[int]:
        return [p for p, owned in self._owned.items() if owned.phase is ShardPhase.LOADING]

    # Decisions.

    def submit(self, partition: int, token: Token, decide: Decide[S], now_ms: int) -> None:
        """Decide on one request. Its token is answered now, after the commit, or by a later
        decision. It is refused if another broker leads the partition, the partition is loading or
        has overdue writes, or `decide` raises `ApiError`."""
        owned = self._owned.get(partition)
        if owned is None:
            self._ports.fail(token, ApiError(ErrorCode.not_coordinator))
            return
        if owned.phase is ShardPhase.LOADING:
            self._ports.fail(token, ApiError(ErrorCode.coordinator_load_in_progress))
            return
        if owned.overdue >= 0:
            self._ports.fail(token, ApiError(ErrorCode.coordinator_not_available))
            return
        try:
            result = decide(owned.shard, now_ms, token)
        except ApiError as refused:
            # Its traceback has this frame, and so the token: a cycle that only the collector frees.
            self._ports.fail(token, refused.with_traceback(None))
            return
        owned.waiting[token] = None
        self._take(partition, owned, result, now_ms)

    def read(self, partition: int) -> S:
        """The shard, to be read only. Raises `ApiError` while it does not serve.

        It may hold state that is not committed yet. Use `submit` for responses that must not show
        such state.
        """
        owned = self._owned.get(partition)
        if owned is None:
            raise ApiError(ErrorCode.not_coordinator)
        if owned.phase is ShardPhase.LOADING:
            raise ApiError(ErrorCode.coordinator_load_in_progress)
        return owned.shard

    def apply(
        self, partition: int, decide: Callable[[S, int], CoordinatorResult], now_ms: int
    ) -> None:
        """Decide without a request of a client, if the shard serves."""
        owned = self._owned.get(partition)
        if owned is not None and owned.phase is ShardPhase.ACTIVE:
            self._take(partition, owned, decide(owned.shard, now_ms), now_ms)

    def _take(
        self, partition: int, owned: _OwnedShard[S], result: CoordinatorResult, now_ms: int
    ) -> None:
        if result.records:
            size = 0
            for key, value in result.records:
                size += len(key) + len(value or b"") + RECORD_OVERHEAD_BYTES
            if size > self._batch_bytes_max:
                self._refuse_large(owned, result, size)
                return
            fits = owned.batch_size + size <= self._batch_bytes_max
            if not fits or (owned.batch and owned.producer != result.producer):
                self._flush_one(partition)
                if self._owned.get(partition) is not owned:
                    return
            owned.producer = result.producer
            self._replay(partition, owned, result.records, size, now_ms)
        last_offset = owned.next_offset - 1
        committed = not owned.batch and last_offset < self._ports.get_high_watermark(partition)
        for token, response in result.replies:
            if committed:
                self._deliver(owned, token, response)
            else:
                deadline_ms = now_ms + self._write_timeout_ms
                owned.parked.append(_ParkedReply(last_offset, deadline_ms, token, response))
        for effect in result.effects:
            if committed:
                self._ports.perform(effect)
            else:
                owned.effects.append((last_offset, effect))

    def _replay(
        self,
        partition: int,
        owned: _OwnedShard[S],
        records: Sequence[CoordinatorRecord],
        size: int,
        now_ms: int,
    ) -> None:
        producer_id, epoch = owned.producer or (-1, -1)
        transactional = owned.producer is not None
        for record in records:
            origin = RecordOrigin(owned.next_offset, now_ms, producer_id, epoch, transactional)
            owned.shard.replay(record, origin)
            owned.next_offset += 1
        owned.batch.extend(records)
        owned.batch_size += size
        if not self._dirty:
            self._ports.flush_soon()
        self._dirty[partition] = None

    def _refuse_large(self, owned: _OwnedShard[S], result: CoordinatorResult, size: int) -> None:
        """Refuse a decision that does not fit in one batch. None of it takes effect."""
        limit = self._batch_bytes_max
        for token, _ in result.replies:
            if owned.waiting.pop(token, _ABSENT) is None:
                message = f"The write has {size} bytes of records; the maximum is {limit}."
                self._ports.fail(token, ApiError(ErrorCode.unknown_server_error, message))

    def _deliver(self, owned: _OwnedShard[S], token: Token, response: Mapping[str, Any]) -> None:
        if owned.waiting.pop(token, _ABSENT) is None:
            self._ports.deliver(token, response)

    # The log.

    def flush(self) -> None:
        """Append the records that were decided since the last call, one batch a partition."""
        for partition in list(self._dirty):
            self._flush_one(partition)

    def _flush_one(self, partition: int) -> None:
        owned = self._owned.get(partition)
        self._dirty.pop(partition, None)
        if owned is None or not owned.batch:
            return
        batch, owned.batch, owned.batch_size = owned.batch, [], 0
        try:
            if owned.producer is None:
                last_offset = self._ports.append(partition, batch)
            else:
                last_offset = self._ports.append(partition, batch, owned.producer)
        except AppendError as failed:
            self.resign(partition, to_response_error(failed.code))
            self._ports.reload(partition)
            return
        assert last_offset == owned.next_offset - 1, f"{last_offset} in {partition}"
        self.on_high_watermark(partition, self._ports.get_high_watermark(partition))

    def append_marker(
        self, partition: int, append: Callable[[], object], ended: Callable[[S], None]
    ) -> None:
        """Append a transaction's marker, one record, with `append`, and apply it to the shard with
        `ended`.

        Raises `ApiError` while the shard does not serve, and what `append` raises. Then nothing
        has changed.
        """
        self.read(partition)
        self._flush_one(partition)
        shard = self.read(partition)
        owned = self._owned[partition]
        # A request that the append wakes may decide at once: it comes after the marker.
        owned.next_offset += 1
        appended = False
        try:
            append()
            appended = True
        finally:
            owned.next_offset -= not appended
        ended(shard)

    def on_high_watermark(self, partition: int, high_watermark: int) -> None:
        """The high watermark has advanced: send the replies that waited for it."""
        owned = self._owned.get(partition)
        if owned is None:
            return
        if owned.overdue < high_watermark:
            owned.overdue = -1
        parked = owned.parked
        while parked and parked[0].offset < high_watermark:
            first = parked.popleft()
            self._deliver(owned, first.token, first.response)
        while owned.effects and owned.effects[0][0] < high_watermark:
            self._ports.perform(owned.effects.popleft()[1])

    # Time.

    @property
    def next_deadline_ms(self) -> int | None:
        """When `tick` is due; None without a deadline."""
        due = [at_ms for p in self._owned if (at_ms := self.get_deadline_ms(p)) is not None]
        return min(due, default=None)

    def get_deadline_ms(self, partition: int) -> int | None:
        """When the shard of a partition is due, or its oldest uncommitted write times out; None if
        it does not serve."""
        owned = self._owned.get(partition)
        if owned is None or owned.phase is not ShardPhase.ACTIVE:
            return None
        due_ms = owned.shard.next_deadline_ms
        if not owned.parked:
            return due_ms
        first_ms = owned.parked[0].deadline_ms
        return first_ms if due_ms is None else min(due_ms, first_ms)

    def tick(self, now_ms: int) -> None:
        """Serve the deadlines of the shards, in a bounded number of steps each, and with a bounded
        number of records for all. The others are due in the next call."""
        records_left = TICK_RECORDS_MAX
        for partition, owned in list(self._owned.items()):
            if owned.phase is not ShardPhase.ACTIVE:
                continue
            for _ in range(TICK_STEPS_MAX):
                due_ms = owned.shard.next_deadline_ms
                if due_ms is None or due_ms > now_ms or records_left <= 0:
                    break
                result = owned.shard.tick(now_ms)
                records_left -= len(result.records)
                self._take(partition, owned, result, now_ms)
                if self._owned.get(partition) is not owned:
                    break
            self._give_up_waiting(owned, now_ms)

    def _give_up_waiting(self, owned: _OwnedShard[S], now_ms: int) -> None:
        """Refuse replies whose records are not committed in time. They may be committed later;
        until then other requests are refused too."""
        while owned.parked and owned.parked[0].deadline_ms <= now_ms:
            owned.overdue, _, token, _ = owned.parked.popleft()
            if owned.waiting.pop(token, _ABSENT) is None:
                self._ports.fail(token, ApiError(ErrorCode.coordinator_not_available))


def to_response_error(code: ErrorCode) -> ErrorCode:
    """Return the error for a client whose write failed with `code`, by Kafka's mapping: retry, look
    up the coordinator, or reduce the request."""
    if code in _ADVISE_RETRY:
        return ErrorCode.coordinator_not_available
    if code in _ADVISE_FIND:
        return ErrorCode.not_coordinator
    if code in (ErrorCode.message_too_large, ErrorCode.record_list_too_large):
        return ErrorCode.unknown_server_error
    return code
