"""What is copied for dead letters, how much of it in one call, and what is left to a thread."""

from __future__ import annotations

from uuid import UUID

from shoal.coordinator.share.dead_letters import HEADERS_MAX
from shoal.log.memory import MemoryStorage
from shoal.record.records import build_batch
from shoal.replication.partition import Partition
from shoal.server.share.dead_letter_copies import (
    STEP_BYTES_MAX,
    LargeCopy,
    RecordCopies,
    copy_records,
)
from support.storage.log_material import open_log

#: More than all records of a test have.
ENOUGH = 1 << 30


def partition() -> Partition:
    log = open_log(MemoryStorage())
    return Partition(
        "t",
        UUID(int=1),
        0,
        log,
        node_id=1,
        leader_id=1,
        leader_epoch=0,
        isr=(1,),
        replicas=(1,),
    )


def append(to: Partition, *values: bytes, compression: str = "none", headers: int = 0) -> None:
    records = [(1, None, value, [("h", b"")] * headers) for value in values]
    to.append(build_batch(records, compression=compression), now_ms=1)


def finish(copy: RecordCopies | LargeCopy) -> RecordCopies:
    """Do what is left to the thread."""
    assert isinstance(copy, LargeCopy)
    copy.run()
    return copy.copies


def test_a_call_reads_a_few_megabytes() -> None:
    source = partition()
    for _ in range(16):
        append(source, bytes(900_000))
    # The batches are large, so a thread copies each read. Only the first one is wanted here.
    copies = finish(copy_records(source, [0, 15], ENOUGH))
    assert (sorted(copies.records), copies.end) == ([0], 15)
    for _ in range(40):
        append(source, *[bytes(200_000)])
    small = copy_records(source, range(16, 56), ENOUGH)
    assert isinstance(small, RecordCopies)
    assert small.end is not None
    assert sum(len(r.value or b"") for r in small.records.values()) < STEP_BYTES_MAX + 1_000_000
    assert sorted(small.records) == list(range(16, small.end))


def test_what_is_compressed_is_left_to_a_thread() -> None:
    source = partition()
    append(source, b"plain")
    append(source, *[b"%d" % n for n in range(5)], compression="zstd")
    append(source, bytes(50_000_000), b"last", compression="zstd")
    assert isinstance(copy_records(source, [0], ENOUGH), RecordCopies)
    copies = finish(copy_records(source, [0, 2, 4, 7], ENOUGH))
    found = {offset: record.value for offset, record in copies.records.items()}
    assert found == {0: b"plain", 2: b"1", 4: b"3", 7: b"last"}
    assert copies.end is None
    # The size of all letters together is bounded, but the first one is always copied.
    copies = finish(copy_records(source, [6, 7], 1000))
    assert (sorted(copies.records), copies.end) == ([6], 7)


def test_a_record_with_very_many_headers_is_not_copied() -> None:
    """Its letter has the headers that say where it is."""
    source = partition()
    append(source, b"a", headers=HEADERS_MAX + 1)
    append(source, b"b", headers=HEADERS_MAX)
    copies = copy_records(source, [0, 1], ENOUGH)
    assert isinstance(copies, RecordCopies)
    assert sorted(copies.records) == [1]
    append(source, b"c", headers=HEADERS_MAX)
    copies = copy_records(source, [1, 2], 200_000)
    assert isinstance(copies, RecordCopies)
    assert (sorted(copies.records), copies.end) == ([1], 2)
