"""The roller's guarantees, over states of a cluster that Hypothesis draws, and by example."""

from hypothesis import given
from hypothesis import strategies as st
from shoal_operator.brokers.roller import (
    START_SECONDS_MAX,
    BrokerPod,
    ControllerQuorum,
    DoneStep,
    PartitionState,
    PostponeStep,
    RefuseStep,
    RestartStep,
    WaitStep,
    choose_next_step,
)

REASON, LATER = "a setting changed", "2026-01-03T02:00:00Z"


def cluster(size: int = 3, stale: tuple[int, ...] = (), unready: tuple[int, ...] = ()):
    return [BrokerPod(i, i not in unready, REASON if i in stale else "") for i in range(size)]


def partition(isr: tuple[int, ...], isr_min: int = 2, replicas: tuple[int, ...] = (0, 1, 2)):
    return PartitionState("jobs-0", replicas, isr, isr_min)


FULL = [partition((0, 1, 2))]


def test_nothing_to_do() -> None:
    assert choose_next_step(cluster(), FULL, 0) == DoneStep()


def test_the_controller_restarts_last() -> None:
    assert choose_next_step(cluster(stale=(0, 1)), FULL, 0) == RestartStep(1, REASON)
    assert choose_next_step(cluster(stale=(0,)), FULL, 0) == RestartStep(0, REASON)


def test_an_unready_broker_that_needs_a_restart_goes_first() -> None:
    assert choose_next_step(cluster(stale=(0, 2), unready=(2,)), FULL, 0) == RestartStep(2, REASON)


def test_a_bad_setting_stops_at_the_first_broker() -> None:
    brokers = [BrokerPod(0, False, "", START_SECONDS_MAX + 1), *cluster(stale=(1, 2))[1:]]
    step = choose_next_step(brokers, FULL, 1)
    assert isinstance(step, RefuseStep)
    assert "broker 0" in step.reason


def test_a_starting_broker_is_waited_for() -> None:
    assert isinstance(choose_next_step(cluster(stale=(1,), unready=(0,)), FULL, 2), WaitStep)


def test_no_partition_falls_under_its_min_isr() -> None:
    step = choose_next_step(cluster(stale=(0, 1, 2)), [partition((0, 1))], 0)
    assert step == RestartStep(2, REASON)
    step = choose_next_step(cluster(stale=(0, 1)), [partition((0, 1))], 0)
    assert isinstance(step, WaitStep)
    assert "jobs-0" in step.reason


def test_the_quorum_keeps_its_majority() -> None:
    three = frozenset({0, 1, 2})
    behind = ControllerQuorum(three, frozenset({0, 1}))
    step = choose_next_step(cluster(stale=(0,)), FULL, 1, quorum=behind)
    assert isinstance(step, WaitStep)
    assert "only 1 of 3 controllers would keep up" in step.reason
    # The lagging one may stop: the others are a majority.
    assert choose_next_step(cluster(stale=(0, 2)), FULL, 1, quorum=behind) == RestartStep(2, REASON)
    alone = ControllerQuorum(frozenset({0}), frozenset({0}))
    assert choose_next_step(cluster(stale=(0,)), FULL, 0, quorum=alone) == RestartStep(0, REASON)


def test_a_sole_replica_does_not_hold_the_roll_up_for_ever() -> None:
    only = [PartitionState("single-0", (1,), (1,), 1)]
    assert choose_next_step(cluster(stale=(1,)), only, 0) == RestartStep(1, REASON)


def test_outside_of_the_window_only_the_broken_is_mended() -> None:
    healthy = choose_next_step(cluster(stale=(1, 2)), FULL, 0, next_window=LATER)
    assert healthy == PostponeStep(2, REASON, LATER)
    mended = choose_next_step(cluster(stale=(1,), unready=(1,)), FULL, 0, next_window=LATER)
    assert mended == RestartStep(1, REASON)


def test_brokers_that_cannot_be_asked_are_not_restarted() -> None:
    assert isinstance(choose_next_step(cluster(stale=(1,)), None, -1), WaitStep)


brokers_of = st.lists(
    st.tuples(st.booleans(), st.booleans(), st.floats(0, 300)), min_size=1, max_size=5
).map(lambda rows: [BrokerPod(i, r, REASON if s else "", t) for i, (r, s, t) in enumerate(rows)])


@st.composite
def pictures(draw: st.DrawFn):
    brokers = draw(brokers_of)
    ids = [b.id for b in brokers]
    parts = []
    for number in range(draw(st.integers(0, 4))):
        replicas = tuple(draw(st.lists(st.sampled_from(ids), min_size=1, unique=True)))
        isr = tuple(draw(st.lists(st.sampled_from(replicas), min_size=1, unique=True)))
        parts.append(PartitionState(f"t-{number}", replicas, isr, draw(st.integers(1, 3))))
    return brokers, parts, draw(st.sampled_from(ids))


