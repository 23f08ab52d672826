"""Decisions and replay that consumer, share and streams groups have in common.

`ModernGroupManager` is the kind (`groups.ShardComponent`) of one class of `ModernGroup` in one
shard. It replays the five records of each kind, extends sessions and serves deadlines. The
heartbeats are in `consumer_membership`, `share_membership` and `streams.membership`. A record
without a value is a tombstone. The tombstone of the group's epoch comes last and removes the group.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from shoal.coordinator.contract import CoordinatorResult, Reply, Token
from shoal.coordinator.group.groups import Replay, ResultDraft, ShardContext
from shoal.coordinator.group.modern.modern_group import ModernGroup, Value
from shoal.coordinator.group.modern.target_assignment import ModernTargetAssignments
from shoal.coordinator.group.topics import TopicCatalog
from shoal.protocol.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from uuid import UUID

    from shoal.coordinator.deadlines import Key
    from shoal.coordinator.group.records import RecordType

#: A member with this epoch leaves the group.
LEAVE_EPOCH = -1
#: The heartbeat interval of a member that waits for a target or for partitions. A rebalance takes
#: as long as its slowest member, and not a heartbeat interval longer.
WAITING_HEARTBEAT_INTERVAL_MS = 500
#: The most heartbeats of a large group in a second, if its configured interval allows more.
HEARTBEATS_PER_S = 1_000

G = TypeVar("G", bound=ModernGroup[Any, Any])
T = TypeVar("T", bound=ModernTargetAssignments)


class ModernGroupManager(ABC, Generic[G, T]):
    """The groups of one kind in one shard. `name` starts the keys of their deadlines."""

    def __init__(self, context: ShardContext, kind: type[G], targets: T) -> None:
        self.context = context
        self.name = kind.type.value
        self._kind = kind
        self._targets = targets
        #: By group and member, the connection that carried its last assignment. Soft state.
        self._assigned_over: defaultdict[str, dict[str, str]] = defaultdict(dict)
        types = kind.record_types
        self.replays: dict[RecordType, Replay] = {
            types.group: self._replay_epoch,
            types.member: self._replay_member,
            types.target_metadata: self._replay_target_metadata,
            types.target: self._replay_target,
            types.current: self._replay_current,
        }

    # The kind's own part.

    @abstractmethod
    def expire(self, group: G, member_id: str, draft: ResultDraft, now_ms: int) -> None:
        """Fence a member: a deadline of the member has passed."""

    @abstractmethod
    def assign_due(self, group: G, draft: ResultDraft, now_ms: int) -> None:
        """Compute the target assignment that had to wait for the assignment interval."""

    @abstractmethod
    def on_member_loaded(self, group: G, member_id: str, now_ms: int) -> None:
        """Set the deadlines of a member that was loaded."""

    def forget(self, group_id: str) -> None:
        """Drop the soft state of a group that was deleted."""
        self._targets.forget(group_id)
        self._assigned_over.pop(group_id, None)

    @property
    @abstractmethod
    def default_assignor(self) -> str: ...

    @property
    @abstractmethod
    def max_size(self) -> int:
        """The number of members that a group may have."""

    # Requests.

    def describe(self, group_id: str, token: Token) -> CoordinatorResult:
        """One group of a ConsumerGroupDescribe v0-1 or ShareGroupDescribe v1 response. Raises
        GROUP_ID_NOT_FOUND."""
        described = self._find(group_id).describe(self.catalog, self.default_assignor)
        return CoordinatorResult(replies=(Reply(token, described),))

    def check_size(self, group: G) -> None:
        """Raises GROUP_MAX_SIZE_REACHED when no further member may join."""
        limit = self.max_size
        if len(group.members) >= limit:
            raise ApiError(
                ErrorCode.group_max_size_reached,
                f"The {self.name} group has reached its maximum capacity of {limit} members.",
            )

    def make_fenced_error(self, epoch: int, *, stored: int, current: int) -> ApiError:
        """The refusal of a member epoch. `stored` is the epoch of the member's last record,
        `current` the epoch that the member has reached."""
        relation = "greater" if epoch > stored else "smaller"
        return ApiError(
            ErrorCode.fenced_member_epoch,
            f"The {self.name} group member has a {relation} member epoch ({epoch}) than the one "
            f"known by the group coordinator ({current}). The member must abandon all its "
            "partitions and rejoin.",
        )

    def should_send_assignment(
        self, group: G, member_id: str, connection_id: str, *, due: bool
    ) -> bool:
        """Return whether the response to a heartbeat has the member's assignment: if it is `due`,
        or if another connection carried the last one. A join may come late over a connection that
        its client has given up. Nobody reads that response (ADR 133)."""
        connections = self._assigned_over[group.group_id]
        last = connections.get(member_id, connection_id)
        if due or last != connection_id:
            connections[member_id] = connection_id
            return True
        return False

    def forget_member(self, group: G, member_id: str) -> None:
        """Drop the soft state of a member that is removed."""
        self._assigned_over[group.group_id].pop(member_id, None)

    # Time.

    def on_loaded(self, now_ms: int) -> None:
        for group in self._list_groups():
            for member_id in group.members:
                self.on_member_loaded(group, member_id, now_ms)

    def on_deadline(self, key: Key, now_ms: int) -> CoordinatorResult:
        _, kind, group_id, *member_ids = key
        group = self.context.groups.get(group_id)
        draft = ResultDraft()
        if not isinstance(group, self._kind):
            return draft.to_result()
        if kind == "assignment":
            if group.members and group.epoch > group.assignment_epoch:
                self.assign_due(group, draft, now_ms)
        elif member_ids and member_ids[0] in group.members:
            self.expire(group, member_ids[0], draft, now_ms)
        return draft.to_result()

    def on_metadata_changed(
        self, _deleted: Sequence[tuple[str, UUID]], _now_ms: int
    ) -> CoordinatorResult:
        self._targets.mark_all_stale()
        return CoordinatorResult()

    def extend_session(self, group: G, member_id: str, timeout_ms: int, now_ms: int) -> None:
        self.context.deadlines.set(self.make_key("session", group, member_id), now_ms + timeout_ms)

    def make_key(self, kind: str, group: G, *member_id: str) -> Key:
        """The key of a deadline of the group or of one of its members."""
        return (self.name, kind, group.group_id, *member_id)

    # Configs and metadata.

    @property
    def rebalances(self) -> int:
        """Assignments computed since the shard was loaded, for metrics."""
        return self._targets.assignment_count

    @property
    def catalog(self) -> TopicCatalog:
        return TopicCatalog(self.context.image)

    def _get_config(self, group: G, name: str) -> int:
        value: int = self.context.image.resolve_group_config(group.group_id)[name]
        return value

    def _find(self, group_id: str) -> G:
        return self.context.groups.find_as(group_id, self._kind)

    def _list_groups(self) -> list[G]:
        return [g for g in self.context.groups if isinstance(g, self._kind)]

    # Replay.

    def _get_replayed_group(self, key: Mapping[str, Any], value: Value) -> G | None:
        """The group of a record, created if it does not exist. A tombstone creates none."""
        group_id = key["group_id"]
        existing = self.context.groups.get(group_id)
        if isinstance(existing, self._kind):
            return existing
        if value is None:
            return None
        group = self._kind(group_id)
        self.context.groups.add(group)
        return group

    def _replay_epoch(self, key: Mapping[str, Any], value: Value, _at: Any) -> None:
        group = self._get_replayed_group(key, value)
        if group is None:
            return
        if value is None:
            self.context.groups.remove(group.group_id)
            self.forget(group.group_id)
        else:
            group.replay_epoch(value)

    def _replay_member(self, key: Mapping[str, Any], value: Value, _at: Any) -> None:
        group = self._get_replayed_group(key, value)
        if group is not None:
            group.replay_member(key["member_id"], value)

    def _replay_target_metadata(self, key: Mapping[str, Any], value: Value, _at: Any) -> None:
        group = self._get_replayed_group(key, value)
        if group is not None:
            group.replay_target_metadata(value)

    def _replay_target(self, key: Mapping[str, Any], value: Value, _at: Any) -> None:
        group = self._get_replayed_group(key, value)
        if group is not None:
            group.replay_target(key["member_id"], value)

    def _replay_current(self, key: Mapping[str, Any], value: Value, _at: Any) -> None:
        group = self._get_replayed_group(key, value)
        if group is not None:
            group.replay_current(key["member_id"], value)
