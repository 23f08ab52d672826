"""A log compared with a list, in memory that crashes: appends, reads, truncation, retention,
restarts.

After a crash the log may have lost unsynced records, and nothing else. The rest is what was
appended, in order, and every read agrees with the list.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)
from shoal.log.config import LogConfig
from shoal.log.errors import AppendRefused, OffsetOutOfRange
from shoal.log.memory import MemoryStorage
from shoal.protocol.errors import ErrorCode
from support.runs.example_counts import scale_examples
from support.storage.log_material import NOW_MS, batch, find_since, open_log, records

CODECS = st.sampled_from(["none", "none", "gzip", "snappy", "lz4", "zstd"])


class AppendedRecord(NamedTuple):
    offset: int
    timestamp_ms: int
    value: bytes
    epoch: int


class LogAgainstList(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.storage = MemoryStorage()
        self.now_ms = NOW_MS
        self.epoch = 0
        self.count = 0
        self.twin: list[AppendedRecord] = []
        self.start = 0
        self.end = 0
        self.synced = 0
        self.known_start = 0

    @initialize(segment_bytes=st.sampled_from([300, 1000, 100_000]), interval=st.integers(0, 500))
    def open(self, segment_bytes: int, interval: int) -> None:
        self.config = LogConfig(
            segment_bytes=segment_bytes,
            index_interval_bytes=interval,
            retention_ms=10_000,
            retention_bytes=5_000,
        )
        self.log = open_log(self.storage, self.config)

    @rule(count=st.integers(1, 4), size=st.integers(0, 40), codec=CODECS, lag=st.integers(0, 3000))
    def append(self, count: int, size: int, codec: str, lag: int) -> None:
        timestamp = self.now_ms - lag
        values = [b"%d:" % (self.count + i) + b"x" * size for i in range(count)]
        self.count += count
        data = batch(*values, timestamp_ms=timestamp, compression=codec)
        done = self.log.append(data, now_ms=self.now_ms, leader_epoch=self.epoch)
        assert (done.base_offset, done.last_offset) == (self.end, self.end + count - 1)
        self.twin += [
            AppendedRecord(self.end + i, timestamp, v, self.epoch) for i, v in enumerate(values)
        ]
        self.end += count

    @rule(value=st.binary(max_size=20), room=st.integers(0, 120))
    def append_to_a_full_disk(self, value: bytes, room: int) -> None:
        self.storage.capacity_bytes = self.storage.count_used_bytes() + room
        try:
            done = self.log.append(batch(value), now_ms=self.now_ms, leader_epoch=self.epoch)
        except AppendRefused as error:
            if error.code is not ErrorCode.kafka_storage_error:
                raise
        else:
            self.twin.append(AppendedRecord(done.base_offset, NOW_MS, value, self.epoch))
            self.end += 1
        self.storage.capacity_bytes = None

    @rule(ms=st.integers(1, 8_000))
    def wait(self, ms: int) -> None:
        self.now_ms += ms
        self.storage.now_ms = self.now_ms

    @rule()
    def new_leader(self) -> None:
        self.epoch += 1

    @rule()
    def sync(self) -> None:
        self.log.sync()
        self.synced, self.known_start = self.end, self.start

    @precondition(lambda self: self.end > self.start)
    @rule(part=st.floats(0, 1))
    def delete_records(self, part: float) -> None:
        offset = self.start + int(part * (self.end - self.start))
        self.log.advance_log_start(offset)
        self._starts_at(offset)
        self.known_start = offset  # DeleteRecords responds when this is on disk.

    @precondition(lambda self: self.end > self.start)
    @rule(part=st.floats(0, 1))
    def truncate(self, part: float) -> None:
        """Truncate as a follower does: down to the start of the batch that contains an offset."""
        offset = self.start + int(part * (self.end - self.start))
        self.log.truncate(offset)
        cut = self.log.log_end_offset
        assert cut == offset
        # Batches are whole: those that extend past the truncation offset go, too.
        kept = [r.offset for r in records(self.log)]
        end = kept[-1] + 1 if kept else self.start
        assert end <= offset
        self.twin = [w for w in self.twin if w.offset < end]
        self.log.truncate(end)
        self._ends_at(max(end, self.log.log_start_offset))
        self.sync()

    @rule()
    def retention(self) -> None:
        for gone in self.log.tick_retention(self.now_ms, high_watermark=self.end):
            gone.remove()
        start = self.log.log_start_offset
        assert start >= self.start
        # From the oldest on, up to the first that stays: timestamps of records need not rise.
        for segment in self.log.segments[:-1][:1]:
            assert segment.find_age_timestamp() >= self.now_ms - 10_000
        excess = self.log.size_bytes - 5_000
        assert len(self.log.segments) == 1 or excess < self.log.segments[0].size
        self._starts_at(start)

    @rule()
    def roll(self) -> None:
        self.log.roll_if_due(self.now_ms + self.config.segment_ms + 1)

    @rule()
    def stop_and_start(self) -> None:
        self.log.close()
        self.log = open_log(
            self.storage,
            self.config,
            now_ms=self.now_ms,
            clean=True,
            recovery_point=self.log.recovery_point,
            log_start_offset=self.start,
        )
        self.synced, self.known_start = self.end, self.start

    @rule(choose=st.randoms(use_true_random=False), keep=st.booleans())
    def crash(self, choose: object, keep: bool) -> None:
        """Power fails, or (with `keep`) the process is killed."""
        self.storage.crash((lambda n: n - 1) if keep else choose.randrange)  # type: ignore[attr-defined]
        self.log = open_log(
            self.storage,
            self.config,
            now_ms=self.now_ms,
            recovery_point=self.synced,
            log_start_offset=self.known_start,
        )
        end = self.log.log_end_offset
        assert end >= min(self.synced, self.end)
        if keep:
            assert end == self.end
        self.twin = [w for w in self.twin if w.offset < end]
        self.start = self.log.log_start_offset
        self.twin = [w for w in self.twin if w.offset >= self.start]
        self._ends_at(end)

    def _starts_at(self, offset: int) -> None:
        self.start = offset
        self.twin = [w for w in self.twin if w.offset >= offset]

    def _ends_at(self, offset: int) -> None:
        self.end = offset
        self.synced = min(self.synced, offset)
        self.start = self.log.log_start_offset
        self.known_start = min(self.known_start, self.start)

    @invariant()
    def reads_agree(self) -> None:
        if not hasattr(self, "log"):
            return
        assert (self.log.log_start_offset, self.log.log_end_offset) == (self.start, self.end)
        for max_bytes in (1, 300, 1 << 20):
            read = records(self.log, max_bytes=max_bytes)
            found = [(r.offset, r.timestamp_ms, r.value) for r in read]
            assert found == [(w.offset, w.timestamp_ms, w.value) for w in self.twin]

    @rule(part=st.floats(0, 1), bound=st.floats(0, 1), max_bytes=st.integers(0, 2000))
    def read(self, part: float, bound: float, max_bytes: int) -> None:
        offset = self.start + int(part * (self.end - self.start))
        limit = self.start + int(bound * (self.end - self.start))
        found = self.log.read(offset, max_bytes, max_offset=limit)
        assert found.next_offset <= max(limit, offset)
        assert found.data or found.next_offset == offset
        assert len(found.data) <= max(max_bytes, max((len(b) for b in self._sizes()), default=0))

    def _sizes(self) -> list[bytes]:
        return [data for _, _, data in self.log.read_batches(self.start, self.end)]

    @rule(by=st.integers(1, 10))
    def read_outside(self, by: int) -> None:
        for offset in (self.start - by, self.end + by):
            with pytest.raises(OffsetOutOfRange):
                self.log.read(offset, 1000)

    @rule(lag=st.integers(-1, 40_000))
    def search_by_time(self, lag: int) -> None:
        timestamp = self.now_ms - lag
        expected = next((w for w in self.twin if w.timestamp_ms >= timestamp), None)
        found = find_since(self.log, timestamp)
        if expected is None:
            assert found is None
        else:
            assert found == (expected.timestamp_ms, expected.offset, expected.epoch)

    @rule()
    def search_the_youngest(self) -> None:
        found = find_since(self.log, self.log.find_max_timestamp())
        if self.twin and found is not None:
            youngest = max(w.timestamp_ms for w in self.twin)
            # The largest timestamp of a segment may be that of a record before the log start.
            if found[0] == youngest:
                assert found[1] == next(w.offset for w in self.twin if w.timestamp_ms == youngest)

    @rule()
    def epochs(self) -> None:
        for epoch in sorted({w.epoch for w in self.twin}):
            later = [w.offset for w in self.twin if w.epoch > epoch]
            found = self.log.find_epoch_end_offset(epoch)
            assert found == (epoch, min(later, default=self.end))


TestLogAgainstList = LogAgainstList.TestCase
TestLogAgainstList.settings = settings(
    max_examples=scale_examples(60), stateful_step_count=40, deadline=None
)
