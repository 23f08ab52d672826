"""The states of queues, and the sentences on why records are not delivered."""

from __future__ import annotations

from dataclasses import replace

import pytest
from shoal.client.admin.admin import ClusterDescription
from shoal.client.admin.groups import SHARE, GroupDescription, GroupMember
from shoal.client.net.cluster import TopicPartition
from shoal.client.queues.lag import Position
from shoal.console.actions import ACTIONS
from shoal.console.sampling.history import Point, QueueHistory
from shoal.console.sampling.holdings import HeldRange, Holding, Holdings
from shoal.console.sampling.queues import (
    LOCK_AGE_S_MAX,
    NO_PROGRESS_S,
    Level,
    describe_skipped,
    find_causes,
    make_points,
    make_queues,
)
from shoal.console.sampling.sample import ClusterSample, MetricsSource
from shoal.monitoring.cluster_health import ClusterHealth
from shoal.monitoring.scrape import ShareGroupMetrics, ShareNumbers

GROUP, TOPIC = "g", "t"
WHERE = TopicPartition(TOPIC, 0)


def sample(
    *,
    lag: int | None = 10,
    members: int = 1,
    numbers: ShareNumbers | None = None,
    paused: bool = False,
    group: str = GROUP,
) -> ClusterSample:
    """A cluster with one queue of one partition."""
    found = GroupDescription(
        group,
        SHARE,
        "Stable",
        "",
        1,
        tuple(GroupMember(f"m{i}", "c", "/127.0.0.1", (WHERE,)) for i in range(members)),
    )
    return ClusterSample(
        at_ms=100_000,
        at_s=100.0,
        cluster=ClusterDescription("id", 1, ()),
        health=ClusterHealth(1, 1, 1, [], [], [], []),
        topics={},
        listed={},
        groups={group: found},
        positions={group: [Position(WHERE, 5, 100, lag)]},
        numbers=None
        if numbers is None
        else ShareGroupMetrics({group: numbers}, {(group, WHERE): numbers}),
        metrics=MetricsSource.UNSUPPORTED if numbers is None else MetricsSource.REPORTED,
        paused=frozenset({group} if paused else ()),
        letter_topics={group: "dlq.t"},
        letters={"dlq.t": 3},
        disks={},
        oldest_ms={(WHERE, 5): 40_000},
        problems=(),
    )


OLD_LOCK = ShareNumbers(oldest_lock_age_s=LOCK_AGE_S_MAX + 1)


def stopped(why: str) -> ClusterSample:
    return sample(numbers=ShareNumbers(stop_reasons=frozenset({why})))


def words(taken: ClusterSample, history: QueueHistory | None = None) -> list[str]:
    (queue,) = make_queues(taken, history or QueueHistory())
    return [state.words for state in queue.states]


def standing(seconds: float) -> QueueHistory:
    """A history in which nothing was completed for a time."""
    history = QueueHistory()
    history.add((GROUP, TOPIC), Point(100.0 - seconds, 10, 0, 100, 90, 0))
    history.add((GROUP, TOPIC), Point(100.0, 10, 0, 100, 90, 0))
    return history


def test_numbers_of_a_queue() -> None:
    numbers = ShareNumbers(in_flight=2, delayed=1, backing_off=1, held_by_key=3, archiving=1)
    (queue,) = make_queues(sample(numbers=numbers), QueueHistory())
    assert (queue.group, queue.topic, queue.depth, queue.members) == (GROUP, TOPIC, 10, 1)
    assert (queue.oldest_ms, queue.letters, queue.held) == (40_000, 3, 4)
    assert {part.name: part.records for part in queue.parts} == {
        "available": 2,
        "in-flight": 2,
        "delayed": 1,
        "backing-off": 1,
        "held": 3,
        "holds": 0,
        "archiving": 1,
    }


def test_records_behind_limits_of_tenants_are_not_available() -> None:
    taken = sample(numbers=ShareNumbers(in_flight=2, behind_limits=8))
    (queue,) = make_queues(taken, QueueHistory())
    found = {part.name: part.records for part in queue.parts if part.records}
    assert found == {"in-flight": 2, "limited": 8}
    assert sentences(taken) == [
        "8 records of t wait behind limits of their tenants, and no other record waits."
        " `shoal share inspect g t --by tenant` counts them."
    ]
    assert not sentences(sample(numbers=ShareNumbers(in_flight=2, behind_limits=7)))


def test_a_lag_older_than_the_metrics_leaves_no_negative_part() -> None:
    (queue,) = make_queues(sample(lag=1, numbers=ShareNumbers(in_flight=5)), QueueHistory())
    assert queue.parts[0].records == 0


def test_without_metrics_parts_are_unknown() -> None:
    (queue,) = make_queues(sample(), QueueHistory())
    assert (queue.parts, queue.held, queue.numbers) == ([], None, None)


