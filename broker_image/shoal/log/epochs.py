"""The leader epochs of a log and their start offsets (KIP-101, KIP-320).

They are stored in `leader-epoch-checkpoint`, in ascending order. The file is written when an epoch
is added or truncated, and the next sync of the log makes it durable (`unsynced`). Recovery restores
the epochs above the recovery point from the batches.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING

from shoal.log.checkpoints import read_epochs, write_epochs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shoal.log.storage import Storage

FILE_NAME = "leader-epoch-checkpoint"
UNDEFINED = (-1, -1)


class LeaderEpochs:
    """The (epoch, start offset) pairs of one log."""

    def __init__(self, storage: Storage, directory: str) -> None:
        self._storage = storage
        self.path = f"{directory}/{FILE_NAME}"
        self._set(read_epochs(storage, self.path) or [])
        self.unsynced = False

    def _set(self, entries: list[tuple[int, int]]) -> None:
        self.entries = entries
        #: The newest epoch, -1 without one.
        self.latest = entries[-1][0] if entries else -1

    def assign(self, epoch: int, start_offset: int) -> None:
        """Add an epoch that starts at `start_offset`. An older or known epoch changes nothing."""
        if epoch < 0 or epoch <= self.latest:
            return
        # Remove older epochs that start at or after the new one.
        count = bisect_left(self.entries, start_offset, key=lambda e: e[1])
        self._replace([*self.entries[:count], (epoch, start_offset)])

    def find_end_offset(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """Return (largest epoch up to `epoch`, its end offset), or (-1, -1) if it is unknown.

        This is the rule of OffsetForLeaderEpoch: the newest epoch ends at the log end offset.
        """
        if epoch == UNDEFINED[0] or not self.entries or epoch > self.latest:
            return UNDEFINED
        if epoch == self.latest:
            return epoch, log_end_offset
        index = bisect_right(self.entries, epoch, key=lambda e: e[0])
        if index == 0:
            return epoch, self.entries[0][1]
        return self.entries[index - 1][0], self.entries[index][1]

    def find_epoch(self, offset: int) -> int:
        """Return the epoch in which `offset` was written, -1 if it is unknown."""
        index = bisect_right(self.entries, offset, key=lambda e: e[1]) - 1
        return self.entries[index][0] if index >= 0 else -1

    def truncate_from_end(self, offset: int) -> None:
        """Remove the epochs that start at or above `offset`."""
        count = bisect_left(self.entries, offset, key=lambda e: e[1])
        if count < len(self.entries):
            self._replace(self.entries[:count])

    def truncate_from_start(self, offset: int) -> None:
        """Remove the epochs below `offset`. The epoch that contains it then starts there."""
        index = bisect_right(self.entries, offset, key=lambda e: e[1]) - 1
        if index > 0 or (index == 0 and self.entries[0][1] < offset):
            self._replace([(self.entries[index][0], offset), *self.entries[index + 1 :]])

    def restore(self, entries: Sequence[tuple[int, int]]) -> None:
        """Replace all epochs durably. Raises `OSError`; then nothing has changed."""
        write_epochs(self._storage, self.path, entries, sync=True)
        self._set(list(entries))
        self.unsynced = False

    def clear(self) -> None:
        if self.entries:
            self._replace([])

    def _replace(self, entries: list[tuple[int, int]]) -> None:
        """Write the file first, so that nothing changes if the disk refuses it."""
        write_epochs(self._storage, self.path, entries, sync=False)
        self._set(entries)
        self.unsynced = True
