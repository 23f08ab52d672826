"""Slices for `sendfile` have the same bytes as a read."""

from __future__ import annotations

import asyncio
import random
import socket
from typing import TYPE_CHECKING

import uvloop
from shoal.log.config import LogConfig
from shoal.log.log import Log
from shoal.log.slices import SLICE_SIZE_MIN, FileSlice
from shoal.log.storage import DiskStorage
from shoal.server.network.sendfile_writer import SendfileWriter
from support.storage.log_material import batch, fill

if TYPE_CHECKING:
    from pathlib import Path


def content(data: bytes | memoryview | FileSlice) -> bytes:
    return data.file.read(data.at, data.size) if isinstance(data, FileSlice) else bytes(data)


def test_a_slice_is_what_a_read_gives(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    config = LogConfig(segment_bytes=1 << 20)
    log = Log.open(DiskStorage(), str(tmp_path / "t-0"), config, now_ms=0, clean=False)
    fill(
        log,
        (
            batch(*[rng.randbytes(rng.choice([10, 900, 30_000]))] * rng.randint(1, 9))
            for _ in range(120)
        ),
    )
    sliced = 0
    for _ in range(2000):
        offset = rng.randrange(log.log_end_offset + 1)
        bound = rng.randint(offset, log.log_end_offset)
        size = rng.choice([0, 1000, SLICE_SIZE_MIN, 200_000, 1 << 21])
        min_one = rng.random() < 0.5
        found = log.read_slice(offset, size, max_offset=bound, min_one=min_one)
        read = log.read(offset, size, max_offset=bound, min_one=min_one)
        assert found.next_offset == read.next_offset
        assert content(found.data) == bytes(read.data)
        sliced += isinstance(found.data, FileSlice)
    assert sliced > 200


def test_a_file_that_is_cut_under_a_slice_ends_the_connection(tmp_path: Path) -> None:
    async def main() -> None:
        ours, theirs = socket.socketpair()
        file = DiskStorage().open(str(tmp_path / "f"), create=True)
        file.write(0, [bytes(1 << 22)])
        failed: list[OSError] = []
        loop = asyncio.get_running_loop()
        writer = SendfileWriter(loop, ours.fileno(), lambda: None, failed.append)
        writer.send([b"head", FileSlice(file, 0, 1 << 22), b"tail"])
        assert writer.is_blocked
        file.truncate(1 << 16)
        theirs.setblocking(False)
        while not failed:
            try:
                theirs.recv(1 << 20)
            except BlockingIOError:
                await asyncio.sleep(0)
        assert "ends before byte" in str(failed[0])
        writer.close()
        ours.close()
        theirs.close()

    uvloop.run(main())
