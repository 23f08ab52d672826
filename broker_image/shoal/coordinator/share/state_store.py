"""One partition of `__share_group_state`: the persisted state of its share partitions.

Leaders write what changed (`write`), and new leaders read it (`read`). The group coordinator
initializes, summarizes and deletes states. Every write is one update record; each
`updates_per_snapshot`-th is a snapshot, so that a rebuild reads little. The log below the oldest
snapshot in use can be cut off (`redundant_offset`). Share partitions without writes get a new
snapshot periodically (`tick`), so that they do not prevent this.

Fencing: the shard refuses writes and reads with an older leader epoch, and writes and
initializations with an older state epoch. The state epoch rises when an admin resets offsets. A
leader that does not have the new epoch is refused; it drops its window and reads again.

Called by the runtime, in the shape of `coordinator.contract`. Source: KIP-932, "Share coordinator".
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from shoal.coordinator.contract import CoordinatorRecord, CoordinatorResult, RecordOrigin, Reply
from shoal.coordinator.share import records
from shoal.coordinator.share.backoff import UNTIL_FREED, Delay, select_pending_delays
from shoal.coordinator.share.records import (
    ShareKey,
    ShareRecordType,
    ShareSnapshot,
    ShareUpdate,
)
from shoal.coordinator.share.state_batches import StateBatches, combine
from shoal.coordinator.share.states import RecordState
from shoal.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from uuid import UUID

    from shoal.coordinator.share.states import StateBatch

#: An absent value in requests and records.
NONE = -1
#: Up to this many delays are kept without removing those that have ended.
_DELAYS_MIN = 64
#: A snapshot of more state batches does not fit into one record batch; updates are written instead.
#: Only windows with many incomplete records among complete ones exceed it.
_SNAPSHOT_BATCHES_MAX = 40_000


@dataclass(frozen=True, slots=True)
class StateStoreConfig:
    """Broker configs of the share coordinator, with Kafka 4.4.0's defaults."""

    #: `share.coordinator.snapshot.update.records.per.snapshot`
    updates_per_snapshot: int = 500
    #: `share.coordinator.cold.partition.snapshot.interval.ms`
    cold_snapshot_interval_ms: int = 300_000


class ShareState:
    """The persisted state of one share partition."""

    __slots__ = (
        "batches",
        "create_timestamp",
        "delays",
        "delays_kept",
        "delivery_complete_count",
        "key",
        "leader_epoch",
        "snapshot_epoch",
        "snapshot_offset",
        "start_offset",
        "state_epoch",
        "updates",
        "write_timestamp",
    )

    def __init__(self, key: ShareKey) -> None:
        self.key = key
        self.snapshot_epoch = self.state_epoch = self.leader_epoch = 0
        self.start_offset = self.delivery_complete_count = NONE
        self.batches = StateBatches(0)
        #: Delays: back-off, and keys that are held until they are freed. Ended ones are removed at
        #: times; `delays_kept` is the number left then.
        self.delays: list[Delay] = []
        self.delays_kept = 0
        self.create_timestamp = self.write_timestamp = 0
        #: Update records since the last snapshot, and its offset in the log.
        self.updates = 0
        self.snapshot_offset = 0

    def find_key_holders(self) -> list[Delay]:
        """Return the ranges that hold keys until they are freed, in offset order."""
        return sorted(
            Delay(low, high, count, due_ms)
            for first, last, count, due_ms in self.delays
            if due_ms == UNTIL_FREED
            for low, high in self.batches.find_in_state(first, last, RecordState.ARCHIVING)
        )


class StateRefusal(NamedTuple):
    """The reason why one share partition of a request was refused."""

    code: ErrorCode
    message: str


class StateChange(NamedTuple):
    """The result for one share partition of a request: a record to append, or a refusal."""

    record: CoordinatorRecord | None
    refusal: StateRefusal | None = None


class StateUpdate:
    """A change of one share partition's state, with the window's offsets at that time.

    `changes` are state batches; the later one counts where two overlap.
    """

    __slots__ = (
        "changes",
        "delays",
        "delivery_complete_count",
        "key",
        "leader_epoch",
        "start_offset",
        "state_epoch",
    )

    def __init__(self, key: ShareKey, *, state_epoch: int, leader_epoch: int) -> None:
        self.key = key
        self.state_epoch = state_epoch
        self.leader_epoch = leader_epoch
        self.start_offset = self.delivery_complete_count = NONE
        self.changes: list[StateBatch] = []
        self.delays: list[Delay] = []


#: The reply to an update that was accepted.
_ACCEPTED: Mapping[str, Any] = {"refusal": None}


