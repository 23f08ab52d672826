"""The offsets and epochs of the metadata log, without its records.

The replica decides on this value and does no I/O. `shoal.quorum.store` carries out the `Effects`
and keeps the log on disk equal to the index.

A trimmed log begins at a snapshot. `base` has the offset of the snapshot, and the epoch of the
record before it. Epoch 0 means that there is no record yet; the epochs of leaders begin at 1.
"""

from __future__ import annotations

from bisect import bisect_right
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable


class OffsetAndEpoch(NamedTuple):
    """An end of a log: an offset, and the epoch of the record before it. Also a snapshot's id."""

    offset: int
    epoch: int


class FetchValidation(Enum):
    """How the log of a replica that fetches compares with this one."""

    VALID = "valid"
    DIVERGING = "diverging"
    SNAPSHOT = "snapshot"


class LogIndex:
    """Owns the index of one log. `snapshots` has the snapshots on disk, the oldest first."""

    def __init__(
        self,
        *,
        base: OffsetAndEpoch = OffsetAndEpoch(0, 0),
        end_offset: int = 0,
        epochs: Iterable[tuple[int, int]] = (),
        snapshots: Iterable[OffsetAndEpoch] = (),
    ) -> None:
        self.base = base
        self.end_offset = max(end_offset, base.offset)
        self.epochs = [
            (e, max(start, base.offset)) for e, start in epochs if start < self.end_offset
        ]
        self.snapshots = list(snapshots)

    @property
    def snapshot(self) -> OffsetAndEpoch | None:
        """The newest snapshot."""
        return self.snapshots[-1] if self.snapshots else None

    @property
    def start_offset(self) -> int:
        return self.base.offset

    @property
    def last_epoch(self) -> int:
        """The epoch of the last record."""
        return self.epochs[-1][0] if self.epochs else self.base.epoch

    @property
    def end(self) -> OffsetAndEpoch:
        return OffsetAndEpoch(self.end_offset, self.last_epoch)

    def find_epoch(self, offset: int) -> int:
        """Return the epoch of the record before `offset`, which is within the log."""
        index = bisect_right(self.epochs, offset - 1, key=lambda e: e[1]) - 1
        return self.epochs[index][0] if index >= 0 else self.base.epoch

    def find_end(self, epoch: int) -> OffsetAndEpoch:
        """Return the largest epoch of this log up to `epoch`, and its end offset."""
        index = bisect_right(self.epochs, epoch, key=lambda e: e[0])
        if index == 0:
            return self.base
        end = self.epochs[index][1] if index < len(self.epochs) else self.end_offset
        return OffsetAndEpoch(end, self.epochs[index - 1][0])

    def check(
        self, fetch_offset: int, last_fetched_epoch: int
    ) -> tuple[FetchValidation, OffsetAndEpoch]:
        """Return whether a log with that end is a prefix of this one (KIP-595, KIP-630).

        If it diverges, the second value is the largest offset and epoch that both can share. If
        this log has trimmed what the other one lacks, it is the snapshot to fetch.
        """
        claimed = OffsetAndEpoch(fetch_offset, last_fetched_epoch)
        if fetch_offset == 0 and self.start_offset == 0:
            return FetchValidation.VALID, claimed
        if self.start_offset and (
            fetch_offset < self.start_offset
            or last_fetched_epoch < self.base.epoch
            or (fetch_offset == self.start_offset and last_fetched_epoch != self.base.epoch)
        ):
            assert self.snapshot is not None, "a log without its front has a snapshot"
            return FetchValidation.SNAPSHOT, self.snapshot
        end = self.find_end(last_fetched_epoch)
        if end.epoch != last_fetched_epoch or end.offset < fetch_offset:
            return FetchValidation.DIVERGING, end
        return FetchValidation.VALID, claimed

    def find_truncation_offset(self, diverging: OffsetAndEpoch) -> int:
        """Return the offset at which a follower truncates its log after a `diverging` answer."""
        own_end = self.find_end(diverging.epoch)
        if own_end.epoch == diverging.epoch:
            return min(own_end.offset, diverging.offset)
        return own_end.offset

    def append(self, epoch: int, base_offset: int, next_offset: int) -> None:
        """Note that a batch was written at the end."""
        assert base_offset == self.end_offset < next_offset, (base_offset, self.end_offset)
        assert epoch >= self.last_epoch, f"epoch {epoch} behind {self.last_epoch}"
        if epoch > self.last_epoch or not self.epochs:
            self.epochs.append((epoch, base_offset))
        self.end_offset = next_offset

    def truncate(self, offset: int) -> None:
        """Remove the records from `offset` on."""
        assert self.start_offset <= offset <= self.end_offset, (self.base, offset)
        self.epochs = [(epoch, start) for epoch, start in self.epochs if start < offset]
        self.end_offset = offset

    def trim(self, base: OffsetAndEpoch) -> None:
        """Remove the records before the end of a snapshot."""
        assert self.start_offset <= base.offset <= self.end_offset, (self.base, base)
        retained = [(epoch, start) for epoch, start in self.epochs if start > base.offset]
        if base.offset < self.end_offset:
            retained.insert(0, (self.find_epoch(base.offset + 1), base.offset))
        self.epochs, self.base = retained, base
        self.snapshots = [snapshot for snapshot in self.snapshots if snapshot.offset >= base.offset]

    def restart(self, snapshot: OffsetAndEpoch) -> None:
        """Replace the whole log by a snapshot."""
        self.base = snapshot
        self.snapshots = [snapshot]
        self.end_offset = snapshot.offset
        self.epochs = []
