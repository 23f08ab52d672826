"""The disk of a replica: carries out `Effects` on the log, its snapshots and the quorum-state.

An open store has the durable state that `Raft` begins with: `state`, `index` and `voters`. It
asserts after all `Effects` that the index and the log agree.

All files are in the directory of the log, as in Kafka. The log begins at the oldest snapshot, or at
0. `find_expired_base` returns the snapshot at which it may begin, by `metadata.max.retention.bytes`
  and `.ms`. As in Kafka, the oldest snapshots are deleted first, and the newest always stays. A
  follower that lags can therefore fetch from the log instead of a snapshot.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

from shoal.log.errors import CorruptLog
from shoal.quorum import snapshots
from shoal.quorum.control_records import read_control_batch
from shoal.quorum.log_index import LogIndex, OffsetAndEpoch
from shoal.quorum.messages import DeferredRead, FetchResponse, FetchSnapshotResponse, RaftMessage
from shoal.quorum.quorum_state import FILE_NAME, QuorumState
from shoal.quorum.voters import VoterHistory, VoterSet
from shoal.record.batch import Buffer, CorruptBatch, iter_headers
from shoal.record.control import ControlType

if TYPE_CHECKING:
    from collections.abc import Iterable

    from shoal.log.log import Log
    from shoal.log.storage import Storage
    from shoal.log.syncs import Sync
    from shoal.quorum.events import Effects, SnapshotChunk

_READ_BYTES = 1 << 20
_EMPTY = OffsetAndEpoch(0, 0)


class QuorumStore:
    """Owns the log, the snapshots and the quorum-state of one replica."""

    def __init__(self, storage: Storage, log: Log, configured: VoterSet) -> None:
        """`configured` is the voter set of a log that has none yet. Raises `OSError`, `CorruptLog`
        and `CorruptQuorumState`."""
        self._storage = storage
        self.log = log
        self._state_path = f"{log.directory}/{FILE_NAME}"
        for name in storage.list_directory(log.directory):
            if name.endswith(snapshots.SUFFIX + snapshots.PART):
                storage.remove(f"{log.directory}/{name}")
        on_disk = self._list_snapshots()
        newest = on_disk[-1] if on_disk else None
        base = _EMPTY
        if newest is not None and not _is_contiguous_with(log, newest):
            log.truncate_fully_and_start_at(newest.offset)
            base = newest
        elif begin := _find_begin(log):
            base = next(
                (snapshot_id for snapshot_id in on_disk if snapshot_id.offset >= begin), _EMPTY
            )
        log.advance_log_start(base.offset)
        # The disk may have refused the first record of an epoch when the log had begun it.
        log.epochs.truncate_from_end(log.log_end_offset)
        self._remove_snapshots_before(base)
        log.sync()
        self.index = LogIndex(
            base=base,
            end_offset=log.log_end_offset,
            epochs=log.epochs.entries,
            snapshots=self._list_snapshots(),
        )
        # Kafka's formatting tool leaves the first voters in a snapshot at offset 0. That of a
        # restored cluster has none, and the first leader writes those that are configured.
        first = self.read_snapshot(base)[0] if base in on_disk else None
        self.voters = VoterHistory(first or configured, base.offset - 1 if first else -1)
        self._load_voters()
        self.state = QuorumState()
        if storage.exists(self._state_path):
            self.state = QuorumState.decode(storage.read_file(self._state_path))

    def _load_voters(self) -> None:
        log, offset = self.log, self.log.log_start_offset
        while offset < log.log_end_offset:
            result = log.read(offset, _READ_BYTES)
            for position, header in iter_headers(result.data):
                if header.is_control:
                    for record in read_control_batch(result.data, position):
                        if record.kind is ControlType.KRAFT_VOTERS:
                            voters = VoterSet.from_fields(record.fields)
                            self.voters.append(record.offset, voters)
            offset = result.next_offset

    # Effects.

    def apply(self, effects: Effects, *, now_ms: int) -> None:
        """Carry out steps 1 and 2 of `effects`, except `install`.

        Raises `OSError` and `AppendRefused`. The replica must not continue after that, because its
        state is ahead of the disk.
        """
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
            for segment in log.tick_retention(now_ms, high_watermark=effects.high_watermark):
                segment.remove()
            self._remove_snapshots_before(effects.trim_to)
        self.check()

    def check(self) -> None:
        """Assert that the index and the log agree."""
        log, index = self.log, self.index
        ours = (index.start_offset, index.end_offset, index.last_epoch)
        epoch = log.latest_epoch if log.log_end_offset > index.start_offset else index.base.epoch
        assert ours == (log.log_start_offset, log.log_end_offset, epoch), (ours, epoch)

    def resolve_read(self, message: RaftMessage) -> RaftMessage:
        """Return the message with the bytes that its `Slice` refers to."""
        body = message.body
        if isinstance(body, FetchResponse) and isinstance(body.records, DeferredRead):
            part = body.records
            result = self.log.read(part.offset, part.max_bytes, max_offset=part.end_offset)
            return message._replace(body=replace(body, records=bytes(result.data)))
        if isinstance(body, FetchSnapshotResponse) and isinstance(
            body.unaligned_records, DeferredRead
        ):
            part = body.unaligned_records
            file = self._storage.open(self._to_path(body.snapshot_id))
            try:
                size, data = file.size(), file.read(part.offset, part.max_bytes)
            finally:
                file.close()
            return message._replace(body=replace(body, size=size, unaligned_records=data))
        return message

    def begin_sync(self) -> Sync | None:
        """Return the disk work of `Effects.sync`, or None if all is durable. Raises `OSError`."""
        return self.log.begin_sync()

    def finish_sync(self, sync: Sync | None, error: OSError | None = None) -> int:
        """End a sync that has run; return the offset for `LogSynced`."""
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
        """Write the batches of the state as a durable snapshot. `SnapshotTaken` reports it."""
        data = snapshots.build(snapshot_id, voters, batches, last_timestamp_ms=last_timestamp_ms)
        self._storage.replace_file(self._to_path(snapshot_id), data, sync=True)

    def read_snapshot(
        self, snapshot_id: OffsetAndEpoch
    ) -> tuple[VoterSet | None, list[memoryview]]:
        """Return its voters and the batches of the state. Raises `CorruptLog`."""
        path = self._to_path(snapshot_id)
        try:
            return snapshots.read(self._storage.read_file(path))
        except CorruptBatch as error:
            raise CorruptLog(f"{path} cannot be read: {error}") from None

    def install(self, snapshot_id: OffsetAndEpoch) -> VoterSet | None:
        """Replace the log by a fetched snapshot; return its voters. Raises `CorruptLog`."""
        storage, path = self._storage, self._to_path(snapshot_id)
        file = storage.open(path + snapshots.PART)
        file.sync()
        file.close()
        storage.rename(path + snapshots.PART, path)
        storage.sync_directory(self.log.directory)
        voters, _ = self.read_snapshot(snapshot_id)
        self.log.truncate_fully_and_start_at(snapshot_id.offset)
        self._remove_snapshots_before(snapshot_id)
        return voters

    def find_expired_base(
        self, now_ms: int, *, bytes_max: int, age_max_ms: int
    ) -> OffsetAndEpoch | None:
        """Return the snapshot at which the log should begin, or None if nothing has expired.

        It is the one after the last snapshot that exceeds a limit. A negative limit does not
        apply. The age of a snapshot counts from the time at which its file was written.
        """
        snapshot_ids = self.index.snapshots
        if len(snapshot_ids) < 2:
            return None
        sizes = {
            snapshot_id: self._storage.get_size_bytes(self._to_path(snapshot_id))
            for snapshot_id in snapshot_ids
        }
        total = self.log.size_bytes + sum(sizes.values())
        base = None
        for oldest, following in pairwise(snapshot_ids):
            age_ms = now_ms - self._storage.get_modified_ms(self._to_path(oldest))
            is_old = 0 <= age_max_ms < age_ms
            if not is_old and not 0 <= bytes_max < total:
                break
            before = self._count_bytes_before(oldest) if base is not None else 0
            total -= sizes[oldest] + self._count_bytes_before(following) - before
            base = following
        return base

    def _count_bytes_before(self, snapshot_id: OffsetAndEpoch) -> int:
        """Return the bytes of the segments before that snapshot."""
        segments = self.log.segments
        return sum(
            segment.size
            for segment, following in pairwise(segments)
            if following.base_offset <= snapshot_id.offset
        )

    def _write_chunk(self, chunk: SnapshotChunk) -> None:
        file = self._storage.open(self._to_path(chunk.snapshot_id) + snapshots.PART, create=True)
        file.truncate(chunk.position)
        file.write(chunk.position, [chunk.data])
        file.close()

    def _list_snapshots(self) -> list[OffsetAndEpoch]:
        """Return the snapshots in the directory, by offset."""
        parsed = map(snapshots.parse_file_name, self._storage.list_directory(self.log.directory))
        return sorted(snapshot_id for snapshot_id in parsed if snapshot_id is not None)

    def _remove_snapshots_before(self, base: OffsetAndEpoch) -> None:
        for snapshot_id in self._list_snapshots():
            if snapshot_id.offset < base.offset:
                self._storage.remove(self._to_path(snapshot_id))

    def _to_path(self, snapshot_id: OffsetAndEpoch) -> str:
        return f"{self.log.directory}/{snapshots.format_file_name(snapshot_id)}"


def _find_begin(log: Log) -> int:
    """Return the first offset from which the log has records and their epochs.

    A power loss may bring back the start offset from before a snapshot replaced the log. The epochs
    then begin later than the log.
    """
    return max(
        [log.log_start_offset, *(start_offset for _, start_offset in log.epochs.entries[:1])]
    )


def _is_contiguous_with(log: Log, snapshot: OffsetAndEpoch) -> bool:
    """Whether the log continues after the snapshot. If not, the snapshot replaces the log."""
    if not log.log_start_offset <= snapshot.offset <= log.log_end_offset:
        return False
    at_start = snapshot.offset == log.log_start_offset
    return at_start or log.epochs.find_epoch(snapshot.offset - 1) == snapshot.epoch
