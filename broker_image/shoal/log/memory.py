"""Deterministic storage in memory that can fail as a disk does, for simulations and tests.

* `crash(choose)` is a power loss: of the unsynced writes of each file, a prefix survives, and the
  last write of it perhaps in part. `choose(n)` returns a number in [0, n). A constant 0 loses all
  of them; `lambda n: n - 1` keeps all, as kill -9 does. Names survive, because a journaling file
  system orders them.
* `capacity_bytes` makes writes fail with ENOSPC when the files would exceed it. The bytes that fit
  are written first. `fault` is called with (operation, path) before each operation, and may raise
  `OSError`.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from shoal.record.batch import Buffer

#: A write (position, bytes) or a truncation (size, None) that is not durable yet.
_Change = tuple[int, bytes | None]


class _FileNode:
    """A file's current bytes, and its durable bytes with the changes since."""

    __slots__ = ("changes", "data", "durable", "locked", "modified_ms")

    def __init__(self, now_ms: int) -> None:
        self.data = bytearray()
        self.durable = bytearray()
        self.changes: list[_Change] = []
        self.modified_ms = now_ms
        self.locked = False

    def change(self, change: _Change) -> None:
        _apply(self.data, change)
        self.changes.append(change)

    def sync(self) -> None:
        for change in self.changes:
            _apply(self.durable, change)
        self.changes.clear()

    def crash(self, choose: Callable[[int], int]) -> None:
        if self.changes:
            kept_count = choose(len(self.changes) + 1)
            for change in self.changes[:kept_count]:
                _apply(self.durable, change)
            torn_change = self.changes[kept_count] if kept_count < len(self.changes) else None
            if torn_change is not None and torn_change[1] is not None:
                _apply(
                    self.durable,
                    (torn_change[0], torn_change[1][: choose(len(torn_change[1]) + 1)]),
                )
        self.changes.clear()
        self.data = bytearray(self.durable)
        self.locked = False


def _apply(data: bytearray, change: _Change) -> None:
    position, new = change
    if new is None:
        del data[position:]
        data.extend(bytes(position - len(data)))
    elif new:
        if position > len(data):
            data.extend(bytes(position - len(data)))
        data[position : position + len(new)] = new


class MemoryFile:
    """An open file of a `MemoryStorage`."""

    __slots__ = ("_node", "_storage", "path")

    def __init__(self, storage: MemoryStorage, path: str, node: _FileNode) -> None:
        self._storage = storage
        self._node = node
        self.path = path

    def size(self) -> int:
        return len(self._node.data)

    def read(self, at: int, size: int) -> bytes:
        self._storage.fault("read", self.path)
        return bytes(self._node.data[at : at + size])

    def write(self, at: int, buffers: Sequence[Buffer]) -> int:
        self._storage.fault("write", self.path)
        data = b"".join(buffers)
        fits = self._storage.count_fitting_bytes(len(self._node.data), at, len(data))
        self._node.change((at, data[:fits]))
        self._node.modified_ms = self._storage.now_ms
        if fits < len(data):
            raise OSError(errno.ENOSPC, "No space left on device", self.path)
        return len(data)

    def truncate(self, size: int) -> None:
        self._storage.fault("truncate", self.path)
        self._node.change((size, None))

    def reserve(self, size: int) -> None:
        """Do nothing: memory has no space to reserve."""

    def sync(self) -> None:
        self._storage.fault("sync", self.path)
        self._node.sync()

    def fileno(self) -> int:
        return -1

    def close(self) -> None:
        self._node.locked = False


