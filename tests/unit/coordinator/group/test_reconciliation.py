"""KIP-848's reconciliation of one member, state by state."""

from __future__ import annotations

from uuid import UUID

from shoal.coordinator.group.consumer.reconciliation import (
    CurrentAssignment,
    MemberState,
    TargetAssignment,
    add_slices,
    decode_owned,
    encode_owned,
    encode_slices,
    is_subset,
    reconcile,
)
from shoal.coordinator.group.key_ranges.key_slots import ALL

A, B = UUID(int=1), UUID(int=2)
BOTH = frozenset({A, B})


def target(epoch: int, *partitions: int, subscribed: frozenset[UUID] = BOTH) -> TargetAssignment:
    return TargetAssignment(epoch, {A: frozenset(partitions)} if partitions else {}, subscribed)


def free(_topic: UUID, _partition: int) -> int:
    return ALL


def taken(_topic: UUID, _partition: int) -> int:
    return 0


def owned(*partitions: int) -> dict[UUID, frozenset[int]]:
    return {A: frozenset(partitions)}


STABLE = CurrentAssignment(3, 2, MemberState.STABLE, {A: {0: 2, 1: 3}})


def test_a_member_at_its_target_takes_no_step():
    assert reconcile(STABLE, target(3, 0, 1), free=free, owned=owned(0, 1)) is STABLE


def test_a_member_keeps_its_epoch_until_it_has_revoked_its_partitions():
    """ "The member transitions to the next epoch when it has revoked": only then, and its kept
    partition has the epoch at which it was assigned."""
    waits = reconcile(STABLE, target(4, 0, 2), free=free, owned=owned(0, 1))
    assert waits.state is MemberState.UNREVOKED_PARTITIONS
    assert waits.member_epoch == 3
    assert waits.assigned == {A: {0: 2}}
    assert waits.pending_revocation == {A: {1: 3}}
    for reported in (None, owned(0, 1), owned(1)):
        assert reconcile(waits, target(4, 0, 2), free=free, owned=reported) is waits
    done = reconcile(waits, target(4, 0, 2), free=free, owned=owned(0))
    assert done == CurrentAssignment(4, 3, MemberState.STABLE, {A: {0: 2, 2: 4}})


def test_a_member_that_owns_no_revoked_partition_advances_at_once():
    done = reconcile(STABLE, target(4, 0), free=free, owned=owned(0))
    assert done == CurrentAssignment(4, 3, MemberState.STABLE, {A: {0: 2}})


def test_a_member_waits_for_unreleased_partitions():
    waits = reconcile(STABLE, target(4, 0, 1, 2), free=taken, owned=owned(0, 1))
    assert waits.state is MemberState.UNRELEASED_PARTITIONS
    assert waits.member_epoch == 4
    assert reconcile(waits, target(4, 0, 1, 2), free=taken, owned=owned(0, 1)) is waits
    done = reconcile(waits, target(4, 0, 1, 2), free=free, owned=owned(0, 1))
    assert done.state is MemberState.STABLE
    assert done.assigned == {A: {0: 2, 1: 3, 2: 4}}


def test_a_partition_in_revocation_may_be_assigned_again():
    waits = reconcile(STABLE, target(4, 0), free=free, owned=owned(0, 1))
    back = reconcile(waits, target(5, 0, 1), free=taken, owned=owned(0))
    assert back == CurrentAssignment(5, 3, MemberState.STABLE, {A: {0: 2, 1: 5}})


def test_a_topic_that_is_no_longer_subscribed_goes_before_the_next_target():
    only_b = target(3, 0, 1, subscribed=frozenset({B}))
    waits = reconcile(STABLE, only_b, free=free, owned=owned(0, 1), subscription_changed=True)
    assert waits == CurrentAssignment(3, 3, MemberState.UNREVOKED_PARTITIONS, {}, {A: {0: 2, 1: 3}})


def test_a_member_may_be_an_epoch_behind_if_it_owns_nothing_new():
    assert is_subset(owned(0), STABLE.assigned)
    assert not is_subset(owned(0, 2), STABLE.assigned)
    assert not is_subset(None, STABLE.assigned)


