"""Admin calls of the client: one object with a part for each kind of resource.

    admin.topics        create, describe, delete, grow, offsets, delete_records
    admin.configs       describe and alter configs of topics, brokers, groups
    admin.groups        list, describe, delete groups of every type; committed offsets
    admin.share_groups  start offsets, lag and resets of share groups
    admin.acls          describe, create and delete access control entries
    admin.users         describe, set and delete SCRAM credentials
    admin.tokens        create, renew, end and describe delegation tokens
    admin.quotas        describe and alter client quotas
    admin.transactions  list, describe and end transactions

Calls on many objects return a result for each. `shoal.client.errors.expect` raises the first error.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shoal.client.admin.configs import Configs
from shoal.client.admin.groups import Groups
from shoal.client.admin.quotas import Quotas
from shoal.client.admin.security_admin import Acls, Tokens, Users
from shoal.client.admin.share_groups import ShareGroups
from shoal.client.admin.topics import OPERATION_TIMEOUT_MS, Topics
from shoal.client.admin.transactions import Transactions
from shoal.client.errors import KafkaError, check
from shoal.client.net import message_fields
from shoal.client.net.cluster import Cluster, TopicPartition
from shoal.client.net.metadata import BrokerInfo
from shoal.protocol.api import ApiKey

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

#: The upgrade type of UpdateFeatures that never lowers a level.
UPGRADE = 1


@dataclass(frozen=True, slots=True)
class ClusterDescription:
    cluster_id: str
    controller_id: int
    brokers: tuple[BrokerInfo, ...]
    fenced: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class LogDir:
    """A broker's data directory. Sizes are bytes, or -1 if the broker does not report them."""

    path: str
    total_bytes: int
    usable_bytes: int
    partitions: Mapping[TopicPartition, int]
    error: KafkaError | None = None


@dataclass(frozen=True, slots=True)
class QuorumReplica:
    node_id: int
    log_end_offset: int
    last_caught_up_ms: int


@dataclass(frozen=True, slots=True)
class Quorum:
    """The controllers' Raft quorum as its leader reports it."""

    leader_id: int
    leader_epoch: int
    high_watermark: int
    voters: tuple[QuorumReplica, ...]
    observers: tuple[QuorumReplica, ...]


@dataclass(frozen=True, slots=True)
class Reassignment:
    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]


