"""The requests of members of classic groups: JoinGroup, SyncGroup, Heartbeat and LeaveGroup."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class JoinGroupRequest(NamedTuple):
    """JoinGroup v0-9. `new_member_id` is the id for a new member, which the caller creates."""

    group_id: str
    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    protocol_type: str
    protocols: dict[str, bytes]
    session_timeout_ms: int
    rebalance_timeout_ms: int
    new_member_id: str
    api_version: int = 9
    reason: str | None = None

    @property
    def member_id_required(self) -> bool:
        """Whether a dynamic member has to join again with its new member id (KIP-394)."""
        return self.api_version >= 4 and self.group_instance_id is None


class SyncGroupRequest(NamedTuple):
    """SyncGroup v0-5. `assignments` are by member id; only the leader sends them."""

    group_id: str
    generation_id: int
    member_id: str
    group_instance_id: str | None = None
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignments: Mapping[str, bytes] = {}


class HeartbeatRequest(NamedTuple):
    group_id: str
    generation_id: int
    member_id: str
    group_instance_id: str | None = None


class LeavingMember(NamedTuple):
    """A member that leaves. An admin client names a static member by its instance id only."""

    member_id: str
    group_instance_id: str | None = None
    reason: str | None = None


class LeaveGroupRequest(NamedTuple):
    group_id: str
    members: Sequence[LeavingMember]
