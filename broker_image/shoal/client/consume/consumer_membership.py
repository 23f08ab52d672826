"""The heartbeats of a consumer-group member (KIP-848), and the assignment that they bring."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, ClassVar
from uuid import UUID

from shoal.client.admin.configs import ConfigResource, ConfigResourceType, Configs
from shoal.client.consume.key_loads import KeyLoads
from shoal.client.errors import ClientError, KafkaError
from shoal.client.net.membership import Assignment, Membership
from shoal.protocol.api import ApiKey
from shoal.protocol.errors import ErrorCode
from shoal.protocol.features import (
    COMMIT_ORDER_FEATURE,
    GROUP_KEY_RANGES_FEATURE,
    INDIVIDUAL_COMMIT_FEATURE,
    KEY_HASH_VERSION,
)
from shoal.record.key_ranges import KeyRanges

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shoal.client.net.cluster import Cluster
    from shoal.client.net.connection import Connection

_log = logging.getLogger(__name__)
#: The config of topics whose partitions several members may share.
_TOPIC_SWITCH = "shoal.key.ranges.enable"
#: Milliseconds that a member may take to give up partitions.
REBALANCE_TIMEOUT_MS = 60_000
#: What a coordinator offers with a feature, and the broker config that switches it on.
_OFFERED = {
    INDIVIDUAL_COMMIT_FEATURE: (
        "individual commits",
        "shoal.group.consumer.individual.commit.enable",
    ),
    COMMIT_ORDER_FEATURE: (
        "commits in the order of a partition",
        "shoal.group.consumer.key.ranges.enable",
    ),
}
#: Key ranges by topic id and partition.
KeyRangesOfPartitions = dict[tuple[UUID, int], KeyRanges]


def can_assign_key_ranges(link: Connection) -> bool:
    """Whether a coordinator assigns key ranges, with the hash of this client."""
    return KEY_HASH_VERSION in link.features.get(GROUP_KEY_RANGES_FEATURE, ())


class ConsumerMembership(Membership):
    """The heartbeat of a consumer-group member, which reports owned partitions that changed.

    `lost` is set when the member was fenced. Its positions belong to other members then and must
    not be committed.
    """

    api_key: ClassVar[ApiKey] = ApiKey.CONSUMER_GROUP_HEARTBEAT

    def __init__(
        self, cluster: Cluster, group: str, topics: Sequence[str], *, shares: bool = False
    ) -> None:
        """With `shares` the member may get key ranges of partitions."""
        super().__init__(cluster, group)
        self.owned: Assignment = {}
        self.key_ranges: KeyRangesOfPartitions = {}
        self.owned_key_ranges: KeyRangesOfPartitions = {}
        self._shares = shares
        self._topics = sorted(topics)
        self._reported: tuple[Assignment, KeyRangesOfPartitions] | None = None
        #: The last received assignment, with its member epoch.
        self._last_confirmed: tuple[Assignment, KeyRangesOfPartitions, int] | None = None
        self.lost = False
        #: What it got of the key ranges that it was assigned.
        self.loads = KeyLoads(cluster.now, cluster.environment.random.randrange)

    @property
    def is_reconciled(self) -> bool:
        """Whether the member owns what it is assigned."""
        return (self.owned, self.owned_key_ranges) == (self.assignment, self.key_ranges)

    @property
    def _has_partitions(self) -> bool:
        return bool(self.assignment or self.key_ranges)

    def _read(self, assignment: Any) -> Assignment:
        key_ranges = {
            (entry.topic_id, entry.partition): KeyRanges(
                (r.first_hash, r.last_hash) for r in entry.ranges
            )
            for entry in getattr(assignment, "key_ranges", ())
        }
        self._set_key_ranges(key_ranges)
        return super()._read(assignment)

    def _set_key_ranges(self, key_ranges: KeyRangesOfPartitions) -> None:
        if key_ranges != self.key_ranges:
            self.key_ranges = key_ranges
            self._changed.set()

    def _on_assigned(self, assignment: Assignment) -> None:
        """Report the assignment even if nothing changed here: the coordinator waits for that
        report. It may have sent and withdrawn another assignment in between. Each assignment is
        reported once, because some brokers answer a report with the assignment.
        """
        super()._on_assigned(assignment)
        current = self.assignment, self.key_ranges, self.member_epoch
        if current != self._last_confirmed and self.is_reconciled:
            self._reported = None
            self.hurry()
        self._last_confirmed = current

    def _on_fenced(self) -> None:
        super()._on_fenced()
        self.owned = {}
        self.key_ranges = {}
        self.owned_key_ranges = {}
        self.loads.clear()
        self.lost = True

    async def _beat(self) -> None:
        try:
            if self._shares:
                await self._check_coordinator()
            await super()._beat()
        except ClientError:
            self._reported = None
            raise

    async def _check_coordinator(self) -> None:
        """Send the next heartbeat at once if this connection closes: the coordinator soon gives the
        key ranges of a member without a connection to others.

        Give up key ranges if the coordinator is an older broker, which gives them to others as
        whole partitions.
        """
        node = await self.cluster.find_coordinator(self.group)
        link = await self.cluster.get_connection(node, "coordinator")
        link.on_close.add(self.hurry)
        if self.key_ranges and not can_assign_key_ranges(link):
            self._set_key_ranges({})

    async def check_key_ranges(self) -> None:
        """Raise UNSUPPORTED_VERSION if the coordinator does not assign key ranges."""
        node = await self.cluster.find_coordinator(self.group)
        if not can_assign_key_ranges(await self.cluster.get_connection(node, "coordinator")):
            raise KafkaError(
                ErrorCode.unsupported_version,
                f"broker {node}, the coordinator of group {self.group!r}, does not assign key "
                f"ranges with hashes of version {KEY_HASH_VERSION}; upgrade it, or set "
                "shoal.group.consumer.key.ranges.enable=true on it",
            )

        await self._warn_of_whole_topics()

    async def _warn_of_whole_topics(self) -> None:
        """Log which topics are not shared by key ranges, so that some members may get nothing."""
        resources = [ConfigResource(ConfigResourceType.TOPIC, topic) for topic in self._topics]
        try:
            descriptions = await Configs(self.cluster).describe(resources, keys=[_TOPIC_SWITCH])
        except ClientError:
            return  # A user who may not see configs may still consume.
        for resource, entries in descriptions.items():
            if isinstance(entries, KafkaError) or _TOPIC_SWITCH not in entries:
                continue
            if entries[_TOPIC_SWITCH].value != "true":
                _log.warning(
                    "group %s: topic %s does not allow key ranges, so each of its partitions goes"
                    " to one member as a whole. To share them, set %s=true:"
                    " `shoal configs set topic %s %s=true`.",
                    self.group,
                    resource.name,
                    _TOPIC_SWITCH,
                    resource.name,
                    _TOPIC_SWITCH,
                )

    async def check_offered(self, feature: str) -> None:
        """Raise UNSUPPORTED_VERSION if the coordinator lacks a feature."""
        node = await self.cluster.find_coordinator(self.group)
        link = await self.cluster.get_connection(node, "coordinator")
        if feature not in link.features:
            name, switch = _OFFERED[feature]
            raise KafkaError(
                ErrorCode.unsupported_version,
                f"broker {node}, the coordinator of group {self.group!r}, does not offer {name}; "
                f"upgrade it, or set {switch}=true on it",
            )

    def _make_body(self, *, is_full: bool) -> dict[str, Any]:
        owned, shared = None, []
        if is_full or self._reported != (self.owned, self.owned_key_ranges):
            owned = [{"topic_id": t, "partitions": p} for t, p in self.owned.items()]
            shared = [
                {
                    "topic_id": topic,
                    "partition": partition,
                    "ranges": [{"first_hash": r.first, "last_hash": r.last} for r in ranges],
                }
                for (topic, partition), ranges in self.owned_key_ranges.items()
            ]
            self._reported = dict(self.owned), dict(self.owned_key_ranges)
        return {
            "group_id": self.group,
            "member_id": self.member_id,
            "member_epoch": self.member_epoch,
            "rebalance_timeout_ms": REBALANCE_TIMEOUT_MS if is_full else -1,
            "subscribed_topic_names": self._topics if is_full else None,
            "topic_partitions": owned,
            "key_ranges": shared,
            "key_hash_version": KEY_HASH_VERSION if self._shares else 0,
            "key_loads": self.loads.report(),
        }
