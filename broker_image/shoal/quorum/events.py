"""Input and output of a Raft replica: events, and the `Effects` of each.

The caller carries out the `Effects` of one event, in their order, before it passes in the next
event. Only `sync` may run beside later events.
"""

from __future__ import annotations

from dataclasses import dataclass

from shoal.quorum.log_index import OffsetAndEpoch
from shoal.quorum.messages import Message
from shoal.quorum.quorum_state import QuorumState
from shoal.quorum.voters import VoterSet
from shoal.record.batch import Buffer

# Events


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed: `Raft.next_deadline_ms` has come, or may have."""


@dataclass(frozen=True, slots=True)
class Received:
    """A message has come in."""

    message: Message


@dataclass(frozen=True, slots=True)
class RequestFailed:
    """The connection that a request went out on is gone; no response will come."""

    to: int
    correlation: int


@dataclass(frozen=True, slots=True)
class PeerDown:
    """Nothing listens any more where that node did: its process has ended.

    A hint about time and no more: a follower need not wait for a leader of which that is known.
    """

    id: int


@dataclass(frozen=True, slots=True)
class Synced:
    """A sync has ended: the log is durable up to `end_offset`."""

    end_offset: int


@dataclass(frozen=True, slots=True)
class Propose:
    """A batch of records for the log, taken by a leader alone (see `Effects.proposed`)."""

    batch: Buffer


@dataclass(frozen=True, slots=True)
class Resign:
    """This node is stopping: hand leadership on."""


@dataclass(frozen=True, slots=True)
class SnapshotTaken:
    """The state up to a committed offset was written to a snapshot, and is durable."""

    snapshot_id: OffsetAndEpoch


@dataclass(frozen=True, slots=True)
class Trim:
    """Retention keeps nothing before the snapshot `base`: not the log, and no older snapshot."""

    base: OffsetAndEpoch


@dataclass(frozen=True, slots=True)
class SnapshotInstalled:
    """`Effects.install` was done; `voters` are those in the snapshot, None if it has none."""

    snapshot_id: OffsetAndEpoch
    voters: VoterSet | None


Event = (
    Tick
    | Received
    | RequestFailed
    | PeerDown
    | Synced
    | Propose
    | Resign
    | SnapshotTaken
    | Trim
    | SnapshotInstalled
)


class SnapshotChunk:
    """Bytes for the file of a snapshot that is being fetched."""

    __slots__ = ("data", "position", "snapshot_id")

    def __init__(self, snapshot_id: OffsetAndEpoch, position: int, data: Buffer) -> None:
        self.snapshot_id = snapshot_id
        self.position = position
        self.data = data


@dataclass(frozen=True, slots=True)
class Effects:
    """What one event asks for, to be done in this order:

    1. `state` is written to the quorum-state file, and is durable before anything else is done.
       Else a vote that was told could be given again.
    2. `truncate_to` cuts the log's end, then `appends` are written behind it, as they are: they
       have their offsets and epochs. Both reach the operating system, no more is asked for here.
       `chunk` goes to the file of a snapshot under way; `install` says that the file is whole:
       make it durable, put it in the place of the whole log, then answer `SnapshotInstalled`.
       `trim_to` allows the log's front, and older snapshots, to go.
    3. `messages` leave. None of them vouches for a record that is not durable: what does is held
       back until `Synced` has said so.
    4. With `sync`, making the log durable begins, all of it, and `Synced` tells when that is
       done. It may run beside later events; at most one is asked for at a time.
    5. Records below `high_watermark` are committed and may be applied. It never goes back.
    """

    state: QuorumState | None = None
    truncate_to: int | None = None
    appends: tuple[Buffer, ...] = ()
    chunk: SnapshotChunk | None = None
    install: OffsetAndEpoch | None = None
    trim_to: OffsetAndEpoch | None = None
    messages: tuple[Message, ...] = ()
    sync: bool = False
    high_watermark: int = -1
    #: The offset of a proposed batch's last record; None when the replica does not lead.
    proposed: int | None = None
