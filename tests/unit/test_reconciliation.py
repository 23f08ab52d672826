"""KIP-848's reconciliation of one member, state by state."""

from __future__ import annotations

from uuid import UUID

from shoal.coordinator.group.reconciliation import (
    CurrentAssignment,
    MemberState,
    TargetAssignment,
    is_subset,
    owned_from_wire,
    owned_on_wire,
    reconcile,
)

A, B = UUID(int=1), UUID(int=2)
BOTH = frozenset({A, B})


def target(epoch: int, *partitions: int, subscribed: frozenset[UUID] = BOTH) -> TargetAssignment:
    return TargetAssignment(epoch, {A: frozenset(partitions)} if partitions else {}, subscribed)


def free(_topic: UUID, _partition: int) -> bool:
    return True


def taken(_topic: UUID, _partition: int) -> bool:
    return False


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
    assert owned_from_wire(owned_on_wire(STABLE.assigned), 9) == STABLE.assigned
    old = [{"topic_id": A, "partitions": [0, 1], "assignment_epochs": None}]
    assert owned_from_wire(old, 9) == {A: {0: 9, 1: 9}}
