"""A group of the classic protocol: its state, and the table of legal moves.

Members join; when all have, or their time is up, one of them is told all subscriptions and deals
out the partitions; it hands the assignment in with its SyncGroup, and everybody's SyncGroup is
answered from it. The broker never looks inside, but for the topic names (KIP-496).

`committed` is hard state: what the group's last GroupMetadata record says, written when a
generation becomes stable, when the group becomes empty, and when a static member comes back.
Everything else is soft: a rebalance that is under way does not survive its coordinator, and its
members find that out by UNKNOWN_MEMBER_ID or ILLEGAL_GENERATION and join again.

Decisions are in `classic_membership` and `rebalance`. Sources: KIP-62 (rebalance timeout), KIP-345
(static members), KIP-394 (member id required), KIP-814 (static leaders skip the assignment).
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar, NamedTuple

from shoal.coordinator.contract import Record, Reply, Token
from shoal.coordinator.deadlines import Deadlines, Key
from shoal.coordinator.group.groups import CommitCheck, GroupType
from shoal.coordinator.group.records import RecordType, record, tombstone
from shoal.protocol.errors import ApiError, ErrorCode

CONSUMER_PROTOCOL = "consumer"


class State(StrEnum):
    """Kafka's names, as DescribeGroups and ListGroups give them."""

    #: No members. Stays while it has offsets, or has only ever had offsets.
    EMPTY = "Empty"
    #: Joins are parked until all members have joined or the rebalance timeout is over.
    PREPARING_REBALANCE = "PreparingRebalance"
    #: Joins are answered; syncs are parked until the leader has handed in the assignment.
    COMPLETING_REBALANCE = "CompletingRebalance"
    #: Every member may have its assignment.
    STABLE = "Stable"


MOVES: Mapping[State, tuple[State, ...]] = {
    State.EMPTY: (State.PREPARING_REBALANCE,),
    State.PREPARING_REBALANCE: (State.COMPLETING_REBALANCE, State.EMPTY),
    State.COMPLETING_REBALANCE: (State.STABLE, State.PREPARING_REBALANCE),
    State.STABLE: (State.PREPARING_REBALANCE,),
}


