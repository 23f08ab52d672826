"""A group of the classic protocol: its state, and the table of legal moves.

Members join. When all have joined, or the rebalance timeout has passed, the response to one of
them, the leader, has all subscriptions. The leader assigns the partitions, and sends the assignment
with its SyncGroup. All SyncGroup responses are made from it. The broker reads only the topic names
(KIP-496).

`committed` is hard state: the value of the group's last GroupMetadata record. It is written when a
generation becomes stable, when the group becomes empty, and when a static member rejoins. All other
state is soft. A rebalance is lost with its coordinator. Its members then get UNKNOWN_MEMBER_ID or
ILLEGAL_GENERATION, and join again.

Decisions are in `classic_membership` and `rebalance`. Sources: KIP-62 (rebalance timeout), KIP-345
(static members), KIP-394 (member id required), KIP-814 (static leaders skip the assignment).
"""

from __future__ import annotations

import struct
from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from shoal.coordinator.contract import CoordinatorRecord, Reply, Token
from shoal.coordinator.group.groups import CommitCheck, GroupType
from shoal.coordinator.group.records import RecordType, encode_record, encode_tombstone
from shoal.protocol.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from shoal.coordinator.deadlines import Deadlines, Key
    from shoal.protocol.responses import groups as responses

CONSUMER_PROTOCOL = "consumer"


class ClassicGroupState(StrEnum):
    """Kafka's names, as DescribeGroups and ListGroups give them."""

    #: The group has no members. It remains while it has offsets.
    EMPTY = "Empty"
    #: Joins are parked until all members have joined or the rebalance timeout has passed.
    PREPARING_REBALANCE = "PreparingRebalance"
    #: Joins are answered. Syncs are parked until the leader has sent the assignment.
    COMPLETING_REBALANCE = "CompletingRebalance"
    #: Every member can get its assignment.
    STABLE = "Stable"


MOVES: Mapping[ClassicGroupState, tuple[ClassicGroupState, ...]] = {
    ClassicGroupState.EMPTY: (ClassicGroupState.PREPARING_REBALANCE,),
    ClassicGroupState.PREPARING_REBALANCE: (
        ClassicGroupState.COMPLETING_REBALANCE,
        ClassicGroupState.EMPTY,
    ),
    ClassicGroupState.COMPLETING_REBALANCE: (
        ClassicGroupState.STABLE,
        ClassicGroupState.PREPARING_REBALANCE,
    ),
    ClassicGroupState.STABLE: (ClassicGroupState.PREPARING_REBALANCE,),
}


class MemberMetadata(NamedTuple):
    """A member of a GroupMetadata record, with the metadata of the selected protocol."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes
    assignment: bytes


class GroupMetadataValue(NamedTuple):
    """A GroupMetadata record's value."""

    protocol_type: str | None
    generation_id: int
    protocol_name: str | None
    leader: str | None
    state_timestamp_ms: int
    members: tuple[MemberMetadata, ...]

    def to_record(self, group_id: str) -> CoordinatorRecord:
        members = [
            {
                "member_id": m.member_id,
                "group_instance_id": m.group_instance_id,
                "client_id": m.client_id,
                "client_host": m.client_host,
                "rebalance_timeout": m.rebalance_timeout_ms,
                "session_timeout": m.session_timeout_ms,
                "subscription": m.subscription,
                "assignment": m.assignment,
            }
            for m in self.members
        ]
        value = {
            "protocol_type": self.protocol_type or "",
            "generation": self.generation_id,
            "protocol": self.protocol_name,
            "leader": self.leader,
            "current_state_timestamp": self.state_timestamp_ms,
            "members": members,
        }
        return encode_record(RecordType.GROUP_METADATA, {"group": group_id}, value)

    @classmethod
    def from_value(cls, value: Mapping[str, Any]) -> GroupMetadataValue:
        members = tuple(
            MemberMetadata(
                m["member_id"],
                m.get("group_instance_id"),
                m["client_id"],
                m["client_host"],
                # Version 0 has no rebalance timeout: the session timeout takes its place.
                m["session_timeout"]
                if m.get("rebalance_timeout", -1) < 0
                else m["rebalance_timeout"],
                m["session_timeout"],
                m["subscription"],
                m["assignment"],
            )
            for m in value["members"]
        )
        return cls(
            value["protocol_type"] or None,
            value["generation"],
            value["protocol"],
            value["leader"],
            value.get("current_state_timestamp", -1),
            members,
        )


