"""The port through which logs use the disk, and its implementation on the file system.

Paths are strings with "/" between parts. A `File` is read and written at positions. A write that
returns has passed all bytes to the operating system; one that raises `OSError` may have written
some. Nothing is durable before `sync` (files) or `sync_directory` (names).

A file that is dropped without `close` closes with its last user, because a segment may be deleted
while another thread syncs it. `shoal.log.memory` implements the port in memory.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import stat
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shoal.record.batch import Buffer

#: Linux's fallocate with flags, which Python's own function lacks; None elsewhere.
_fallocate = getattr(ctypes.CDLL(None), "fallocate", None)
_KEEP_SIZE = 1


class File(Protocol):
    """An open file."""

    @property
    def path(self) -> str: ...

    def size(self) -> int:
        """Return the size in bytes."""

    def read(self, at: int, size: int) -> bytes:
        """Read up to `size` bytes from `at`; fewer only at the end of the file."""

    def write(self, at: int, buffers: Sequence[Buffer]) -> int:
        """Write all buffers, one after the other, from `at`. Return the number of bytes."""

    def truncate(self, size: int) -> None:
        """Truncate or extend the file to `size` bytes. Reserved space behind it is released."""

    def reserve(self, size: int) -> None:
        """Reserve disk space for `size` bytes from the start, if possible. The size of the file
        does not change."""

    def sync(self) -> None:
        """Make data and size durable. Safe to call from another thread."""

    def fileno(self) -> int:
        """Return the descriptor for sendfile, -1 without one."""

    def close(self) -> None: ...


class Storage(Protocol):
    """A tree of files."""

    def open(self, path: str, *, create: bool = False) -> File:
        """Open for reading and writing. Raises `FileNotFoundError` unless `create` is set."""

    def exists(self, path: str) -> bool: ...

    def list_directory(self, path: str) -> list[str]:
        """Return the sorted names in a directory; empty if it does not exist."""

    def is_directory(self, path: str) -> bool: ...

    def make_directory(self, path: str) -> None:
        """Create a directory and its parents, unless it exists. Only this user may read it: logs
        have everybody's records, and the metadata has credentials."""

    def rename(self, path: str, to: str) -> None:
        """Rename a file or directory. An existing file `to` is replaced atomically."""

    def remove(self, path: str) -> None:
        """Remove a file, if it exists."""

    def remove_directory(self, path: str) -> None:
        """Remove a directory with its contents, if it exists."""

    def sync_directory(self, path: str) -> None:
        """Make the names in a directory durable."""

    def read_file(self, path: str) -> bytes:
        """Read a small file. Raises `FileNotFoundError`."""

    def replace_file(self, path: str, data: Buffer, *, sync: bool) -> None:
        """Replace a small file atomically: readers see the old or the new contents."""

    def get_size_bytes(self, path: str) -> int:
        """Return the size of a file; 0 for a directory. Raises `FileNotFoundError`."""

    def get_modified_ms(self, path: str) -> int:
        """Return the time of the last write, in epoch milliseconds."""

    def lock(self, path: str) -> File:
        """Take an exclusive lock between processes, until the file is closed. Raises
        `BlockingIOError` if another process has it."""

    def get_free_bytes(self, path: str) -> tuple[int, int]:
        """Return (total, usable) bytes of the volume."""


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

    def _write_rest(self, at: int, written: int, buffers: Sequence[Buffer]) -> None:
        """Complete a short write: write the rest as one buffer. Raises `OSError`."""
        rest = memoryview(b"".join(buffers))[written:]
        while rest:
            count = os.pwrite(self._fd, rest, at + written)
            written, rest = written + count, rest[count:]

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)

    def reserve(self, size: int) -> None:
        if _fallocate is not None:
            # Errors are ignored: without support or space nothing is reserved.
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

    def list_directory(self, path: str) -> list[str]:
        try:
            return sorted(os.listdir(path))
        except FileNotFoundError:
            return []

    def is_directory(self, path: str) -> bool:
        return os.path.isdir(path)

    def make_directory(self, path: str) -> None:
        os.makedirs(path, mode=0o700, exist_ok=True)

    def rename(self, path: str, to: str) -> None:
        os.replace(path, to)

    def remove(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.remove(path)

    def remove_directory(self, path: str) -> None:
        for name in self.list_directory(path):
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

    def get_size_bytes(self, path: str) -> int:
        status = os.stat(path)
        return 0 if stat.S_ISDIR(status.st_mode) else status.st_size

    def get_modified_ms(self, path: str) -> int:
        return os.stat(path).st_mtime_ns // 1_000_000

    def lock(self, path: str) -> DiskFile:
        file = self.open(path, create=True)
        try:
            fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            raise
        return file

    def get_free_bytes(self, path: str) -> tuple[int, int]:
        volume = os.statvfs(path)
        return volume.f_blocks * volume.f_frsize, volume.f_bavail * volume.f_frsize
