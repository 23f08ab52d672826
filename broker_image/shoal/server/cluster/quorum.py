"""This node's replica of the metadata quorum: carries out the `Effects` of `quorum.raft`.

Owns the replica, its disk (`quorum.store`) and its timer. `step` takes an event and carries out its
effects before the next event. Requests from the network come in by `receive`, whose future is the
response. `peers` sends messages to the other nodes.

A sole voter is elected while it starts: its first syncs block the event loop.

After a failed write, as on a full disk, the state of the replica is ahead of the disk. The replica
is then opened again from the disk, as after a crash. After a failed sync, the content of the disk
is unknown. The replica then stops until the node restarts, and `fault` has the reason.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from shoal.log.config import LogConfig
from shoal.log.errors import AppendRefused, CorruptLog, LogOffline
from shoal.metadata.names import METADATA_TOPIC
from shoal.metadata.records import UnknownRecord, decode
from shoal.quorum import wire
from shoal.quorum.events import (
    Effects,
    Event,
    LogSynced,
    MessageReceived,
    Resign,
    SnapshotInstalled,
    SnapshotTaken,
    Tick,
    Trim,
)
from shoal.quorum.log_index import OffsetAndEpoch
from shoal.quorum.messages import RaftMessage, Request, Response
from shoal.quorum.quorum_state import CorruptQuorumState
from shoal.quorum.raft import Raft
from shoal.quorum.replica import CommittedRecordsLost
from shoal.quorum.states import Role
from shoal.quorum.store import QuorumStore
from shoal.quorum.voters import ReplicaKey, Voter, VoterEndpoint, VoterSet
from shoal.record.batch import iter_headers
from shoal.record.records import read_records
from shoal.server.cluster.quorum_peers import QuorumEndpoints, QuorumPeers
from shoal.server.network.links import make_plaintext

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from uuid import UUID

    from shoal.client.security.security import Security
    from shoal.client.settings import Address
    from shoal.log.directory import LogDirectory
    from shoal.log.log import Log
    from shoal.log.syncs import Sync
    from shoal.quorum.leader_state import ReplicaProgress
    from shoal.server.network.links import SetupTimeouts
    from shoal.server.node import Node

#: Only records that a snapshot contains are removed from the log.
_CONFIG = LogConfig(
    cleanup_policy=(),
    retention_ms=-1,
    retention_bytes=-1,
    max_message_bytes=128 << 20,
    # Small, so that records that a snapshot contains are removed soon.
    segment_bytes=32 << 20,
)
_READ_BYTES = 4 << 20
#: How often a leader that stops checks whether all voters have confirmed its end, and the pause.
_RESIGN_TRIES, _RESIGN_S = 20, 0.05
#: The pause before a replica is opened again after a failed write.
_REOPEN_S = 1.0


class MetadataBatch(NamedTuple):
    """A batch of the log. A batch of control records has no values."""

    last_offset: int
    epoch: int
    values: list[bytes]
    size: int


class ReplicaState(NamedTuple):
    """The progress of a replica of the metadata log; -1 for unknown values."""

    key: ReplicaKey
    log_end_offset: int
    fetched_ms: int
    caught_up_ms: int


def _make_replica_state(progress: ReplicaProgress) -> ReplicaState:
    caught_up_ms = -1 if progress.caught_up_ms is None else progress.caught_up_ms
    return ReplicaState(progress.key, progress.end_offset, progress.fetched_ms, caught_up_ms)


class MetadataQuorum:
    """One node's part in the metadata quorum."""

    def __init__(
        self,
        node: Node,
        directory: LogDirectory,
        endpoints: QuorumEndpoints,
        timeouts: SetupTimeouts,
        security: Callable[[str], Security] = make_plaintext,
    ) -> None:
        """`security` returns the settings for connections to a listener of that name."""
        self._node = node
        self._loop = node.loop
        self._clock = node.clock
        self._directory = directory
        self._endpoints = endpoints
        #: Added to the loop's time: a monotonic clock that begins at the wall clock's time.
        self._offset_ms = 0
        #: The other nodes; a voter that is alone never sends to them.
        self.peers = QuorumPeers(
            node,
            directory,
            endpoints,
            timeouts,
            self.step,
            security=lambda address: security(self.find_listener(address)),
        )
        self.fault: str | None = None
        #: Why the replica cannot write and waits to be opened again; None while it works.
        self.write_failure: str | None = None
        self._has_logged_failure = False
        self._step_calls: list[Callable[[], None]] = []
        self._log: Log | None = None
        self._store: QuorumStore | None = None
        self._raft: Raft | None = None
        self._events: deque[Event] = deque()
        self._stepping = False
        self._inline = False
        self._stopped = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at: int | None = None

    def open(self) -> None:
        """Open the log in the data directory, which is open. Raises `CorruptLog`, `OSError`."""
        now_ms = self._clock.now_ms()
        self._offset_ms = now_ms - int(self._loop.time() * 1000)
        self._log = self._directory.open_log(
            METADATA_TOPIC, 0, _CONFIG, now_ms=now_ms, topic_id=wire.TOPIC_ID
        )
        self._open_replica()

    def _open_replica(self) -> None:
        """Begin a replica with what is on disk."""
        log = self._log
        assert log is not None
        try:
            store = QuorumStore(self._directory.storage, log, self._get_first_voters())
        except CorruptQuorumState as error:
            raise CorruptLog(
                f"{log.directory}: {error}. Voting without it could elect two leaders: restore"
                " the file, or start this node with an empty data directory."
            ) from None
        self._store = store
        self._raft = Raft(
            self.local,
            self._node.cluster.settings,
            state=store.state,
            index=store.index,
            voters=store.voters,
            choose=self._node.system.random.randrange,
            now_ms=self._now_ms(),
        )

    def _get_first_voters(self) -> VoterSet:
        """Return the voters of a log that has none yet: the configured ones, or this node."""
        configured = self._node.cluster.voters
        if configured is not None:
            return configured
        endpoints = self._endpoints.get_quorum_endpoints()
        return VoterSet.from_voters([Voter(ReplicaKey(self._node.id), endpoints)])

    def _now_ms(self) -> int:
        return int(self._loop.time() * 1000) + self._offset_ms

    # State.

    @property
    def is_open(self) -> bool:
        return self._raft is not None

    @property
    def raft(self) -> Raft:
        """The replica of an open quorum."""
        assert self._raft is not None, "the quorum is not open"
        return self._raft

    @property
    def store(self) -> QuorumStore:
        """The disk of an open quorum."""
        assert self._store is not None, "the quorum is not open"
        return self._store

    @property
    def local(self) -> ReplicaKey:
        """This node's id and directory, once the data directory is open."""
        return ReplicaKey(self._directory.node_id, self._directory.directory_id)

    @property
    def alone(self) -> bool:
        """Whether this node is the only voter."""
        voters = self.raft.voters.latest
        return len(voters) == 1 and voters.has_voter(self.local)

    @property
    def failure(self) -> str | None:
        """Why the replica does not work now; None while it works."""
        return self.fault or self.write_failure

    @property
    def is_leader(self) -> bool:
        return self.fault is None and self.write_failure is None and self.raft.is_leader

    @property
    def leader_id(self) -> int | None:
        return self.raft.known_leader

    @property
    def epoch(self) -> int:
        return self.raft.epoch

    @property
    def start_offset(self) -> int:
        return self.raft.index.start_offset

    @property
    def end_offset(self) -> int:
        return self.raft.index.end_offset

    @property
    def high_watermark(self) -> int:
        return self.raft.high_watermark

    def find_endpoint(self, id: int) -> VoterEndpoint | None:
        """Return the address at which a voter serves the quorum, if it is known."""
        voter = self.raft.voters.latest.voters.get(id)
        return voter.endpoints[0] if voter is not None and voter.endpoints else None

    def get_replica_states(self) -> tuple[list[ReplicaState], list[ReplicaState]]:
        """Return the progress of the voters and of the observers, as known by the leader."""
        raft, leader = self.raft, self.raft.leader_state
        progress_by_id = {} if leader is None else dict(leader.replicas)
        voters = []
        for voter in raft.voters.latest:
            id = voter.key.id
            if id == self.local.id:
                now_ms = self._now_ms()
                voters.append(ReplicaState(self.local, self.end_offset, now_ms, now_ms))
                continue
            progress = progress_by_id.get(id)
            if progress is None or not voter.is_of(progress.key):
                voters.append(ReplicaState(voter.key, -1, -1, -1))
            else:
                voters.append(_make_replica_state(progress_by_id.pop(id)))
        return voters, [_make_replica_state(progress_by_id[id]) for id in sorted(progress_by_id)]

    # Life.

    def start(self) -> None:
        """Take part in the quorum. A sole voter leads when this returns."""
        if not self.alone:
            self.step(Tick())
            return
        with self.in_place():
            self.step(Tick())

    @contextlib.contextmanager
    def in_place(self) -> Iterator[None]:
        """Run syncs at once in this context, which blocks the event loop: for a start only."""
        self._inline = True
        try:
            yield
        finally:
            self._inline = False

    async def resign(self) -> None:
        """Hand over the leadership before this node stops."""
        if not self.is_open or not self.is_leader or self.alone:
            return
        self.step(Resign())
        for _ in range(_RESIGN_TRIES):
            if self.raft.role is not Role.RESIGNED or not self.raft.unconfirmed:
                return
            await asyncio.sleep(_RESIGN_S)

    def stop(self) -> None:
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
        self.peers.close()

    # Events.

    def step(self, event: Event) -> Effects | None:
        """Pass in an event and carry out its effects.

        An event that comes while another one is handled waits for it. Then this returns None.
        """
        self._events.append(event)
        if self._stepping:
            return None
        first: Effects | None = None
        self._stepping = True
        try:
            while self._events and self._works:
                effects = self._step(self._events.popleft())
                first = first or effects
        finally:
            self._stepping = False
            self._events.clear()
        self._arm()
        for call in self._step_calls:
            call()
        return first

    @property
    def _works(self) -> bool:
        return self.fault is None and self.write_failure is None and not self._stopped

    def _step(self, event: Event) -> Effects | None:
        try:
            effects = self.raft.step(event, self._now_ms())
            self._check_truncation(effects.truncate_to)
            self.store.apply(effects, now_ms=self._clock.now_ms())
            for message in effects.messages:
                self._send(self.store.resolve_read(message))
            if effects.sync:
                self._sync()
            if effects.install is not None:
                voters = self.store.install(effects.install)
                self._events.append(SnapshotInstalled(effects.install, voters))
        except CommittedRecordsLost as error:
            self._lose_controllers(error)
            return None
        except (OSError, AppendRefused, LogOffline) as error:
            self._on_failure(error)
            return None
        return effects

    def _check_truncation(self, common: int | None) -> None:
        """Raise `CommittedRecordsLost` if a truncation removes a topic of which this broker has
        logs, or all metadata.

        After a restart the replica does not know yet what is committed, but a record that created
        such a topic was. An empty controller counts its epochs from 1 again, so its log may seem to
        agree with this one for some records.
        """
        log = self.store.log
        end = log.log_end_offset
        if common is None or common >= end:
            return
        # None stands for all topics. Most truncations remove none, so no directory is read.
        removed = None
        if common > log.log_start_offset:
            removed = self._find_created_topics(common, end)
        if removed == set():
            return
        for (topic, index), topic_id in self._directory.find_partitions():
            is_removed = topic != METADATA_TOPIC and (removed is None or topic_id in removed)
            if is_removed and self._directory.has_data(f"{topic}-{index}"):
                raise CommittedRecordsLost.from_offsets(common, end)

    def _find_created_topics(self, start: int, end: int) -> set[UUID]:
        """Return the ids of the topics that records of this part of the log create."""
        created = set()
        for batch in self.read_batches(start, end):
            for value in batch.values:
                with contextlib.suppress(UnknownRecord):
                    record = decode(value)
                    if record.kind == "TopicRecord":
                        created.add(record.fields["topic_id"])
        return created

    def _lose_controllers(self, error: CommittedRecordsLost) -> None:
        """End the process: to follow this leader would be to forget the topics."""
        leader, voters = self.raft.leader_id, self.raft.voters.latest.ids
        ids = voters if leader is None else (leader,)
        who = f"Controller {ids[0]} has" if len(ids) == 1 else f"Controllers {ids} have"
        self.fail(
            f"{who} lost metadata: {error}, in {self.store.log.directory}."
            " Stop the controllers and restore their data directories, from snapshots of their"
            " volumes or a backup. This node keeps its metadata and all records as they are."
        )
        self._node.fail(str(self.fault))

    def on_step(self, call: Callable[[], None]) -> None:
        """Call `call` after every step: the high watermark, the leader or the epoch may have
        moved."""
        self._step_calls.append(call)

    def fail(self, reason: str) -> None:
        """Stop the replica until the node restarts."""
        self.fault = reason

    def _on_failure(self, error: Exception) -> None:
        if self.store.log.offline or isinstance(error, LogOffline):
            self.fault = f"The metadata log failed, and the broker has to be restarted: {error}"
        elif self.write_failure is None:
            self.write_failure = f"The metadata log cannot be written: {error}"
            self._loop.call_later(_REOPEN_S, self.recover)
        if not self._has_logged_failure:
            self._has_logged_failure = True
            self._node.log.error("the metadata log failed", error=self.failure)

    def recover(self) -> None:
        """Open the replica again after a failed write, if the disk permits."""
        if self.write_failure is None or self.fault is not None or self._stopped:
            return
        self.write_failure = None
        try:
            self._open_replica()
        except (OSError, LogOffline) as error:
            self._on_failure(error)
            return
        self.start()

    def _sync(self) -> None:
        sync = self.store.begin_sync()
        if sync is None or self._inline:
            if sync is not None:
                sync.run()
                self._note_written()
            self._events.append(LogSynced(self.store.finish_sync(sync)))
            return
        raft = self.raft
        self._node.disk.run(sync.run).add_done_callback(
            lambda work: self._on_synced(raft, sync, work)
        )

    def _on_synced(self, raft: Raft, sync: Sync, work: asyncio.Future[None]) -> None:
        error = work.exception()
        assert error is None or isinstance(error, OSError), error
        end_offset = self.store.finish_sync(sync, error)
        if error is None:
            self._note_written()
        if self.raft is not raft and error is None:
            return  # The replica was opened again meanwhile.
        if error is not None:
            self._on_failure(error)
            for call in self._step_calls:
                call()
        else:
            self.step(LogSynced(end_offset))

    def _note_written(self) -> None:
        if self._has_logged_failure and self.fault is None:
            self._has_logged_failure = False
            self._node.log.warning("the metadata log can be written again")

    def _arm(self) -> None:
        deadline_ms = self.raft.next_deadline_ms
        if deadline_ms == self._timer_at or not self._works:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at, self._timer = deadline_ms, None
        if deadline_ms is not None:
            self._timer = self._loop.call_at(
                (deadline_ms - self._offset_ms) / 1000 + 0.0005, self._tick
            )

    def _tick(self) -> None:
        self._timer_at = None
        self.step(Tick())

    # Messages.

    def receive(self, source: int, body: Request) -> asyncio.Future[Response]:
        """Handle a request from the network. The future is its response."""
        answer: asyncio.Future[Response] = self._loop.create_future()
        self.step(MessageReceived(RaftMessage(source, self.local.id, answer, body)))
        return answer

    def _send(self, message: RaftMessage) -> None:
        if isinstance(message.body, Response):
            if isinstance(message.correlation, asyncio.Future) and not message.correlation.done():
                message.correlation.set_result(message.body)
            return
        endpoint = self.find_endpoint(message.to)
        if endpoint is not None:
            self.learn(message.to, endpoint)
        self.peers.send(message)

    def learn(self, id: int, endpoint: VoterEndpoint) -> None:
        """Note the address at which a node serves the quorum, as it reports it."""
        self.peers.learn(id, (endpoint.host, endpoint.port))

    def find_listener(self, address: Address) -> str:
        """Return the name of the listener at the address of a voter. It is another one than this
        node's while the quorum moves to other listeners."""
        for voter in self._raft.voters.latest if self._raft is not None else ():
            for endpoint in voter.endpoints:
                if (endpoint.host, endpoint.port) == address:
                    return endpoint.name
        return self._node.cluster.listener

    def find_address(self, id: int) -> Address | None:
        """Return the address at which a node serves the quorum, if any node has reported it."""
        endpoint = self.find_endpoint(id)
        if endpoint is not None:
            return endpoint.host, endpoint.port
        return self.peers.find_address(id)

    # Snapshots.

    @property
    def snapshot_id(self) -> OffsetAndEpoch | None:
        """The newest snapshot on disk."""
        return self.raft.index.snapshot

    def read_snapshot_values(self, snapshot_id: OffsetAndEpoch) -> Iterator[bytes]:
        """Yield the values in a snapshot. Raises `CorruptLog`, `CorruptBatch`."""
        _, batches = self.store.read_snapshot(snapshot_id)
        for batch in batches:
            yield from (r.value for r in read_records(batch) if r.value is not None)

    def take_snapshot(self, offset: int, batches: list[bytes]) -> asyncio.Future[None]:
        """Write a snapshot of the committed state below `offset`, in the worker of the disk."""
        raft = self.raft
        snapshot_id = OffsetAndEpoch(offset, raft.index.find_epoch(offset))
        write = functools.partial(
            self.store.write_snapshot,
            snapshot_id,
            raft.voters.find_set_at(offset),
            batches,
            last_timestamp_ms=self._now_ms(),
        )
        work = self._node.disk.run(write)

        def on_written(work: asyncio.Future[None]) -> None:
            error = work.exception()
            newest = self.snapshot_id or self.raft.index.base
            if error is None and self.raft is raft and newest.offset < offset and self._works:
                self.step(SnapshotTaken(snapshot_id))

        work.add_done_callback(on_written)
        return work

    def clean(self, *, bytes_max: int, age_max_ms: int) -> None:
        """Delete the snapshots that exceed these limits, and the log before them."""
        if not self._works:
            return
        base = self.store.find_expired_base(
            self._clock.now_ms(), bytes_max=bytes_max, age_max_ms=age_max_ms
        )
        if base is not None:
            self.step(Trim(base))

    # The log.

    def read_batches(self, start: int, end: int) -> Iterator[MetadataBatch]:
        """Yield the batches in [start, end). Raises `CorruptBatch`, `OSError`."""
        while start < end:
            chunk = self.store.log.read(start, _READ_BYTES, max_offset=end)
            for at, header in iter_headers(chunk.data):
                values: list[bytes] = []
                if not header.is_control:
                    records = read_records(chunk.data, at)
                    values = [r.value for r in records if r.value is not None]
                yield MetadataBatch(header.last_offset, header.leader_epoch, values, header.size)
            if chunk.next_offset <= start:
                return
            start = chunk.next_offset