@pytest.mark.parametrize(
    ("taken", "wanted"),
    [
        (sample(lag=0), ["Empty"]),
        (sample(lag=0, members=0), ["Empty"]),
        (sample(lag=None), ["Unknown"]),
        (sample(members=0), ["No consumers"]),
        (sample(), ["Waiting"]),
        (sample(paused=True), ["Paused", "Waiting"]),
        (
            sample(numbers=ShareNumbers(stop_reasons=frozenset({"flood"}))),
            ["Stopped: flood", "Waiting"],
        ),
        (
            sample(numbers=ShareNumbers(stop_reasons=frozenset({"topic-missing"}))),
            ["Letters fail", "Waiting"],
        ),
        (sample(numbers=ShareNumbers(keys_held=1, held_by_key=2)), ["Keys held", "Waiting"]),
        (
            sample(numbers=ShareNumbers(oldest_lock_age_s=LOCK_AGE_S_MAX + 1)),
            ["Old lock", "Waiting"],
        ),
    ],
)
def test_states(taken: ClusterSample, wanted: list[str]) -> None:
    assert words(taken) == wanted


def test_the_worst_state_is_shown() -> None:
    numbers = ShareNumbers(stop_reasons=frozenset({"paused", "flood", "window-full"}))
    (queue,) = make_queues(sample(numbers=numbers, members=0), QueueHistory())
    assert queue.state.words == "Stopped: flood"
    assert queue.state.level is Level.BAD


@pytest.mark.parametrize(
    ("numbers", "seconds", "wanted"),
    [
        (None, NO_PROGRESS_S, "No progress"),
        (None, NO_PROGRESS_S - 1, "Waiting"),
        (ShareNumbers(in_flight=10), NO_PROGRESS_S, "No progress"),
        (ShareNumbers(delayed=10), NO_PROGRESS_S, "Delayed"),
        (ShareNumbers(held_by_key=10), NO_PROGRESS_S, "Waiting"),
        (ShareNumbers(behind_limits=10), NO_PROGRESS_S, "Waiting"),
    ],
)
def test_no_progress(numbers: ShareNumbers | None, seconds: float, wanted: str) -> None:
    assert words(sample(numbers=numbers), standing(seconds)) == [wanted]


def test_a_queue_moves_while_records_are_completed() -> None:
    history = QueueHistory()
    history.add((GROUP, TOPIC), Point(40.0, 10, 0, 100, 80, 0))
    history.add((GROUP, TOPIC), Point(60.0, 10, 0, 110, 90, 0))
    (queue,) = make_queues(sample(), history)
    assert [state.words for state in queue.states] == ["Moving"]
    assert (queue.rate_in, queue.rate_out) == (0.5, 0.5)


def test_a_depth_without_some_partitions_is_a_lower_bound() -> None:
    taken = sample()
    other = Position(TopicPartition(TOPIC, 1), None, 7, None)
    taken = replace(taken, positions={GROUP: [*taken.positions[GROUP], other]})
    (queue,) = make_queues(taken, QueueHistory())
    assert (queue.depth, queue.is_partial) == (10, True)
    (queue,) = make_queues(sample(), QueueHistory())
    assert not queue.is_partial


def test_trouble_comes_first_then_depth() -> None:
    calm = sample(lag=1_000, group="calm")
    paused = sample(lag=5, paused=True, group="paused")
    small = sample(lag=1, group="small")
    every = replace(
        calm,
        groups={**small.groups, **calm.groups, **paused.groups},
        positions={**small.positions, **calm.positions, **paused.positions},
        paused=paused.paused,
    )
    assert [queue.group for queue in make_queues(every, QueueHistory())] == [
        "paused",
        "calm",
        "small",
    ]


def sentences(taken: ClusterSample, history: QueueHistory | None = None) -> list[str]:
    (group,) = taken.groups
    return [
        one.text for one in find_causes(taken, group, make_queues(taken, history or QueueHistory()))
    ]


def test_each_cause_has_a_remedy() -> None:
    assert sentences(sample()) == []
    assert sentences(sample(paused=True)) == [
        "Delivery is paused. Resume it with `shoal share resume g`."
    ]
    assert sentences(sample(lag=1, members=0)) == [
        "The group has no consumers, and 1 record waits. Start one. `shoal consume t"
        " --from-beginning` shows the records of the topic and leaves them in the queue."
    ]
    (held,) = sentences(sample(numbers=ShareNumbers(keys_held=1, held_by_key=2)))
    assert held.startswith("2 records of t wait behind dead letters of the same keys")
    assert "`shoal dlq redrive dlq.t --group g`" in held
    (lock,) = sentences(sample(numbers=ShareNumbers(oldest_lock_age_s=600)))
    assert lock.startswith("A consumer has locked a record of t for 10 min, and renews the lock.")
    (still,) = sentences(sample(), standing(NO_PROGRESS_S))
    assert still.startswith("No record of t was completed in the last minute")


