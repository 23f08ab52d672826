"""The broker configs of groups, with Kafka's names and defaults."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """Times are in ms. `PROPERTIES` has the config of each field."""

    #: Bounds of the session timeout of a classic member.
    group_min_session_timeout_ms: int = 6_000
    group_max_session_timeout_ms: int = 1_800_000
    #: How long an empty group waits for more members before its first rebalance.
    group_initial_rebalance_delay_ms: int = 3_000
    #: The most members of a classic group.
    group_max_size: int = 2**31 - 1
    #: The longest metadata of a committed offset, in characters.
    offset_metadata_max_bytes: int = 4_096
    #: How long offsets are kept after the last use of their group, and how often that is checked.
    offsets_retention_minutes: int = 10_080
    offsets_retention_check_interval_ms: int = 600_000
    #: How long a write may wait for its replicas.
    offsets_commit_timeout_ms: int = 5_000
    #: Consumer groups (KIP-848): their size, the server-side assignors with the default first, how
    #: often regular expressions are evaluated, and which migrations are allowed.
    group_consumer_max_size: int = 2**31 - 1
    group_consumer_assignors: tuple[str, ...] = ("uniform", "range")
    group_consumer_regex_refresh_interval_ms: int = 600_000
    group_consumer_migration_policy: str = "bidirectional"
    #: Individual commit: whether it is on, and the most ranges of finished offsets of a partition
    #: and of a request.
    shoal_group_consumer_individual_commit_enable: bool = True
    shoal_group_consumer_individual_commit_max_ranges: int = 10_000
    #: Whether partitions may be split among members by key ranges.
    shoal_group_consumer_key_ranges_enable: bool = True
    #: How long the load of key ranges is measured before the boundaries may follow it, or 0 if they
    #: never do.
    shoal_group_consumer_key_ranges_balance_interval_ms: int = 10_000
    #: How long a member that may share partitions may be without a connection before it is fenced,
    #: or 0 for as long as its session.
    shoal_group_consumer_connection_lost_grace_ms: int = 300
    #: The heartbeat interval of members that may share partitions, or 0 for that of their group.
    shoal_group_consumer_takeover_heartbeat_interval_ms: int = 300
    #: Share groups (KIP-932): their size, their assignors, of which the first is used, and when an
    #: unanswered initialization is repeated.
    group_share_max_size: int = 200
    group_share_assignors: tuple[str, ...] = ("leader",)
    group_share_initialize_retry_interval_ms: int = 30_000
    #: The most members of a streams group (KIP-1071).
    group_streams_max_size: int = 2**31 - 1
    #: How long after its heartbeat interval a streams member without a connection is fenced, or 0
    #: for never.
    shoal_group_streams_connection_lost_grace_ms: int = 2_000
    #: How long a share member may be without a connection before it is fenced.
    shoal_group_share_connection_lost_grace_ms: int = 300
    #: The heartbeat interval of a group with a partition that has only one member.
    shoal_group_share_takeover_heartbeat_interval_ms: int = 400

    @property
    def offsets_retention_ms(self) -> int:
        return self.offsets_retention_minutes * 60_000

    @classmethod
    def from_properties(cls, properties: Mapping[str, Any]) -> GroupSettings:
        """Read the broker configs. Missing ones have Kafka's defaults."""
        values = ((f, properties.get(PROPERTIES[f.name])) for f in fields(cls))
        kinds = {f.name: type(getattr(cls(), f.name)) for f in fields(cls)}
        return cls(**{f.name: kinds[f.name](v) for f, v in values if v is not None})


PROPERTIES = {f.name: f.name.replace("_", ".") for f in fields(GroupSettings)}

#: How long a new member may take to join, whatever its session timeout: joining may take longer
#: than a session. Kafka's constant.
NEW_MEMBER_JOIN_TIMEOUT_MS = 300_000

#: The most unused member ids of one group. It bounds clients that request new ids repeatedly.
PENDING_JOINS_MAX = 10_000
