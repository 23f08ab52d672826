"""Dialogues among the replicas of a quorum, without a disk and on a network that the test controls.

A transcript in `quorum_transcripts/` is a list of commands, each followed by its results: for each
replica what it asks to be persisted, in the order of `Effects`, and then what it sends. Messages
wait until they are delivered. `SHOAL_REWRITE=1 pytest tests/unit/quorum/test_transcripts.py`
rewrites the transcripts; read the difference before you commit it.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID

import pytest
from shoal.protocol.errors import ErrorCode
from shoal.quorum.control_records import read_control_batch
from shoal.quorum.events import (
    Effects,
    Event,
    LogSynced,
    MessageReceived,
    PeerDown,
    Propose,
    RequestFailed,
    Resign,
    Tick,
)
from shoal.quorum.log_index import LogIndex, OffsetAndEpoch
from shoal.quorum.messages import (
    AddRaftVoterRequest,
    BeginQuorumEpochRequest,
    DeferredRead,
    EndQuorumEpochRequest,
    EpochResponse,
    FetchRequest,
    FetchResponse,
    RaftMessage,
    RaftVoterResponse,
    RemoveRaftVoterRequest,
    Request,
    Response,
    UpdateRaftVoterRequest,
    VoteRequest,
    VoteResponse,
)
from shoal.quorum.quorum_state import QuorumState
from shoal.quorum.raft import Raft
from shoal.quorum.replica import QuorumSettings
from shoal.quorum.voters import ReplicaKey, Voter, VoterHistory, VoterSet
from shoal.record.batch import iter_headers
from shoal.record.control import ControlType
from shoal.record.records import build_batch

if TYPE_CHECKING:
    from collections.abc import Iterator

TRANSCRIPTS = sorted((Path(__file__).parent / "quorum_transcripts").glob("*.txt"))
ADMIN = -1


class Replica:
    """A replica with batches and the quorum-state in place of a disk."""

    def __init__(self, id: int, voters: VoterSet) -> None:
        self.id = id
        self.configured = voters
        self.batches: list[bytes] = []
        self.durable: list[bytes] = []
        self.state = QuorumState()
        self.directory_id: UUID | None = None
        self.syncing: list[bytes] | None = None
        self.start(0)

    def start(self, now_ms: int) -> None:
        voters = VoterHistory(self.configured)
        epochs: list[tuple[int, int]] = []
        end = 0
        for data in self.batches:
            (_, header), *_ = iter_headers(data)
            if not epochs or header.leader_epoch > epochs[-1][0]:
                epochs.append((header.leader_epoch, header.base_offset))
            end = header.next_offset
            for record in read_control_batch(data) if header.is_control else ():
                if record.kind is ControlType.KRAFT_VOTERS:
                    voters.append(record.offset, VoterSet.from_fields(record.fields))
        self.raft = Raft(
            ReplicaKey(self.id, self.directory_id),
            QuorumSettings(),
            state=self.state,
            index=LogIndex(end_offset=end, epochs=epochs),
            voters=voters,
            # Node 1 has the shortest timeout.
            choose=lambda n: min(self.id * 100, n - 1),
            now_ms=now_ms,
        )

    def bytes_from(self, offset: int) -> bytes:
        return b"".join(b for b in self.batches if next(iter_headers(b))[1].base_offset >= offset)


class Dialogue:
    """Runs the commands of one transcript."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.replicas: dict[int, Replica] = {}
        self.wire: list[RaftMessage] = []
        self.cut: set[int] = set()
        self.slow: set[int] = set()
        self.out: list[str] = []

    def run(self, command: str) -> Iterator[str]:
        verb, *words = command.split()
        self.out = []
        getattr(self, verb)(*words)
        yield from self.out

    # Commands.

    def voters(self, *ids: str) -> None:
        chosen = VoterSet.from_voters(Voter(ReplicaKey(int(id))) for id in ids)
        self.replicas = {int(id): Replica(int(id), chosen) for id in ids}

    def observer(self, id: str) -> None:
        configured = next(iter(self.replicas.values())).configured
        self.replicas[int(id)] = Replica(int(id), configured)

    def holds(self, id: str, *epochs: str) -> None:
        """Give the replica a durable log with a record of each of these epochs."""
        replica = self.replicas[int(id)]
        replica.batches = [
            bytes(build_batch([(0, None, b"x", ())], base_offset=offset, leader_epoch=int(epoch)))
            for offset, epoch in enumerate(epochs)
        ]
        replica.durable = list(replica.batches)
        replica.state = QuorumState(max(map(int, epochs)))
        replica.start(self.now_ms)
        self._show(replica.id)

    def has_voted(self, id: str, candidate: str, epoch: str) -> None:
        replica = self.replicas[int(id)]
        replica.state = QuorumState(int(epoch), None, ReplicaKey(int(candidate)))
        replica.start(self.now_ms)
        self._show(replica.id)

    def time_out(self, id: str) -> None:
        """End the timeout of the replica's role, for this replica only."""
        raft = self.replicas[int(id)].raft
        assert raft.deadline_ms is not None
        raft.deadline_ms = self.now_ms
        self._step(int(id), Tick())

    def gone(self, id: str, peer: str) -> None:
        """Make the replica see that no process listens at the peer."""
        self._step(int(id), PeerDown(int(peer)))

    def fail(self, id: str, peer: str) -> None:
        """End the replica's request to the peer by the end of its connection."""
        flight = self.replicas[int(id)].raft.in_flight[int(peer)]
        self._step(int(id), RequestFailed(int(peer), flight.correlation))

    def wait(self, duration: str) -> None:
        self.now_ms += int(duration.removesuffix("ms"))
        for id in sorted(self.replicas):
            self._step(id, Tick())

    def write(self, id: str, value: str) -> None:
        batch = build_batch([(self.now_ms, None, value.encode(), ())])
        self._step(int(id), Propose(batch))

    def deliver(self, count: str = "1") -> None:
        for _ in range(int(count)):
            self._deliver_one()

    def stabilize(self) -> None:
        """Deliver messages until only waiting fetches are in flight."""
        for _ in range(200):
            if not self.wire:
                return
            self._deliver_one()
        raise AssertionError("the replicas do not stop sending")

    def isolate(self, id: str) -> None:
        self.cut.add(int(id))

    def rejoin(self, id: str) -> None:
        self.cut.discard(int(id))

    def disk_waits(self, id: str) -> None:
        self.slow.add(int(id))

    def disk_syncs(self, id: str) -> None:
        self.slow.discard(int(id))
        self._finish_sync(self.replicas[int(id)])

    def restart(self, id: str, *words: str) -> None:
        """End the process and start it again; with `power_loss`, unsynced data is lost."""
        replica = self.replicas[int(id)]
        if "power_loss" in words:
            replica.batches = list(replica.durable)
        replica.syncing = None
        self.wire = [m for m in self.wire if m.to != replica.id]
        replica.start(self.now_ms)
        self._show(replica.id)
        self._step(replica.id, Tick())

    def directory(self, id: str, directory: str, *words: str) -> None:
        """Start the process again with this directory: `empty`, or the one it had."""
        replica = self.replicas[int(id)]
        replica.directory_id = UUID(int=int(directory))
        if "empty" in words:
            replica.durable, replica.state = [], QuorumState()
        self.restart(id, "power_loss")

    def resign(self, id: str) -> None:
        self._step(int(id), Resign())

    def add(self, leader: str, id: str) -> None:
        replica = self.replicas.get(int(id))
        key = ReplicaKey(int(id)) if replica is None else replica.raft.local
        body = AddRaftVoterRequest(Voter(key))
        self._step(int(leader), MessageReceived(RaftMessage(ADMIN, int(leader), None, body)))

    def remove(self, leader: str, id: str, directory: str = "") -> None:
        key = ReplicaKey(int(id), UUID(int=int(directory)) if directory else None)
        body = RemoveRaftVoterRequest(key)
        self._step(int(leader), MessageReceived(RaftMessage(ADMIN, int(leader), None, body)))

    def tell(self, leader: str, id: str) -> None:
        """A voter reports its directory to the leader."""
        local = self.replicas[int(id)].raft.local
        body = UpdateRaftVoterRequest(self.replicas[int(leader)].raft.epoch, Voter(local))
        self._step(int(leader), MessageReceived(RaftMessage(ADMIN, int(leader), None, body)))

    # Delivery and steps.

    def _deliver_one(self) -> None:
        if not self.wire:
            return
        message = self.wire.pop(0)
        if message.to in self.cut or message.source in self.cut:
            self.out.append(f"  lost: {_named(message)}")
            return
        self._step(message.to, MessageReceived(message))

    def _step(self, id: int, event: Event) -> None:
        replica = self.replicas[id]
        before = self._position(replica.raft)
        effects = replica.raft.step(event, self.now_ms)
        if isinstance(event, MessageReceived):
            self.out.append(f"  {_named(event.message)}")
        self._carry_out(replica, effects)
        after = self._position(replica.raft)
        if after != before:
            self.out.append(f"      {after}")
        if effects.sync:
            replica.syncing = list(replica.batches)
            if id not in self.slow:
                self._finish_sync(replica)

    def _carry_out(self, replica: Replica, effects: Effects) -> None:
        if effects.state is not None:
            replica.state = effects.state
            voted = "" if effects.state.voted is None else f" voted {effects.state.voted.id}"
            leader = "" if effects.state.leader_id is None else f" leader {effects.state.leader_id}"
            self._say(
                replica, f"writes quorum-state: epoch {effects.state.leader_epoch}{leader}{voted}"
            )
        if effects.truncate_to is not None:
            replica.batches = [
                b
                for b in replica.batches
                if next(iter_headers(b))[1].base_offset < effects.truncate_to
            ]
            self._say(replica, f"cuts its log at {effects.truncate_to}")
        for data in effects.appends:
            header = next(iter_headers(data))[1]
            replica.batches.append(bytes(data))
            kind = "control" if header.is_control else "data"
            last = header.next_offset - 1
            span = (
                f"{header.base_offset}"
                if last == header.base_offset
                else (f"{header.base_offset} to {last}")
            )
            self._say(replica, f"appends {kind} {span} of epoch {header.leader_epoch}")
        for message in effects.messages:
            if message.to == ADMIN:
                self._say(replica, f"answers the administrator: {_body(message.body)}")
                continue
            body = message.body
            if isinstance(body, FetchResponse) and isinstance(body.records, DeferredRead):
                body = replace(body, records=replica.bytes_from(body.records.offset))
            self.wire.append(message._replace(body=body))

    def _finish_sync(self, replica: Replica) -> None:
        if replica.syncing is not None:
            replica.durable, replica.syncing = replica.syncing, None
            end = next(iter_headers(replica.durable[-1]))[1].next_offset if replica.durable else 0
            self._step(replica.id, LogSynced(end))

    def _say(self, replica: Replica, what: str) -> None:
        self.out.append(f"      n{replica.id} {what}")

    def _show(self, id: int) -> None:
        self.out.append(f"  {self._position(self.replicas[id].raft)}")

    def _position(self, raft: Raft) -> str:
        leader = "" if raft.known_leader is None else f" of {raft.known_leader}"
        role = raft.role.value + (leader if raft.role.value == "follower" else "")
        voters = " ".join(map(str, raft.voters.latest.ids))
        return (
            f"n{raft.local.id} is {role}, epoch {raft.epoch}, log to {raft.index.end_offset},"
            f" committed to {raft.high_watermark}, voters {voters}"
        )


