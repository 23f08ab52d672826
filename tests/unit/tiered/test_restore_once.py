"""A restore with an id: it ends once, wherever it is interrupted, and never replaces other data."""

from __future__ import annotations

import asyncio
import json
from uuid import UUID

import pytest
from shoal.log import restore_mark
from shoal.log.directory import LogDirectory
from shoal.log.errors import DirectoryInUse
from shoal.log.memory import MemoryStorage
from shoal.server.tiered import restore_summary
from shoal.server.tiered.restore import PartitionReport, RestoreRefused, RestoreReport
from shoal.tiered import backup
from shoal.tiered.store import BytesSource
from unit.tiered.test_restore import CLUSTER, TARGET, Lost, copied

ONCE = TARGET._replace(id="a")


class PowerLost(Exception):
    """The node stops here."""


async def left() -> tuple[Lost, int]:
    lost = Lost()
    end = await copied(lost)
    await lost.leave(("t", end))
    return lost, end


def files(storage: MemoryStorage) -> dict[str, bytes]:
    """Return the files below the data directory."""
    found, folders = {}, ["new"]
    for folder in folders:
        for name in storage.list_directory(folder):
            path = f"{folder}/{name}"
            if storage.is_directory(path):
                folders.append(path)
            else:
                found[path] = storage.read_file(path)
    return found


def start_broker(storage: MemoryStorage) -> LogDirectory:
    directory = LogDirectory(storage, "new")
    directory.open(cluster_id="c", node_id=1, directory_id=UUID(int=9))
    directory.mark_started()
    return directory


def test_an_interrupted_restore_begins_again_and_ends_the_same() -> None:
    async def test() -> None:
        lost, _ = await left()
        report, whole = await lost.restore(ONCE)
        operations = 0

        def stop_at(last: int) -> MemoryStorage:
            storage = MemoryStorage()

            def fault(*_: str) -> None:
                nonlocal operations
                operations += 1
                if operations == last:
                    raise PowerLost

            storage.fault = fault
            return storage

        last = 0
        while True:
            last, operations = last + 1, 0
            storage = stop_at(last)
            try:
                await lost.restore(ONCE, storage)
            except PowerLost:
                pass
            else:
                break
            storage.fault = lambda *_: None
            storage.crash(lambda _: 0)
            mark = restore_mark.read(storage, "new")
            if mark is not None and not mark.complete:
                with pytest.raises(DirectoryInUse, match="unfinished restore"):
                    start_broker(storage)
                storage.crash(lambda n: n - 1)
            repeated, _ = await lost.restore(ONCE, storage)
            assert repeated == report
            assert files(storage).keys() == files(whole).keys(), last
        assert last > 40

    asyncio.run(test())


def test_a_restore_that_has_ended_is_not_repeated() -> None:
    """Not even where it would be refused: the restored cluster is alive."""

    async def test() -> None:
        lost, _ = await left()
        report, storage = await lost.restore(ONCE)
        before = files(storage)
        await lost.renew_lease()
        again, _ = await lost.restore(ONCE, storage)
        assert again == report
        assert files(storage) == before

    asyncio.run(test())


def test_the_data_of_a_broker_that_has_started_is_never_replaced() -> None:
    async def test() -> None:
        lost, _ = await left()
        _, storage = await lost.restore(ONCE)
        start_broker(storage).close()
        before = files(storage)
        for target in (ONCE, ONCE._replace(id="b"), TARGET):
            with pytest.raises(RestoreRefused, match="is not empty") as refused:
                await lost.restore(target, storage)
            assert refused.value.kind == "DataNotEmpty"
        assert files(storage) == before

    asyncio.run(test())


def test_another_id_replaces_a_restore_that_no_broker_has_started_from() -> None:
    async def test() -> None:
        lost, end = await left()
        _, storage = await lost.restore(ONCE)
        only = ONCE._replace(id="b", topics=frozenset(["t"]))
        report, _ = await lost.restore(only, storage)
        assert [(row.topic, row.end) for row in report.partitions] == [("t", end)]
        assert "new/plain-0" not in {path.rpartition("/")[0] for path in files(storage)}
        with pytest.raises(RestoreRefused, match="is not empty"):
            await lost.restore(TARGET, storage)

    asyncio.run(test())


def test_a_new_volume_is_empty_although_it_has_lost_and_found() -> None:
    async def test() -> None:
        lost, _ = await left()
        storage = MemoryStorage()
        storage.make_directory("new/lost+found")
        await lost.restore(ONCE, storage)
        assert storage.is_directory("new/lost+found")

    asyncio.run(test())


def test_a_directory_in_use_is_left_alone() -> None:
    async def test() -> None:
        lost, _ = await left()
        _, storage = await lost.restore(ONCE)
        held = storage.lock("new/.lock")
        before = files(storage)
        with pytest.raises(RestoreRefused, match="in use"):
            await lost.restore(ONCE._replace(id="b"), storage)
        assert files(storage) == before
        held.close()

    asyncio.run(test())


def test_a_missing_backup_names_those_that_there_are() -> None:
    async def test() -> None:
        lost, _ = await left()
        key = backup.format_metadata_key(CLUSTER)
        data = lost.store.objects[key]
        await lost.store.delete([key])
        await lost.store.put(backup.format_metadata_key("other"), BytesSource(data))
        with pytest.raises(RestoreRefused, match=r"of cluster cluster\. It has backups of other"):
            await lost.restore(ONCE)

    asyncio.run(test())


def row(topic: str, partition: int, end: int, *, tiered: bool = True) -> PartitionReport:
    return PartitionReport(topic, partition, tiered, 0, end, 2, 1, 0, -1)


def test_the_summary() -> None:
    rows = [row("a", 0, 7), row("a", 1, 8), row("plain", 0, 0, tiered=False)]
    assert json.loads(restore_summary.encode_success(RestoreReport("c", 5, rows))) == {
        "clusterId": "c",
        "writtenMs": 5,
        "topics": 2,
        "partitions": 3,
        "missing": 3,
        "aborted": 0,
        "ends": {"a": [7, 8]},
        "leftOut": 0,
    }


def test_the_summary_is_bounded() -> None:
    rows = [row(f"topic-{t:03}", p, 10**12 + p) for t in range(100) for p in range(10)]
    made = restore_summary.encode_success(RestoreReport("c", 5, rows))
    found = json.loads(made)
    assert len(made) <= restore_summary.SIZE_BYTES_MAX
    assert len(made) > restore_summary.SIZE_BYTES_MAX - 250
    assert (found["topics"], found["leftOut"]) == (100, 100 - len(found["ends"]))
    assert found["ends"]["topic-000"] == [10**12 + p for p in range(10)]
    failed = restore_summary.encode_failure("StoreFailed", "\x00" * 9000)
    assert len(failed) <= restore_summary.SIZE_BYTES_MAX