class MemberMetadata(NamedTuple):
    """A member as a GroupMetadata record has it: with the metadata of the selected protocol."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes
    assignment: bytes


class GroupMetadata(NamedTuple):
    """A GroupMetadata record's value."""

    protocol_type: str | None
    generation_id: int
    protocol_name: str | None
    leader: str | None
    state_timestamp_ms: int
    members: tuple[MemberMetadata, ...]

    def record(self, group_id: str) -> Record:
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
        return record(RecordType.GROUP_METADATA, {"group": group_id}, value)

    @classmethod
    def read(cls, value: Mapping[str, Any]) -> GroupMetadata:
        members = tuple(
            MemberMetadata(
                m["member_id"],
                m.get("group_instance_id"),
                m["client_id"],
                m["client_host"],
                # Version 0 knew no rebalance timeout: a member then has its session's time.
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
class Member:
    """A member of the live group. `protocols` are in the member's order of preference."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocols: dict[str, bytes]
    assignment: bytes = b""
    #: Has not got through its first rebalance yet.
    is_new: bool = False
    join_token: Token = None
    sync_token: Token = None

    def matches(self, protocols: Mapping[str, bytes]) -> bool:
        """Whether these are the member's protocols, in the same order."""
        return list(protocols.items()) == list(self.protocols.items())

    def metadata(self, protocol_name: str | None) -> bytes:
        return self.protocols.get(protocol_name or "", b"")


@dataclass(slots=True, eq=False)
class ClassicGroup:
    """The live group. Members keep the order in which they came, so elections are the same
    in every run."""

    group_id: str
    type: ClassVar[GroupType] = GroupType.CLASSIC
    state: State = State.EMPTY
    previous_state: State = State.EMPTY
    state_timestamp_ms: int = -1
    generation_id: int = 0
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader: str | None = None
    members: dict[str, Member] = field(default_factory=dict)
    static_members: dict[str, str] = field(default_factory=dict)
    #: Ids given out by MEMBER_ID_REQUIRED whose owners have not joined with them yet.
    pending_joins: dict[str, None] = field(default_factory=dict)
    #: Members that have their JoinGroup answer and have not sent SyncGroup since.
    pending_syncs: dict[str, None] = field(default_factory=dict)
    #: A member came while the group waited for its first rebalance.
    member_added: bool = False
    #: How much longer the first rebalance may be put off.
    initial_delay_left_ms: int = 0
    subscribed_topics: frozenset[str] | None = None
    committed: GroupMetadata | None = None
    _awaiting_join: int = 0
    _supporters: Counter[str] = field(default_factory=Counter)

    # What the registry asks of every group.

    @property
    def state_name(self) -> str:
        return self.state.value

    @property
    def is_empty(self) -> bool:
        return self.state is State.EMPTY

    @property
    def expires(self) -> bool:
        return not self.pending_joins

    def hard_state(self) -> GroupMetadata | None:
        return self.committed

    def check_offset_commit(
        self,
        *,
        member_id: str,
        group_instance_id: str | None,
        generation_id_or_member_epoch: int,
        transactional: bool,
        api_version: int,
    ) -> CommitCheck | None:
        generation_id = generation_id_or_member_epoch
        if generation_id < 0 and self.state is State.EMPTY:
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
        if not transactional and self.state is State.COMPLETING_REBALANCE:
            # The member knows the new generation: it will find its way without rejoining.
            raise ApiError(ErrorCode.rebalance_in_progress)
        return None

    def offsets_committed(self, member_id: str, now_ms: int, deadlines: Deadlines) -> None:
        """A commit counts as a heartbeat where a heartbeat would be answered."""
        member = self.members.get(member_id)
        if member is not None and self.state is not State.COMPLETING_REBALANCE:
            self.extend_session(member, now_ms, deadlines)

    def extend_session(self, member: Member, now_ms: int, deadlines: Deadlines) -> None:
        deadlines.set(self.session_key(member.member_id), now_ms + member.session_timeout_ms)

    def session_key(self, member_id: str) -> Key:
        return ("classic", "session", self.group_id, member_id)

    def check_offset_fetch(self, member_id: str | None, member_epoch: int) -> None:
        """Anybody may read a classic group's offsets."""

    def check_offset_delete(self) -> None:
        if self.state is not State.EMPTY and self.protocol_type != CONSUMER_PROTOCOL:
            raise self._not_empty()

    def check_delete(self) -> None:
        if self.state is not State.EMPTY:
            raise self._not_empty()

    def _not_empty(self) -> ApiError:
        return ApiError(ErrorCode.non_empty_group, f"Group {self.group_id} has members.")

    def subscribes_to(self, topic: str) -> bool:
        """A consumer group whose subscriptions cannot be read may subscribe to any topic."""
        if self.subscribed_topics is None:
            return self.protocol_type == CONSUMER_PROTOCOL
        return topic in self.subscribed_topics

    def offset_expiry_base_ms(self, commit_timestamp_ms: int) -> int | None:
        """KIP-211: since the group became empty, or since the commit where nobody can tell."""
        if self.protocol_type is None:
            return commit_timestamp_ms
        if self.state is State.EMPTY:
            known = self.state_timestamp_ms >= 0
            return self.state_timestamp_ms if known else commit_timestamp_ms
        knows_topics = self.subscribed_topics is not None
        if self.state is State.STABLE and knows_topics:
            return commit_timestamp_ms
        return None

    def tombstones(self) -> Sequence[Record]:
        return (tombstone(RecordType.GROUP_METADATA, group=self.group_id),)

    # Moves.

    def move(self, state: State, now_ms: int) -> None:
        assert state in MOVES[self.state], f"{self.group_id}: {self.state} -> {state}"
        self.previous_state, self.state = self.state, state
        self.state_timestamp_ms = now_ms

    @property
    def can_rebalance(self) -> bool:
        return State.PREPARING_REBALANCE in MOVES[self.state]

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

    def add(self, member: Member, protocol_type: str) -> None:
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

    def remove(self, member_id: str) -> Member | None:
        """Take a member out; the next in line leads if it was the leader."""
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
        member: Member,
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
        """The owner of an instance id has come back: it takes over under a new member id.

        Gives the answers that fence whoever still waits under the old one.
        """
        fenced = []
        old = self.members[old_member_id]
        join_token = self.take_join(old)
        if join_token is not None:
            fenced.append(
                Reply(join_token, refused_join(old_member_id, ErrorCode.fenced_instance_id))
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
                raise self._unknown(member_id)
        if member_id not in self.members:
            raise self._unknown(member_id)

    def _unknown(self, member_id: str) -> ApiError:
        return ApiError(
            ErrorCode.unknown_member_id, f"Group {self.group_id} has no member {member_id}."
        )

    def park_join(self, member: Member, token: Token) -> Token:
        """The member waits for the rebalance. Gives the token of an earlier wait, if any."""
        earlier = member.join_token
        if earlier is None:
            self._awaiting_join += 1
        member.join_token = token
        return earlier

    def take_join(self, member: Member) -> Token:
        """The parked token, which waits no more; None when none was parked."""
        token = member.join_token
        if token is not None:
            self._awaiting_join -= 1
            member.join_token = None
        return token

    # Protocols.

    def supports(self, protocol_type: str, protocols: Mapping[str, bytes]) -> bool:
        """Whether a member with these protocols fits in: one of them must suit every member."""
        if self.state is State.EMPTY:
            return bool(protocol_type) and bool(protocols)
        everybody = len(self.members)
        return self.protocol_type == protocol_type and any(
            self._supporters[name] == everybody for name in protocols
        )

    def select_protocol(self) -> str:
        """Every member votes for the one it likes best of those that suit all; ties go to the
        protocol that was voted for first."""
        everybody = len(self.members)
        votes: Counter[str] = Counter()
        for member in self.members.values():
            votes[next(n for n in member.protocols if self._supporters[n] == everybody)] += 1
        return max(votes, key=lambda name: votes[name])

    def compute_subscribed_topics(self) -> frozenset[str] | None:
        """The topics that the members subscribe to; None where that cannot be told."""
        if self.protocol_type != CONSUMER_PROTOCOL:
            return None
        if not self.members:
            return frozenset()
        if self.protocol_name is None:
            return None
        topics: set[str] = set()
        for member in self.members.values():
            try:
                topics.update(read_subscribed_topics(member.metadata(self.protocol_name)))
            except (struct.error, UnicodeDecodeError, ValueError):
                return None
        return frozenset(topics)

    # Hard state.

    def snapshot(
        self, now_ms: int, assignments: Mapping[str, bytes] | None = None
    ) -> GroupMetadata:
        """The group as a record; `assignments` by member id replace those that members have."""
        members = tuple(
            MemberMetadata(
                m.member_id,
                m.group_instance_id,
                m.client_id,
                m.client_host,
                m.rebalance_timeout_ms,
                m.session_timeout_ms,
                m.metadata(self.protocol_name),
                m.assignment if assignments is None else assignments.get(m.member_id, b""),
            )
            for m in self.members.values()
        )
        return GroupMetadata(
            self.protocol_type,
            self.generation_id,
            self.protocol_name,
            self.leader,
            now_ms,
            members,
        )

    def adopt(self, data: GroupMetadata) -> None:
        """A record of this live group has been replayed: take the step that it stands for."""
        self.committed = data
        if self.state is State.COMPLETING_REBALANCE:
            assert data.generation_id == self.generation_id
            self.move(State.STABLE, data.state_timestamp_ms)
        elif not self.members:
            self.restore(data)
        if self.state is State.STABLE:
            for m in data.members:
                self.members[m.member_id].assignment = m.assignment

    def restore(self, data: GroupMetadata) -> None:
        """Become what the record says, whatever was there before."""
        self.committed = data
        self.state = State.STABLE if data.members else State.EMPTY
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
            self.add(Member(*m[:6], protocols, m.assignment), data.protocol_type or "")
        self.protocol_type = data.protocol_type
        self.leader = data.leader
        self.subscribed_topics = self.compute_subscribed_topics()


def refused_join(member_id: str, error: ErrorCode) -> Mapping[str, Any]:
    """The JoinGroup response of an error."""
    return {"error_code": error, "member_id": member_id, "generation_id": -1}


def read_subscribed_topics(metadata: bytes) -> list[str]:
    """The topics of a ConsumerProtocolSubscription. Version 0 starts all versions of it, so that
    no newer one needs to be known. Raises `ValueError` or `struct.error` for other bytes."""
    (count,) = struct.unpack_from(">i", metadata, 2)
    if count > len(metadata):
        raise ValueError(f"{count} topics in {len(metadata)} bytes")
    topics, at = [], 6
    for _ in range(count):
        (size,) = struct.unpack_from(">h", metadata, at)
        at += 2
        if size < 0 or at + size > len(metadata):
            raise ValueError("a topic name past the end")
        topics.append(metadata[at : at + size].decode())
        at += size
    return topics