@given(pictures(), st.sampled_from(["", LATER]))
def test_a_healthy_broker_is_restarted_only_when_all_is_well(picture, next_window) -> None:
    brokers, parts, controller = picture
    step = choose_next_step(brokers, parts, controller, next_window=next_window)
    assert step == choose_next_step(
        list(reversed(brokers)), parts, controller, next_window=next_window
    )
    if not isinstance(step, RestartStep):
        return
    chosen = brokers[step.broker_id]
    assert chosen.restart_reason
    if not chosen.ready:
        return
    assert all(b.ready for b in brokers)
    assert not next_window
    for part in parts:
        if chosen.id in part.isr and part.replicas != (chosen.id,):
            need = min(part.isr_min, len(part.replicas) - 1)
            assert len(part.isr) - 1 >= need


@given(pictures())
def test_a_roll_of_a_healthy_cluster_ends(picture) -> None:
    brokers, _, controller = picture
    state = {b.id: BrokerPod(b.id, True, b.restart_reason) for b in brokers}
    restarted = []
    for _ in range(len(state) + 1):
        step = choose_next_step(list(state.values()), [], controller)
        if isinstance(step, DoneStep):
            break
        assert isinstance(step, RestartStep)
        restarted.append(step.broker_id)
        state[step.broker_id] = BrokerPod(step.broker_id, True)
    assert sorted(restarted) == sorted(b.id for b in brokers if b.restart_reason)
    if controller in restarted:
        assert restarted[-1] == controller


# -- brokers that lose their disks with their pods


def without_disks(brokers, parts):
    return choose_next_step(brokers, parts, -1, loses_disks=True)


def test_a_disk_is_not_lost_while_it_has_the_only_replica() -> None:
    only = [PartitionState("single-0", (1,), (1,), 1)]
    step = without_disks(cluster(stale=(1,)), only)
    assert isinstance(step, WaitStep)
    assert "single-0 would lose its records" in step.reason
    assert "more replicas" in step.reason
    assert step.serving
    # Other brokers restart meanwhile.
    assert without_disks(cluster(stale=(1, 2)), only) == RestartStep(2, REASON)
    # Both replicas are on brokers of one pod.
    pods = [
        BrokerPod(0, True, REASON, other_brokers=(1000,)),
        BrokerPod(1, True, other_brokers=(1001,)),
    ]
    step = without_disks(pods, [PartitionState("t-0", (0, 1000), (0, 1000), 1)])
    assert isinstance(step, WaitStep)
    assert "on no disk of another pod" in step.reason


def test_two_other_disks_have_the_records_whatever_the_min_isr() -> None:
    stale = cluster(stale=(0,))
    assert without_disks(stale, FULL) == RestartStep(0, REASON)
    two = [partition((0, 1), isr_min=1)]
    assert choose_next_step(stale, two, -1) == RestartStep(0, REASON)
    step = without_disks(stale, two)
    assert isinstance(step, WaitStep)
    assert "jobs-0 would have 1 in-sync replica on other disks" in step.reason
    assert without_disks(stale, [partition((0, 1), 1, (0, 1))]) == RestartStep(0, REASON)


def test_a_broken_broker_keeps_its_disk_if_it_may_have_the_last_records() -> None:
    broken = cluster(stale=(0,), unready=(0, 1, 2))
    last = [partition((), 2), partition((1,), 2, (1, 2))]
    step = without_disks(broken, last)
    assert isinstance(step, WaitStep)
    assert not step.serving
    assert "no in-sync replicas on other disks" in step.reason
    assert isinstance(without_disks(broken, [partition((0,))]), WaitStep)
    assert choose_next_step(broken, last, -1) == RestartStep(0, REASON)
    # Others have all committed records, even if it is one: two broken pods can be mended.
    assert without_disks(broken, [partition((2,))]) == RestartStep(0, REASON)


def test_unknown_partitions_keep_the_disks() -> None:
    broken = cluster(stale=(0, 1, 2), unready=(0, 1, 2))
    step = without_disks(broken, None)
    assert isinstance(step, WaitStep)
    assert "no broker returns the state of the partitions" in step.reason
    assert choose_next_step(broken, None, -1) == RestartStep(0, REASON)


def test_controllers_keep_their_disks() -> None:
    pods = [BrokerPod(0, True), BrokerPod(900, False, REASON, controller=True)]
    assert without_disks(pods, None) == RestartStep(900, REASON, controller=True)


@given(pictures())
def test_a_restart_never_loses_the_last_copy(picture) -> None:
    brokers, parts, controller = picture
    step = choose_next_step(brokers, parts, controller, loses_disks=True)
    if isinstance(step, RestartStep):
        for part in parts:
            if step.broker_id in part.replicas:
                assert set(part.isr) - {step.broker_id}