@pytest.mark.parametrize(
    ("why", "wanted"),
    [
        ("paused", [("resume", {"group": GROUP})]),
        ("topic-missing", [("letter-topic", {"group": GROUP})]),
        ("topic-forbidden", [("letter-topic", {"group": GROUP})]),
        ("flood", [("limit", "shoal.errors.deadletterqueue.flood.per.minute")]),
        ("window-full", [("limit", "share.partition.max.record.locks")]),
        (
            "look-ahead",
            [
                ("limit", "share.ordering.key.lookahead"),
                ("limit", "share.delay.max.records"),
                ("limit", "share.fairness.lookahead.records"),
            ],
        ),
        (
            "held-keys",
            [
                ("redrive", {"topic": "dlq.t", "group": GROUP}),
                ("skip", {"group": GROUP}),
                ("limit", "share.ordering.key.dead.letter.max.held"),
            ],
        ),
        ("other", []),
    ],
)
def test_each_stop_has_actions_that_mend_it(why: str, wanted: list[tuple[str, object]]) -> None:
    (cause,) = find_causes(stopped(why), GROUP, make_queues(stopped(why), QueueHistory()))
    assert [(one.action, one.fields.get("config", one.fields)) for one in cause.remedies] == wanted
    assert all(one.action in ACTIONS for one in cause.remedies)


def test_held_keys_are_sent_back_or_skipped() -> None:
    taken = sample(numbers=ShareNumbers(keys_held=1, held_by_key=2))
    (cause,) = find_causes(taken, GROUP, make_queues(taken, QueueHistory()))
    assert [(one.action, one.fields) for one in cause.remedies] == [
        ("redrive", {"topic": "dlq.t", "group": GROUP, "source": TOPIC}),
        ("skip", {"group": GROUP, "topic": TOPIC}),
    ]


def test_consumers_with_an_old_lock_are_named() -> None:
    taken = sample(members=5, numbers=ShareNumbers(oldest_lock_age_s=600))
    held = Holdings()
    for index, count in enumerate((1, 5, 3, 2, 4)):
        held.members[f"m{index}"] = Holding(count, [HeldRange(WHERE, 0, count - 1, 1, 1_000)])
    held.members["gone"] = Holding(6, [HeldRange(WHERE, 9, 14, 1, 1_000)])
    other = HeldRange(TopicPartition("other", 0), 0, 9, 1, 1_000)
    held.members["elsewhere"] = Holding(10, [other])
    (cause,) = find_causes(taken, GROUP, make_queues(taken, QueueHistory()), held)
    assert cause.text.endswith(
        " These consumers hold records: gone, which has left (6 records), m1 at 127.0.0.1 (5"
        " records), m4 at 127.0.0.1 (4 records) and 3 more."
    )


def test_commands_quote_names_for_a_shell() -> None:
    (text,) = sentences(sample(paused=True, group="x; rm -rf ~"))
    assert "`shoal share resume 'x; rm -rf ~'`" in text


def test_points_of_the_history() -> None:
    numbers = ShareNumbers(in_flight=4)
    assert make_points(sample(numbers=numbers)) == {(GROUP, TOPIC): Point(100.0, 10, 4, 100, 90, 3)}
    unknown = make_points(sample(lag=None))[GROUP, TOPIC]
    assert [value == value for value in unknown] == [True, False, False, False, False, True]


def test_a_queue_of_delayed_records_says_when_the_next_is_due() -> None:
    delayed = ShareNumbers(delayed=10, next_due_s=160.0)
    assert words(sample(numbers=delayed), standing(NO_PROGRESS_S)) == ["Delayed"]
    (cause,) = sentences(sample(numbers=delayed))
    assert cause == (
        "t: No record can be delivered yet: 10 are delayed. The next one is due at"
        " 1970-01-01T00:02:40Z, in 1 min 0 s."
    )
    assert len(sentences(sample(numbers=delayed, members=0))) == 2


def test_a_queue_that_no_broker_has_loaded_has_no_wrong_numbers() -> None:
    taken = replace(sample(numbers=ShareNumbers()), numbers=ShareGroupMetrics({}, {}))
    (queue,) = make_queues(taken, QueueHistory())
    assert queue.numbers is None
    assert queue.parts == []
    empty = replace(
        sample(lag=0), numbers=ShareGroupMetrics({}, {}), metrics=MetricsSource.REPORTED
    )
    (queue,) = make_queues(empty, QueueHistory())
    assert queue.numbers == ShareNumbers()


def test_records_before_a_new_group() -> None:
    """The group is at offset 5, and its log begins at 2."""

    def said(numbers: ShareNumbers, lag: int = 0) -> list[str]:
        taken = sample(lag=lag, numbers=numbers)
        return describe_skipped(replace(taken, log_starts={WHERE: 2}), GROUP)

    (hint,) = said(ShareNumbers())
    assert hint.startswith("3 records of t are before the start of this group")
    assert "`shoal groups reset-offsets g -t t --to-earliest`" in hint
    assert said(ShareNumbers(acquired=1)) == []
    assert said(ShareNumbers(), lag=4) == []
