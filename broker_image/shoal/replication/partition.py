"""One partition on this broker: its log, who leads it, and how far its records are committed.

The high watermark is the offset below which records are committed: consumers read below it, and
produce requests with acks=all wait for it. With one replica it follows the log's end; where an
acknowledged write must be on disk (`group_commit`) it follows the synced offset. With more replicas
it is the least log end of the in-sync ones.

A partition knows no clock and no socket: who waits is told by `on_advance`, called with the
partition whenever its high watermark or log start has moved.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple
from uuid import UUID

from shoal.log.errors import OffsetOutOfRange
from shoal.log.log import Appended, Log, Origin, Read
from shoal.protocol.errors import ErrorCode
from shoal.record.records import build_batch

NO_LEADER = -1
#: `Fetch`'s and `ListOffsets`' word for a request that knows no leader epoch (KIP-320).
NO_EPOCH = -1


class Divergence(NamedTuple):
    """Where a fetcher's log and this one part (KIP-595): the epoch, and its end offset here."""

    epoch: int
    end_offset: int


class Partition:
    """Owns the commit state of one replica; the log owns the records."""

    __slots__ = (
        "bytes_committed",
        "flush_messages",
        "group_commit",
        "high_watermark",
        "index",
        "isr",
        "key",
        "leader_epoch",
        "leader_id",
        "log",
        "min_isr",
        "node_id",
        "on_advance",
        "replicas",
        "sync_requested",
        "topic",
        "topic_id",
    )

    def __init__(
        self,
        topic: str,
        topic_id: UUID,
        index: int,
        log: Log,
        *,
        node_id: int,
        leader_id: int,
        leader_epoch: int,
        isr: tuple[int, ...],
        replicas: tuple[int, ...],
    ) -> None:
        self.topic = topic
        self.topic_id = topic_id
        self.index = index
        #: What this partition is waited for by.
        self.key = (topic_id, index)
        self.log = log
        self.node_id = node_id
        self.leader_id = leader_id
        self.leader_epoch = leader_epoch
        self.isr = isr
        self.replicas = replicas
        self.min_isr = 1
        self.group_commit = False
        #: Records not yet on disk that ask for a sync (flush.messages).
        self.flush_messages = 1 << 63
        self.high_watermark = log.log_end_offset
        #: Bytes appended so far: a difference tells a fetch how much more there is.
        self.bytes_committed = 0
        #: Called with the partition when its high watermark or log start offset has moved.
        self.on_advance: list[Callable[[Partition], None]] = []
        #: Asks the disk to sync this log soon; set by whoever owns the disk.
        self.sync_requested: Callable[[Partition], None] = _no_disk

    @property
    def is_leader(self) -> bool:
        return self.leader_id == self.node_id

    @property
    def last_stable_offset(self) -> int:
        """The offset below which every transaction is decided; at most the high watermark."""
        return self.log.last_stable_offset(self.high_watermark)

    def epoch_error(self, current_leader_epoch: int) -> ErrorCode | None:
        """Why a request that names the leader epoch it knows is refused (KIP-320), or None."""
        if not self.is_leader:
            return ErrorCode.not_leader_or_follower
        if current_leader_epoch in (NO_EPOCH, self.leader_epoch):
            return None
        if current_leader_epoch < self.leader_epoch:
            return ErrorCode.fenced_leader_epoch
        return ErrorCode.unknown_leader_epoch

    def append(
        self,
        data: bytearray | bytes | memoryview,
        *,
        now_ms: int,
        origin: Origin = Origin.CLIENT,
    ) -> Appended:
        """Append whole batches as leader. Raises `AppendRefused`; then nothing was appended.

        `data` is left as it is.
        """
        appended = self.log.append(
            data, now_ms=now_ms, leader_epoch=self.leader_epoch, origin=origin
        )
        if not appended.duplicate:
            self._grown(appended.size)
        return appended

    def append_records(
        self,
        records: Sequence[tuple[bytes, bytes | None]],
        *,
        now_ms: int,
        producer: tuple[int, int] | None = None,
    ) -> Appended:
        """Append records of an internal topic as one batch of the broker's own, or as part of the
        open transaction of `producer` (id, epoch)."""
        if producer is not None:
            batch = build_batch(
                ((now_ms, key, value, ()) for key, value in records),
                producer_id=producer[0],
                producer_epoch=producer[1],
                transactional=True,
            )
            return self.append(batch, now_ms=now_ms, origin=Origin.COORDINATOR)
        appended = self.log.append_records(records, now_ms=now_ms, leader_epoch=self.leader_epoch)
        self._grown(appended.size)
        return appended

    def _grown(self, size: int) -> None:
        self.bytes_committed += size
        if self.group_commit:
            self.sync_requested(self)
        else:
            self._advance(self.log.log_end_offset)
            if self.log.unsynced_messages >= self.flush_messages:
                self.sync_requested(self)

    def synced(self, offset: int) -> None:
        """Records below `offset` are on disk."""
        if self.group_commit and offset > self.high_watermark:
            self._advance(offset)

    def acknowledged(self, offset: int) -> bool:
        """Whether all records below `offset` may be acknowledged as committed."""
        return self.high_watermark >= offset

    def read(self, offset: int, max_bytes: int, *, committed: bool, min_one: bool) -> Read:
        """Whole batches from `offset` on, below the high watermark, or below the last stable
        offset for `committed` readers. Raises `OffsetOutOfRange`."""
        limit = self.last_stable_offset if committed else self.high_watermark
        return self.log.read(offset, max_bytes, max_offset=limit, min_one=min_one)

    def divergence(self, *, fetch_offset: int, last_fetched_epoch: int) -> Divergence | None:
        """Where the log of a fetcher that stands at that offset and epoch parts from this one.

        Raises `OffsetOutOfRange` when the epoch is newer or older than all in this log.
        """
        epoch, end_offset = self.log.end_offset_for_epoch(last_fetched_epoch)
        if epoch < 0:
            raise OffsetOutOfRange(fetch_offset, self.log.log_start_offset, self.log.log_end_offset)
        if epoch < last_fetched_epoch or end_offset < fetch_offset:
            return Divergence(epoch, end_offset)
        return None

    def delete_records(self, offset: int) -> int:
        """Move the log start to `offset`; gives the new one. Raises `OffsetOutOfRange` for an
        offset past the high watermark."""
        if not 0 <= offset <= self.high_watermark:
            raise OffsetOutOfRange(offset, self.log.log_start_offset, self.high_watermark)
        self.log.advance_log_start(offset, "delete-records")
        self.moved()
        return self.log.log_start_offset

    def moved(self) -> None:
        """Tell those who wait that an offset of this partition has changed."""
        for call in self.on_advance:
            call(self)

    def _advance(self, offset: int) -> None:
        self.high_watermark = offset
        for call in self.on_advance:
            call(self)


def _no_disk(partition: Partition) -> None:
    raise AssertionError(f"{partition.topic}-{partition.index} has no disk to sync it")
