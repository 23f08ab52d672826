"""When a drain is complete: by the group's offsets, whatever the clock does."""

from __future__ import annotations

from shoal_spark.drain import LOCK_MS, MARGIN_S, POLL_S_MAX, Drain, idle_timeout_s

A, B = ("t", 0), ("t", 1)


def drain() -> Drain:
    return Drain({A: 10, B: 4, ("t", 2): 0})


def test_it_is_over_when_start_offsets_have_passed_the_ends() -> None:
    one = drain()
    assert one.list_open({}) == [A, B], "a partition without records has nothing to drain"
    assert not one.is_done({}, {}, {})
    assert not one.is_done({A: 10}, {}, {})
    assert not one.is_done({A: 10, B: 3}, {A: 0, B: 1}, {})
    assert one.list_open({A: 10, B: 3}) == [B]
    assert one.is_done({A: 10, B: 4}, {}, {})
    assert one.is_done({A: 99, B: 99}, {A: 5, B: 2}, {}), "later records belong to the next drain"


def test_a_drain_does_not_wait_for_records_kept_here() -> None:
    one, kept = drain(), {A: 2}
    assert one.is_done({A: 5, B: 4}, {A: 2}, kept)
    assert not one.is_done({A: 5, B: 4}, {A: 3}, kept), "another member has a record"
    assert not one.is_done({A: 5, B: 4}, {}, kept), "the lag is not known"
    assert not one.is_done({B: 4}, {A: 2}, kept), "the lag of another partition does not count"
    assert one.is_done({A: 5, B: 9}, {A: 2, B: 7}, kept), "beyond the target of one partition"
    assert not one.is_done({A: 5, B: 3}, {A: 0, B: 1}, kept), (
        "records of another partition are kept"
    )


def test_a_partition_without_records_is_no_part_of_it() -> None:
    """Apache Kafka reports no lag of a partition without any delivery."""
    assert drain().is_done({A: 0, B: 0}, {A: 0, B: 0}, {}), "a start may lag behind what is settled"
    assert drain().is_done({A: 0, B: 0}, {A: 0, B: 0, ("t", 2): -1}, {})
    assert not drain().is_done({A: 0, B: 0}, {A: 0, B: -1}, {})


def test_it_waits_until_dead_members_locks_have_run_out() -> None:
    one, polls = drain(), 0
    assert not one.is_done({A: 5, B: 4}, {A: 5}, {})
    while not one.is_vain(8_000):
        one.note_nothing(0.25, assigned=True)
        polls += 1
    assert polls * 0.25 > 8 + MARGIN_S
    assert not one.is_vain(9_000)
    # Progress was made, and more may follow.
    assert not one.is_done({A: 6, B: 4}, {A: 4}, {})
    assert not one.is_vain(8_000)
    assert idle_timeout_s(0) == LOCK_MS / 1000 + MARGIN_S


def test_a_machine_that_stood_still_proves_nothing() -> None:
    one = drain()
    for _ in range(10):
        one.note_nothing(60.0, assigned=True)
    assert not one.is_vain(int(10 * POLL_S_MAX * 1000))


def test_without_partitions_it_is_left_out_and_not_drained() -> None:
    one = drain()
    for _ in range(50):
        one.note_nothing(1.0, assigned=False)
    assert not one.is_vain(1)
    assert not one.is_left_out(60)
    one.note_found()
    for _ in range(61):
        one.note_nothing(1.0, assigned=False)
    assert one.is_left_out(60)
