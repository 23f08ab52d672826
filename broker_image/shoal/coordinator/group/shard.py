"""The group coordinator's state machine: all groups of one partition of `__consumer_offsets`.

A shard has five kinds, which share one context: the offsets, the classic groups, the consumer
groups, the share groups and the streams groups. Each kind replays its own record types, has its own
deadlines and makes its own decisions. The shard dispatches to them. The runtime calls it as
`contract` describes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shoal.coordinator.contract import (
    CoordinatorRecord,
    CoordinatorResult,
    RecordOrigin,
    Reply,
    Token,
)
from shoal.coordinator.group.classic.classic_group import ClassicGroup
from shoal.coordinator.group.classic.membership import ClassicGroupManager
from shoal.coordinator.group.consumer.classic_members import ClassicMembers
from shoal.coordinator.group.consumer.membership import ConsumerGroupManager
from shoal.coordinator.group.groups import Replay, ResultDraft, ShardComponent, ShardContext
from shoal.coordinator.group.offsets.offsets import OffsetManager
from shoal.coordinator.group.records import RecordType, decode
from shoal.coordinator.group.share.membership import ShareGroupManager
from shoal.coordinator.group.streams.membership import StreamsGroupManager
from shoal.metadata.image import MetadataImage
from shoal.protocol.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from shoal.coordinator.group.settings import GroupSettings
    from shoal.protocol.responses import groups as responses


class GroupShard:
    """The groups and offsets of one partition. `components` are by name, in the order of
    loading."""

    def __init__(self, settings: GroupSettings, image: MetadataImage | None = None) -> None:
        self.context = ShardContext(settings, image=image or MetadataImage())
        self.offsets = OffsetManager(self.context)
        self.classic = ClassicGroupManager(self.context)
        self.consumer = ConsumerGroupManager(self.context)
        self.share = ShareGroupManager(self.context)
        self.streams = StreamsGroupManager(self.context)
        self.streams.give_up_classic = self.classic.give_up
        self.context.bridge = ClassicMembers(self.consumer, self.classic)
        self.consumer.migration = self.context.bridge
        self.components: dict[str, ShardComponent] = {}
        self._replays: dict[RecordType, Replay] = {}
        for component in (self.offsets, self.classic, self.consumer, self.share, self.streams):
            self.add_component(component)

    def add_component(self, component: ShardComponent) -> None:
        """Add a kind. A record type belongs to one kind."""
        assert not self._replays.keys() & component.replays.keys()
        self.components[component.name] = component
        self._replays.update(component.replays)

    # The contract.

    @property
    def next_deadline_ms(self) -> int | None:
        return self.context.deadlines.next_ms

    def replay(self, record: CoordinatorRecord, origin: RecordOrigin) -> None:
        decoded = decode(record)
        if decoded is not None:
            replay = self._replays.get(decoded.type)
            if replay is not None:
                replay(decoded.key, decoded.value, origin)
                self.offsets.ranges.ordered.on_replayed(decoded.key)

    def replay_end_transaction(self, producer_id: int, committed: bool) -> None:
        """A transaction marker in the shard's partition."""
        self.offsets.replay_end_transaction(producer_id, committed)

    def on_loaded(self, now_ms: int) -> None:
        for component in self.components.values():
            component.on_loaded(now_ms)

    def tick(self, now_ms: int) -> CoordinatorResult:
        """Serve the earliest deadline that is due. Its records must be replayed before the next
        one is served, so the runtime repeats the call while `next_deadline_ms` has passed."""
        key = self.context.deadlines.pop_due(now_ms)
        return (
            CoordinatorResult() if key is None else self.components[key[0]].on_deadline(key, now_ms)
        )

    def on_metadata_changed(
        self, image: MetadataImage, deleted: Sequence[tuple[str, UUID]], now_ms: int
    ) -> CoordinatorResult:
        """Apply new metadata, `image`. `deleted` has the deleted topics, as (name, id)."""
        self.context.image = image
        draft = ResultDraft()
        for component in self.components.values():
            draft.add(component.on_metadata_changed(deleted, now_ms))
        return draft.to_result()

    # Admin requests that concern groups of every type.

    def list_groups(
        self, states: Sequence[str] = (), types: Sequence[str] = ()
    ) -> list[responses.ListGroupsListedGroup]:
        """The groups in these states and of these types, which are compared without case."""
        wanted_states = {s.lower() for s in states}
        wanted_types = {t.lower() for t in types}
        return [
            {
                "group_id": group.group_id,
                "protocol_type": group.protocol_type or "",
                "group_state": group.state_name,
                "group_type": group.type.value,
            }
            for group in self.context.groups
            if (not wanted_states or group.state_name.lower() in wanted_states)
            and (not wanted_types or group.type.value in wanted_types)
        ]

    def describe_classic(self, group_id: str) -> responses.DescribeGroupsDescribedGroup:
        """One group of a DescribeGroups response. A group that does not exist is Dead."""
        try:
            return self.classic.describe(self.context.groups.find_as(group_id, ClassicGroup))
        except ApiError as refused:
            return {
                "error_code": refused.code,
                "error_message": refused.message,
                "group_id": group_id,
                "group_state": "Dead",
            }

    def delete_group(self, group_id: str, token: Token) -> CoordinatorResult:
        """Delete one group with its offsets, or only some of these if it has many: then the reply
        has no `is_last`, and the caller repeats the call. Raises GROUP_ID_NOT_FOUND,
        NON_EMPTY_GROUP."""
        group = self.context.groups.find(group_id)
        group.check_delete()
        records, is_last = self.offsets.build_tombstones(group_id)
        if is_last:
            records += group.build_tombstones()
        response = {"group_id": group_id, "error_code": ErrorCode.none, "is_last": is_last}
        return CoordinatorResult(records, (Reply(token, response),))

    def get_hard_state(self) -> Any:
        """The persisted state, which a shard that is rebuilt from the same records must equal."""
        groups = {g.group_id: (g.type, g.get_hard_state()) for g in self.context.groups}
        return {
            "groups": {k: v for k, v in groups.items() if v[1] is not None},
            "offsets": self.offsets.get_hard_state(),
        }
