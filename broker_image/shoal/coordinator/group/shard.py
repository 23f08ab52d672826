"""The group coordinator's state machine: all groups of one partition of `__consumer_offsets`.

A shard has five kinds, which share one context: the offsets, the classic groups, the consumer
groups, the share groups and the streams groups. Each kind replays its own record types, has its own
deadlines and makes its own decisions. The shard dispatches to them. The runtime calls it as
`contract` describes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shoal.coordinator.contract import Record, Replayed, Reply, Result, Token
from shoal.coordinator.group.classic import ClassicGroup
from shoal.coordinator.group.classic_membership import ClassicGroups
from shoal.coordinator.group.consumer_classic import ClassicMembers
from shoal.coordinator.group.consumer_membership import ConsumerGroups
from shoal.coordinator.group.groups import Context, Draft, Kind, Replay
from shoal.coordinator.group.offsets import Offsets
from shoal.coordinator.group.records import RecordType, decode
from shoal.coordinator.group.share_membership import ShareGroups
from shoal.coordinator.group.streams.membership import StreamsGroups
from shoal.metadata.image import MetadataImage
from shoal.protocol.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from uuid import UUID

    from shoal.coordinator.group.settings import GroupSettings


class GroupShard:
    """The groups and offsets of one partition. `kinds` are by name, in the order of loading."""

    def __init__(self, settings: GroupSettings, image: MetadataImage | None = None) -> None:
        self.context = Context(settings, image=image or MetadataImage())
        self.offsets = Offsets(self.context)
        self.classic = ClassicGroups(self.context)
        self.consumer = ConsumerGroups(self.context)
        self.share = ShareGroups(self.context)
        self.streams = StreamsGroups(self.context)
        self.streams.give_up_classic = self.classic.give_up
        self.context.bridge = ClassicMembers(self.consumer, self.classic)
        self.consumer.migration = self.context.bridge
        self.kinds: dict[str, Kind] = {}
        self._replays: dict[RecordType, Replay] = {}
        for kind in (self.offsets, self.classic, self.consumer, self.share, self.streams):
            self.plug(kind)

    def plug(self, kind: Kind) -> None:
        """Add a kind. A record type belongs to one kind."""
        assert not self._replays.keys() & kind.replays.keys()
        self.kinds[kind.name] = kind
        self._replays.update(kind.replays)

    # The contract.

    @property
    def next_deadline_ms(self) -> int | None:
        return self.context.deadlines.next_ms

    def replay(self, record: Record, at: Replayed) -> None:
        decoded = decode(record)
        if decoded is not None:
            replay = self._replays.get(decoded.type)
            if replay is not None:
                replay(decoded.key, decoded.value, at)
                self.offsets.ordered.replayed(decoded.key)

    def replay_end_transaction(self, producer_id: int, committed: bool) -> None:
        """A transaction marker in the shard's partition."""
        self.offsets.replay_end_transaction(producer_id, committed)

    def loaded(self, now_ms: int) -> None:
        for kind in self.kinds.values():
            kind.loaded(now_ms)

    def tick(self, now_ms: int) -> Result:
        """Serve the earliest deadline that is due. Its records must be replayed before the next
        one is served, so the runtime repeats the call while `next_deadline_ms` has passed."""
        key = self.context.deadlines.due(now_ms)
        return Result() if key is None else self.kinds[key[0]].due(key, now_ms)

    def metadata_changed(
        self, image: MetadataImage, deleted: Sequence[tuple[str, UUID]], now_ms: int
    ) -> Result:
        """Apply new metadata, `image`. `deleted` has the deleted topics, as (name, id)."""
        self.context.image = image
        draft = Draft()
        for kind in self.kinds.values():
            draft.add(kind.metadata_changed(deleted, now_ms))
        return draft.result()

    # Admin requests that concern groups of every type.

    def list_groups(
        self, states: Sequence[str] = (), types: Sequence[str] = ()
    ) -> list[Mapping[str, Any]]:
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

    def describe_classic(self, group_id: str) -> Mapping[str, Any]:
        """One group of a DescribeGroups response. A group that does not exist is Dead."""
        try:
            return self.classic.describe(self.context.groups.find_of(group_id, ClassicGroup))
        except ApiError as refused:
            return {
                "error_code": refused.code,
                "error_message": refused.message,
                "group_id": group_id,
                "group_state": "Dead",
            }

    def delete_group(self, group_id: str, token: Token) -> Result:
        """Delete one group with its offsets. Raises GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP."""
        group = self.context.groups.find(group_id)
        group.check_delete()
        records = [*self.offsets.tombstones(group_id), *group.tombstones()]
        response = {"group_id": group_id, "error_code": ErrorCode.none}
        return Result(records, (Reply(token, response),))

    def hard_state(self) -> Any:
        """The persisted state, which a shard that is rebuilt from the same records must equal."""
        groups = {g.group_id: (g.type, g.hard_state()) for g in self.context.groups}
        return {
            "groups": {k: v for k, v in groups.items() if v[1] is not None},
            "offsets": self.offsets.hard_state(),
        }
