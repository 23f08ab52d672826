"""Files with the producers' state at an offset: one between segments each, and one behind them.

None is synced. A checksum tells one that was lost or garbled, and the batches behind an older one
tell the rest.
"""

from __future__ import annotations

from collections.abc import Sequence

from shoal.log.producers import CorruptSnapshot, ProducerStates
from shoal.log.segment import SNAPSHOT, file_name
from shoal.log.storage import Storage


class ProducerSnapshots:
    """The snapshots in a log's directory. `offset` is that of the newest that was written or read,
    -1 without one; `behind_bytes` of the log were written since."""

    __slots__ = ("_directory", "_storage", "behind_bytes", "offset")

    def __init__(self, storage: Storage, directory: str) -> None:
        self._storage = storage
        self._directory = directory
        self.offset = -1
        self.behind_bytes = 0

    def write(self, offset: int, producers: ProducerStates, bases: Sequence[int]) -> None:
        """Keep the state at the log's end; an older one that is not at a segment's base goes."""
        self._storage.replace_file(self._path(offset), producers.snapshot(), sync=False)
        stray = self.offset
        if stray >= 0 and stray != offset and stray not in bases:
            self.drop(stray)
        self.offset = offset
        self.behind_bytes = 0

    def load(self, producers: ProducerStates, now_ms: int, at_most: int | None) -> int | None:
        """Take the newest state of an offset `at_most`; that offset, None without any. What is
        garbled is removed."""
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
        """Remove the one of an offset, if there is one."""
        self._storage.remove(self._path(offset))

    def drop_past(self, offset: int) -> None:
        """Remove those of later offsets."""
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
