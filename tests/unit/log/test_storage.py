"""One contract for the disk and its double in memory; and the faults of the double."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

import pytest
from shoal.log.memory import MemoryStorage
from shoal.log.storage import DiskStorage, Storage

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(params=["disk", "memory"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Storage, str]:
    """A storage and a directory in it."""
    storage: Storage = DiskStorage() if request.param == "disk" else MemoryStorage()
    path = f"{tmp_path}/a/b"
    storage.make_directory(path)
    return storage, path


def test_a_new_directory_is_for_its_user_alone(tmp_path: Path) -> None:
    """Records, and the credentials in the metadata, were readable by all users of the host."""
    DiskStorage().make_directory(f"{tmp_path}/data")
    assert (tmp_path / "data").stat().st_mode & 0o777 == 0o700


def test_reads_and_writes_at_positions(root: tuple[Storage, str]) -> None:
    storage, path = root
    with pytest.raises(FileNotFoundError):
        storage.open(f"{path}/f")
    file = storage.open(f"{path}/f", create=True)
    assert file.write(0, [b"hello ", bytearray(b"wor"), memoryview(b"ld")]) == 11
    assert (file.size(), file.read(6, 99), file.read(99, 1)) == (11, b"world", b"")
    file.write(13, [b"!"])
    assert file.read(9, 99) == b"ld\0\0!"
    file.truncate(5)
    file.truncate(7)
    assert file.read(0, 99) == b"hello\0\0"
    file.sync()
    file.close()
    assert storage.open(f"{path}/f").size() == 7


def test_many_buffers_go_in_order(root: tuple[Storage, str]) -> None:
    storage, path = root
    buffers = [b"%d," % i for i in range(900)]
    file = storage.open(f"{path}/f", create=True)
    assert file.write(0, buffers) == len(b"".join(buffers))
    assert file.read(0, 1 << 20) == b"".join(buffers)


def test_names_renames_removals(root: tuple[Storage, str]) -> None:
    storage, path = root
    for name in ("x", "y"):
        storage.replace_file(f"{path}/{name}", name.encode(), sync=True)
    storage.make_directory(f"{path}/d/e")
    storage.replace_file(f"{path}/d/e/z", b"z", sync=False)
    assert storage.list_directory(path) == ["d", "x", "y"]
    assert storage.is_directory(f"{path}/d")
    assert not storage.is_directory(f"{path}/x")
    storage.rename(f"{path}/x", f"{path}/y")
    assert storage.read_file(f"{path}/y") == b"x"
    storage.rename(f"{path}/d", f"{path}/g")
    assert storage.read_file(f"{path}/g/e/z") == b"z"
    storage.remove_directory(f"{path}/g")
    storage.remove_directory(f"{path}/g")
    storage.remove(f"{path}/y")
    storage.remove(f"{path}/y")
    storage.sync_directory(path)
    assert storage.list_directory(path) == []
    assert storage.list_directory(f"{path}/nowhere") == []
    assert storage.exists(path)
    assert not storage.exists(f"{path}/y")
    with pytest.raises(FileNotFoundError):
        storage.rename(f"{path}/x", f"{path}/y")
    with pytest.raises(FileNotFoundError):
        storage.read_file(f"{path}/x")


def test_an_open_file_outlives_its_name(root: tuple[Storage, str]) -> None:
    storage, path = root
    file = storage.open(f"{path}/f", create=True)
    file.write(0, [b"abc"])
    storage.remove(f"{path}/f")
    assert file.read(0, 3) == b"abc"
    file.sync()


def test_a_lock_is_held_by_one(root: tuple[Storage, str]) -> None:
    storage, path = root
    lock = storage.lock(f"{path}/.lock")
    with pytest.raises(BlockingIOError):
        storage.lock(f"{path}/.lock")
    lock.close()
    storage.lock(f"{path}/.lock").close()


def test_free_bytes_and_times(root: tuple[Storage, str]) -> None:
    storage, path = root
    total, usable = storage.get_free_bytes(path)
    assert 0 < usable <= total
    storage.replace_file(f"{path}/f", b"", sync=False)
    assert storage.get_modified_ms(f"{path}/f") >= 0


def test_a_short_write_of_the_system_is_continued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pwritev may write only a part: at a limit of the file system, or after a signal."""
    write = os.pwritev
    monkeypatch.setattr(os, "pwritev", lambda fd, buffers, at: write(fd, [buffers[0][:2]], at))
    file = DiskStorage().open(f"{tmp_path}/f", create=True)
    assert file.write(3, [b"abcd", b"efg"]) == 7
    assert file.read(3, 99) == b"abcdefg"


def test_descriptors_close_with_their_last_user(tmp_path: Path) -> None:
    file = DiskStorage().open(f"{tmp_path}/f", create=True)
    fd = file.fileno()
    assert os.fstat(fd)
    del file
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


def test_memory_loses_what_was_not_synced() -> None:
    storage = MemoryStorage()
    storage.make_directory("d")
    file = storage.open("d/f", create=True)
    file.write(0, [b"abc"])
    file.sync()
    file.write(3, [b"defg"])
    file.write(7, [b"hij"])
    keep = iter([1, 2])  # one whole change, and two bytes of the next
    storage.crash(lambda n: next(keep))
    assert storage.read_file("d/f") == b"abcdefghi"


def test_memory_fills_up_in_the_middle_of_a_write() -> None:
    storage = MemoryStorage(capacity_bytes=5)
    storage.make_directory("d")
    file = storage.open("d/f", create=True)
    with pytest.raises(OSError, match="No space left") as full:
        file.write(0, [b"abcdefgh"])
    assert full.value.errno == errno.ENOSPC
    assert file.read(0, 9) == b"abcde"
    assert file.write(0, [b"xyz"]) == 3
    with pytest.raises(OSError, match="No space left"):
        storage.replace_file("d/g", b"1", sync=False)
    assert storage.get_free_bytes("d") == (5, 0)