class Admin:
    """Admin calls on a `Cluster`, which the caller closes."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.topics = Topics(cluster)
        self.configs = Configs(cluster)
        self.groups = Groups(cluster)
        self.share_groups = ShareGroups(cluster)
        self.acls = Acls(cluster)
        self.users = Users(cluster)
        self.tokens = Tokens(cluster)
        self.quotas = Quotas(cluster)
        self.transactions = Transactions(cluster)

    async def describe_cluster(self, *, fenced: bool = False) -> ClusterDescription:
        """Return brokers and controller; with `fenced` also fenced brokers (KIP-1073)."""
        body = {"endpoint_type": 1, "include_fenced_brokers": fenced}
        answer = await self.cluster.retry(lambda: self.cluster.ask(ApiKey.DESCRIBE_CLUSTER, body))
        check(answer.error_code, answer.error_message)
        brokers = tuple(
            BrokerInfo(b.broker_id, b.host, b.port, b.rack)
            for b in sorted(answer.brokers, key=lambda b: b.broker_id)
        )
        cut_off = frozenset(b.broker_id for b in answer.brokers if getattr(b, "is_fenced", False))
        return ClusterDescription(answer.cluster_id, answer.controller_id, brokers, cut_off)

    async def features(self) -> dict[str, int]:
        """Return finalized feature levels, such as `share.version`."""
        link = await self.cluster.get_any_connection()
        answer = await link.request(
            ApiKey.API_VERSIONS,
            {
                "client_software_name": "shoal",
                "client_software_version": "0",
            },
        )
        return {f.name: f.max_version_level for f in answer.finalized_features}

    async def upgrade_features(self, levels: Mapping[str, int]) -> None:
        """Raise features to these levels, all or none.

        Raises `KafkaError` with INVALID_UPDATE_VERSION if a broker does not support a level, or if
        the level is lower than now.
        """
        updates = [
            {"feature": name, "max_version_level": level, "upgrade_type": UPGRADE}
            for name, level in levels.items()
        ]
        body = {"timeout_ms": OPERATION_TIMEOUT_MS, "feature_updates": updates}
        answer = await self.cluster.retry(lambda: self.cluster.ask(ApiKey.UPDATE_FEATURES, body))
        check(answer.error_code, answer.error_message)
        for result in getattr(answer, "results", None) or ():
            check(result.error_code, result.error_message)

    async def log_dirs(
        self,
        nodes: Iterable[int],
        *,
        partitions: bool = True,
        only: Iterable[TopicPartition] | None = None,
    ) -> dict[int, tuple[LogDir, ...]]:
        """Return the data directories of brokers; with `partitions` also each partition's bytes, or
        those of `only` these.
        """
        topics: dict[str, list[int]] = {}
        for partition in only or ():
            topics.setdefault(partition.topic, []).append(partition.partition)
        selected_topics = [{"topic": t, "partitions": p} for t, p in topics.items()]
        dirs_by_node = {}
        for node in nodes:
            topic_filter = None if partitions and only is None else selected_topics
            body: dict[str, object] = {"topics": topic_filter}
            answer = await self.cluster.request(node, ApiKey.DESCRIBE_LOG_DIRS, body)
            check(getattr(answer, "error_code", 0), f"log dirs of broker {node}")
            dirs_by_node[node] = tuple(_parse_log_dir(result) for result in answer.results)
        return dirs_by_node

    async def describe_quorum(self) -> Quorum:
        """Return the state of the metadata quorum (`__cluster_metadata`)."""
        body = {
            "topics": [{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}]
        }
        answer = await self.cluster.ask(ApiKey.DESCRIBE_QUORUM, body)
        check(answer.error_code, getattr(answer, "error_message", None))
        part = answer.topics[0].partitions[0]
        check(part.error_code, getattr(part, "error_message", None))
        return Quorum(
            part.leader_id,
            part.leader_epoch,
            part.high_watermark,
            tuple(map(_parse_replica, part.current_voters)),
            tuple(map(_parse_replica, part.observers)),
        )

    async def reassign(
        self, replicas: Mapping[TopicPartition, Iterable[int] | None]
    ) -> dict[TopicPartition, KafkaError | None]:
        """Move partitions to these brokers, the preferred leader first; None cancels a move."""
        body = {
            "timeout_ms": OPERATION_TIMEOUT_MS,
            "topics": message_fields.group_by_topic(
                (p, {"partition_index": p.partition, "replicas": None if r is None else list(r)})
                for p, r in replicas.items()
            ),
        }
        answer = await self.cluster.ask(ApiKey.ALTER_PARTITION_REASSIGNMENTS, body)
        check(answer.error_code, answer.error_message)
        return {
            partition: message_fields.parse_error(part, f"reassignment of {partition}")
            for partition, part in message_fields.iterate_partitions(answer.responses)
        }

    async def reassignments(self) -> dict[TopicPartition, Reassignment]:
        """Return the reassignments in progress."""
        body = {"timeout_ms": OPERATION_TIMEOUT_MS, "topics": None}
        answer = await self.cluster.ask(ApiKey.LIST_PARTITION_REASSIGNMENTS, body)
        check(answer.error_code, answer.error_message)
        return {
            partition: Reassignment(
                tuple(part.replicas), tuple(part.adding_replicas), tuple(part.removing_replicas)
            )
            for partition, part in message_fields.iterate_partitions(answer.topics)
        }

    async def elect_leaders(
        self, partitions: Iterable[TopicPartition] | None, *, unclean: bool = False
    ) -> dict[TopicPartition, KafkaError | None]:
        """Elect the preferred leaders of partitions (None: all), or any replica if `unclean`."""
        selected_topics = None
        if partitions is not None:
            topics: dict[str, list[int]] = {}
            for partition in partitions:
                topics.setdefault(partition.topic, []).append(partition.partition)
            selected_topics = [{"topic": t, "partitions": p} for t, p in topics.items()]
        body = {
            "election_type": int(unclean),
            "topic_partitions": selected_topics,
            "timeout_ms": OPERATION_TIMEOUT_MS,
        }
        answer = await self.cluster.ask(ApiKey.ELECT_LEADERS, body)
        check(answer.error_code, "electing leaders")
        return {
            TopicPartition(t.topic, p.partition_id): message_fields.parse_error(
                p, f"{t.topic}-{p.partition_id}"
            )
            for t in answer.replica_election_results
            for p in t.partition_result
        }

    async def unregister_broker(self, node_id: int) -> None:
        """Remove a broker that will not return from the cluster's metadata."""
        answer = await self.cluster.ask(ApiKey.UNREGISTER_BROKER, {"broker_id": node_id})
        check(answer.error_code, answer.error_message or f"broker {node_id}")


def _parse_log_dir(result: Any) -> LogDir:
    sizes = {
        TopicPartition(t.name, p.partition_index): p.partition_size
        for t in result.topics
        for p in t.partitions
    }
    return LogDir(
        result.log_dir,
        getattr(result, "total_bytes", -1),
        getattr(result, "usable_bytes", -1),
        sizes,
        message_fields.parse_error(result, result.log_dir),
    )


def _parse_replica(result: Any) -> QuorumReplica:
    caught_up = message_fields.to_epoch_ms(getattr(result, "last_caught_up_timestamp", None))
    return QuorumReplica(result.replica_id, result.log_end_offset, caught_up)
