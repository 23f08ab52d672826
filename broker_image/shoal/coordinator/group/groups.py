"""The registry of groups by id, and the interfaces of groups and of the kinds of a shard.

The first use of a group id fixes its type. Requests of another type then get GROUP_ID_NOT_FOUND.
The kinds of a shard (offsets, classic, consumer, share, streams) share one `ShardContext`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from uuid import UUID

from shoal.coordinator.contract import (
    CoordinatorRecord,
    CoordinatorResult,
    RecordOrigin,
    Reply,
    Token,
)
from shoal.coordinator.deadlines import Deadlines, Key
from shoal.metadata.image import MetadataImage
from shoal.protocol.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from shoal.coordinator.group.records import RecordType
    from shoal.coordinator.group.settings import GroupSettings
    from shoal.protocol.responses import groups as responses

Replay = Callable[[dict[str, Any], dict[str, Any] | None, RecordOrigin], None]
#: Checks one partition of an offset commit: (topic name, topic id, partition) -> error.
CommitCheck = Callable[[str, UUID | None, int], ErrorCode]


class GroupType(StrEnum):
    """The type of a group, by Kafka's names."""

    CLASSIC = "classic"
    CONSUMER = "consumer"
    SHARE = "share"
    STREAMS = "streams"


class Group(Protocol):
    """A group of any type, as the registry, the offsets and the admin requests use it."""

    group_id: str

    @property
    def type(self) -> GroupType:
        """The type; the same for all groups of a class."""

    @property
    def state_name(self) -> str:
        """Kafka's name of the state, as ListGroups gives it."""

    @property
    def protocol_type(self) -> str | None:
        """The embedded protocol, such as `consumer` or `connect`, or else the type; None for a
        simple group."""

    @property
    def is_empty(self) -> bool:
        """Whether the group has no member."""

    @property
    def expires(self) -> bool:
        """Whether the empty group is deleted when its last offset has expired."""

    def check_offset_commit(
        self,
        *,
        member_id: str,
        group_instance_id: str | None,
        generation_id_or_member_epoch: int,
        transactional: bool,
        api_version: int,
    ) -> CommitCheck | None:
        """Raise `ApiError` unless the member may commit. May return a check for each partition."""

    def on_offsets_committed(self, member_id: str, now_ms: int, deadlines: Deadlines) -> None:
        """A member has committed offsets, which may extend its session."""

    def check_offset_fetch(self, member_id: str | None, member_epoch: int) -> None:
        """Raise `ApiError` unless the member may read offsets."""

    def check_offset_delete(self) -> None:
        """Raise `ApiError` unless offsets may be deleted."""

    def check_delete(self) -> None:
        """Raise `ApiError` unless the group may be deleted."""

    def is_subscribed_to(self, topic: str) -> bool:
        """Whether a member subscribes to the topic, so that its offsets must not be deleted."""

    def compute_expiry_base_ms(self, commit_timestamp_ms: int) -> int | None:
        """When the retention of an offset starts; None while the group is in use."""

    def build_tombstones(self) -> Sequence[CoordinatorRecord]:
        """The tombstones that delete the group."""

    def get_hard_state(self) -> Any:
        """The persisted state, which a rebuilt group must equal; None if there is none."""


G = TypeVar("G", bound=Group)


class GroupRegistry:
    """Groups of every type by id."""

    def __init__(self) -> None:
        self._by_id: dict[str, Group] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def __contains__(self, group_id: str) -> bool:
        return group_id in self._by_id

    def __iter__(self) -> Iterator[Group]:
        return iter(self._by_id.values())

    def get(self, group_id: str) -> Group | None:
        return self._by_id.get(group_id)

    def find(self, group_id: str) -> Group:
        """The group. Raises GROUP_ID_NOT_FOUND."""
        group = self._by_id.get(group_id)
        if group is None:
            raise ApiError(ErrorCode.group_id_not_found, f"Group {group_id} not found.")
        return group

    def find_as(self, group_id: str, kind: type[G]) -> G:
        """The group if it is of that class. Raises GROUP_ID_NOT_FOUND."""
        group = self.find(group_id)
        if not isinstance(group, kind):
            # In a class with slots, only the dataclass description has the default of a field.
            type_field = getattr(kind, "__dataclass_fields__", {}).get("type")
            type_name = "such" if type_field is None else type_field.default
            raise ApiError(
                ErrorCode.group_id_not_found, f"Group {group_id} is not a {type_name} group."
            )
        return group

    def add(self, group: Group) -> None:
        self._by_id[group.group_id] = group

    def remove(self, group_id: str) -> None:
        self._by_id.pop(group_id, None)


@dataclass(slots=True)
class ResultDraft:
    """The records, replies and effects of a decision that is being made."""

    records: list[CoordinatorRecord] = field(default_factory=list)
    replies: list[Reply] = field(default_factory=list)
    effects: list[Any] = field(default_factory=list)

    def reply(self, token: Token, response: Mapping[str, Any]) -> None:
        self.replies.append(Reply(token, response))

    def add(self, result: CoordinatorResult) -> None:
        self.records.extend(result.records)
        self.replies.extend(result.replies)
        self.effects.extend(result.effects)

    def to_result(self) -> CoordinatorResult:
        return CoordinatorResult(self.records, self.replies, self.effects)


class ClassicBridge(Protocol):
    """Serves members of the classic protocol in consumer groups.

    Each method takes the same request as its namesake of `classic_membership.ClassicGroupManager`.
    """

    def join(self, request: Any, now_ms: int, token: Token) -> CoordinatorResult: ...

    def sync(self, request: Any, now_ms: int, token: Token) -> CoordinatorResult: ...

    def heartbeat(self, request: Any, now_ms: int, token: Token) -> CoordinatorResult: ...

    def leave(self, request: Any, now_ms: int, token: Token) -> CoordinatorResult: ...


@dataclass(slots=True)
class ShardContext:
    """The state that the kinds of one shard share."""

    settings: GroupSettings
    groups: GroupRegistry = field(default_factory=GroupRegistry)
    deadlines: Deadlines = field(default_factory=Deadlines)
    #: The cluster's metadata as of the last change.
    image: MetadataImage = field(default_factory=MetadataImage)
    #: Set by the consumer kind. Without one, a classic request to a consumer group is refused.
    bridge: ClassicBridge | None = None


class ShardComponent(Protocol):
    """One part of a shard: the groups of one type, or the offsets.

    `name` starts the keys of its deadlines. `replays` has the replay of each of its record types.
    """

    @property
    def name(self) -> str: ...

    @property
    def replays(self) -> Mapping[RecordType, Replay]: ...

    def on_loaded(self, now_ms: int) -> None:
        """Set the deadlines of the loaded state. The log has been replayed."""

    def on_deadline(self, key: Key, now_ms: int) -> CoordinatorResult:
        """Serve a deadline of this kind that has passed."""

    def on_metadata_changed(
        self, deleted: Sequence[tuple[str, UUID]], now_ms: int
    ) -> CoordinatorResult:
        """The context has a new image. `deleted` has the deleted topics, as (name, id)."""


def make_error_response(error: ErrorCode) -> responses.HeartbeatResponse:
    """A response of Heartbeat, or of another API that has only an error."""
    return {"error_code": error}
