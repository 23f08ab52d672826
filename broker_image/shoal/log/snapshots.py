"""Snapshot files of the producers' state: one at the base of each segment, and one at the end.

They are not synced. A checksum detects a damaged file. The state then comes from an older snapshot
and the batches behind it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.log.producers import CorruptSnapshot, ProducerStateManager
from shoal.log.segment import SNAPSHOT, format_file_name

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

    def write(self, offset: int, producers: ProducerStateManager, bases: Sequence[int]) -> None:
        """Write the state at the log end offset. Remove the previous one unless a segment starts
        at it."""
        self._storage.replace_file(self._to_path(offset), producers.to_snapshot(), sync=False)
        stray = self.offset
        if stray >= 0 and stray != offset and stray not in bases:
            self.drop(stray)
        self.offset = offset
        self.behind_bytes = 0

    def restore(self, offset: int, data: bytes) -> None:
        """Write the snapshot of an offset durably, as another replica wrote it. Raises
        `OSError`."""
        self._storage.replace_file(self._to_path(offset), data, sync=True)
        self.offset = offset
        self.behind_bytes = 0

    def load(self, producers: ProducerStateManager, now_ms: int, at_most: int | None) -> int | None:
        """Load the newest snapshot of an offset `at_most`. Return that offset, None without any.
        Damaged files are removed."""
        for offset in sorted(self._list_offsets(), reverse=True):
            if at_most is not None and offset > at_most:
                continue
            try:
                producers.load(self._storage.read_file(self._to_path(offset)), now_ms)
            except CorruptSnapshot:
                self.drop(offset)
            else:
                self.offset = offset
                return offset
        return None

    def drop(self, offset: int) -> None:
        """Remove the snapshot of an offset, if it exists."""
        self._storage.remove(self._to_path(offset))

    def drop_past(self, offset: int) -> None:
        """Remove the snapshots of larger offsets."""
        for stored_offset in self._list_offsets():
            if stored_offset > offset:
                self.drop(stored_offset)
        if self.offset > offset:
            self.offset = -1

    def _list_offsets(self) -> list[int]:
        names = (name.partition(".") for name in self._storage.list_directory(self._directory))
        return [int(s) for s, dot, kind in names if dot + kind == SNAPSHOT and s.isdigit()]

    def _to_path(self, offset: int) -> str:
        return f"{self._directory}/{format_file_name(offset, SNAPSHOT)}"