class ShareStateShard:
    """The states of one partition. `partition_count` returns the number of partitions of a topic
    id, or None if the topic does not exist."""

    def __init__(
        self, config: StateStoreConfig, partition_count: Callable[[UUID], int | None]
    ) -> None:
        self._config = config
        self._partition_count = partition_count
        self._states: dict[bytes, ShareState] = {}
        self._cold_check_ms: int | None = None
        self._last_offset = -1
        #: The last update and its bytes: its replay needs no decoding.
        self._written = _NOTHING_WRITTEN

    def iterate_progress(self) -> Iterator[tuple[ShareKey, int, int]]:
        """Yield key, start offset and delivery complete count of each share partition that has
        begun. An unknown count is -1."""
        for state in self._states.values():
            if state.start_offset != NONE:
                yield state.key, state.start_offset, state.delivery_complete_count

    # Decisions, each for one share partition of a request.

    def initialize(
        self, now_ms: int, key: ShareKey, *, state_epoch: int, start_offset: int
    ) -> StateChange:
        """Begin a share partition's state, or reset it under the same or a newer state epoch."""
        refusal = self._refuse_unknown(key)
        if refusal is not None:
            return StateChange(None, refusal)
        state = self._get_state(key)
        if state is not None and NONE != state_epoch < state.state_epoch:
            return StateChange(None, _refuse_fenced_state(state, state_epoch))
        return StateChange(
            records.encode_snapshot(
                key,
                snapshot_epoch=0 if state is None else state.snapshot_epoch + 1,
                state_epoch=max(state_epoch, 0),
                leader_epoch=0,
                start_offset=start_offset,
                # With a known start, nothing is complete yet.
                delivery_complete_count=NONE if start_offset == NONE else 0,
                create_timestamp=now_ms,
                write_timestamp=now_ms,
                state_batches=(),
            )
        )

    def read(
        self, now_ms: int, key: ShareKey, leader_epoch: int
    ) -> tuple[ShareState | None, StateChange]:
        """Return the state for a leader, and a record if its epoch is new."""
        refusal = self._refuse_unknown(key)
        state = self._get_state(key)
        if refusal is None and state is None:
            refusal = StateRefusal(
                ErrorCode.invalid_request, "the share partition has not been initialized"
            )
        if refusal is not None or state is None:
            return None, StateChange(None, refusal)
        if NONE != leader_epoch < state.leader_epoch:
            return None, StateChange(None, _refuse_fenced_leader(state, leader_epoch))
        if leader_epoch in (NONE, state.leader_epoch):
            return state, StateChange(None)
        noted = self._build_record(
            now_ms, state, leader_epoch, NONE, state.delivery_complete_count, batches=()
        )
        return state, StateChange(noted)

    def write(
        self,
        now_ms: int,
        key: ShareKey,
        *,
        state_epoch: int,
        leader_epoch: int,
        start_offset: int,
        delivery_complete_count: int,
        batches: Sequence[StateBatch],
        delays: Sequence[Delay] = (),
    ) -> StateChange:
        """Record what changed. `start_offset` is -1 if it did not change."""
        state = self._states.get(key.encoded)
        if state is None:
            message = "the share partition's state is not initialized, so nothing can be written"
            return StateChange(
                None, self._refuse_unknown(key) or StateRefusal(ErrorCode.invalid_request, message)
            )
        if NONE != leader_epoch < state.leader_epoch:
            return StateChange(None, _refuse_fenced_leader(state, leader_epoch))
        if NONE != state_epoch < state.state_epoch:
            return StateChange(None, _refuse_fenced_state(state, state_epoch))
        return StateChange(
            self._build_record(
                now_ms,
                state,
                state.leader_epoch,
                start_offset,
                delivery_complete_count,
                batches=batches,
                delays=delays,
            )
        )

    def decide_update(self, now_ms: int, token: StateUpdate) -> CoordinatorResult:
        """Decide on an update that is the token of its own reply."""
        change = self.write(
            now_ms,
            token.key,
            state_epoch=token.state_epoch,
            leader_epoch=token.leader_epoch,
            start_offset=token.start_offset,
            delivery_complete_count=token.delivery_complete_count,
            batches=token.changes,
            delays=token.delays,
        )
        if change.record is None:
            return CoordinatorResult((), (Reply(token, {"refusal": change.refusal}),))
        return CoordinatorResult((change.record,), (Reply(token, _ACCEPTED),))

    def read_summary(self, key: ShareKey) -> tuple[ShareState | None, StateRefusal | None]:
        """Return the state for an admin. Both are None if nothing was ever written."""
        refusal = self._refuse_unknown(key)
        return (None, refusal) if refusal is not None else (self._get_state(key), None)

    def delete(self, key: ShareKey) -> StateChange:
        """Delete a share partition's state. A missing state counts as deleted."""
        refusal = self._refuse_unknown(key)
        if refusal is not None:
            return StateChange(None, refusal)
        return StateChange(
            records.encode_tombstone(key) if self._get_state(key) is not None else None
        )

    def delete_topics(self, topic_ids: Iterable[UUID]) -> CoordinatorResult:
        """Delete the state of all share partitions of deleted topics."""
        deleted_ids = frozenset(topic_ids)
        return CoordinatorResult(
            [
                records.encode_tombstone(state.key)
                for state in self._states.values()
                if state.key.topic_id in deleted_ids
            ]
        )

    # The shape of a shard.

    @property
    def next_deadline_ms(self) -> int | None:
        """The time of the next check for cold share partitions."""
        return self._cold_check_ms

    def on_loaded(self, now_ms: int) -> None:
        """Start serving: the log has been replayed."""
        self._cold_check_ms = now_ms + self._config.cold_snapshot_interval_ms

    def tick(self, now_ms: int) -> CoordinatorResult:
        """Write new snapshots of share partitions whose old snapshot stops the log from being cut.
        When the log has only fresh snapshots, a coordinator without writes stays idle."""
        interval_ms = self._config.cold_snapshot_interval_ms
        self._cold_check_ms = now_ms + interval_ms
        oldest_fresh_offset = self._last_offset - len(self._states)
        return CoordinatorResult(
            [
                self._build_snapshot(state, now_ms)
                for state in self._states.values()
                if now_ms - state.write_timestamp >= interval_ms
                and state.snapshot_offset < oldest_fresh_offset
                and len(state.batches) <= _SNAPSHOT_BATCHES_MAX
            ]
        )

    def refresh(self, below: int, now_ms: int) -> list[CoordinatorResult]:
        """Return new snapshots of share partitions whose last one lies below an offset. Each is a
        decision of its own: together they could exceed one batch."""
        return [
            CoordinatorResult([self._build_snapshot(state, now_ms)])
            for state in self._states.values()
            if state.snapshot_offset < below and len(state.batches) <= _SNAPSHOT_BATCHES_MAX
        ]

    def replay(self, record: CoordinatorRecord, origin: RecordOrigin) -> None:
        """Change the state by one record."""
        self._last_offset = origin.offset
        kind = int.from_bytes(record.key[:2], "big")
        if kind == ShareRecordType.SHARE_UPDATE and record.value is not None:
            state = self._states.get(record.key[2:])
            value, update = self._written
            if record.value is value:
                self._written = _NOTHING_WRITTEN  # It may be large, and is not needed twice.
            else:
                update = records.read_update(record.value)
            if state is not None and update is not None:
                _apply(state, update, origin.timestamp_ms)
        elif kind == ShareRecordType.SHARE_SNAPSHOT and record.value is None:
            self._states.pop(record.key[2:], None)
        elif kind == ShareRecordType.SHARE_SNAPSHOT and record.value is not None:
            state = self._states.get(record.key[2:])
            if state is None:
                key = records.decode_key(record.key)
                state = None if key is None else ShareState(key)
            snapshot = records.read_snapshot(record.value)
            if state is not None and snapshot is not None:
                self._replay_snapshot(state, snapshot, origin.offset)

    def _replay_snapshot(self, state: ShareState, value: ShareSnapshot, offset: int) -> None:
        state.snapshot_epoch = value.snapshot_epoch
        state.state_epoch = value.state_epoch
        state.leader_epoch = value.leader_epoch
        state.start_offset = value.start_offset
        state.delivery_complete_count = value.delivery_complete_count
        state.create_timestamp = value.create_timestamp
        state.write_timestamp = value.write_timestamp
        state.batches = StateBatches(max(state.start_offset, 0), value.state_batches)
        state.delays = list(value.delays)
        state.updates = 0
        state.snapshot_offset = offset
        self._states[state.key.encoded] = state

    # Facts for the shell.

    def __len__(self) -> int:
        return len(self._states)

    def list_states(self) -> Iterable[ShareState]:
        """Return all states, in the order of their initialization."""
        return self._states.values()

    @property
    def redundant_offset(self) -> int | None:
        """The offset below which a rebuild needs no records; None if it may need all."""
        return min((state.snapshot_offset for state in self._states.values()), default=None)

    # Within a decision.

    def _get_state(self, key: ShareKey) -> ShareState | None:
        return self._states.get(key.encoded)

    def _refuse_unknown(self, key: ShareKey) -> StateRefusal | None:
        if key.partition < 0:
            return StateRefusal(
                ErrorCode.invalid_request, f"there is no partition {key.partition}, it is negative"
            )
        count = self._partition_count(key.topic_id)
        if count is None or key.partition >= count:
            message = f"there is no partition {key.partition} of a topic with id {key.topic_id}"
            return StateRefusal(ErrorCode.unknown_topic_or_partition, message)
        return None

    def _build_record(
        self,
        now_ms: int,
        state: ShareState,
        leader_epoch: int,
        start_offset: int,
        delivery_complete_count: int,
        *,
        batches: Sequence[StateBatch],
        delays: Sequence[Delay] = (),
    ) -> CoordinatorRecord:
        """Return an update, or every n-th time a snapshot in its place."""
        if len(batches) == 1 and batches[0][0] >= start_offset:
            pass
        elif start_offset != NONE:
            batches = combine(batches, start_offset)
        elif len(batches) > 1:
            batches = combine(batches, 0)
        if (
            state.updates < self._config.updates_per_snapshot
            or len(state.batches) + len(batches) > _SNAPSHOT_BATCHES_MAX
        ):
            update = ShareUpdate(
                state.snapshot_epoch,
                leader_epoch,
                start_offset,
                delivery_complete_count,
                batches,
                delays,
            )
            value = records.encode_update(update)
            self._written = (value, update)
            return CoordinatorRecord(_UPDATE_PREFIX + state.key.encoded, value)
        start = state.start_offset if start_offset == NONE else start_offset
        merged_batches = deepcopy(state.batches)
        merged_batches.move_start(max(start, 0))
        merged_batches.overwrite(batches)
        return records.encode_snapshot(
            state.key,
            snapshot_epoch=state.snapshot_epoch + 1,
            state_epoch=state.state_epoch,
            leader_epoch=leader_epoch,
            start_offset=start,
            delivery_complete_count=delivery_complete_count,
            create_timestamp=now_ms,
            write_timestamp=now_ms,
            state_batches=list(merged_batches),
            delays=_find_current_delays(
                state, now_ms, more=delays, start_offset=start, batches=merged_batches
            ),
        )

    def _build_snapshot(self, state: ShareState, now_ms: int) -> CoordinatorRecord:
        """Return a snapshot of an unchanged state. Its timestamps show that it was made later."""
        return records.encode_snapshot(
            state.key,
            snapshot_epoch=state.snapshot_epoch + 1,
            state_epoch=state.state_epoch,
            leader_epoch=state.leader_epoch,
            start_offset=state.start_offset,
            delivery_complete_count=state.delivery_complete_count,
            create_timestamp=state.create_timestamp,
            write_timestamp=now_ms,
            state_batches=list(state.batches),
            delays=_find_current_delays(state, now_ms),
        )