@dataclass(slots=True, eq=False)
class ClassicGroupMember:
    """A member of the live group. `protocols` are in the member's order of preference."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocols: dict[str, bytes]
    assignment: bytes = b""
    #: The member has not completed its first rebalance.
    is_new: bool = False
    join_token: Token = None
    sync_token: Token = None

    def has_same_protocols(self, protocols: Mapping[str, bytes]) -> bool:
        """Whether the member has the same protocols, in the same order."""
        return list(protocols.items()) == list(self.protocols.items())

    def get_metadata(self, protocol_name: str | None) -> bytes:
        return self.protocols.get(protocol_name or "", b"")


@dataclass(slots=True, eq=False)
class ClassicGroup:
    """The live group. Members keep the order in which they joined, so that elections are
    deterministic."""

    group_id: str
    type: ClassVar[GroupType] = GroupType.CLASSIC
    state: ClassicGroupState = ClassicGroupState.EMPTY
    previous_state: ClassicGroupState = ClassicGroupState.EMPTY
    state_timestamp_ms: int = -1
    generation_id: int = 0
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader: str | None = None
    members: dict[str, ClassicGroupMember] = field(default_factory=dict)
    static_members: dict[str, str] = field(default_factory=dict)
    #: Ids that MEMBER_ID_REQUIRED assigned and with which no member has joined yet.
    pending_joins: dict[str, None] = field(default_factory=dict)
    #: Members with a JoinGroup response that have not sent SyncGroup since.
    pending_syncs: dict[str, None] = field(default_factory=dict)
    #: A member joined while the first rebalance was delayed.
    member_added: bool = False
    #: How much longer the first rebalance may be delayed.
    initial_delay_left_ms: int = 0
    subscribed_topics: frozenset[str] | None = None
    committed: GroupMetadataValue | None = None
    _awaiting_join: int = 0
    _supporters: Counter[str] = field(default_factory=Counter)

    # The interface of every group.

    @property
    def state_name(self) -> str:
        return self.state.value

    @property
    def is_empty(self) -> bool:
        return self.state is ClassicGroupState.EMPTY

    @property
    def expires(self) -> bool:
        return not self.pending_joins

    def get_hard_state(self) -> GroupMetadataValue | None:
        return self.committed

    def check_offset_commit(
        self,
        *,
        member_id: str,
        group_instance_id: str | None,
        generation_id_or_member_epoch: int,
        transactional: bool,
        api_version: int,  # noqa: ARG002 - `Group.check_offset_commit` passes it by name.
    ) -> CommitCheck | None:
        generation_id = generation_id_or_member_epoch
        if generation_id < 0 and self.state is ClassicGroupState.EMPTY:
            return None  # An admin client, or a consumer that manages its partitions itself.
        if generation_id >= 0 or member_id or group_instance_id is not None:
            self.check_member(member_id, group_instance_id)
            if generation_id != self.generation_id:
                raise ApiError(
                    ErrorCode.illegal_generation,
                    f"Group {self.group_id} is at generation {self.generation_id}, "
                    f"not {generation_id}.",
                )
        elif not transactional:
            raise ApiError(
                ErrorCode.unknown_member_id,
                f"Group {self.group_id} has members, so only they may commit.",
            )
        if not transactional and self.state is ClassicGroupState.COMPLETING_REBALANCE:
            # The member has the new generation, and needs not rejoin.
            raise ApiError(ErrorCode.rebalance_in_progress)
        return None

    def on_offsets_committed(self, member_id: str, now_ms: int, deadlines: Deadlines) -> None:
        """A commit extends the session, as a heartbeat does."""
        member = self.members.get(member_id)
        if member is not None and self.state is not ClassicGroupState.COMPLETING_REBALANCE:
            self.extend_session(member, now_ms, deadlines)

    def extend_session(self, member: ClassicGroupMember, now_ms: int, deadlines: Deadlines) -> None:
        deadlines.set(self.make_session_key(member.member_id), now_ms + member.session_timeout_ms)

    def make_session_key(self, member_id: str) -> Key:
        return ("classic", "session", self.group_id, member_id)

    def check_offset_fetch(self, member_id: str | None, member_epoch: int) -> None:
        """Allow every client to read the offsets of a classic group."""

    def check_offset_delete(self) -> None:
        if self.state is not ClassicGroupState.EMPTY and self.protocol_type != CONSUMER_PROTOCOL:
            raise self._make_non_empty_error()

    def check_delete(self) -> None:
        if self.state is not ClassicGroupState.EMPTY:
            raise self._make_non_empty_error()

    def _make_non_empty_error(self) -> ApiError:
        return ApiError(ErrorCode.non_empty_group, f"Group {self.group_id} has members.")

    def is_subscribed_to(self, topic: str) -> bool:
        """A consumer group whose subscriptions cannot be read may subscribe to any topic."""
        if self.subscribed_topics is None:
            return self.protocol_type == CONSUMER_PROTOCOL
        return topic in self.subscribed_topics

    def compute_expiry_base_ms(self, commit_timestamp_ms: int) -> int | None:
        """KIP-211: when the group became empty, or the time of the commit if that is unknown."""
        if self.protocol_type is None:
            return commit_timestamp_ms
        if self.state is ClassicGroupState.EMPTY:
            has_timestamp = self.state_timestamp_ms >= 0
            return self.state_timestamp_ms if has_timestamp else commit_timestamp_ms
        knows_topics = self.subscribed_topics is not None
        if self.state is ClassicGroupState.STABLE and knows_topics:
            return commit_timestamp_ms
        return None

    def build_tombstones(self) -> Sequence[CoordinatorRecord]:
        return (encode_tombstone(RecordType.GROUP_METADATA, group=self.group_id),)

    # Moves.

    def move(self, state: ClassicGroupState, now_ms: int) -> None:
        assert state in MOVES[self.state], f"{self.group_id}: {self.state} -> {state}"
        self.previous_state, self.state = self.state, state
        self.state_timestamp_ms = now_ms

    @property
    def can_rebalance(self) -> bool:
        return ClassicGroupState.PREPARING_REBALANCE in MOVES[self.state]

    # Members.

    @property
    def all_joined(self) -> bool:
        return len(self.members) == self._awaiting_join and not self.pending_joins

    @property
    def awaiting_join_count(self) -> int:
        return self._awaiting_join

    @property
    def rebalance_timeout_ms(self) -> int:
        return max((m.rebalance_timeout_ms for m in self.members.values()), default=0)

    def add(self, member: ClassicGroupMember, protocol_type: str) -> None:
        if not self.members:
            self.protocol_type = protocol_type
        assert protocol_type == self.protocol_type
        if member.group_instance_id is not None:
            self.static_members[member.group_instance_id] = member.member_id
        if self.leader is None:
            self.leader = member.member_id
        self.members[member.member_id] = member
        self._supporters.update(member.protocols.keys())
        self.pending_joins.pop(member.member_id, None)

    def remove(self, member_id: str) -> ClassicGroupMember | None:
        """Remove a member. If it was the leader, the next member becomes the leader."""
        self.pending_joins.pop(member_id, None)
        self.pending_syncs.pop(member_id, None)
        member = self.members.pop(member_id, None)
        if member is None:
            return None
        self._supporters.subtract(member.protocols.keys())
        if member.join_token is not None:
            self._awaiting_join -= 1
        if member.group_instance_id is not None:
            self.static_members.pop(member.group_instance_id, None)
        if self.leader == member_id:
            self.leader = next(iter(self.members), None)
        return member

    def update(
        self,
        member: ClassicGroupMember,
        protocols: dict[str, bytes],
        rebalance_timeout_ms: int,
        session_timeout_ms: int,
    ) -> None:
        self._supporters.subtract(member.protocols.keys())
        member.protocols = protocols
        self._supporters.update(protocols.keys())
        member.rebalance_timeout_ms = rebalance_timeout_ms
        member.session_timeout_ms = session_timeout_ms

    def replace_static(self, old_member_id: str, new_member_id: str) -> list[Reply]:
        """Replace the member id of a static member that rejoins.

        Returns the replies that fence requests parked under the old member id.
        """
        fenced = []
        old = self.members[old_member_id]
        join_token = self.take_join(old)
        if join_token is not None:
            fenced.append(
                Reply(join_token, build_join_error(old_member_id, ErrorCode.fenced_instance_id))
            )
        if old.sync_token is not None:
            fenced.append(Reply(old.sync_token, {"error_code": ErrorCode.fenced_instance_id}))
            old.sync_token = None
        self.pending_syncs.pop(old_member_id, None)
        old.member_id = new_member_id
        self.members = {m.member_id: m for m in self.members.values()}
        if self.leader == old_member_id:
            self.leader = new_member_id
        assert old.group_instance_id is not None
        self.static_members[old.group_instance_id] = new_member_id
        return fenced

    def check_member(self, member_id: str, group_instance_id: str | None) -> None:
        """Raise UNKNOWN_MEMBER_ID, or FENCED_INSTANCE_ID for a static member that was replaced."""
        if group_instance_id is not None:
            owner = self.static_members.get(group_instance_id)
            if owner is not None and owner != member_id:
                raise ApiError(
                    ErrorCode.fenced_instance_id,
                    f"Another member has taken over instance id {group_instance_id}.",
                )
            if owner is None:
                raise self._make_unknown_member_error(member_id)
        if member_id not in self.members:
            raise self._make_unknown_member_error(member_id)

    def _make_unknown_member_error(self, member_id: str) -> ApiError:
        return ApiError(
            ErrorCode.unknown_member_id, f"Group {self.group_id} has no member {member_id}."
        )

    def park_join(self, member: ClassicGroupMember, token: Token) -> Token:
        """Park the member's join until the rebalance. Returns the token of a parked join, if
        any."""
        earlier = member.join_token
        if earlier is None:
            self._awaiting_join += 1
        member.join_token = token
        return earlier

    def take_join(self, member: ClassicGroupMember) -> Token:
        """Remove and return the parked token of a member; None without one."""
        token = member.join_token
        if token is not None:
            self._awaiting_join -= 1
            member.join_token = None
        return token

    # Protocols.

    def has_common_protocol(self, protocol_type: str, protocols: Mapping[str, bytes]) -> bool:
        """Whether all members support one of these protocols."""
        if self.state is ClassicGroupState.EMPTY:
            return bool(protocol_type) and bool(protocols)
        everybody = len(self.members)
        return self.protocol_type == protocol_type and any(
            self._supporters[name] == everybody for name in protocols
        )

    def select_protocol(self) -> str:
        """Select the protocol with the most votes. Each member votes for its first protocol that
        all members support. The first protocol with a vote wins a tie."""
        everybody = len(self.members)
        votes: Counter[str] = Counter()
        for member in self.members.values():
            votes[next(n for n in member.protocols if self._supporters[n] == everybody)] += 1
        return max(votes, key=lambda name: votes[name])

    def compute_subscribed_topics(self) -> frozenset[str] | None:
        """The topics that the members subscribe to; None if a subscription cannot be read."""
        if self.protocol_type != CONSUMER_PROTOCOL:
            return None
        if not self.members:
            return frozenset()
        if self.protocol_name is None:
            return None
        topics: set[str] = set()
        for member in self.members.values():
            try:
                topics.update(read_subscribed_topics(member.get_metadata(self.protocol_name)))
            except (struct.error, UnicodeDecodeError, ValueError):
                return None
        return frozenset(topics)

    # Hard state.

    def snapshot(
        self, now_ms: int, assignments: Mapping[str, bytes] | None = None
    ) -> GroupMetadataValue:
        """The group's record. `assignments` by member id replace those of the members."""
        members = tuple(
            MemberMetadata(
                m.member_id,
                m.group_instance_id,
                m.client_id,
                m.client_host,
                m.rebalance_timeout_ms,
                m.session_timeout_ms,
                m.get_metadata(self.protocol_name),
                m.assignment if assignments is None else assignments.get(m.member_id, b""),
            )
            for m in self.members.values()
        )
        return GroupMetadataValue(
            self.protocol_type,
            self.generation_id,
            self.protocol_name,
            self.leader,
            now_ms,
            members,
        )

    def adopt(self, data: GroupMetadataValue) -> None:
        """Apply a replayed record that this live group has written."""
        self.committed = data
        if self.state is ClassicGroupState.COMPLETING_REBALANCE:
            assert data.generation_id == self.generation_id
            self.move(ClassicGroupState.STABLE, data.state_timestamp_ms)
        elif not self.members:
            self.restore(data)
        if self.state is ClassicGroupState.STABLE:
            for m in data.members:
                self.members[m.member_id].assignment = m.assignment

    def restore(self, data: GroupMetadataValue) -> None:
        """Load the state of a record, in place of all state."""
        self.committed = data
        self.state = ClassicGroupState.STABLE if data.members else ClassicGroupState.EMPTY
        self.previous_state = self.state
        self.state_timestamp_ms = data.state_timestamp_ms
        self.generation_id = data.generation_id
        self.protocol_name = data.protocol_name
        self.leader = None
        self.members, self.static_members = {}, {}
        self.pending_syncs = {}
        self._awaiting_join, self._supporters = 0, Counter()
        for m in data.members:
            protocols = {data.protocol_name or "": m.subscription}
            self.add(ClassicGroupMember(*m[:6], protocols, m.assignment), data.protocol_type or "")
        self.protocol_type = data.protocol_type
        self.leader = data.leader
        self.subscribed_topics = self.compute_subscribed_topics()


def build_join_error(member_id: str, error: ErrorCode) -> responses.JoinGroupResponse:
    """A JoinGroup response with an error."""
    return {"error_code": error, "member_id": member_id, "generation_id": -1}


def read_subscribed_topics(metadata: bytes) -> list[str]:
    """The topics of a ConsumerProtocolSubscription of any version: each version starts with the
    fields of version 0. Raises `ValueError` or `struct.error` for other bytes."""
    (count,) = struct.unpack_from(">i", metadata, 2)
    if count > len(metadata):
        raise ValueError(f"{count} topics in {len(metadata)} bytes")
    topics, position = [], 6
    for _ in range(count):
        (size,) = struct.unpack_from(">h", metadata, position)
        position += 2
        if size < 0 or position + size > len(metadata):
            raise ValueError("a topic name past the end")
        topics.append(metadata[position : position + size].decode())
        position += size
    return topics
