"""How records move a group that has epochs: consumer groups (KIP-848) and share groups (KIP-932).

Both kinds write the same five records, each under types of its own: the group's epoch, a member,
the target assignment's epoch, a member's target, and a member's current assignment. A record
without a value is a tombstone; the one of the group's epoch comes last and ends the group.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Generic, Protocol, TypeVar

from shoal.coordinator.group.groups import Group, Groups

Key = Mapping[str, Any]
Value = dict[str, Any] | None


class EpochGroup(Group, Protocol):
    """What the records move."""

    epoch: int
    metadata_hash: int
    assignment_epoch: int
    assignment_timestamp_ms: int

    def __init__(self, group_id: str) -> None: ...

    def replay_member(self, member_id: str, value: Value) -> None: ...

    def replay_target(self, member_id: str, value: Value) -> None: ...

    def replay_current(self, member_id: str, value: Value) -> None: ...


G = TypeVar("G", bound=EpochGroup)


class Replays(Generic[G]):
    """The replays of one class of groups: it makes, moves and ends them in the registry."""

    def __init__(self, groups: Groups, kind: type[G]) -> None:
        self._groups = groups
        self._kind = kind

    def group(self, group_id: str, *, create: bool) -> G | None:
        """The group that a record is about. A tombstone makes none."""
        found = self._groups.get(group_id)
        if isinstance(found, self._kind):
            return found
        if not create:
            return None
        group = self._kind(group_id)
        self._groups.add(group)
        return group

    def metadata(self, key: Key, value: Value, _at: Any) -> None:
        """The group's epoch."""
        group = self.group(key["group_id"], create=value is not None)
        if group is None:
            return
        if value is None:
            self._groups.remove(group.group_id)
        else:
            group.epoch, group.metadata_hash = value["epoch"], value["metadata_hash"]

    def member(self, key: Key, value: Value, _at: Any) -> None:
        """What a member told of itself."""
        group = self.group(key["group_id"], create=value is not None)
        if group is not None:
            group.replay_member(key["member_id"], value)

    def target_metadata(self, key: Key, value: Value, _at: Any) -> None:
        """The epoch that the target assignment stands for, and when it was made."""
        group = self.group(key["group_id"], create=value is not None)
        if group is None:
            return
        value = value or {"assignment_epoch": 0, "assignment_timestamp": 0}
        group.assignment_epoch = value["assignment_epoch"]
        group.assignment_timestamp_ms = value["assignment_timestamp"]

    def target(self, key: Key, value: Value, _at: Any) -> None:
        """What a member is to have."""
        group = self.group(key["group_id"], create=value is not None)
        if group is not None:
            group.replay_target(key["member_id"], value)

    def current(self, key: Key, value: Value, _at: Any) -> None:
        """What a member has."""
        group = self.group(key["group_id"], create=value is not None)
        if group is not None:
            group.replay_current(key["member_id"], value)
