"""The number of consumers: the rules of `scaling` individually, then over histories of load."""

from hypothesis import given
from hypothesis import strategies as st
from shoal_operator.brokers.broker_states import GroupState
from shoal_operator.consumers.scaling import GroupLoad, ScalingHistory, ScalingPolicy, decide

POLICY = ScalingPolicy(
    replicas_max=6,
    target_lag=100,
    records_per_replica=50,
    cooldown_ms=60_000,
    scale_to_zero_after_ms=300_000,
)


def load(lag: int, partitions: int = 2, locks: int = 2000) -> GroupLoad:
    return GroupLoad(lag, partitions, locks)


def run(steps, policy=POLICY, current=0):
    """Return the replicas after each (now_ms, lag)."""
    history, out = ScalingHistory(), []
    for now_ms, lag in steps:
        current = decide(policy, load(lag), current, history, now_ms).replicas
        out.append(current)
    return out


def test_up_at_once_and_past_the_partitions() -> None:
    assert run([(0, 10_000)]) == [6]


def test_one_record_is_enough_for_one_consumer() -> None:
    assert run([(0, 1)]) == [1]


def test_down_only_after_the_cooldown() -> None:
    assert run([(0, 600), (1_000, 100), (59_000, 100), (61_001, 100)]) == [6, 6, 6, 1]


def test_to_zero_only_after_idling() -> None:
    steps = [(0, 100), (1_000, 0), (62_000, 0), (300_999, 0), (301_001, 0)]
    assert run(steps) == [1, 1, 1, 1, 0]


def test_lag_in_between_restarts_the_idle_time() -> None:
    steps = [(0, 100), (1_000, 0), (200_000, 5), (301_001, 0), (500_000, 0), (601_002, 0)]
    assert run(steps) == [1, 1, 1, 1, 1, 0]


def test_records_that_wait_for_a_redrive_need_no_consumers() -> None:
    state = GroupState("g", lag=900, blocked=900)
    held = GroupLoad(state.workable, 2, 2000, blocked=state.blocked)
    history, current, found = ScalingHistory(), 3, []
    for now_ms in (0, 61_000, 300_000, 361_001):
        decision = decide(POLICY, held, current, history, now_ms)
        current = decision.replicas
        found.append(current)
    assert found == [1, 1, 0, 0]
    assert "900 more wait until dead letters are redriven or skipped" in decision.reason
    work = GroupLoad(GroupState("g", lag=901, blocked=900).workable, 2, 2000, blocked=900)
    assert decide(POLICY, work, 0, history, 362_000).replicas == 1


def test_locks_are_a_ceiling() -> None:
    decision = decide(
        ScalingPolicy(replicas_max=100, target_lag=1, records_per_replica=500),
        GroupLoad(10_000, 2, 2000),
        0,
        ScalingHistory(),
        0,
    )
    assert decision.replicas == decision.ceiling == 8
    assert "record locks allow 8" in decision.reason


def working(steps, policy=POLICY):
    """Return the replicas after each (now_ms, lag, settled, running), and the last reason."""
    history, current, reason = ScalingHistory(), 0, ""
    out = []
    for now_ms, lag, settled, running in steps:
        decision = decide(
            policy, GroupLoad(lag, 2, 2000, settled, running), current, history, now_ms
        )
        current, reason = decision.replicas, decision.reason
        out.append(current)
    return out, reason


def test_slow_work_gets_more_consumers_than_its_lag_asks_for() -> None:
    """One record takes ten seconds: ninety would take one consumer a quarter of an hour."""
    slow = [(t * 10_000, 90 - t, t, 1) for t in range(5)]
    assert working(slow)[0] == [1, 1, 3, 3, 3]
    assert "0.1 records a second and consumer" in working(slow)[1]
    quick = [(t * 10_000, 90 - t, 1000 * t, 1) for t in range(5)]
    assert working(quick)[0] == [1] * 5


def test_a_rate_is_of_one_consumer_and_of_work_only() -> None:
    three = [(t * 10_000, 90, 3 * t, 3) for t in range(5)]
    assert working(three)[0][-1] == 3, "three settle three times as much"
    idle = [(t * 10_000, 90, 0, 0) for t in range(5)]
    assert working(idle)[0] == [1] * 5, "no consumer runs yet, so there is no rate"
    reset = [(0, 90, 500, 1), (30_000, 90, 503, 1), (40_000, 600, 0, 1)]
    assert working(reset)[0] == [1, 3, 6], "after a reset the lag alone counts"


def test_minimum_holds_without_lag() -> None:
    policy = ScalingPolicy(replicas_min=2, replicas_max=4)
    assert run([(0, 0), (10**9, 0)], policy) == [2, 2]


loads = st.lists(st.tuples(st.integers(1, 120_000), st.integers(0, 2_000)), min_size=1, max_size=40)


@given(loads, st.integers(0, 3), st.integers(3, 9))
def test_bounds_and_no_consumer_lost_while_there_is_lag(moves, low, high) -> None:
    policy = ScalingPolicy(
        replicas_min=low, replicas_max=high, target_lag=100, records_per_replica=50
    )
    history, current, now_ms = ScalingHistory(), low, 0
    for pause, lag in moves:
        now_ms += pause
        wanted = decide(policy, load(lag), current, history, now_ms).replicas
        assert low <= wanted <= high
        if lag:
            assert wanted >= 1
            assert wanted >= min(-(-lag // 100), high)
        current = wanted


@given(loads)
def test_a_constant_load_settles(moves) -> None:
    history, current, now_ms = ScalingHistory(), 0, 0
    for pause, lag in moves:
        now_ms += pause
        current = decide(POLICY, load(lag), current, history, now_ms).replicas
    lag = moves[-1][1]
    for _ in range(20):
        now_ms += 30_000
        current = decide(POLICY, load(lag), current, history, now_ms).replicas
    assert current == min(-(-lag // 100), 6)
