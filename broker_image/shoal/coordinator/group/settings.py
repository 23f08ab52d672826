"""What an operator can set about groups: Kafka's broker properties, with Kafka's defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """Times in ms. `PROPERTIES` tells the property that each field stands for."""

    #: Bounds of the session timeout that a classic member may ask for.
    group_min_session_timeout_ms: int = 6_000
    group_max_session_timeout_ms: int = 1_800_000
    #: How long a group that was empty waits for more members before its first rebalance.
    group_initial_rebalance_delay_ms: int = 3_000
    #: Members of one classic group at most.
    group_max_size: int = 2**31 - 1
    #: Longest metadata string of a committed offset, in characters.
    offset_metadata_max_bytes: int = 4_096
    #: How long offsets outlive the last use of their group, and how often that is looked at.
    offsets_retention_minutes: int = 10_080
    offsets_retention_check_interval_ms: int = 600_000
    #: How long a write may wait for its replicas.
    offsets_commit_timeout_ms: int = 5_000
    #: Consumer groups (KIP-848): their size, server-side assignors with the default first, how
    #: often expressions are looked up again, and which moves between the protocols are allowed.
    group_consumer_max_size: int = 2**31 - 1
    group_consumer_assignors: tuple[str, ...] = ("uniform", "range")
    group_consumer_regex_refresh_interval_ms: int = 600_000
    group_consumer_migration_policy: str = "bidirectional"
    #: Share groups (KIP-932): their size, and when an unanswered initialization is asked again.
    group_share_max_size: int = 200
    group_share_initialize_retry_interval_ms: int = 30_000
    #: How long a share member may be without a connection before it counts as gone.
    shoal_group_share_connection_lost_grace_ms: int = 300
    #: Heartbeat interval where a death would leave a partition without a member.
    shoal_group_share_takeover_heartbeat_interval_ms: int = 400

    @property
    def offsets_retention_ms(self) -> int:
        return self.offsets_retention_minutes * 60_000

    @classmethod
    def of(cls, properties: Mapping[str, Any]) -> GroupSettings:
        """From broker properties; those that are missing keep Kafka's defaults."""
        given = ((f, properties.get(PROPERTIES[f.name])) for f in fields(cls))
        kinds = {f.name: type(getattr(cls(), f.name)) for f in fields(cls)}
        return cls(**{f.name: kinds[f.name](v) for f, v in given if v is not None})


PROPERTIES = {f.name: f.name.replace("_", ".") for f in fields(GroupSettings)}

#: A member that joins for the first time and then stays silent is kept for so long at the most,
#: whatever its session timeout: joining may take longer than a session. Kafka's own constant.
NEW_MEMBER_JOIN_TIMEOUT_MS = 300_000

#: Member ids of one group that were given out and not used yet; a client that asks for more and
#: more of them is refused.
PENDING_JOINS_MAX = 10_000