def test_records_keep_the_epoch_of_each_partition_and_older_ones_have_none():
    assert decode_owned(encode_owned(STABLE.assigned), 9) == STABLE.assigned
    old = [{"topic_id": A, "partitions": [0, 1], "assignment_epochs": None}]
    assert decode_owned(old, 9) == {A: {0: 9, 1: 9}}


# Parts of a partition.

LOW, HIGH = ALL >> 128, ALL & ~(ALL >> 128)


def part(epoch: int, slots: int, *, shares: bool = True) -> TargetAssignment:
    return TargetAssignment(epoch, {}, BOTH, {(A, 0): slots}, shares)


def test_a_member_revokes_a_part_and_keeps_the_rest():
    """The rest stays assigned, with the epoch of its assignment, while the part is revoked."""
    waits = reconcile(STABLE, part(4, LOW), free=free, owned=owned(0))
    assert waits.state is MemberState.UNREVOKED_PARTITIONS
    assert (waits.assigned, waits.slices) == ({A: {0: 2}}, {(A, 0): LOW})
    assert waits.pending_revocation == {A: {0: 2, 1: 3}}
    assert waits.pending_slices == {(A, 0): HIGH}
    both = {(A, 0): LOW | 1 << 200}
    assert reconcile(waits, part(4, LOW), free=free, owned={}, owned_slices=both) is waits
    reported = {(A, 0): LOW}
    done = reconcile(waits, part(4, LOW), free=free, owned={}, owned_slices=reported)
    assert (done.member_epoch, done.state) == (4, MemberState.STABLE)
    assert (done.assigned, done.slices) == ({A: {0: 2}}, {(A, 0): LOW})
    assert (done.pending_revocation, done.pending_slices) == ({}, {})


def test_a_sharing_member_gets_the_slots_that_are_free():
    """A partition that becomes whole again is given as its slots are released."""
    mine = CurrentAssignment(3, 2, MemberState.STABLE, {A: {0: 2}}, {}, {(A, 0): LOW})
    whole = TargetAssignment(4, {A: frozenset({0})}, BOTH, {}, shares=True)
    reported = {(A, 0): LOW}
    some = reconcile(
        mine, whole, free=lambda _t, _p: LOW | 1 << 200, owned={}, owned_slices=reported
    )
    assert (some.member_epoch, some.state) == (4, MemberState.UNRELEASED_PARTITIONS)
    assert (some.assigned, some.slices) == ({A: {0: 4}}, {(A, 0): LOW | 1 << 200})
    done = reconcile(some, whole, free=free, owned={}, owned_slices=reported)
    assert (done.state, done.assigned, done.slices) == (MemberState.STABLE, {A: {0: 4}}, {})


def test_a_plain_member_gets_whole_partitions_only():
    new = CurrentAssignment()
    some = reconcile(new, target(4, 0), free=lambda _t, _p: LOW, owned={})
    assert (some.state, some.assigned) == (MemberState.UNRELEASED_PARTITIONS, {})
    done = reconcile(some, target(4, 0), free=free, owned={})
    assert (done.assigned, done.slices) == ({A: {0: 4}}, {})


def test_a_member_that_stops_sharing_gives_up_its_parts():
    mine = CurrentAssignment(3, 2, MemberState.STABLE, {A: {0: 2}}, {}, {(A, 0): LOW})
    waits = reconcile(mine, part(4, LOW, shares=False), free=free, owned=None)
    assert (waits.assigned, waits.pending_slices) == ({}, {(A, 0): LOW})


def test_an_earlier_epoch_is_accepted_for_a_part_of_the_owned_slots():
    assigned, slices = {A: {0: 2}}, {(A, 0): LOW}
    assert is_subset({}, assigned, {(A, 0): 1}, slices)
    assert not is_subset({}, assigned, {(A, 0): 1 << 255}, slices)
    assert not is_subset(owned(0), assigned, {}, slices)


def test_records_have_parts_beside_whole_partitions():
    mine, slices = {A: {0: 2, 1: 3}, B: {5: 1}}, {(A, 0): LOW, (B, 5): HIGH}
    whole, parts = encode_owned(mine, slices), encode_slices(mine, slices)
    assert whole == [{"topic_id": A, "partitions": [1], "assignment_epochs": [3]}]
    assert add_slices(decode_owned(whole, 9), parts) == (mine, slices)
