"""How a ShareConsumer reports bad input: from the ShareGroup, and from drivers that crashed.

`driver_ends` has the ends of logs of failed drivers of Spark 4.3.0, with each kind of bad input.
They have 2048 bytes, as Kubernetes keeps them. The log of `checkpoint` ends in the query's offsets,
so that file has the line that the source writes instead. The queries themselves fail in
tests/spark.
"""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from kube.api_server import ApiServer, CrashPoint, resource
from shoal.client.admin.topics import NewTopic
from shoal.client.client import SyncClient
from shoal.client.errors import expect
from shoal.client.net.cluster import TopicPartition
from shoal_operator.brokers.calls import Brokers
from shoal_operator.consumers.reconciler import ShareConsumerReconciler
from shoal_operator.consumers.workloads import decide_application_verdict, find_termination_message
from shoal_operator.queues.group_monitor import GroupMonitor
from shoal_operator.queues.groups import ShareGroupReconciler
from shoal_operator.settings import ChartSettings
from support.brokers.servers import ShoalProcess

if TYPE_CHECKING:
    from collections.abc import Iterator

ENDS = Path(__file__).with_name("driver_ends")
SPARK = {
    "mainApplicationFile": "local:///job.py",
    "sparkVersion": "4.3.0",
    "imagePullPolicy": "IfNotPresent",
    "minExecutors": 0,
    "maxExecutors": 6,
    "coresPerExecutor": 1,
    "maxRecordsPerTrigger": 1000,
}
GROUP = {
    "cluster": "main",
    "startOffset": "Earliest",
    "maxRecordLocks": 2000,
    "renewal": True,
    "lockDuration": "30s",
    "deliveryLimit": 5,
    "isolation": "ReadUncommitted",
}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ShoalProcess]:
    process = ShoalProcess(tmp_path_factory.mktemp("broker") / "data").start()
    yield process
    process.stop()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("option", "InvalidOption: unknown option 'maxrecordpertrigger'; known are "),
        ("no-topic", "there is no topic 'no-such-topic'.*; create it, or name another"),
        ("other-type", "Group classic is not a share group.*: name another"),
        ("no-permission-topic", "TOPIC_AUTHORIZATION_FAILED.*needs READ on the topic"),
        ("no-permission-group", "GROUP_AUTHORIZATION_FAILED.*needs READ on the group"),
        ("wrong-password", "refuses user 'ann'.*; check kafka.security.protocol and kafka.sasl"),
        ("checkpoint", "is of share group .* and the query's .*; give each group a checkpointLoc"),
        ("undecodable", "offsets 0 to 9, cannot be decoded.*Set failOnDataLoss to false"),
    ],
)
def test_a_drivers_error_is_the_condition(name: str, words: str) -> None:
    said = find_termination_message((ENDS / f"{name}.txt").read_text())
    application = {"status": {"applicationState": {"state": "FAILING", "errorMessage": "exit 1"}}}
    verdict = decide_application_verdict(application, 1, 0, said, 9)
    assert (verdict.ready, verdict.reason, verdict.degraded) == (False, "ApplicationFailed", True)
    assert re.search(words, verdict.message), verdict.message


class World:
    """Groups and ShareConsumers of a cluster, with a real broker."""

    def __init__(self, bootstrap: str) -> None:
        self.kube = ApiServer(CrashPoint())
        self.brokers = Brokers(bootstrap)
        self.kube.add(resource("QueueCluster", "main", listeners=[{"name": "p", "port": 9092}]))

    async def settle(self) -> None:
        store = self.kube.store()
        place = (self.kube, store)
        monitor = GroupMonitor(*place, self.brokers, "n", "main")
        groups = ShareGroupReconciler(*place, self.brokers, "n", "main", monitor=monitor)
        consumers = ShareConsumerReconciler(
            *place, monitor, "n", "main", ChartSettings("b:1", "s:1", "role", "http")
        )
        changed: list[str] = []
        monitor.subscribe(changed.extend)
        await groups.reconcile(groups.list_names())
        queued = [name for name, group in consumers.list_consumer_groups() if group in changed]
        await consumers.reconcile(queued)

    def ready(self, name: str) -> dict[str, Any]:
        conditions = self.kube.find("ShareConsumer", name)["status"]["conditions"]
        return next(c for c in conditions if c["type"] == "Ready")


def test_errors_from_brokers_are_reported_before_spark_starts(broker: ShoalProcess) -> None:
    """A missing topic, and a group of another type. A workload at zero does not prove health."""

    async def scenario(client: SyncClient) -> None:
        world = World(broker.bootstrap)
        world.kube.add(resource("ShareGroup", "early", topics=["late"], **GROUP))
        world.kube.add(resource("ShareGroup", "classic", topics=["there"], **GROUP))
        for group in ("early", "classic"):
            world.kube.add(resource("ShareConsumer", group, shareGroup=group, spark=SPARK))
        await world.settle()
        said = world.ready("early")
        assert (said["status"], said["reason"]) == ("False", "TopicNotFound")
        assert "ShareGroup 'early': Topic late does not exist. Apply a" in said["message"]
        said = world.ready("classic")
        assert (said["status"], said["reason"]) == ("False", "OtherGroupType")
        assert "'classic' is a " in said["message"]
        assert "Choose another groupId or delete it" in said["message"]
        assert all(a["spec"]["suspend"] for a in world.kube.all("SparkApplication"))
        made = client.admin.topics.create([NewTopic("late", 1, 1)])
        expect(await asyncio.to_thread(client.run, made))
        await world.settle()
        assert world.ready("early")["reason"] == "ScaledToZero"
        await world.brokers.close()

    with SyncClient(broker.bootstrap) as client:
        admin = client.admin
        expect(client.run(admin.topics.create([NewTopic("there", 1, 1)])))
        offsets = {TopicPartition("there", 0): 0}
        expect(client.run(admin.groups.alter_offsets("classic", offsets)))
        asyncio.run(scenario(client))
