"""A coordinator's runtime on a clock and a log that the test controls.

`Simulation` is the shell that `server.coordinators` is in a broker. It appends to a list, commits
on request, and keeps the replies. Tests choose the tokens, which are strings.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from shoal.coordinator.contract import (
    CoordinatorRecord,
    CoordinatorResult,
    ProducerIdAndEpoch,
    RecordOrigin,
    Shard,
    Token,
)
from shoal.coordinator.runtime import AppendError, CoordinatorRuntime

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from shoal.protocol.errors import ApiError, ErrorCode

S = TypeVar("S", bound=Shard)
#: A record that a shard ignores, in the place of one that compaction removed.
REMOVED = CoordinatorRecord(b"\x7f\xff", None)


class Marker(NamedTuple):
    """A transaction marker in the log."""

    producer_id: int
    committed: bool


class Simulation(Generic[S]):
    """One partition with its shard. Only `advance` moves the time."""

    def __init__(self, new_shard: Callable[[], S], *, start_ms: int = 1_000_000) -> None:
        self.now_ms = start_ms
        #: Records with their time and transaction; `mark` writes the markers.
        self.log: list[tuple[CoordinatorRecord | Marker, int, ProducerIdAndEpoch | None]] = []
        self.committed_offset = 0
        #: Whether an append is committed at once, as on a single broker.
        self.commits = True
        #: The error of the next append.
        self.refuse_append: ErrorCode | None = None
        self.delivered: dict[Token, Mapping[str, Any]] = {}
        self.failed: dict[Token, ErrorCode] = {}
        self.events: list[tuple[Token, Mapping[str, Any] | ErrorCode]] = []
        self.performed: list[Any] = []
        self.appends = 0
        self._new_shard = new_shard
        self.runtime: CoordinatorRuntime[S] = CoordinatorRuntime(
            self, lambda partition: new_shard()
        )
        self.reload(0)

    @property
    def shard(self) -> S:
        return self.runtime.read(0)

    # Actions of a test.

    def submit(self, token: Token, decide: Callable[[S, int, Token], CoordinatorResult]) -> None:
        self.runtime.submit(0, token, decide, self.now_ms)
        self.runtime.flush()

    def mark(self, producer_id: int, *, committed: bool) -> None:
        """End a producer's transaction in the partition with a marker."""
        marker = Marker(producer_id, committed)

        def append() -> None:
            self.log.append((marker, self.now_ms, None))
            if self.commits:
                self.committed_offset = len(self.log)

        def ended(shard: Any) -> None:
            shard.replay_end_transaction(*marker)

        self.runtime.append_marker(0, append, ended)

    def advance(self, ms: int) -> None:
        """Let time pass, and stop at every deadline."""
        end_ms = self.now_ms + ms
        while (due_ms := self.runtime.next_deadline_ms) is not None and due_ms <= end_ms:
            self.now_ms = max(self.now_ms, due_ms)
            self.runtime.tick(self.now_ms)
            self.runtime.flush()
        self.now_ms = end_ms

    def commit(self) -> None:
        """Commit everything: the replicas have caught up."""
        self.committed_offset = len(self.log)
        self.runtime.on_high_watermark(0, self.committed_offset)

    def restart(self) -> None:
        """Move the coordinator: its soft state is lost, the log is kept."""
        self.runtime.resign(0)
        self.reload(0)

    def compact(self, *, tombstones: bool = False) -> None:
        """Remove what compaction removes: aborted records, and older records of a key that are
        below the first open transaction; old tombstones with `tombstones`. Restart after it."""
        open_ones: dict[int, list[int]] = {}
        aborted: set[int] = set()
        for offset, (record, _, producer) in enumerate(self.log):
            if isinstance(record, Marker):
                ended = open_ones.pop(record.producer_id, [])
                aborted |= set() if record.committed else set(ended)
            elif producer is not None:
                open_ones.setdefault(producer.producer_id, []).append(offset)
        bound = min((some[0] for some in open_ones.values()), default=len(self.log))
        newest = {
            record.key: offset
            for offset, (record, _, _) in enumerate(self.log[:bound])
            if isinstance(record, CoordinatorRecord) and offset not in aborted
        }
        kept = set(newest.values())
        for offset, (record, timestamp_ms, _) in enumerate(self.log[:bound]):
            if isinstance(record, Marker):
                continue
            if offset not in kept or (tombstones and record.value is None):
                self.log[offset] = (REMOVED, timestamp_ms, None)

    def rebuilt(self) -> S:
        """Return a new shard that has replayed the log."""
        shard = self._new_shard()
        self._replay(shard)
        return shard

    # Requests of the runtime to its shell.

    def get_end_offset(self, partition: int) -> int:
        return len(self.log)

    def get_high_watermark(self, partition: int) -> int:
        return self.committed_offset

    def append(
        self,
        partition: int,
        records: Sequence[CoordinatorRecord],
        producer: ProducerIdAndEpoch | None = None,
    ) -> int:
        if self.refuse_append is not None:
            code, self.refuse_append = self.refuse_append, None
            raise AppendError(code)
        self.appends += 1
        self.log += [(record, self.now_ms, producer) for record in records]
        if self.commits:
            self.committed_offset = len(self.log)
        return len(self.log) - 1

    def deliver(self, token: Token, response: Mapping[str, Any]) -> None:
        assert token not in self.delivered, token
        assert token not in self.failed, token
        self.delivered[token] = response
        self.events.append((token, response))

    def fail(self, token: Token, error: ApiError) -> None:
        assert token not in self.delivered, token
        assert token not in self.failed, token
        self.failed[token] = error.code
        self.events.append((token, error.code))

    def perform(self, effect: Any) -> None:
        self.performed.append(effect)

    def flush_soon(self) -> None:
        """Do nothing: tests flush explicitly."""

    def reload(self, partition: int) -> None:
        self._replay(self.runtime.begin(0))
        self.runtime.activate(0, self.now_ms)

    def _replay(self, shard: S) -> None:
        for offset, (record, timestamp_ms, producer) in enumerate(self.log):
            if isinstance(record, Marker):
                shard.replay_end_transaction(*record)  # type: ignore[attr-defined]
            else:
                producer_id, epoch = producer or (-1, -1)
                at = RecordOrigin(offset, timestamp_ms, producer_id, epoch, producer is not None)
                shard.replay(record, at)
