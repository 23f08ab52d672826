"""The replica's disk: does what `Effects` says to a log, its snapshots and the quorum-state.

Opened, it has what `Raft` begins with: `state`, `index` and `voters`, all durable. The log and the
index stand for the same thing, which is checked after every `Effects`.

All files are in the log's directory, as Kafka has them. The log begins at the oldest snapshot, or
at 0. `expired` names the snapshot at which it may begin by `metadata.max.retention.bytes` and
`.ms`: as in Kafka, snapshots go one by one from the oldest, and the newest always stays. So a
follower that is behind fetches from the log, and needs no snapshot.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise

from shoal.log.errors import CorruptLog
from shoal.log.log import Log
from shoal.log.storage import Storage
from shoal.log.syncs import Sync
from shoal.quorum import snapshots
from shoal.quorum.control_records import read_control_batch
from shoal.quorum.events import Effects, SnapshotChunk
from shoal.quorum.log_index import LogIndex, OffsetAndEpoch
from shoal.quorum.messages import FetchResponse, FetchSnapshotResponse, Message, Slice
from shoal.quorum.quorum_state import FILE_NAME, QuorumState
from shoal.quorum.voters import VoterHistory, VoterSet
from shoal.record.batch import Buffer, CorruptBatch, headers
from shoal.record.control import ControlType

_READ_BYTES = 1 << 20
_EMPTY = OffsetAndEpoch(0, 0)


class QuorumStore:
    """Owns the log, the snapshots and the quorum-state of one replica."""

    def __init__(self, storage: Storage, log: Log, configured: VoterSet) -> None:
        """`configured` are the voters of a log that has none yet. Raises `OSError`, `CorruptLog`
        and `CorruptState`."""
        self._storage = storage
        self.log = log
        self._state_path = f"{log.directory}/{FILE_NAME}"
        for name in storage.names(log.directory):
            if name.endswith(snapshots.SUFFIX + snapshots.PART):
                storage.remove(f"{log.directory}/{name}")
        found = self._snapshots()
        newest = found[-1] if found else None
        base = _EMPTY
        if newest is not None and not _leads_through(log, newest):
            log.truncate_fully_and_start_at(newest.offset)
            base = newest
        elif begin := _begin(log):
            base = next((one for one in found if one.offset >= begin), _EMPTY)
        log.advance_log_start(base.offset)
        # The disk may have refused the first record of an epoch when the log had begun it.
        log.epochs.truncate_from_end(log.log_end_offset)
        self._remove_snapshots_before(base)
        log.sync()
        self.index = LogIndex(
            base=base,
            end_offset=log.log_end_offset,
            epochs=log.epochs.entries,
            snapshots=self._snapshots(),
        )
        # Kafka's formatting tool leaves the first voters in a snapshot at offset 0.
        first = self.read_snapshot(base)[0] if base in found else None
        self.voters = VoterHistory(first or configured, base.offset - 1)
        self._load_voters()
        self.state = QuorumState()
        if storage.exists(self._state_path):
            self.state = QuorumState.decode(storage.read_file(self._state_path))

    def _load_voters(self) -> None:
        log, offset = self.log, self.log.log_start_offset
        while offset < log.log_end_offset:
            found = log.read(offset, _READ_BYTES)
            for at, header in headers(found.data):
                if header.is_control:
                    for record in read_control_batch(found.data, at):
                        if record.kind is ControlType.KRAFT_VOTERS:
                            voters = VoterSet.from_fields(record.fields)
                            self.voters.appended(record.offset, voters)
            offset = found.next_offset

    # Carrying out.

    def apply(self, effects: Effects, *, now_ms: int) -> None:
        """Steps 1 and 2 of `Effects`, but for `install`. Raises `OSError`, `AppendRefused`: then
        the replica must not go on, since it believes what has not happened."""
        log = self.log
        if effects.state is not None:
            self._storage.replace_file(self._state_path, effects.state.encode(), sync=True)
        if effects.truncate_to is not None:
            log.truncate(effects.truncate_to)
        for data in effects.appends:
            log.append_as_follower(data, now_ms=now_ms)
        if effects.chunk is not None:
            self._write_chunk(effects.chunk)
        if effects.trim_to is not None:
            log.advance_log_start(effects.trim_to.offset)
            for gone in log.tick_retention(now_ms, high_watermark=effects.high_watermark):
                gone.remove()
            self._remove_snapshots_before(effects.trim_to)
        self.check()

    def check(self) -> None:
        """Assert that the index tells the truth about the log."""
        log, index = self.log, self.index
        ours = (index.start_offset, index.end_offset, index.last_epoch)
        epoch = log.latest_epoch if log.log_end_offset > index.start_offset else index.base.epoch
        assert ours == (log.log_start_offset, log.log_end_offset, epoch), (ours, epoch)

    def filled(self, message: Message) -> Message:
        """The message with the bytes that its body names, read now."""
        body = message.body
        if isinstance(body, FetchResponse) and isinstance(body.records, Slice):
            part = body.records
            found = self.log.read(part.offset, part.max_bytes, max_offset=part.end_offset)
            return message._replace(body=replace(body, records=bytes(found.data)))
        if isinstance(body, FetchSnapshotResponse) and isinstance(body.unaligned_records, Slice):
            part = body.unaligned_records
            file = self._storage.open(self._path(body.snapshot_id))
            try:
                size, data = file.size(), file.read(part.offset, part.max_bytes)
            finally:
                file.close()
            return message._replace(body=replace(body, size=size, unaligned_records=data))
        return message

    def begin_sync(self) -> Sync | None:
        """The disk work behind `Effects.sync`; None when all is durable. Raises `OSError`."""
        return self.log.begin_sync()

    def finish_sync(self, sync: Sync | None, error: OSError | None = None) -> int:
        """The sync has run: the offset for `Synced`."""
        if sync is not None:
            self.log.finish_sync(sync, error)
        return self.log.recovery_point

    # Snapshots.

    def write_snapshot(
        self,
        snapshot_id: OffsetAndEpoch,
        voters: VoterSet,
        batches: Iterable[Buffer],
        *,
        last_timestamp_ms: int,
    ) -> None:
        """Write the state's batches as a snapshot, durably; then it is `SnapshotTaken`."""
        data = snapshots.build(snapshot_id, voters, batches, last_timestamp_ms=last_timestamp_ms)
        self._storage.replace_file(self._path(snapshot_id), data, sync=True)

    def read_snapshot(
        self, snapshot_id: OffsetAndEpoch
    ) -> tuple[VoterSet | None, list[memoryview]]:
        """Its voters and the state's batches. Raises `CorruptLog`."""
        path = self._path(snapshot_id)
        try:
            return snapshots.read(self._storage.read_file(path))
        except CorruptBatch as error:
            raise CorruptLog(f"{path} cannot be read: {error}") from None

    def install(self, snapshot_id: OffsetAndEpoch) -> VoterSet | None:
        """Put a fetched snapshot in the place of the whole log; its voters. Raises `CorruptLog`."""
        storage, path = self._storage, self._path(snapshot_id)
        file = storage.open(path + snapshots.PART)
        file.sync()
        file.close()
        storage.rename(path + snapshots.PART, path)
        storage.sync_directory(self.log.directory)
        voters, _ = self.read_snapshot(snapshot_id)
        self.log.truncate_fully_and_start_at(snapshot_id.offset)
        self._remove_snapshots_before(snapshot_id)
        return voters

    def expired(self, now_ms: int, *, bytes_max: int, age_max_ms: int) -> OffsetAndEpoch | None:
        """The snapshot at which the log should begin by these limits, each negative for none: the
        one behind the last that is over a limit. None when all may stay.

        A snapshot is `age_max_ms` old that long after its file was written.
        """
        kept = self.index.snapshots
        if len(kept) < 2:
            return None
        sizes = {one: self._size_of(one) for one in kept}
        total = self.log.size_bytes + sum(sizes.values())
        base = None
        for oldest, following in pairwise(kept):
            age_ms = now_ms - self._storage.modified_ms(self._path(oldest))
            is_old = 0 <= age_max_ms < age_ms
            if not is_old and not 0 <= bytes_max < total:
                break
            before = self._bytes_before(oldest) if base is not None else 0
            total -= sizes[oldest] + self._bytes_before(following) - before
            base = following
        return base

    def _size_of(self, snapshot_id: OffsetAndEpoch) -> int:
        file = self._storage.open(self._path(snapshot_id))
        try:
            return file.size()
        finally:
            file.close()

    def _bytes_before(self, snapshot_id: OffsetAndEpoch) -> int:
        """Bytes of the segments that go when the log begins at that snapshot."""
        segments = self.log.segments
        return sum(
            segment.size
            for segment, following in pairwise(segments)
            if following.base_offset <= snapshot_id.offset
        )

    def _write_chunk(self, chunk: SnapshotChunk) -> None:
        file = self._storage.open(self._path(chunk.snapshot_id) + snapshots.PART, create=True)
        file.truncate(chunk.position)
        file.write(chunk.position, [chunk.data])
        file.close()

    def _snapshots(self) -> list[OffsetAndEpoch]:
        """The snapshots in the directory, by offset."""
        found = map(snapshots.id_of, self._storage.names(self.log.directory))
        return sorted(snapshot_id for snapshot_id in found if snapshot_id is not None)

    def _remove_snapshots_before(self, base: OffsetAndEpoch) -> None:
        for snapshot_id in self._snapshots():
            if snapshot_id.offset < base.offset:
                self._storage.remove(self._path(snapshot_id))

    def _path(self, snapshot_id: OffsetAndEpoch) -> str:
        return f"{self.log.directory}/{snapshots.file_name(snapshot_id)}"


def _begin(log: Log) -> int:
    """The first offset from which the log has records and their epochs.

    A power loss may bring back the start offset from before a snapshot replaced the log. The epochs
    then begin later than the log.
    """
    return max([log.log_start_offset, *(at for _, at in log.epochs.entries[:1])])


def _leads_through(log: Log, snapshot: OffsetAndEpoch) -> bool:
    """Whether the log goes on behind what the snapshot holds; if not, the snapshot replaces it."""
    if not log.log_start_offset <= snapshot.offset <= log.log_end_offset:
        return False
    at_start = snapshot.offset == log.log_start_offset
    return at_start or log.epochs.epoch_of(snapshot.offset - 1) == snapshot.epoch
