"""A data directory: its owner, what it keeps over restarts, and the deletion of logs."""

from __future__ import annotations

import contextlib
import errno
from typing import TYPE_CHECKING
from uuid import UUID

import pytest
from shoal.log.checkpoints import read_offsets
from shoal.log.config import LogConfig
from shoal.log.directory import LogDirectory
from shoal.log.errors import CorruptLog, DirectoryInUse
from shoal.log.memory import MemoryStorage
from shoal.log.uuids import format_uuid, parse_uuid
from support.storage.log_material import NOW_MS, batch, fill, records

if TYPE_CHECKING:
    from shoal.log.log import Log

ID = UUID("11111111-2222-3333-4444-555555555555")
TOPIC_ID = UUID("aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee")
CONFIG = LogConfig()


def opened(storage: MemoryStorage, *, node_id: int = 1) -> LogDirectory:
    directory = LogDirectory(storage, "data")
    directory.open(cluster_id="cluster", node_id=node_id, directory_id=ID)
    return directory


def with_log(directory: LogDirectory, topic: str = "t", index: int = 0) -> Log:
    return directory.open_log(topic, index, CONFIG, now_ms=NOW_MS, topic_id=TOPIC_ID)


def test_a_fresh_directory_is_given_its_identity() -> None:
    storage = MemoryStorage()
    directory = opened(storage)
    assert (directory.cluster_id, directory.node_id, directory.directory_id) == ("cluster", 1, ID)
    assert storage.read_file("data/meta.properties").decode().splitlines() == [
        "#",
        "cluster.id=cluster",
        f"directory.id={format_uuid(ID)}",
        "node.id=1",
        "version=1",
    ]
    assert not directory.clean


def test_the_identity_stays() -> None:
    storage = MemoryStorage()
    opened(storage).unlock()
    again = LogDirectory(storage, "data")
    again.open(cluster_id="another", node_id=1, directory_id=TOPIC_ID)
    assert (again.cluster_id, again.directory_id) == ("cluster", ID)


def test_another_brokers_directory_is_refused() -> None:
    storage = MemoryStorage()
    first = opened(storage)
    with pytest.raises(DirectoryInUse, match="data is in use by another broker"):
        opened(storage)
    first.unlock()
    with pytest.raises(DirectoryInUse, match=r"belongs to node 1 .* this is node 2"):
        opened(storage, node_id=2)
    opened(storage)  # the refused one has released the lock


def test_logs_are_found_again_with_their_ids() -> None:
    storage = MemoryStorage()
    directory = opened(storage)
    for topic, index in (("a-b", 3), ("t", 0)):
        fill(with_log(directory, topic, index), [batch(topic.encode())])
    storage.make_directory("data/no-number-x")
    directory.close()
    again = opened(storage)
    assert again.clean
    assert list(again.find_partitions()) == [(("a-b", 3), TOPIC_ID), (("t", 0), TOPIC_ID)]
    assert [r.value for r in records(with_log(again))] == [b"t"]
    again.mark_started()
    assert not storage.exists("data/.kafka_cleanshutdown")
    metadata = storage.read_file("data/t-0/partition.metadata").decode()
    assert metadata == f"version: 0\ntopic_id: {format_uuid(TOPIC_ID)}"


def test_checkpoints_keep_what_logs_do_not() -> None:
    storage = MemoryStorage()
    directory = opened(storage)
    log = with_log(directory)
    fill(log, [batch(b"a")] * 5)
    log.sync()
    log.advance_log_start(2)
    directory.high_watermarks[("t", 0)] = 5
    directory.checkpoint()
    assert storage.read_file("data/recovery-point-offset-checkpoint") == b"0\n1\nt 0 5\n"
    assert storage.read_file("data/log-start-offset-checkpoint") == b"0\n1\nt 0 2\n"
    storage.crash(lambda n: n - 1)
    again = opened(storage)
    assert not again.clean
    assert again.high_watermarks == {("t", 0): 5}
    log = with_log(again)
    assert (log.log_start_offset, log.log_end_offset, log.recovery_point) == (2, 5, 5)


def test_a_stop_with_a_failed_log_is_not_a_clean_one() -> None:
    storage = MemoryStorage()
    directory = opened(storage)
    with_log(directory).offline = True
    directory.close()
    assert not opened(storage).clean


