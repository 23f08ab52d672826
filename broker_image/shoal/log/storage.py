"""The one door to the disk: what a log needs of it, and the disk itself.

Paths are strings with "/" between parts. A `File` is read and written at positions; a write that
returns has handed all of its bytes to the operating system, one that raises `OSError` may have
written some of them. Nothing is durable before `sync` (files) or `sync_directory` (names).

A file that is dropped without `close` closes when its last user is gone: a segment may be deleted
while a sync of it still runs elsewhere. `shoal.log.memory` is the same door to no disk at all.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
from collections.abc import Sequence
from typing import Protocol

from shoal.record.batch import Buffer

#: Linux's fallocate, which Python offers without flags; None elsewhere.
_fallocate = getattr(ctypes.CDLL(None), "fallocate", None)
_KEEP_SIZE = 1


class File(Protocol):
    """An open file."""

    @property
    def path(self) -> str: ...

    def size(self) -> int:
        """Bytes in the file."""

    def read(self, at: int, size: int) -> bytes:
        """Up to `size` bytes from `at`; fewer only at the end of the file."""

    def write(self, at: int, buffers: Sequence[Buffer]) -> int:
        """Write the buffers one behind the other from `at`; the bytes written are all of them."""

    def truncate(self, size: int) -> None:
        """Cut or extend the file to `size` bytes; space reserved behind them is given back."""

    def reserve(self, size: int) -> None:
        """Reserve space on the disk for `size` bytes from the start, if it can be had. The size of
        the file stays."""

    def sync(self) -> None:
        """Make data and size durable. Safe to call from another thread."""

    def fileno(self) -> int:
        """The descriptor for sendfile; -1 where there is none."""

    def close(self) -> None: ...


class Storage(Protocol):
    """A tree of files."""

    def open(self, path: str, *, create: bool = False) -> File:
        """Open for reading and writing. Raises `FileNotFoundError` unless it may be created."""

    def exists(self, path: str) -> bool: ...

    def names(self, path: str) -> list[str]:
        """The sorted names in a directory; empty where there is none."""

    def is_directory(self, path: str) -> bool: ...

    def make_directory(self, path: str) -> None:
        """Make it and its parents; no error when it is there."""

    def rename(self, path: str, to: str) -> None:
        """Rename a file or directory; an existing file `to` is replaced, atomically."""

    def remove(self, path: str) -> None:
        """Remove a file; no error when it is gone already."""

    def remove_directory(self, path: str) -> None:
        """Remove a directory and all in it; no error when it is gone already."""

    def sync_directory(self, path: str) -> None:
        """Make the names in a directory durable."""

    def read_file(self, path: str) -> bytes:
        """All of a small file. Raises `FileNotFoundError`."""

    def replace_file(self, path: str, data: Buffer, *, sync: bool) -> None:
        """Put a small file in place at once: readers see the old bytes or all of the new."""

    def modified_ms(self, path: str) -> int:
        """When the file was last written, in epoch milliseconds."""

    def lock(self, path: str) -> File:
        """Take a lock that only one process may hold, until the file is closed. Raises
        `BlockingIOError` when another holds it."""

    def free_bytes(self, path: str) -> tuple[int, int]:
        """(total, usable) bytes of the volume."""


class DiskFile:
    """A file of the operating system, by descriptor."""

    __slots__ = ("_fd", "path")

    def __init__(self, path: str, fd: int) -> None:
        self.path = path
        self._fd = fd

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def read(self, at: int, size: int) -> bytes:
        data = os.pread(self._fd, size, at)
        if len(data) == size or not data:
            return data
        parts = [data]
        at, size = at + len(data), size - len(data)
        while size and (data := os.pread(self._fd, size, at)):
            parts.append(data)
            at, size = at + len(data), size - len(data)
        return b"".join(parts)

    def write(self, at: int, buffers: Sequence[Buffer]) -> int:
        size = sum(map(len, buffers))
        count = os.pwritev(self._fd, buffers, at)
        if count < size:
            self._write_rest(at, count, buffers)
        return size

    def _write_rest(self, at: int, done: int, buffers: Sequence[Buffer]) -> None:
        """A short write: what is left goes out as one buffer, and an error shows by itself."""
        left = memoryview(b"".join(buffers))[done:]
        while left:
            count = os.pwrite(self._fd, left, at + done)
            done, left = done + count, left[count:]

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)

    def reserve(self, size: int) -> None:
        if _fallocate is not None:
            # It fails on file systems without it, and for lack of space: then nothing is reserved.
            _fallocate(self._fd, _KEEP_SIZE, ctypes.c_int64(0), ctypes.c_int64(size))

    def sync(self) -> None:
        os.fdatasync(self._fd)

    def fileno(self) -> int:
        return self._fd

    def close(self) -> None:
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)

    def __del__(self) -> None:
        self.close()


class DiskStorage:
    """The file system of the machine."""

    def open(self, path: str, *, create: bool = False) -> DiskFile:
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        return DiskFile(path, os.open(path, flags, 0o644))

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def names(self, path: str) -> list[str]:
        try:
            return sorted(os.listdir(path))
        except FileNotFoundError:
            return []

    def is_directory(self, path: str) -> bool:
        return os.path.isdir(path)

    def make_directory(self, path: str) -> None:
        os.makedirs(path, exist_ok=True)

    def rename(self, path: str, to: str) -> None:
        os.replace(path, to)

    def remove(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.remove(path)

    def remove_directory(self, path: str) -> None:
        for name in self.names(path):
            inner = f"{path}/{name}"
            if os.path.isdir(inner) and not os.path.islink(inner):
                self.remove_directory(inner)
            else:
                self.remove(inner)
        with contextlib.suppress(FileNotFoundError):
            os.rmdir(path)

    def sync_directory(self, path: str) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def read_file(self, path: str) -> bytes:
        with open(path, "rb") as file:
            return file.read()

    def replace_file(self, path: str, data: Buffer, *, sync: bool) -> None:
        aside = f"{path}.tmp"
        with open(aside, "wb") as file:
            file.write(data)
            if sync:
                file.flush()
                os.fdatasync(file.fileno())
        os.replace(aside, path)
        if sync:
            self.sync_directory(os.path.dirname(path))

    def modified_ms(self, path: str) -> int:
        return os.stat(path).st_mtime_ns // 1_000_000

    def lock(self, path: str) -> DiskFile:
        file = self.open(path, create=True)
        try:
            fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            raise
        return file

    def free_bytes(self, path: str) -> tuple[int, int]:
        found = os.statvfs(path)
        return found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize
