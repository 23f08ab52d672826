"""Snapshot files of the producers' state: one at the base of each segment, and one at the end.

They are not synced. A checksum detects a damaged file. The state then comes from an older snapshot
and the batches behind it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.log.producers import CorruptSnapshot, ProducerStates
from shoal.log.segment import SNAPSHOT, file_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shoal.log.storage import Storage


class ProducerSnapshots:
    """The snapshots in a log's directory. `offset` is that of the newest one that was written or
    loaded, -1 without one. `behind_bytes` of the log were written since."""

    __slots__ = ("_directory", "_storage", "behind_bytes", "offset")

    def __init__(self, storage: Storage, directory: str) -> None:
        self._storage = storage
        self._directory = directory
        self.offset = -1
        self.behind_bytes = 0

    def write(self, offset: int, producers: ProducerStates, bases: Sequence[int]) -> None:
        """Write the state at the log end offset. Remove the previous one unless a segment starts
        at it."""
        self._storage.replace_file(self._path(offset), producers.snapshot(), sync=False)
        stray = self.offset
        if stray >= 0 and stray != offset and stray not in bases:
            self.drop(stray)
        self.offset = offset
        self.behind_bytes = 0

    def restore(self, offset: int, data: bytes) -> None:
        """Write the snapshot of an offset durably, as another replica wrote it. Raises
        `OSError`."""
        self._storage.replace_file(self._path(offset), data, sync=True)
        self.offset = offset
        self.behind_bytes = 0

    def load(self, producers: ProducerStates, now_ms: int, at_most: int | None) -> int | None:
        """Load the newest snapshot of an offset `at_most`. Return that offset, None without any.
        Damaged files are removed."""
        for offset in sorted(self._offsets(), reverse=True):
            if at_most is not None and offset > at_most:
                continue
            try:
                producers.load(self._storage.read_file(self._path(offset)), now_ms)
            except CorruptSnapshot:
                self.drop(offset)
            else:
                self.offset = offset
                return offset
        return None

    def drop(self, offset: int) -> None:
        """Remove the snapshot of an offset, if it exists."""
        self._storage.remove(self._path(offset))

    def drop_past(self, offset: int) -> None:
        """Remove the snapshots of larger offsets."""
        for found in self._offsets():
            if found > offset:
                self.drop(found)
        if self.offset > offset:
            self.offset = -1

    def _offsets(self) -> list[int]:
        names = (name.partition(".") for name in self._storage.names(self._directory))
        return [int(s) for s, dot, kind in names if dot + kind == SNAPSHOT and s.isdigit()]

    def _path(self, offset: int) -> str:
        return f"{self._directory}/{file_name(offset, SNAPSHOT)}"
