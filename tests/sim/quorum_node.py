"""A node of a simulated quorum: the replica over a real log in memory, with a small state machine.

Like the broker's shell, the node carries out `Effects` in order. Its disk outlives it. The state
machine counts the records and chains their checksums. So two nodes that have applied the same
records up to an offset are in the same state. A subclass may replace the state machine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import UUID
from zlib import crc32

from shoal.log.config import LogConfig
from shoal.log.log import Log
from shoal.log.memory import MemoryStorage
from shoal.quorum.events import (
    Effects,
    Event,
    LogSynced,
    MessageReceived,
    PeerDown,
    RequestFailed,
    Resign,
    SnapshotInstalled,
    SnapshotTaken,
    Tick,
    Trim,
)
from shoal.quorum.log_index import OffsetAndEpoch
from shoal.quorum.messages import RaftMessage, Request
from shoal.quorum.raft import Raft
from shoal.quorum.replica import QuorumSettings
from shoal.quorum.store import QuorumStore
from shoal.quorum.voters import ReplicaKey, Voter, VoterSet
from shoal.record.batch import iter_headers
from shoal.record.records import build_batch, read_records

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator, Sequence

    from shoal.log.syncs import Sync
    from sim.quorum_cluster import Cluster

DIRECTORY = "data/__cluster_metadata-0"
CONFIG = LogConfig(
    cleanup_policy=(),
    retention_ms=-1,
    retention_bytes=-1,
    segment_bytes=3_000,
    index_interval_bytes=500,
)
SETTINGS = QuorumSettings(request_timeout_ms=1_000, fetch_snapshot_max_bytes=200)


class Node:
    """One node; `raft` is None while it is down."""

    #: Offsets between two snapshots.
    snapshot_every = 60

    def __init__(self, cluster: Cluster, id: int, configured: VoterSet) -> None:
        self.cluster = cluster
        self.world = cluster.world
        self.key = ReplicaKey(id, UUID(int=id << 64 | 1))
        self.id = id
        self.voter = Voter(self.key)
        self.storage = MemoryStorage()
        self.raft: Raft | None = None
        self.incarnation = 0
        self.paused: list[Callable[[], None]] | None = None
        self.clock_ahead_ms = 0
        self.sync_ms = (0, 5)
        #: State that is certainly on disk.
        self.durable_end = 0
        self.applied = 0
        self._configured = configured
        self._tick_at: int | None = None

    @property
    def now_ms(self) -> int:
        return self.world.now_ms + self.clock_ahead_ms

    @property
    def up(self) -> bool:
        return self.raft is not None

    def live(self) -> Raft:
        assert self.raft is not None
        return self.raft

    # Start and stop.

    def start(self) -> None:
        assert self.raft is None
        self.incarnation += 1
        self.storage.now_ms = self.now_ms
        log = Log.open(self.storage, DIRECTORY, CONFIG, now_ms=self.now_ms, clean=False)
        self.store = QuorumStore(self.storage, log, self._configured)
        self.durable_end = log.log_end_offset
        self.applied = 0
        self.clear()
        self.raft = Raft(
            self.key,
            SETTINGS,
            state=self.store.state,
            index=self.store.index,
            voters=self.store.voters,
            choose=self.world.random.randrange,
            now_ms=self.now_ms,
        )
        if self.raft.index.snapshot is not None:
            self._load(self.raft.index.snapshot)
        self.cluster.checker.started(self)
        self.step(Tick())

    def stop(self, choose: Callable[[int], int]) -> None:
        """Lose the process, and the part of the unsynced data that `choose` selects."""
        if self.raft is not None:
            self.world.trace(f"n{self.id} stops")
            self.raft = None
            self.paused = None
            self.storage.crash(choose)

    def replace_disk(self) -> None:
        """Become another replica with the same id and without data."""
        assert self.raft is None
        _, directory_id = self.key
        assert directory_id is not None
        self.key = ReplicaKey(self.id, UUID(int=directory_id.int + 1))
        self.voter = Voter(self.key)
        self.storage = MemoryStorage()
        self.durable_end = 0

    def pause(self) -> None:
        if self.paused is None:
            self.paused = []

    def resume(self) -> None:
        held, self.paused = self.paused or [], None
        for call in held:
            self.world.after(0, call)

    # Events.

    def step(self, event: Event) -> Effects | None:
        """Pass an event to the replica and carry out the effects, unless the node is down."""
        if self.raft is None:
            return None
        raft = self.raft
        self.storage.now_ms = self.now_ms
        effects = raft.step(event, self.now_ms)
        self._trace(event, raft)
        self._carry_out(effects)
        self.cluster.checker.stepped(self)
        if effects.install is not None:
            voters = self.store.install(effects.install)
            self.durable_end = effects.install.offset
            self._load(effects.install)
            self.step(SnapshotInstalled(effects.install, voters))
            return effects
        self._apply()
        self._tick_later()
        return effects

    def _carry_out(self, effects: Effects) -> None:
        """Carry out steps 1 to 4 of the `Effects`."""
        self.store.apply(effects, now_ms=self.now_ms)
        if effects.truncate_to is not None:
            self.durable_end = min(self.durable_end, effects.truncate_to)
        for message in effects.messages:
            self.cluster.send(self, self.store.resolve_read(message))
        if effects.sync:
            sync = self.store.begin_sync()
            delay_ms = self.world.random.randint(*self.sync_ms)
            self.later(delay_ms, lambda: self._synced(sync))

    def _synced(self, sync: Sync | None) -> None:
        if sync is not None:
            sync.run()
        end_offset = self.store.finish_sync(sync)
        self.durable_end = end_offset
        self.step(LogSynced(end_offset))

    def later(self, delay_ms: int, call: Callable[[], None]) -> None:
        """Call back in this life of the node; a paused node gets the call when it resumes."""
        incarnation = self.incarnation

        def due() -> None:
            if self.raft is None or self.incarnation != incarnation:
                return
            if self.paused is not None:
                self.paused.append(due)
            else:
                call()

        self.world.after(delay_ms, due)

    def _tick_later(self) -> None:
        at = self.live().next_deadline_ms
        if at is None or at == self._tick_at:
            return
        self._tick_at = at

        def tick() -> None:
            if self._tick_at == at:
                self._tick_at = None
                self.step(Tick())

        self.later(at - self.now_ms, tick)

    # Messages.

    def deliver(self, message: RaftMessage) -> None:
        """A message arrives. Responses to an earlier life were lost with its connection."""
        if self.raft is None:
            if isinstance(message.body, Request):
                self.cluster.refuse(message)
            return
        if isinstance(message.body, Request):
            self.later(0, lambda: self._receive(message))
            return
        incarnation, correlation = message.correlation
        if incarnation == self.incarnation:
            self.later(0, lambda: self._receive(message._replace(correlation=correlation)))

    def _receive(self, message: RaftMessage) -> None:
        self.step(MessageReceived(message))

    def unanswered(self, to: int, correlation: Any) -> None:
        if correlation[0] == self.incarnation:
            self.later(0, lambda: self._unanswered(to, correlation[1]))

    def _unanswered(self, to: int, correlation: int) -> None:
        self.step(RequestFailed(to, correlation))
        # No process listens there: to this node, the process has ended.
        self.step(PeerDown(to))

    def resign(self) -> None:
        self.step(Resign())

    # The state machine.

    def clear(self) -> None:
        self.count = self.digest = 0

    @property
    def state(self) -> Hashable:
        """Return the state that must be equal wherever the same offsets are applied."""
        return self.count, self.digest

    def replay(self, values: Sequence[bytes], *, offset: int, epoch: int) -> None:
        """Apply a batch's records, of which the last is at `offset`."""
        for value in values:
            self.count += 1
            self.digest = crc32(value, self.digest)

    def _apply(self) -> None:
        raft = self.live()
        for offset, epoch, values in self.batches(self.applied, raft.high_watermark):
            if values:
                self.replay(values, offset=offset, epoch=epoch)
            self.applied = offset + 1
            self.cluster.checker.applied(self)
        self._snapshot_if_due(raft)

    def batches(self, start: int, end: int) -> Iterator[tuple[int, int, list[bytes]]]:
        """Yield (last offset, epoch, values) of each batch in [start, end); no values for control
        batches."""
        while start < end:
            found = self.store.log.read(start, 1 << 16, max_offset=end)
            for at, header in iter_headers(found.data):
                values = [] if header.is_control else read_records(found.data, at)
                yield header.last_offset, header.leader_epoch, [r.value or b"" for r in values]
            assert found.next_offset > start, "a high watermark within a batch"
            start = found.next_offset

    def _snapshot_if_due(self, raft: Raft) -> None:
        last = raft.index.snapshot or raft.index.base
        if self.applied - last.offset < self.snapshot_every:
            return
        snapshot_id = OffsetAndEpoch(self.applied, raft.index.find_epoch(self.applied))
        value = f"{self.count} {self.digest}".encode() + b"." * 500
        batch = build_batch([(self.now_ms, None, value, ())])
        voters = raft.voters.find_set_at(self.applied)
        self.store.write_snapshot(snapshot_id, voters, [batch], last_timestamp_ms=self.now_ms)
        before = raft.index.snapshot
        self.step(SnapshotTaken(snapshot_id))
        if before is not None:
            self.step(Trim(before))

    def _load(self, snapshot_id: OffsetAndEpoch) -> None:
        _, (batch,) = self.store.read_snapshot(snapshot_id)
        (record,) = read_records(batch)
        assert record.value is not None
        self.count, self.digest = map(int, record.value.rstrip(b".").split())
        self.applied = snapshot_id.offset
        self.cluster.checker.applied(self)

    def _trace(self, event: Event, raft: Raft) -> None:
        what = type(event).__name__
        if isinstance(event, MessageReceived):
            what = f"{type(event.message.body).__name__}<n{event.message.source}"
        index = raft.index
        self.world.trace(
            f"n{self.id} {what} {raft.role.value} e{raft.epoch} l{raft.leader_id}"
            f" [{index.start_offset},{index.end_offset}) hw{raft.high_watermark}"
        )