class MemoryStorage:
    """A tree of files in memory."""

    def __init__(self, *, capacity_bytes: int | None = None) -> None:
        self.capacity_bytes = capacity_bytes
        self.now_ms = 0
        self.fault: Callable[[str, str], None] = lambda _operation, _path: None
        self._files: dict[str, _FileNode] = {}
        self._directories: dict[str, None] = {"": None}

    def crash(self, choose: Callable[[int], int]) -> None:
        """Simulate a power loss. Users must drop their open files, not close them."""
        for path in sorted(self._files):
            self._files[path].crash(choose)

    def count_used_bytes(self) -> int:
        return sum(len(node.data) for node in self._files.values())

    def count_fitting_bytes(self, size: int, at: int, count: int) -> int:
        """Return how many of `count` bytes at `at` fit into a file of `size` bytes."""
        growth = max(0, at + count - size)
        if self.capacity_bytes is None or not growth:
            return count
        return max(
            0, count - max(0, growth - max(0, self.capacity_bytes - self.count_used_bytes()))
        )

    def open(self, path: str, *, create: bool = False) -> MemoryFile:
        self.fault("open", path)
        return MemoryFile(self, path, self._get_node(path, create))

    def _get_node(self, path: str, create: bool) -> _FileNode:
        node = self._files.get(path)
        if node is None:
            if not create or path.rpartition("/")[0] not in self._directories:
                raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
            node = self._files[path] = _FileNode(self.now_ms)
        return node

    def exists(self, path: str) -> bool:
        return path in self._files or path in self._directories

    def list_directory(self, path: str) -> list[str]:
        inside = f"{path}/"
        paths = [*self._files, *self._directories]
        return sorted({p[len(inside) :].split("/")[0] for p in paths if p.startswith(inside)})

    def is_directory(self, path: str) -> bool:
        return path in self._directories

    def make_directory(self, path: str) -> None:
        while path and path not in self._directories:
            self._directories[path] = None
            path = path.rpartition("/")[0]

    def rename(self, path: str, to: str) -> None:
        self.fault("rename", path)
        if path in self._files:
            self._files[to] = self._files.pop(path)
            return
        if path not in self._directories:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
        for old in [p for p in self._files if p.startswith(f"{path}/")]:
            self._files[to + old[len(path) :]] = self._files.pop(old)
        for old in [p for p in self._directories if p == path or p.startswith(f"{path}/")]:
            self._directories[to + old[len(path) :]] = self._directories.pop(old)

    def remove(self, path: str) -> None:
        self.fault("remove", path)
        self._files.pop(path, None)

    def remove_directory(self, path: str) -> None:
        self.fault("remove", path)
        for old in [p for p in self._files if p.startswith(f"{path}/")]:
            del self._files[old]
        for old in [p for p in self._directories if p == path or p.startswith(f"{path}/")]:
            del self._directories[old]

    def sync_directory(self, path: str) -> None:
        self.fault("sync", path)

    def read_file(self, path: str) -> bytes:
        self.fault("read", path)
        return bytes(self._get_node(path, False).data)

    # Every replacement is durable here, with `sync` or without.
    def replace_file(self, path: str, data: Buffer, *, sync: bool) -> None:  # noqa: ARG002
        self.fault("write", path)
        if self.count_fitting_bytes(0, 0, len(data)) < len(data):
            raise OSError(errno.ENOSPC, "No space left on device", path)
        self._get_node(path, True)
        node = self._files[path] = _FileNode(self.now_ms)
        node.change((0, bytes(data)))
        # The rename follows the data, so a crash leaves the old or the new file, never a part.
        node.sync()

    def get_size_bytes(self, path: str) -> int:
        return 0 if path in self._directories else len(self._get_node(path, False).data)

    def get_modified_ms(self, path: str) -> int:
        return self._get_node(path, False).modified_ms

    def lock(self, path: str) -> MemoryFile:
        node = self._get_node(path, True)
        if node.locked:
            raise BlockingIOError(errno.EWOULDBLOCK, "locked by another", path)
        node.locked = True
        return MemoryFile(self, path, node)

    def get_free_bytes(self, _path: str) -> tuple[int, int]:
        total = 1 << 40 if self.capacity_bytes is None else self.capacity_bytes
        return total, max(0, total - self.count_used_bytes())
