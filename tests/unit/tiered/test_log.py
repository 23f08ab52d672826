"""A log whose oldest records are only in the object store."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING
from uuid import UUID

import pytest
from shoal.log.config import LogConfig
from shoal.log.errors import OffsetOutOfRange
from shoal.log.indexes import AbortedTransaction
from shoal.log.memory import MemoryStorage
from shoal.log.producers import CorruptSnapshot
from shoal.log.remote import RebuiltState, RemoteUnavailable
from shoal.log.slices import LogSlice
from shoal.replication.partition import Partition
from shoal.server.handlers.records.list_offsets import NOTHING, _find_first_pending
from shoal.server.share.dead_letter_copies import RecordCopies, copy_records
from support.storage.log_material import NOW_MS, batch, fill, open_log

if TYPE_CHECKING:
    from collections.abc import Callable

    from shoal.log.log import Log

HOUR_MS = 3_600_000
#: Ten batches of two records, each in a segment of its own.
BATCHES = [batch(b"x" * 100, b"y" * 100, timestamp_ms=NOW_MS + at) for at in range(10)]


class Remote:
    """Remote segments up to `copied_end_offset`; `reads` has the offsets that were asked for."""

    def __init__(self, copied_to: int) -> None:
        self.copied_end_offset = copied_to
        self.end_offset = copied_to - 1
        self.is_downloading = False
        self.reads: list[tuple[int, int, int, bool]] = []

    def read(self, offset: int, max_bytes: int, bound: int, min_one: bool) -> LogSlice:
        self.reads.append((offset, max_bytes, bound, min_one))
        if self.is_downloading:
            return LogSlice(b"", offset)
        return LogSlice(b"remote", offset + 1)

    def find_aborted_transactions(self, start: int, end: int) -> list[AbortedTransaction]:
        return [AbortedTransaction(7, start, end, end)]


def config(**changes) -> LogConfig:
    settings = {"segment_bytes": 300, "remote_storage_enable": True, "retention_ms": 10 * HOUR_MS}
    return LogConfig(**settings | changes)


def tiered(storage: MemoryStorage, copied_to: int, **changes):
    log = open_log(storage, config(**changes))
    fill(log, BATCHES)
    log.remote = Remote(copied_to)
    return log


def test_local_retention_removes_only_copied_segments() -> None:
    log = tiered(MemoryStorage(), 7, local_retention_ms=HOUR_MS)
    assert log.tick_retention(NOW_MS, high_watermark=20) == []
    gone = log.tick_retention(NOW_MS + 2 * HOUR_MS, high_watermark=20)
    # Offset 6 is copied, and the segment that has it ends at 8.
    assert [segment.base_offset for segment in gone] == [0, 2, 4]
    assert (log.log_start_offset, log.local_start_offset) == (0, 6)
    log.remote.copied_end_offset = 100
    log.tick_retention(NOW_MS + 2 * HOUR_MS, high_watermark=15)
    assert log.local_start_offset == 14
    log.tick_retention(NOW_MS + 2 * HOUR_MS, high_watermark=20)
    assert log.local_start_offset == 18, "the active segment stays"
    assert log.log_start_offset == 0


def test_local_retention_by_size() -> None:
    log = tiered(MemoryStorage(), 20, local_retention_bytes=len(BATCHES[0]) * 4)
    log.tick_retention(NOW_MS, high_watermark=20)
    assert (log.log_start_offset, log.local_start_offset) == (0, 12)


def test_local_retention_follows_retention() -> None:
    log = tiered(MemoryStorage(), 20)
    log.tick_retention(NOW_MS + 9 * HOUR_MS, high_watermark=20)
    assert log.local_start_offset == 0
    log.tick_retention(NOW_MS + 11 * HOUR_MS, high_watermark=20)
    assert (log.log_start_offset, log.local_start_offset) == (0, 18)


def test_nothing_is_removed_before_the_copies_are_known() -> None:
    log = tiered(MemoryStorage(), 20, local_retention_ms=HOUR_MS)
    log.remote = None
    assert log.tick_retention(NOW_MS + 20 * HOUR_MS, high_watermark=20) == []
    assert log.local_start_offset == 0


def test_the_log_start_removes_segments_that_are_not_copied() -> None:
    log = tiered(MemoryStorage(), 0)
    log.advance_log_start(5)
    log.tick_retention(NOW_MS, high_watermark=20)
    assert (log.log_start_offset, log.bases[0]) == (5, 4)


def shortened(storage: MemoryStorage):
    log = tiered(storage, 20, local_retention_bytes=0)
    log.tick_retention(NOW_MS, high_watermark=20)
    assert log.local_start_offset == 18
    return log


def test_reads_below_the_local_log_are_remote() -> None:
    log = shortened(MemoryStorage())
    assert log.read(3, 50, max_offset=19) == (b"remote", 4)
    assert log.read_slice(4, 60, min_one=False) == (b"remote", 5)
    assert log.remote.reads == [(3, 50, 19, True), (4, 60, 20, False)]
    assert log.read(18, 1000).next_offset == 20
    assert log.find_aborted_transactions(3, 5) == [AbortedTransaction(7, 3, 5, 5)]
    assert log.find_aborted_transactions(18, 20) == []
    with pytest.raises(OffsetOutOfRange):
        log.read(21, 50)
    log.remote = None
    with pytest.raises(RemoteUnavailable, match="no records below 18 on its disk"):
        log.read(3, 50)


@pytest.mark.parametrize("clean", [True, False])
def test_a_restart_keeps_the_log_start(clean) -> None:
    storage = MemoryStorage()
    log = shortened(storage)
    log.advance_log_start(3)
    epochs = list(log.epochs.entries)
    log.close()
    log = open_log(storage, config(), clean=clean, recovery_point=20, log_start_offset=3)
    assert (log.log_start_offset, log.local_start_offset, log.log_end_offset) == (3, 18, 20)
    assert log.epochs.entries == epochs == [(0, 3)]
    log.close()
    log = open_log(storage, config(remote_storage_enable=False), clean=clean, log_start_offset=3)
    assert log.log_start_offset == 18


def test_truncation_below_the_local_log_begins_at_the_log_start() -> None:
    """The epochs and producers below the local log are in the object store: a follower takes them
    from there, and a log with a part of its epochs would mislead it."""
    log = shortened(MemoryStorage())
    log.advance_log_start(3)
    log.truncate(10)
    assert (log.log_start_offset, log.local_start_offset, log.log_end_offset) == (3, 3, 3)
    assert log.epochs.entries == []
    plain = tiered(MemoryStorage(), 20, local_retention_bytes=0)
    plain.tick_retention(NOW_MS, high_watermark=20)
    plain.config = config(remote_storage_enable=False)
    plain.truncate(10)
    assert (plain.log_start_offset, plain.log_end_offset) == (10, 10)


def test_the_first_offset_that_is_not_copied() -> None:
    """ListOffsets with -6, as in Kafka: unknown until the metadata of remote segments is read."""
    log = shortened(MemoryStorage())
    assert _find_first_pending(log)[1] == 20
    log.remote.end_offset = -1
    assert _find_first_pending(log) == NOTHING
    log = tiered(MemoryStorage(), 0)
    assert _find_first_pending(log)[1] == 0, "nothing is copied yet"
    log.advance_log_start(3)
    assert _find_first_pending(log)[1] == 3


EPOCHS = ((0, 0), (2, 3), (3, 8))
PRODUCER = 7


def rebuilt_state() -> RebuiltState:
    """Return the state behind offset 11: a producer's last batch has offset 5."""
    source = open_log(MemoryStorage(), config())
    fill(source, BATCHES[:2])
    fill(source, [batch(b"1", producer=(PRODUCER, 0, 0)), batch(b"2", producer=(PRODUCER, 0, 1))])
    return RebuiltState(12, EPOCHS, source.producers.to_snapshot())


