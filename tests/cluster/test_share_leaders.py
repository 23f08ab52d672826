"""Share fetches at non-leaders: the response names the leader and its address (KIP-951).

librdkafka asks for metadata after NOT_LEADER_OR_FOLLOWER. After UNKNOWN_TOPIC_OR_PARTITION it waits
for its next refresh, minutes later.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from cluster.test_replication import CONFIGS
from clusters import ShoalCluster, running
from confluent_kafka.admin import AdminClient, NewTopic
from shoal.protocol.api import ApiKey
from shoal.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Iterator
    from uuid import UUID

LEADER, FOLLOWER, OTHER = 1, 2, 3


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ShoalCluster]:
    with running(ShoalCluster(tmp_path_factory.mktemp("cluster"), configs=CONFIGS)) as found:
        yield found


@pytest.fixture(scope="module")
def topic_id(cluster: ShoalCluster) -> UUID:
    """A topic of one partition; `OTHER` has no replica."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    new = NewTopic("t", 1, replica_assignment=[[LEADER, FOLLOWER]])
    admin.create_topics([new])["t"].result(60)
    assert cluster.on_all("t", cluster.brokers)[0].leader_id == LEADER
    (found,) = [t.topic_id for t in cluster.metadata(LEADER).topics if t.name == "t"]
    return found


def share_fetch(cluster: ShoalCluster, broker: int, topic_id: UUID, index: int) -> Any:
    partition = {"partition_index": index, "acknowledgement_batches": []}
    body = {
        "group_id": "g",
        "member_id": "m",
        "share_session_epoch": 0,
        "max_wait_ms": 0,
        "min_bytes": 1,
        "max_bytes": 1 << 20,
        "max_records": 10,
        "batch_size": 10,
        "share_acquire_mode": 0,
        "is_renew_ack": False,
        "topics": [{"topic_id": topic_id, "partitions": [partition]}],
        "forgotten_topics_data": [],
    }
    return cluster.ask(broker, ApiKey.SHARE_FETCH, body)


@pytest.mark.parametrize("asked", [FOLLOWER, OTHER])
def test_a_broker_that_does_not_lead_names_the_leader(
    cluster: ShoalCluster, topic_id: UUID, asked: int
) -> None:
    answer = share_fetch(cluster, asked, topic_id, 0)
    (row,) = answer.responses[0].partitions
    assert row.error_code == ErrorCode.not_leader_or_follower
    epoch = cluster.topic(LEADER, "t")[0].leader_epoch
    assert (row.current_leader.leader_id, row.current_leader.leader_epoch) == (LEADER, epoch)
    found = [(e.node_id, f"{e.host}:{e.port}") for e in answer.node_endpoints]
    assert found == [(LEADER, cluster.addresses[LEADER])]


def test_a_partition_that_does_not_exist_is_unknown(cluster: ShoalCluster, topic_id: UUID) -> None:
    answer = share_fetch(cluster, OTHER, topic_id, 1)
    (row,) = answer.responses[0].partitions
    assert row.error_code == ErrorCode.unknown_topic_or_partition
    assert not answer.node_endpoints
