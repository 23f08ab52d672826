"""Syncs of partitions by the disk's thread."""

from __future__ import annotations

import asyncio
import shutil
import threading
from typing import TYPE_CHECKING
from uuid import UUID

from shoal.log.config import LogConfig
from shoal.log.log import Log
from shoal.log.storage import DiskStorage
from shoal.record.records import build_batch
from shoal.replication.partition import Partition
from shoal.server.disk import DiskExecutor
from structlog.testing import ReturnLogger

if TYPE_CHECKING:
    from pathlib import Path


def test_a_partition_that_is_removed_during_its_sync_is_no_fault_of_the_disk(
    tmp_path: Path,
) -> None:
    directory = str(tmp_path / "t-0")
    log = Log.open(DiskStorage(), directory, LogConfig(), now_ms=0, clean=False)
    log.append(bytes(build_batch([(1, None, b"v", ())])), now_ms=1, leader_epoch=0)
    partition = Partition(
        "t", UUID(int=1), 0, log, node_id=1, leader_id=1, leader_epoch=0, isr=(1,), replicas=(1,)
    )
    errors: list[str] = []

    class Errors(ReturnLogger):
        def error(self, event: str, **_: object) -> None:
            errors.append(event)

    async def remove_during_the_sync() -> None:
        disk = DiskExecutor(asyncio.get_running_loop(), Errors())
        removed = threading.Event()
        waiting = disk.run(removed.wait)
        disk.sync_soon(partition)
        await asyncio.sleep(0)
        shutil.rmtree(directory)
        partition.is_removed = True
        removed.set()
        await disk.drain()
        await waiting
        disk.close()

    asyncio.run(remove_during_the_sync())
    assert errors == []