def test_a_deleted_log_is_gone_at_once_and_removed_later() -> None:
    storage = MemoryStorage()
    directory = opened(storage)
    fill(with_log(directory), [batch(b"a")])
    staged = directory.delete_log("t", 0)
    assert staged is not None
    assert staged.endswith("-delete")
    assert directory.delete_log("t", 0) is None
    assert list(directory.find_partitions()) == []
    assert directory.find_staged_deletes() == [staged]
    log = with_log(directory)
    assert log.log_end_offset == 0
    directory.purge(staged)
    assert directory.find_staged_deletes() == []


def test_a_recreated_log_does_not_take_the_old_ones_recovery_point() -> None:
    storage = MemoryStorage()
    directory = opened(storage)
    log = with_log(directory)
    fill(log, [batch(b"a")] * 9)
    log.sync()
    directory.checkpoint()
    directory.delete_log("t", 0)
    fill(with_log(directory), [batch(b"b" * 99)] * 12)
    torn = iter(range(10**6))
    storage.crash(lambda n: (n - 2 if n > 2 else 0) if next(torn) == 0 else n // 2)
    assert read_offsets(storage, "data/recovery-point-offset-checkpoint") == {}
    assert len(records(with_log(opened(storage)))) <= 12


@pytest.mark.parametrize("restarts", [False, True])
def test_a_recreated_log_does_not_take_the_old_ones_start(restarts) -> None:
    storage = MemoryStorage()
    directory = opened(storage)
    log = with_log(directory)
    fill(log, [batch(b"a")] * 9)
    log.advance_log_start(7)
    directory.checkpoint_log_starts()
    directory.delete_log("t", 0)
    if restarts:
        storage.crash(lambda n: n - 1)
        directory = opened(storage)
    log = with_log(directory)
    assert (log.log_start_offset, log.log_end_offset) == (0, 0)
    fill(log, [batch(b"b")] * 3)
    storage.crash(lambda n: n - 1)
    assert len(records(with_log(opened(storage)))) == 3


def test_a_full_disk_does_not_keep_a_deleted_log() -> None:
    storage = MemoryStorage()
    directory = opened(storage)
    log = with_log(directory)
    fill(log, [batch(b"a")] * 9)
    log.sync()
    log.advance_log_start(7)
    directory.checkpoint()

    def refuse(operation: str, _path: str) -> None:
        if operation == "write":
            raise OSError(errno.ENOSPC, "full")

    storage.fault = refuse
    assert directory.delete_log("t", 0) is not None
    with pytest.raises(OSError, match="full"):
        with_log(directory)
    storage.fault = lambda _operation, _path: None
    log = with_log(directory)
    assert (log.log_start_offset, log.log_end_offset) == (0, 0)
    assert read_offsets(storage, "data/log-start-offset-checkpoint") == {}
    assert read_offsets(storage, "data/recovery-point-offset-checkpoint") == {}


@pytest.mark.parametrize("operations", range(8))
def test_a_log_that_was_created_in_part_gets_its_id(operations: int) -> None:
    storage = MemoryStorage()
    directory = opened(storage)
    left = iter(range(operations))

    def refuse(_operation: str, _path: str) -> None:
        if next(left, None) is None:
            raise OSError(errno.ENOSPC, "full")

    storage.fault = refuse
    with contextlib.suppress(OSError):
        with_log(directory)
    storage.fault = lambda _operation, _path: None
    fill(with_log(directory), [batch(b"a")])
    directory.close()
    assert list(opened(storage).find_partitions()) == [(("t", 0), TOPIC_ID)]


def test_a_log_of_another_topic_is_not_opened() -> None:
    storage = MemoryStorage()
    directory = opened(storage)
    fill(with_log(directory), [batch(b"a")])
    directory.close()
    again = opened(storage)
    with pytest.raises(CorruptLog, match="records of another topic"):
        again.open_log("t", 0, CONFIG, now_ms=NOW_MS, topic_id=ID)


@pytest.mark.parametrize(
    "bad", [b"", b"1\n0\n", b"0\n2\nt 0 5\n", b"0\n1\nt 0\n", b"0\n1\nt x 5", b"\xff"]
)
def test_a_checkpoint_that_does_not_read_is_none(bad: bytes) -> None:
    storage = MemoryStorage()
    storage.make_directory("d")
    storage.replace_file("d/c", bad, sync=True)
    assert read_offsets(storage, "d/c") == {}


def test_ids_as_kafka_writes_them() -> None:
    text = format_uuid(TOPIC_ID)
    assert len(text) == 22
    assert parse_uuid(text) == parse_uuid(str(TOPIC_ID)) == TOPIC_ID
    assert parse_uuid("no id") is None
    assert parse_uuid("") is None