def _named(message: RaftMessage) -> str:
    return f"n{message.source} -> n{message.to} {_body(message.body)}"


def _body(body: Request | Response) -> str:
    error = getattr(body, "error", ErrorCode.none)
    if error is not ErrorCode.none:
        return error.name.upper()
    match body:
        case VoteRequest():
            kind = "PreVote" if body.pre_vote else "Vote"
            end = f"{body.last_offset} of epoch {body.last_offset_epoch}"
            return f"{kind} in epoch {body.replica_epoch}, log to {end}"
        case VoteResponse():
            return "granted" if body.vote_granted else "refused"
        case BeginQuorumEpochRequest():
            return f"BeginQuorumEpoch {body.leader_epoch}"
        case EndQuorumEpochRequest():
            return f"EndQuorumEpoch {body.leader_epoch}"
        case FetchRequest():
            return f"Fetch from {body.fetch_offset} of epoch {body.last_fetched_epoch}"
        case FetchResponse() if body.diverging_epoch is not None:
            parted: OffsetAndEpoch = body.diverging_epoch
            return f"diverging: epoch {parted.epoch} ends at {parted.offset}"
        case FetchResponse():
            assert not isinstance(body.records, DeferredRead)
            found = [header for _, header in iter_headers(body.records)]
            text = f"records to {found[-1].next_offset}" if found else "no records"
            return f"{text}, high watermark {body.high_watermark}"
        case EpochResponse() | RaftVoterResponse():
            return "ok"
    return type(body).__name__


def replayed(text: str) -> str:
    """Return the present transcript; comments and empty lines stay."""
    dialogue = Dialogue()
    lines: list[str] = []
    for line in text.splitlines():
        if line.startswith("> "):
            lines.append(line)
            lines += dialogue.run(line[2:])
        elif not line.startswith("  "):
            lines.append(line)
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("path", TRANSCRIPTS, ids=lambda path: path.stem)
def test_transcript(path: Path) -> None:
    text = path.read_text()
    now = replayed(text)
    if os.environ.get("SHOAL_REWRITE"):
        path.write_text(now)
    assert now == text
