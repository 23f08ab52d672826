"""The compiled queue of fair groups, step by step beside the one in Python.

Both get the same records, choices and ends. `FairQueue` chooses one record after the other, as
`selection` does; the compiled queue, many at once. `test_fair_queue_model` has the rules.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from shoal.coordinator.share import compiled
from shoal.coordinator.share.batches import Batches, scan
from shoal.coordinator.share.compiled_fair_queue import CompiledFairQueue, make_fair_queue
from shoal.coordinator.share.fair_queue import FairQueue
from shoal.coordinator.share.reach import Reach
from shoal.coordinator.share.record_facts import BatchFacts, HeaderReader, open_dense_batch
from shoal.coordinator.share.runs import OffsetRuns
from shoal.coordinator.share.settings import SelectionPolicy
from shoal.coordinator.share.states import ACKNOWLEDGED, ARCHIVED, ARCHIVING, AVAILABLE
from shoal.coordinator.share.tenant_limits import TenantLedger
from shoal.coordinator.share.tenants import NAME_BYTES_MAX, NO_TENANT, TenantPolicy
from shoal.record.records import build_batch
from support.runs.example_counts import scale_examples

if compiled.native is None:
    pytest.skip("there is no C compiler", allow_module_level=True)

LONG = b"x" * NAME_BYTES_MAX
NAMES = st.sampled_from([None, b"", b"a", b"a", b"b", b"c", LONG, LONG + b"y", LONG + b"z"])
HEADERS = st.lists(st.tuples(st.sampled_from(["t", "u", "tt", "\u00fc"]), NAMES), max_size=3)
WEIGHTS = {b"a": 2.0, b"b": 0.5}
CODECS = ("none", "none", "gzip")
#: Delivered that often, a record is chosen alone.
SPLITTING = 3


def read_tenants(batches: Batches, header: str) -> list[tuple[int, bytes]]:
    """Return the offset and the tenant of each record, as the scanner reads them in Python."""
    reader = HeaderReader(0, "", header) if header else None
    found: list[tuple[int, bytes]] = []
    for index in range(len(batches)):
        begin = batches.ends[index - 1] if index else 0
        facts = BatchFacts(batches.data, begin, keys=False, tenants=not header)
        found += [(fact[0], fact[4]) for fact in facts.take(1 << 20, reader)]
    return found


class TenantQueuesMachine(RuleBasedStateMachine):
    @initialize(header=st.sampled_from(["", "t"]))
    def begin(self, header: str) -> None:
        self.header = header
        self.policy = SelectionPolicy(fairness_by=f"header:{header}" if header else "key")
        self.ledger, self.tenants = TenantLedger(), TenantPolicy(weights=WEIGHTS)
        self.plain = FairQueue(self.policy, self.tenants, self.ledger)
        made = make_fair_queue(self.policy, self.tenants, self.ledger)
        assert isinstance(made, CompiledFairQueue)
        self.native = made
        self.queues: tuple[FairQueue, ...] = (self.plain, self.native)
        self.runs, self.now_ms = OffsetRuns(0), 1000
        self.held: set[int] = set()
        self.archived: set[int] = set()

    @rule(
        records=st.lists(st.tuples(NAMES, HEADERS), min_size=1, max_size=40),
        codec=st.sampled_from(CODECS),
        known=st.integers(0, 3),
    )
    def a_batch_comes(self, records: list[Any], codec: str, known: int) -> None:
        """`known` of its records were scanned before."""
        base = self.runs.end
        rows = [(1000, key, b"v", headers) for key, headers in records]
        batches = scan(bytes(build_batch(rows, base_offset=base, compression=codec)), base)
        first = base + min(known, len(rows) - 1)
        self.runs.append(base + len(rows) - 1, AVAILABLE)
        names = [(o, name) for o, name in read_tenants(batches, self.header) if o >= first]
        for offset, name in names:
            self.plain.add(offset, 0, name)
            self.plain.push(offset, self.now_ms)
        if not self.native.put_new(batches, first, 1 << 20):
            opened, _ = open_dense_batch(bytes(batches.data), 0, batches.ends[0], 1 << 20)
            assert opened is not None
            body, begin, end, count = opened
            if not self.native.put_body(body, begin, end, base, count, first):
                names_text = any(n == "\u00fc" for _, headers in records for n, _ in headers)
                assert names_text
                for offset, name in names:
                    self.native.add(offset, 0, name)
                    self.native.push(offset, self.now_ms)

    @rule(count=st.sampled_from([1, 3, 40, 64, 70, 200]), span=st.sampled_from([0, 0, 5]))
    def a_member_fetches(self, count: int, span: int) -> None:
        plain_reach, reach = (Reach(span, 4) if span else None for _ in range(2))
        expected = self.choose_one_by_one(self.plain, count, plain_reach, [])
        chosen: list[int] = []
        self.native.begin(self.now_ms, count)
        if not self.native.choose(self.runs, count, SPLITTING, reach, self.now_ms, chosen):
            chosen = self.choose_one_by_one(self.native, count, reach, chosen)
        assert chosen == expected
        self.held.update(chosen)

    def choose_one_by_one(
        self, queue: FairQueue, count: int, reach: Reach | None, chosen: list[int]
    ) -> list[int]:
        if not chosen:
            queue.begin(self.now_ms, count)
        while len(chosen) < count and (offset := queue.pop()) is not None:
            if self.runs.states[self.runs.find_run(offset)] != AVAILABLE:
                continue
            if reach is not None and not reach.has(offset):
                queue.put_back(offset, self.now_ms)
                break
            queue.take(offset, self.now_ms)
            chosen.append(offset)
        return chosen

    @rule(data=st.data(), state=st.sampled_from([ACKNOWLEDGED, ARCHIVED, ARCHIVING]))
    def a_member_finishes(self, data: st.DataObject, state: int) -> None:
        if not self.held:
            return
        done = sorted(data.draw(st.sets(st.sampled_from(sorted(self.held)), min_size=1)))
        self.held.difference_update(done)
        self.plain.end(done, self.now_ms)
        is_ended = self.native.end_all([(o, o, state, 1) for o in done], 1 << 40, self.now_ms)
        assert is_ended == (state != ARCHIVING)
        if not is_ended:
            self.native.end(done, self.now_ms)

    @rule(data=st.data(), was_read=st.booleans())
    def records_come_back(self, data: st.DataObject, was_read: bool) -> None:
        """A member releases them, or the fetch could not read them."""
        if not self.held:
            return
        back = sorted(data.draw(st.sets(st.sampled_from(sorted(self.held)), min_size=1)))
        self.held.difference_update(back)
        for queue in self.queues:
            for offset in () if was_read else back:
                queue.restore(offset)
            queue.release(back, self.now_ms)
            for offset in back:
                queue.push(offset, self.now_ms)

    @rule(data=st.data())
    def a_waiting_record_is_archived(self, data: st.DataObject) -> None:
        waiting = sorted(self.native.get_offsets() - self.archived)
        if waiting:
            offset = data.draw(st.sampled_from(waiting))
            run, past = self.runs.cut(offset), self.runs.cut(offset + 1)
            self.runs.states[run] = ARCHIVED
            self.runs.join(run, past)
            self.archived.add(offset)
            for queue in self.queues:
                queue.end([offset], self.now_ms)

    @rule(ms=st.sampled_from([1, 30, 500, 100_000]))
    def time_passes(self, ms: int) -> None:
        self.now_ms += ms

    @rule(weights=st.sampled_from([WEIGHTS, {}, {b"c": 4.0, NO_TENANT: 2.0}]))
    def weights_change(self, weights: dict[bytes, float]) -> None:
        for queue in self.queues:
            queue.configure(TenantPolicy(weights=weights))

    @invariant()
    def numbers_agree(self) -> None:
        if hasattr(self, "plain"):
            assert len(self.plain) == len(self.native)
            assert self.plain.has_ready == self.native.has_ready
            plain, native = (queue.get_offsets() - self.archived for queue in self.queues)
            assert plain == native
            assert sorted(self.plain.iterate_work()) == sorted(self.native.iterate_work())


def _add(queue: FairQueue, names: bytes, first: int) -> None:
    """Add records of the tenants with these letters."""
    for offset, name in enumerate(names, first):
        queue.add(offset, 0, bytes([name]))
        queue.push(offset, 0)


def _fetch(queue: FairQueue, count: int, now_ms: int = 0) -> list[int]:
    queue.begin(now_ms, count)
    chosen: list[int] = []
    while len(chosen) < count and (offset := queue.pop()) is not None:
        queue.take(offset, now_ms)
        chosen.append(offset)
    return chosen


def _make(is_compiled: bool) -> FairQueue:
    make = make_fair_queue if is_compiled else FairQueue
    return make(SelectionPolicy(fairness_by="key"), TenantPolicy(), TenantLedger())


@pytest.mark.parametrize("is_compiled", [False, True])
def test_a_record_that_ended_while_it_waited_is_no_part_of_a_quantum(is_compiled: bool) -> None:
    queue, runs, chosen = _make(is_compiled), OffsetRuns(0), list[int]()
    runs.append(13, AVAILABLE)
    _add(queue, b"aaaaaaaaaaaabb", 0)
    queue.end([0, 4], 0)
    queue.begin(0, 64)
    if not queue.choose(runs, 64, SPLITTING, None, 0, chosen):
        chosen = _fetch(queue, 64)
    # Both are idle and get a record. Then a has the rest of a quantum, which is 8 records.
    assert chosen == [1, 12, 2, 3, 5, 6, 7, 8, 9, 13, 10, 11]


@pytest.mark.parametrize("is_compiled", [False, True])
def test_a_tenant_whose_waiting_record_ended_is_idle(is_compiled: bool) -> None:
    queue = _make(is_compiled)
    _add(queue, b"aabbbb", 0)
    assert _fetch(queue, 1) == [0]
    queue.end([1], 0)
    assert len(queue) == 4
    for offset in (2, 3, 4, 5):
        assert _fetch(queue, 1) == [offset]
        queue.end([offset], 0)
    assert not queue.has_ready
    queue.end([0], 0)
    _add(queue, b"ca", 6)
    # It saved nothing up: it begins where a new one does, which comes first in the log.
    assert _fetch(queue, 2) == [6, 7]


def test_rounds_of_some_tenants_are_equal() -> None:
    """A round of a choice of 64 has 256 tenants, of 290. Five come first in the log, and have no
    part in it as soon as members hold records of them."""
    plain, native, runs = _make(False), _make(True), OffsetRuns(0)
    runs.append(2_000, AVAILABLE)
    for queue in (plain, native):
        for offset in range(2_000):
            queue.add(offset, 0, b"%d" % (offset % 5 if offset < 100 else 5 + offset % 285))
            queue.push(offset, 0)
    held: list[int] = []
    for now_ms in range(12):
        expected = _fetch(plain, 64, now_ms)
        chosen: list[int] = []
        native.begin(now_ms, 64)
        assert native.choose(runs, 64, SPLITTING, None, now_ms, chosen)
        assert chosen == expected
        held += chosen
        for queue in (plain, native):
            queue.end(held[: 16 * now_ms], now_ms)
        del held[: 16 * now_ms]


def test_a_choice_that_ends_at_its_reach_leaves_equal_queues() -> None:
    machine = TenantQueuesMachine()
    machine.begin(header="")
    records: list[Any] = [(None, [])] * 40
    machine.a_batch_comes(records, "none", 0)
    for queue in machine.queues:
        queue.end([21], machine.now_ms)
    run, _ = machine.runs.cut(21), machine.runs.cut(22)
    machine.runs.states[run] = ACKNOWLEDGED
    machine.archived.add(21)
    machine.a_member_fetches(200, 5)
    machine.numbers_agree()


TestTenantQueues = TenantQueuesMachine.TestCase
TestTenantQueues.settings = settings(
    max_examples=scale_examples(80), stateful_step_count=30, deadline=None
)
