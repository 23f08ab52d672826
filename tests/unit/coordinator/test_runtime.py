"""The runtime with a shard that counts: the order of replies, and the effect of a failed write."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from shoal.coordinator.contract import (
    CoordinatorRecord,
    CoordinatorResult,
    RecordOrigin,
    Reply,
    Token,
)
from shoal.coordinator.deadlines import Deadlines
from shoal.coordinator.runtime import TICK_RECORDS_MAX, TICK_STEPS_MAX, ShardPhase
from shoal.protocol.errors import ApiError, ErrorCode
from support.brokers.coordinator_sim import Simulation


class Counter:
    """Counts its records; `due` are times at which it adds one."""

    def __init__(self) -> None:
        self.count = 0
        self.offsets: list[int] = []
        self.deadlines = Deadlines()

    @property
    def next_deadline_ms(self) -> int | None:
        return self.deadlines.next_ms

    def replay(self, record: CoordinatorRecord, origin: RecordOrigin) -> None:
        self.count += 1
        self.offsets.append(origin.offset)

    def on_loaded(self, now_ms: int) -> None:
        pass

    def tick(self, now_ms: int) -> CoordinatorResult:
        return (
            CoordinatorResult((CoordinatorRecord(b"tick", b""),))
            if self.deadlines.pop_due(now_ms)
            else CoordinatorResult()
        )


Decide = Callable[[Counter, int, Token], CoordinatorResult]


def add(count: int = 1, size: int = 1) -> Decide:
    """Write `count` records and reply with the count afterwards."""

    def decide(shard: Counter, _now_ms: int, token: Token) -> CoordinatorResult:
        reply = Reply(token, {"count": shard.count + count})
        return CoordinatorResult([CoordinatorRecord(b"k", bytes(size))] * count, (reply,))

    return decide


def look(shard: Counter, _now_ms: int, token: Token) -> CoordinatorResult:
    return CoordinatorResult((), (Reply(token, {"count": shard.count}),))


@pytest.fixture
def sim() -> Simulation[Counter]:
    return Simulation(Counter)


def test_decisions_of_one_turn_see_each_other_and_are_one_append(sim: Simulation[Counter]) -> None:
    for token in ("a", "b", "c"):
        sim.runtime.submit(0, token, add(), sim.now_ms)
    assert not sim.delivered
    sim.runtime.flush()
    assert sim.appends == 1
    assert [sim.delivered[t]["count"] for t in ("a", "b", "c")] == [1, 2, 3]
    assert sim.shard.offsets == [0, 1, 2]


def test_a_reply_waits_for_all_that_its_decision_may_have_seen(sim: Simulation[Counter]) -> None:
    sim.commits = False
    sim.submit("write", add())
    sim.submit("read", look)
    assert not sim.delivered
    sim.commit()
    assert list(sim.delivered) == ["write", "read"]
    sim.submit("read again", look)
    assert sim.delivered["read again"] == {"count": 1}


def test_a_failed_append_drops_the_shard_and_refuses_waiting_requests(
    sim: Simulation[Counter],
) -> None:
    sim.submit("first", add())
    before = sim.shard
    sim.submit("parked", lambda shard, now_ms, token: CoordinatorResult())
    sim.refuse_append = ErrorCode.not_enough_replicas
    sim.submit("second", add(3))
    assert sim.failed == {
        "parked": ErrorCode.coordinator_not_available,
        "second": ErrorCode.coordinator_not_available,
    }
    assert sim.shard is not before
    assert sim.shard.count == 1
    sim.submit("third", add())
    assert sim.delivered["third"] == {"count": 2}


def test_a_decision_that_refuses_has_changed_nothing(sim: Simulation[Counter]) -> None:
    def refuse(_shard: Counter, _now_ms: int, _token: Token) -> CoordinatorResult:
        raise ApiError(ErrorCode.non_empty_group)

    sim.submit("a", refuse)
    assert sim.failed == {"a": ErrorCode.non_empty_group}
    assert not sim.log


def test_only_a_write_too_large_for_a_batch_is_refused(sim: Simulation[Counter]) -> None:
    sim.submit("large", add(size=1_000_001))
    assert sim.failed == {"large": ErrorCode.unknown_server_error}
    assert sim.shard.count == 0
    sim.submit("small", add())
    assert sim.delivered["small"] == {"count": 1}


def test_a_full_batch_goes_before_the_next_decision(sim: Simulation[Counter]) -> None:
    for token in range(5):
        sim.runtime.submit(0, token, add(size=400_000), sim.now_ms)
    sim.runtime.flush()
    assert sim.appends == 3
    assert sim.shard.offsets == [0, 1, 2, 3, 4]


def test_replies_are_refused_when_replicas_do_not_follow(sim: Simulation[Counter]) -> None:
    sim.commits = False
    sim.submit("a", add())
    sim.advance(4_999)
    assert not sim.failed
    sim.advance(1)
    assert sim.failed == {"a": ErrorCode.coordinator_not_available}
    sim.commit()
    assert not sim.delivered


def test_ticks_are_taken_one_at_a_time_and_bounded(sim: Simulation[Counter]) -> None:
    for n in range(TICK_STEPS_MAX + 10):
        sim.shard.deadlines.set((str(n),), sim.now_ms + 5)
    sim.now_ms += 5
    sim.runtime.tick(sim.now_ms)
    assert sim.shard.count == TICK_STEPS_MAX
    assert sim.runtime.next_deadline_ms == sim.now_ms
    sim.runtime.tick(sim.now_ms)
    assert sim.shard.count == TICK_STEPS_MAX + 10
    assert sim.runtime.next_deadline_ms is None


def test_a_tick_decides_a_bounded_number_of_records_for_all_shards() -> None:
    class Writer(Counter):
        def tick(self, now_ms: int) -> CoordinatorResult:
            self.deadlines.pop_due(now_ms)
            return CoordinatorResult([CoordinatorRecord(b"k", b"")] * 300)

    sim = Simulation(Writer)
    for partition in range(1, 10):
        sim.runtime.begin(partition)
        sim.runtime.activate(partition, sim.now_ms)
    shards = [shard for _, shard in sim.runtime.list_active()]
    for shard in shards:
        shard.deadlines.set(("due",), sim.now_ms)
    written = []
    while sim.runtime.next_deadline_ms is not None:
        before = sum(shard.count for shard in shards)
        sim.runtime.tick(sim.now_ms)
        written.append(sum(shard.count for shard in shards) - before)
    assert sum(written) == 3000
    assert max(written) < TICK_RECORDS_MAX + 300


def test_loading_and_leaving(sim: Simulation[Counter]) -> None:
    sim.submit("parked", lambda shard, now_ms, token: CoordinatorResult())
    sim.runtime.resign(0)
    assert sim.failed["parked"] is ErrorCode.not_coordinator
    assert sim.runtime.get_phase(0) is None
    sim.runtime.submit(0, "elsewhere", look, sim.now_ms)
    assert sim.failed["elsewhere"] is ErrorCode.not_coordinator
    sim.runtime.begin(0)
    assert sim.runtime.get_phase(0) is ShardPhase.LOADING
    sim.runtime.submit(0, "early", look, sim.now_ms)
    assert sim.failed["early"] is ErrorCode.coordinator_load_in_progress


def test_deadlines_that_move() -> None:
    deadlines = Deadlines()
    deadlines.set(("a",), 10)
    deadlines.set(("b",), 20)
    deadlines.set(("a",), 30)
    deadlines.set(("b",), 15)
    deadlines.set(("c",), 12)
    deadlines.cancel(("c",))
    assert deadlines.next_ms == 15
    assert deadlines.pop_due(14) is None
    assert deadlines.pop_due(15) == ("b",)
    deadlines.set(("a",), 25)
    deadlines.set(("a",), 30)
    assert deadlines.pop_due(29) is None
    assert (deadlines.pop_due(30), deadlines.pop_due(99), deadlines.next_ms) == (("a",), None, None)
    assert len(deadlines) == 0
