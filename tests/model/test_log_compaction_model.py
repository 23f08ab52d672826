"""Compaction compared with the simplest twin: a dict of each key's last record, and a list.

These rules hold after any number of rounds, with any memory, truncation, crash or restart. Every
key's last record is there with its offset, unless it is a tombstone past its delay. Every record in
the log was written there. Offsets grow. No record above the end of the dirty part is missing.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from shoal.log.appends import AppendOrigin
from shoal.log.cleaner import ENTRY_BYTES
from shoal.log.config import LogConfig
from shoal.log.memory import MemoryStorage
from shoal.record.control import build_marker
from shoal.record.records import build_batch
from support.runs.example_counts import scale_examples
from support.storage.log_material import NOW_MS, open_log, records

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shoal.log.compaction import Step

KEYS = st.sampled_from([b"a", b"b", b"c", b"d", b"a-long-key-of-many-bytes"])
VALUES = st.none() | st.binary(max_size=12)
CODECS = st.sampled_from(["none", "none", "gzip", "lz4"])
DELAY_MS = 5_000


class CompactionAgainstDict(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.storage = MemoryStorage()
        self.now_ms = NOW_MS
        #: offset -> (key, value), of everything that was ever written and not aborted.
        self.written: dict[int, tuple[bytes, bytes | None]] = {}
        self.tombstoned_ms: dict[int, int] = {}
        #: offset -> producer of the transaction, of what was aborted.
        self.aborted: dict[int, int] = {}
        self.end = 0
        self.steps: Iterator[Step] | None = None
        self.producer = 100

    @initialize(segment_bytes=st.sampled_from([200, 600, 5000]), interval=st.integers(0, 300))
    def open(self, segment_bytes: int, interval: int) -> None:
        self.config = LogConfig(
            segment_bytes=segment_bytes,
            index_interval_bytes=interval,
            cleanup_policy=("compact",),
            delete_retention_ms=DELAY_MS,
            min_cleanable_dirty_ratio=0.0,
        )
        self.log = open_log(self.storage, self.config)

    @rule(pairs=st.lists(st.tuples(KEYS, VALUES), min_size=1, max_size=4), codec=CODECS)
    def append(self, pairs: list[tuple[bytes, bytes | None]], codec: str) -> None:
        rows = [(self.now_ms, key, value, ()) for key, value in pairs]
        done = self.log.append(
            build_batch(rows, compression=codec), now_ms=self.now_ms, leader_epoch=0
        )
        self._note(done.base_offset, pairs)

    @rule(pairs=st.lists(st.tuples(KEYS, VALUES), min_size=1, max_size=3), commit=st.booleans())
    def transaction(self, pairs: list[tuple[bytes, bytes | None]], commit: bool) -> None:
        self.producer += 1
        rows = [(self.now_ms, key, value, ()) for key, value in pairs]
        data = build_batch(
            rows,
            producer_id=self.producer,
            producer_epoch=0,
            base_sequence=0,
            transactional=True,
        )
        done = self.log.append(data, now_ms=self.now_ms, leader_epoch=0)
        marker = build_marker(
            committed=commit,
            producer_id=self.producer,
            producer_epoch=0,
            coordinator_epoch=1,
            timestamp_ms=self.now_ms,
        )
        self.log.append(marker, now_ms=self.now_ms, leader_epoch=0, origin=AppendOrigin.COORDINATOR)
        if commit:
            self._note(done.base_offset, pairs)
        else:
            self.aborted |= dict.fromkeys(
                range(done.base_offset, done.base_offset + len(pairs)), self.producer
            )
        self.end = self.log.log_end_offset

    def _note(self, offset: int, pairs: list[tuple[bytes, bytes | None]]) -> None:
        for at, (key, value) in enumerate(pairs, offset):
            self.written[at] = (key, value)
            if value is None:
                self.tombstoned_ms[at] = self.now_ms
        self.end = self.log.log_end_offset

    @rule(ms=st.integers(1, 2 * DELAY_MS))
    def wait(self, ms: int) -> None:
        self.now_ms += ms

    @rule()
    def roll_and_sync(self) -> None:
        if self.log.active.size:
            self.log.roll(self.end, self.now_ms)
        self.log.sync()

    @rule(keys=st.integers(1, 6))
    def begin(self, keys: int) -> None:
        """A round with memory for only a few keys."""
        if self.steps is None:
            self.steps = self.log.begin_compaction(
                self.now_ms, high_watermark=self.end, memory_bytes=keys * ENTRY_BYTES
            )

    @rule(count=st.integers(1, 50))
    def step(self, count: int) -> None:
        for _ in range(count):
            if self.steps is None:
                return
            try:
                next(self.steps)
            except StopIteration:
                self.steps = None

    @rule()
    def finish(self) -> None:
        while self.steps is not None:
            self.step(50)
        for gone in self.log.tick_retention(self.now_ms, high_watermark=self.end):
            gone.remove()

    @rule()
    def restart(self) -> None:
        """kill -9, also during a round: all written data is kept."""
        self.steps = None
        self.storage.crash(lambda n: n - 1)
        self._open(clean=False)

    @rule(fail_at=st.integers(0, 12))
    def die_in_a_round(self, fail_at: int) -> None:
        """The process ends at some disk operation of a round."""
        self.finish()
        countdown = [fail_at]

        def fault(operation: str, path: str) -> None:
            if operation in ("rename", "remove", "write", "sync"):
                countdown[0] -= 1
                if countdown[0] < 0:
                    raise OSError(5, "the process ends here", path)

        self.begin(keys=50)
        self.storage.fault = fault
        with contextlib.suppress(OSError):
            self.finish()
        self.storage.fault = lambda operation, path: None
        self.restart()

    @rule()
    def stop_and_start(self) -> None:
        self.steps = None
        self.log.close()
        self._open(clean=True)

    def _open(self, *, clean: bool) -> None:
        self.log = open_log(
            self.storage,
            self.config,
            now_ms=self.now_ms,
            clean=clean,
            recovery_point=self.log.recovery_point,
            cleaned_to=self.log.cleaned_to,
        )
        assert self.log.log_end_offset == self.end

    @invariant()
    def what_must_be_there_is(self) -> None:
        if not hasattr(self, "log"):
            return
        assert self.log.uncleanable == ""
        found = {}
        last = -1
        for r in records(self.log, max_bytes=400):
            assert r.offset > last
            last = r.offset
            if r.offset in self.aborted and r.key is not None:
                hidden = self.log.find_aborted_transactions(r.offset, r.offset + 1)
                assert self.aborted[r.offset] in [a.producer_id for a in hidden]
            if r.key is not None and r.offset in self.written:
                assert self.written[r.offset] == (r.key, r.value)
                found[r.offset] = r.key
        latest = {key: offset for offset, (key, _) in self.written.items()}
        for offset in latest.values():
            born_ms = self.tombstoned_ms.get(offset)
            if born_ms is None or self.now_ms < born_ms + DELAY_MS:
                assert offset in found, f"the last record of a key, at {offset}, is gone"
        for offset in self.written:
            if offset >= self.log.cleaned_to and offset >= self.log.active.base_offset:
                assert offset in found

    @rule()
    def all_is_clean_after_enough_rounds(self) -> None:
        self.finish()
        self.roll_and_sync()
        for _ in range(200):
            self.begin(keys=3)
            if self.steps is None:
                break
            self.finish()
        else:
            raise AssertionError("compaction does not come to an end")
        assert self.log.cleaned_to == self.end
        counts: dict[bytes, int] = {}
        for r in records(self.log):
            if r.key is not None and r.offset in self.written:
                counts[r.key] = counts.get(r.key, 0) + 1
        assert all(count == 1 for count in counts.values()), counts


TestCompactionAgainstDict = CompactionAgainstDict.TestCase
TestCompactionAgainstDict.settings = settings(
    max_examples=scale_examples(60), stateful_step_count=30, deadline=None
)
