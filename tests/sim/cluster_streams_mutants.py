"""Brokers with one rule of streams groups broken, each by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.coordinator.group.streams import reconciliation, sticky_assignor
from shoal.coordinator.group.streams.membership import StreamsGroupManager
from shoal.coordinator.group.streams.streams_group import StreamsGroup
from shoal.server.coordinators import streams_topics

if TYPE_CHECKING:
    import pytest


def gives_tasks_that_others_own(patch: pytest.MonkeyPatch) -> None:
    """A member gets its active tasks at once, before their owners have revoked them."""
    patch.setattr(reconciliation._ReconciliationStep, "_is_free", lambda self, task: True)


def gives_before_it_revokes(patch: pytest.MonkeyPatch) -> None:
    """Tasks that a member has to revoke count as revoked at once."""
    patch.setattr(reconciliation, "may_own_any", lambda owned, tasks: False)


def forgets_copies(patch: pytest.MonkeyPatch) -> None:
    """A process may get a task of which it has a standby copy."""
    patch.setattr(reconciliation.TaskOwners, "has_copy", lambda self, task, process_id: False)


def leaves_out_a_task(patch: pytest.MonkeyPatch) -> None:
    """The last task of a topology is assigned to nobody."""
    real = sticky_assignor._list_tasks
    patch.setattr(sticky_assignor, "_list_tasks", lambda subtopologies: real(subtopologies)[:-1])


def takes_commits_of_former_owners(patch: pytest.MonkeyPatch) -> None:
    """A member that was removed from a streams group may still commit offsets."""
    patch.setattr(StreamsGroup, "check_offset_commit", lambda self, **_: None)


def makes_a_partition_too_many(patch: pytest.MonkeyPatch) -> None:
    """Internal topics have one partition more than tasks."""
    real = streams_topics._make_new_topic
    patch.setattr(
        streams_topics,
        "_make_new_topic",
        lambda topic: real(topic._replace(partitions=topic.partitions + 1)),
    )


def begins_with_epoch_one(patch: pytest.MonkeyPatch) -> None:
    """A coordinator that has loaded a group forgets its epochs."""
    real = StreamsGroupManager.on_loaded

    def loaded(self: StreamsGroupManager, now_ms: int) -> None:
        real(self, now_ms)
        for group in self._list_groups():
            group.epoch = group.assignment_epoch = 1

    patch.setattr(StreamsGroupManager, "on_loaded", loaded)


STREAMS_MUTANTS = (
    gives_tasks_that_others_own,
    gives_before_it_revokes,
    forgets_copies,
    leaves_out_a_task,
    takes_commits_of_former_owners,
    makes_a_partition_too_many,
    begins_with_epoch_one,
)
