"""Three brokers of the last commit before security are upgraded to this tree, under load.

The earlier tree comes from the history of git. It runs with the packages of this one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from cluster.test_migration import Jobs, Worker, go_on
from cluster.test_replication import CALM_CONFIGS
from earlier_tree import NoHistory, before_security, extract
from shoal.client.client import SyncClient
from shoal.protocol.api import ApiKey
from shoal.protocol.errors import ErrorCode
from support.brokers.clusters import ShoalCluster
from support.brokers.queues import Queue
from support.runs.conditions import eventually
from support.runs.machine import lacking

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

#: Sets the password of a user of SCRAM-SHA-512.
UPSERTION = {
    "name": "ann",
    "mechanism": 2,
    "iterations": 4096,
    "salt": bytes(24),
    "salted_password": bytes(64),
}


@pytest.fixture
def earlier(tmp_path: Path) -> Path:
    """The folder of packages of the earlier tree."""
    try:
        return extract(tmp_path / "earlier", before_security())
    except NoHistory as error:
        lacking(str(error))


@pytest.fixture
def cluster(tmp_path: Path, earlier: Path) -> Iterator[ShoalCluster]:
    found = ShoalCluster(tmp_path / "nodes", configs=CALM_CONFIGS)
    for node in found.nodes.values():
        node.environment["PYTHONPATH"] = str(earlier)
    try:
        yield found.start()
    finally:
        found.stop()


def is_in_sync(cluster: ShoalCluster, id: int) -> bool:
    topics = cluster.metadata(id).topics
    return all(len(p.isr_nodes) == 3 for topic in topics for p in topic.partitions)


def set_password(cluster: ShoalCluster, id: int) -> ErrorCode:
    body = {"deletions": [], "upsertions": [UPSERTION]}
    (row,) = cluster.ask(id, ApiKey.ALTER_USER_SCRAM_CREDENTIALS, body).results
    return ErrorCode(row.error_code)


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_an_upgrade_from_before_security_under_load(cluster: ShoalCluster) -> None:
    """No produce fails, and no job is lost. Users can be created once all are upgraded."""
    librdkafka = {"bootstrap.servers": cluster.bootstrap}
    with SyncClient(cluster.bootstrap) as client:
        queue = Queue(client, cluster.bootstrap, partitions=3, replicas=3)
    with Worker(librdkafka, queue) as worker:
        with Jobs(librdkafka, queue.topic, "job") as jobs:
            go_on(worker)
            for id, node in cluster.nodes.items():
                assert node.stop() == 0
                del node.environment["PYTHONPATH"]
                node.start()
                eventually(lambda id=id: is_in_sync(cluster, id), timeout_s=120, what="in sync")
                go_on(worker)
                if id != max(cluster.nodes):
                    assert set_password(cluster, id) is ErrorCode.unsupported_version
        expected = jobs.acknowledged
        eventually(lambda: worker.got >= expected, timeout_s=120, what="all jobs")
    assert worker.got == expected
    for id in cluster.nodes:
        eventually(
            lambda id=id: set_password(cluster, id) is ErrorCode.none, timeout_s=60, what="a user"
        )