def check_rebuilt(log: Log) -> None:
    assert (log.log_start_offset, log.local_start_offset, log.log_end_offset) == (4, 12, 12)
    assert log.epochs.entries == [(2, 4), (3, 8)]
    again = log.append(batch(b"2", producer=(PRODUCER, 0, 1)), now_ms=NOW_MS, leader_epoch=3)
    assert (again.duplicate, again.base_offset) == (True, 5)


def test_a_log_continues_behind_the_object_store() -> None:
    storage = MemoryStorage()
    log = open_log(storage, config())
    fill(log, BATCHES[:4])
    log.rebuild(rebuilt_state(), 4)
    check_rebuilt(log)
    log.close()
    log = open_log(storage, config(), clean=True, recovery_point=12, log_start_offset=4)
    check_rebuilt(log)
    assert log.append(BATCHES[0], now_ms=NOW_MS, leader_epoch=5).base_offset == 12
    assert log.epochs.entries == [(2, 4), (3, 8), (5, 12)]


def test_a_damaged_producer_snapshot_changes_nothing() -> None:
    log = open_log(MemoryStorage(), config())
    fill(log, BATCHES[:4])
    with pytest.raises(CorruptSnapshot):
        log.rebuild(rebuilt_state()._replace(producer_snapshot=b"damaged"), 4)
    assert (log.log_start_offset, log.log_end_offset, log.epochs.entries) == (0, 8, [(0, 0)])


class Crash(BaseException):
    """The machine stops here."""


@pytest.mark.parametrize("choose", [lambda n: 0, lambda n: n - 1], ids=["power", "kill"])
def test_a_crash_while_a_log_is_rebuilt(choose: Callable[[int], int]) -> None:
    """Afterwards the log is empty or has a part of its old records, or it is rebuilt in full."""
    state, ends = rebuilt_state(), []
    for steps in count():
        storage = MemoryStorage()
        log = open_log(storage, config())
        fill(log, BATCHES[:2])
        log.sync()
        left = steps

        def step(*_: str) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise Crash

        storage.fault = step
        try:
            log.rebuild(state, 4)
        except Crash:
            pass
        storage.fault = lambda *_: None
        storage.crash(choose)
        log = open_log(storage, config(), recovery_point=4, log_start_offset=4)
        ends.append(log.log_end_offset)
        if log.log_end_offset == 12:
            check_rebuilt(log)
        else:
            assert (log.log_start_offset, log.log_end_offset) == (4, 4)
            assert all(start <= 4 for _, start in log.epochs.entries)
        if left >= 0:
            break
    assert (ends[0], ends[-1]) == (4, 12)
    assert len(ends) > 8


def test_a_dead_letter_waits_for_its_record() -> None:
    """A letter without its record would lose it."""
    log = shortened(MemoryStorage())
    source = Partition(
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
    log.remote.is_downloading = True
    with pytest.raises(RemoteUnavailable, match="offset 3 is being read from the object store"):
        copy_records(source, [3, 18], 10_000)
    copies = copy_records(source, [18, 19], 10_000)
    assert isinstance(copies, RecordCopies)
    assert (sorted(copies.records), copies.end) == ([18, 19], None)
