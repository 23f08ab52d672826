"""What a client's batches expand to is bounded for each turn of the event loop.

A batch of 4 KB may expand to 16 MB, and 100 of them once held a broker up for 24 seconds.
"""

from __future__ import annotations

import pytest
from shoal.coordinator.share import record_scanner
from shoal.coordinator.share.acquisition import AcquireRequest
from shoal.coordinator.share.record_facts import HEADER_COST
from shoal.coordinator.share.settings import SelectionPolicy, ShareSettings
from shoal.coordinator.share.share_partition import SharePartition
from shoal.record.records import NewRecord, build_batch
from shoal.server.share import selection_fetch
from support.brokers.share_leaders import LogLeader

STEP = record_scanner.STEP_BYTES_MAX
BY_KEY = SelectionPolicy(key_order=True)
BY_PRIORITY = SelectionPolicy(priority_header="p", priority_lookahead=5000)
POLICIES = [pytest.param(BY_KEY, id="key"), pytest.param(BY_PRIORITY, id="priority")]


class Log:
    """A log of one batch for each of some lists of records, and a leader that reads it."""

    def __init__(self, *batches: list[NewRecord], policy: SelectionPolicy) -> None:
        self.settings = ShareSettings(selection=policy)
        self._batches: list[tuple[int, bytes]] = []
        self._end = 0
        for records in batches:
            built = build_batch(records, base_offset=self._end, compression="zstd")
            self._batches.append((self._end, bytes(built)))
            self._end += len(records)
        self.wakes = 0
        self.leader = LogLeader(
            SharePartition(0),
            self._read,
            lambda: self._end,
            record_size=1000.0,
            wake_soon=self.wake,
        )

    def wake(self) -> None:
        self.wakes += 1

    def _read(self, offset: int, _size: int, _limit: int) -> tuple[bytes, int]:
        at = max(n for n, (base, _) in enumerate(self._batches) if base <= offset)
        return b"".join(data for _, data in self._batches[at:]), self._end

    def scan(self) -> int:
        """Scan for one turn. Return the number of records that are known after it."""
        selection_fetch.scan_ahead(self.leader, self.settings, 0)
        assert self.leader.selection is not None
        return self.leader.selection.cursor

    def fetch(self) -> int:
        """Return the number of records that one fetch acquires."""
        wanted = AcquireRequest("m", 5000, 5000)
        return selection_fetch.fetch(self.leader, wanted, 1 << 30, self.settings, 0)[1].total

    def read_aside(self) -> None:
        """Do the work of the thread."""
        (call,) = self.leader.aside
        self.leader.aside.clear()
        call()


def record(size: int, headers: tuple[tuple[str, bytes], ...] = ()) -> NewRecord:
    return (1, b"k%d" % size, bytes(size), headers)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_turn_expands_a_few_megabytes(policy: SelectionPolicy) -> None:
    """Records alone would be a budget of all these batches, since each has one."""
    log = Log(*[[record(STEP // 3)]] * 30, policy=policy)
    assert [log.scan() for _ in range(4)] == [2, 4, 6, 8]
    assert log.wakes == 0, "known records are there to be fetched"
    assert not log.leader.aside


@pytest.mark.parametrize("policy", POLICIES)
def test_a_batch_that_expands_further_is_read_in_the_thread(policy: SelectionPolicy) -> None:
    log = Log([record(9)], [record(2 * STEP), record(8)], [record(7)], policy=policy)
    assert [log.scan() for _ in range(3)] == [1, 1, 1]
    assert log.fetch() == 1
    wakes = log.wakes
    assert log.fetch() == 0
    assert not selection_fetch.may_acquire(log.leader, log.settings)
    assert log.wakes == wakes, "a fetch that waits for the thread does not wake itself"
    log.read_aside()
    assert selection_fetch.may_acquire(log.leader, log.settings)
    assert [log.scan() for _ in range(2)] == [3, 4]
    assert log.fetch() == 3


def test_between_two_turns_nothing_stays_expanded() -> None:
    """A batch of more records than a turn takes is expanded again in each turn."""
    log = Log([record(7)] * 4500, policy=BY_PRIORITY)
    known = [log.scan() for _ in range(3)]
    assert known == [2000, 4000, 4500]
    log = Log([record(5000)] * 4500, policy=BY_PRIORITY)
    found = []
    for _ in range(3):
        log.scan()
        log.read_aside()
        found.append(log.scan())
    assert found == [2000, 4000, 4500]


def test_headers_count_for_the_work_that_they_are() -> None:
    """Python reads headers, and a record may have half a million of them."""
    few = (("p", b"1"), ("filler", bytes(STEP // HEADER_COST // 2)))
    log = Log(*[[record(1, few)]] * 3, policy=BY_PRIORITY)
    assert [log.scan() for _ in range(3)] == [1, 2, 3]
    many = (("p", b"1"), ("filler", bytes(STEP // HEADER_COST)))
    log = Log([record(1, many), record(2, many)], policy=BY_PRIORITY)
    assert log.scan() == 0
    log.read_aside()
    assert log.scan() == 2


def test_a_large_batch_that_the_log_loses_meanwhile_is_forgotten() -> None:
    log = Log([record(2 * STEP)], [record(9)], policy=BY_KEY)
    assert log.scan() == 0
    share, selection = log.leader.share, log.leader.selection
    assert selection is not None
    share.advance_log_start(1)
    selection.on_log_start_moved(0)
    log.read_aside()
    assert log.scan() == 2
    assert log.fetch() == 1