_NOTHING_WRITTEN: tuple[bytes, ShareUpdate | None] = (b"", None)
_UPDATE_PREFIX = int(ShareRecordType.SHARE_UPDATE).to_bytes(2, "big")


def _apply(state: ShareState, update: ShareUpdate, now_ms: int) -> None:
    """Change a state by one update."""
    state.updates += 1
    if update.leader_epoch != NONE:
        state.leader_epoch = update.leader_epoch
    if update.delivery_complete_count != NONE:
        state.delivery_complete_count = update.delivery_complete_count
    if update.start_offset not in (NONE, state.start_offset):
        state.start_offset = update.start_offset
        state.batches.move_start(update.start_offset)
    state.batches.overwrite(update.state_batches)
    if update.delays:
        if len(state.delays) >= _DELAYS_MIN + 2 * state.delays_kept:
            state.delays = _find_current_delays(state, now_ms)
            state.delays_kept = len(state.delays)
        state.delays += update.delays


def _find_current_delays(
    state: ShareState,
    now_ms: int,
    *,
    more: Sequence[Delay] = (),
    start_offset: int | None = None,
    batches: StateBatches | None = None,
) -> list[Delay]:
    """Return the delays that still apply: they are not due, or their keys are not freed. `more`
    delays, and batches from another start offset on, belong to the write that is being decided."""
    start = state.start_offset if start_offset is None else start_offset
    current_batches = state.batches if batches is None else batches
    return [
        delay
        for delay in select_pending_delays(
            (*state.delays, *more), now_ms=now_ms, start_offset=start
        )
        if delay[3] != UNTIL_FREED
        or any(current_batches.find_in_state(*delay[:2], RecordState.ARCHIVING))
    ]


def _refuse_fenced_leader(state: ShareState, epoch: int) -> StateRefusal:
    message = f"leader epoch {epoch} is older than {state.leader_epoch}, the newest known"
    return StateRefusal(ErrorCode.fenced_leader_epoch, message)


def _refuse_fenced_state(state: ShareState, epoch: int) -> StateRefusal:
    message = f"state epoch {epoch} is older than {state.state_epoch}: offsets have been reset"
    return StateRefusal(ErrorCode.fenced_state_epoch, message)
