"""Input and output of a Raft replica: events, and the `Effects` of each.

The caller carries out the `Effects` of one event, in their order, before it passes in the next
event. Only `sync` may run beside later events.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shoal.quorum.log_index import OffsetAndEpoch
    from shoal.quorum.messages import RaftMessage
    from shoal.quorum.quorum_state import QuorumState
    from shoal.quorum.voters import VoterSet
    from shoal.record.batch import Buffer

# Events


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed; `Raft.next_deadline_ms` may have come."""


@dataclass(frozen=True, slots=True)
class MessageReceived:
    """A message was received."""

    message: RaftMessage


@dataclass(frozen=True, slots=True)
class RequestFailed:
    """A request has failed: its connection closed, and no response will come."""

    to: int
    correlation: int


@dataclass(frozen=True, slots=True)
class PeerDown:
    """Nothing listens at the address of that node: its process has ended.

    This is only a hint about time: a follower stops waiting for such a leader.
    """

    id: int


@dataclass(frozen=True, slots=True)
class LogSynced:
    """A sync has ended. The log is durable up to `end_offset`."""

    end_offset: int


@dataclass(frozen=True, slots=True)
class Propose:
    """A batch of records for the log. Only a leader appends it (see `Effects.proposed`)."""

    batch: Buffer


@dataclass(frozen=True, slots=True)
class Resign:
    """This node stops; a leader hands over to another voter."""


@dataclass(frozen=True, slots=True)
class SnapshotTaken:
    """A snapshot of the state up to a committed offset was written, and is durable."""

    snapshot_id: OffsetAndEpoch


@dataclass(frozen=True, slots=True)
class Trim:
    """Retention removes the log and the snapshots before the snapshot `base`."""

    base: OffsetAndEpoch


@dataclass(frozen=True, slots=True)
class SnapshotInstalled:
    """`Effects.install` was carried out. `voters` is the set in the snapshot, if it has one."""

    snapshot_id: OffsetAndEpoch
    voters: VoterSet | None


Event = (
    Tick
    | MessageReceived
    | RequestFailed
    | PeerDown
    | LogSynced
    | Propose
    | Resign
    | SnapshotTaken
    | Trim
    | SnapshotInstalled
)


class SnapshotChunk:
    """Bytes of a snapshot that is being fetched."""

    __slots__ = ("data", "position", "snapshot_id")

    def __init__(self, snapshot_id: OffsetAndEpoch, position: int, data: Buffer) -> None:
        self.snapshot_id = snapshot_id
        self.position = position
        self.data = data


@dataclass(frozen=True, slots=True)
class Effects:
    """The effects of one event. The caller carries them out in this order:

    1. Write `state` to the quorum-state file, durably, before anything else. Otherwise a voter
       could forget a vote that it has sent, and vote again.
    2. Truncate the log to `truncate_to`, then append `appends` as they are: they have their offsets
       and epochs. Neither needs to be durable yet. Write `chunk` to the file of the snapshot that
       is being fetched. With `install`, that file is complete: make it durable, replace the log by
       it, and pass in `SnapshotInstalled`. Remove the log and the snapshots before `trim_to`.
    3. Send `messages`. None of them depends on a record that is not durable: such messages are
       held back until `LogSynced`.
    4. With `sync`, begin to make the whole log durable, and pass in `LogSynced` once it is. Later
       events may come in between. There is at most one sync at a time.
    5. Records below `high_watermark` are committed and may be applied. It never goes back.
    """

    state: QuorumState | None = None
    truncate_to: int | None = None
    appends: tuple[Buffer, ...] = ()
    chunk: SnapshotChunk | None = None
    install: OffsetAndEpoch | None = None
    trim_to: OffsetAndEpoch | None = None
    messages: tuple[RaftMessage, ...] = ()
    sync: bool = False
    high_watermark: int = -1
    #: The offset of the last record of a proposed batch; None if the replica does not lead.
    proposed: int | None = None
