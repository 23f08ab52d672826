"""Replicas that do not lead: they find the leader and fetch its log, or a snapshot.

A follower truncates records that the leader does not have. It fetches a snapshot if the log of the
leader begins after the end of its own. Observers sync before the next fetch, as voters do: an
observer by its own log may be a voter by the leader's, and a fetch offset asserts durability.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.protocol.errors import ErrorCode, WireError
from shoal.quorum.control_records import read_control_batch
from shoal.quorum.events import SnapshotChunk
from shoal.quorum.messages import (
    DeferredRead,
    FetchRequest,
    FetchResponse,
    FetchSnapshotRequest,
    FetchSnapshotResponse,
)
from shoal.quorum.replica import CommittedRecordsLost
from shoal.quorum.voters import VoterSet
from shoal.record.batch import Buffer, CorruptBatch, check_crc, iter_headers
from shoal.record.control import ControlType

if TYPE_CHECKING:
    from shoal.quorum.log_index import OffsetAndEpoch
    from shoal.quorum.replica import Replica


#: Refusals by a voter that has compared the epochs. Others do not carry its epoch.
_OF_OTHER_EPOCHS = (ErrorCode.unknown_leader_epoch, ErrorCode.not_leader_or_follower)


def drive(raft: Replica) -> None:
    """Fetch from the leader. If it is unknown, send the fetch to one voter at a time."""
    if raft.leader_id is not None:
        if raft.can_send(raft.leader_id) and not raft.sync_pending:
            _fetch(raft, raft.leader_id)
        return
    voters = raft.voters.latest.find_others(raft.local)
    if voters and not raft.in_flight and not raft.retry_ms and not raft.sync_pending:
        _fetch(raft, voters[raft.choose(len(voters))].key.id)


def _fetch(raft: Replica, to: int) -> None:
    settings, index = raft.settings, raft.index
    if raft.download is not None:
        snapshot_id, position = raft.download
        limit = settings.fetch_snapshot_max_bytes
        raft.send(to, FetchSnapshotRequest(raft.local, raft.epoch, snapshot_id, position, limit))
        return
    wait_ms = settings.fetch_max_wait_ms
    request = FetchRequest(
        raft.local, raft.epoch, index.end_offset, index.last_epoch, raft.high_watermark, wait_ms
    )
    raft.send(to, request, wait_ms=wait_ms)


def on_fetch_response(
    raft: Replica, source: int, _request: FetchRequest, response: FetchResponse
) -> None:
    if response.error is not ErrorCode.none or source != raft.leader_id:
        if response.error in _OF_OTHER_EPOCHS:
            _note_voter_behind(raft, source, response.leader_epoch)
            if source == raft.leader_id:
                # It has restarted, perhaps without its disk, or has resigned.
                raft.lose_leader()
        raft.back_off(source)
        return
    _note_leader_alive(raft)
    if response.diverging_epoch is not None:
        offset = raft.index.find_truncation_offset(response.diverging_epoch)
        if raft.index.last_epoch == raft.epoch:
            # This leader had written these records in its own epoch.
            raise CommittedRecordsLost.from_offsets(offset, raft.index.end_offset)
        raft.truncate(offset)
    elif response.snapshot_id is not None:
        raft.require_committed(response.snapshot_id.offset)
        raft.download = (response.snapshot_id, 0)
    else:
        assert not isinstance(response.records, DeferredRead), (
            "records are read before they are sent"
        )
        if not _append(raft, response.records):
            raft.back_off(source)
    if response.diverging_epoch is None and response.snapshot_id is None:
        raft.commit(response.high_watermark)


def _note_voter_behind(raft: Replica, source: int, epoch: int) -> None:
    """Note a voter in an epoch before the last one of this log. Raises `CommittedRecordsLost` if
    all voters are.

    A majority of them has elected the leader of that last epoch, and epochs are durable. A minority
    may be behind. A sole voter is the leader of each epoch, so its log is not asked. An observer
    would wait here for ever, since no voter adopts an epoch from a fetch.
    """
    if raft.may_stand or epoch < 1:
        return
    voters, known = raft.voters.latest.ids, raft.index.last_epoch
    if voters == (source,) == (raft.leader_id,):
        known = raft.epoch
    if epoch < known:
        raft.voters_behind[source] = known
    if all(raft.voters_behind.get(id) == known for id in voters):
        raise CommittedRecordsLost.from_epochs(epoch, known)


def _note_leader_alive(raft: Replica) -> None:
    raft.has_fetched, raft.leader_gone = True, False
    raft.failures = 0
    raft.arm()


def _append(raft: Replica, data: Buffer) -> bool:
    """Append the batches of the leader. Return False if some bytes are corrupt."""
    position = 0
    try:
        for position, header in iter_headers(data):
            sound = (
                header.base_offset == raft.index.end_offset
                and raft.index.last_epoch <= header.leader_epoch <= raft.epoch
                and check_crc(data, position, header)
            )
            if not sound:
                return False
            voters = _read_voters(data, position) if header.is_control else None
            batch = memoryview(data)[position : position + header.size]
            raft.append(batch, header.leader_epoch, header.base_offset, header.next_offset)
            if voters is not None:
                raft.voters.append(*voters)
    except (CorruptBatch, WireError, ValueError):
        return False
    return True


def _read_voters(data: Buffer, position: int) -> tuple[int, VoterSet] | None:
    """Return (offset, set) of the last voters record in a control batch."""
    latest = None
    for record in read_control_batch(data, position):
        if record.kind is ControlType.KRAFT_VOTERS:
            latest = record.offset, VoterSet.from_fields(record.fields)
    return latest


# Snapshots (KIP-630).


def on_fetch_snapshot_response(
    raft: Replica, source: int, _request: FetchSnapshotRequest, response: FetchSnapshotResponse
) -> None:
    if response.error is not ErrorCode.none or source != raft.leader_id:
        # The leader has a newer snapshot, or does not lead. The next fetch shows which.
        raft.download = None
        raft.back_off(source)
        return
    _note_leader_alive(raft)
    if raft.download != (response.snapshot_id, response.position):
        return
    data = response.unaligned_records
    assert not isinstance(data, DeferredRead), "bytes are read before they are sent"
    position = response.position + len(data)
    raft.chunk = SnapshotChunk(response.snapshot_id, response.position, data)
    raft.download = (response.snapshot_id, position)
    if position >= response.size:
        raft.install = response.snapshot_id
    elif not data:
        raft.download = None
        raft.back_off(source)


def complete_install(raft: Replica, snapshot_id: OffsetAndEpoch, voters: VoterSet | None) -> None:
    """Begin the log at the installed snapshot."""
    raft.download = None
    raft.index.restart(snapshot_id)
    raft.voters.restart(snapshot_id.offset, voters or raft.voters.latest)
    raft.synced_offset = snapshot_id.offset
    raft.commit(snapshot_id.offset)
