"""What members of classic groups ask: JoinGroup, SyncGroup, Heartbeat and LeaveGroup."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple


class JoinRequest(NamedTuple):
    """JoinGroup v0-9. `new_member_id` is the id a new member gets, made up by the caller."""

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
        """KIP-394: a dynamic member is made known to itself before it counts."""
        return self.api_version >= 4 and self.group_instance_id is None


class SyncRequest(NamedTuple):
    """SyncGroup v0-5. `assignments` by member id; only the leader's are looked at."""

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


class Leaver(NamedTuple):
    """A member that leaves; an admin names static ones by instance id alone."""

    member_id: str
    group_instance_id: str | None = None
    reason: str | None = None


class LeaveRequest(NamedTuple):
    group_id: str
    members: Sequence[Leaver]
