"""A cluster on three nodes, each in a zone of its own: racks, and nodes that are drained together.

It needs a Kubernetes cluster of three nodes: `make e2e-nodes`.
"""

from __future__ import annotations

import json
import re
import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
from e2e.cluster.layout import ZONE
from e2e.conftest import new_namespace
from e2e.producing import producing
from e2e.resources import Resources, queue_cluster, queue_topic, share_consumer, share_group
from e2e.test_three_brokers import replicas_of, wait_in_sync
from support.runs.conditions import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    from e2e.cluster.backend import Cluster
    from e2e.release import Release

NODES = 3
BROKER = "app.kubernetes.io/component=broker"
PODS = [f"main-broker-{n}" for n in range(NODES)]
#: What a broker that catches up gets in each second, and how much it lacks.
RATE_BYTES, LACKING_BYTES = 50_000, 6_000_000
RATE = "leader.replication.throttled.rate"
#: Produces this many bytes in large records.
FILL = """
import asyncio, sys
from shoal.client.client import Client
from shoal.client.settings import Settings

async def main():
    async with Client(Settings.from_environment()) as client:
        async with client.producer() as producer:
            for _ in range(int(sys.argv[1]) // 10_000):
                await (await producer.send("large", bytes(10_000)))

asyncio.run(main())
"""


@pytest.fixture(scope="module")
def spread(release: Release) -> Iterator[Resources]:
    """A broker on each node, with racks, and a client's pod."""
    found = Resources(release.cluster, new_namespace(release.cluster, "nodes"))
    if len(found.find_all("nodes")) < NODES:
        pytest.skip("it needs three nodes: run `make e2e-nodes`")
    throttled = {"leader.replication.throttled.replicas": "*"}
    found.apply(
        queue_cluster(replicas=NODES, rack={"topologyKey": ZONE}),
        queue_topic(partitions=3),
        queue_topic("large", partitions=3, config=throttled),
        queue_topic("pairs", partitions=12, replicas=2),
    )
    found.wait("queuecluster/main", timeout_s=120)
    found.wait("queuetopic/jobs", "queuetopic/large", "queuetopic/pairs")
    found.start_client()
    yield found
    release.cluster.kubectl("delete", "namespace", found.namespace, "--wait=false")


def nodes_of(spread: Resources) -> dict[str, str]:
    """Return the node of each broker's pod."""
    pods = spread.find_all("pods", BROKER)
    return {pod["metadata"]["name"]: pod["spec"].get("nodeName", "") for pod in pods}


def zones(spread: Resources) -> dict[str, str]:
    """Return the zone of each node."""
    nodes = spread.find_all("nodes")
    return {node["metadata"]["name"]: node["metadata"]["labels"][ZONE] for node in nodes}


def racks(spread: Resources) -> dict[str, str]:
    """Return the rack that each broker has registered, by its pod's name."""
    (described,) = json.loads(spread.shoal("cluster", "describe", "--format=json"))
    return {PODS[row["broker"]]: row["rack"] for row in described["brokers"]}


def test_brokers_have_the_zones_of_their_nodes_as_racks(spread: Resources) -> None:
    nodes, zone_of = nodes_of(spread), zones(spread)
    assert sorted(nodes) == PODS
    assert len(set(nodes.values())) == NODES
    assert racks(spread) == {pod: zone_of[node] for pod, node in nodes.items()}
    assert all(len(set(replicas)) == 2 for replicas in replicas_of(spread, "pairs"))
    # The first start of each broker had the right rack.
    assert spread.events("QueueCluster", "main", "BrokerRestart") == []


def test_consumers_have_the_zones_of_their_nodes(spread: Resources) -> None:
    spread.apply(share_group(), share_consumer(replicas=NODES))
    spread.wait("shareconsumer/eaters", timeout_s=120)
    spread.kubectl("rollout", "status", "deployment/eaters", "--timeout=60s")
    zone_of = zones(spread)
    pods = spread.find_all("pods", "shoal.dev/share-consumer=eaters")
    assert len(pods) == NODES
    for pod in pods:
        where = ("exec", pod["metadata"]["name"], "--", "printenv", "SHOAL_CLIENT_CLIENT_RACK")
        assert spread.kubectl(*where).stdout.strip() == zone_of[pod["spec"]["nodeName"]]
    spread.kubectl("delete", "shareconsumer/eaters", "sharegroup/workers")


def test_a_broker_restarts_when_its_node_gets_another_zone(spread: Resources) -> None:
    node = nodes_of(spread)["main-broker-2"]
    before = spread.uid("pod/main-broker-2")
    zone = zones(spread)[node]
    spread.cluster.kubectl("label", "node", node, f"{ZONE}=elsewhere", "--overwrite")
    try:
        # The operator reads the labels of nodes once a minute.
        eventually(lambda: spread.uid("pod/main-broker-2") != before, timeout_s=150)
        spread.wait_event("QueueCluster", "main", "BrokerRestart", "its rack changes")
        eventually(lambda: racks(spread)["main-broker-2"] == "elsewhere", timeout_s=60)
    finally:
        spread.cluster.kubectl("label", "node", node, f"{ZONE}={zone}", "--overwrite")
    eventually(lambda: racks(spread)["main-broker-2"] == zone, timeout_s=150)
    wait_in_sync(spread)
    spread.wait_reason("queuecluster/main", "Reconciled", timeout_s=60)


@contextmanager
def draining(cluster: Cluster, *nodes: str) -> Iterator[dict[str, subprocess.Popen[str]]]:
    """Drain these nodes of brokers at the same time; all nodes take pods again afterwards."""
    words = ("--ignore-daemonsets", "--delete-emptydir-data", f"--pod-selector={BROKER}")
    running = {
        node: subprocess.Popen(
            ["kubectl", "drain", node, *words, "--timeout=300s"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=cluster.environment(),
        )
        for node in nodes
    }
    try:
        yield running
    finally:
        for process in running.values():
            process.kill()
            process.wait()
        for node in nodes:
            cluster.kubectl("uncordon", node)


def isr_sizes(spread: Resources) -> list[int]:
    said = spread.shoal("topics", "describe", "large", "--format=json")
    return [len(re.findall(r"\d+", isr)) for isr in re.findall(r'"isr": \[(.*?)\]', said, re.S)]


def is_gone(spread: Resources, pod: str, before: str) -> bool:
    found = spread.find(f"pod/{pod}")
    return found is None or found["metadata"]["uid"] != before


def test_two_drains_at_once_leave_each_partition_its_min_isr(spread: Resources) -> None:
    wait_in_sync(spread)
    node_of = nodes_of(spread)
    before = {pod: spread.uid(f"pod/{pod}") for pod in PODS[1:]}
    spread.patch("queuecluster/main", {"spec": {"config": {RATE: str(RATE_BYTES)}}})
    spread.wait_event("QueueCluster", "main", "ConfigChanged")
    with (
        producing(spread) as counts,
        draining(spread.cluster, *(node_of[pod] for pod in before)) as drains,
    ):
        first = eventually(
            lambda: next((p for p in before if is_gone(spread, p, before[p])), None), timeout_s=120
        )
        (second,) = before.keys() - {first}
        servers = f"SHOAL_BOOTSTRAP_SERVERS=main-bootstrap.{spread.namespace}.svc:9092"
        fill = ("exec", "client", "--", "env", servers, "python3", "-c", FILL, str(LACKING_BYTES))
        spread.kubectl(*fill)
        # Its volume is on this node.
        spread.cluster.kubectl("uncordon", node_of[first])
        said = spread.wait_reason("queuecluster/main", "CatchingUp", timeout_s=120)
        assert f"Broker {first[-1]} catches up" in said
        assert drains[node_of[second]].poll() is None
        assert not is_gone(spread, second, before[second])
        assert min(isr_sizes(spread)) >= NODES - 1
        spread.patch("queuecluster/main", {"spec": {"config": {RATE: None}}})
        eventually(lambda: is_gone(spread, second, before[second]), timeout_s=120)
        assert min(isr_sizes(spread)) >= NODES - 1
        for node, drain in drains.items():
            assert drain.wait(60) == 0, f"{node}: {drain.communicate()}"
        spread.cluster.kubectl("uncordon", node_of[second])
        spread.wait_reason("queuecluster/main", "Reconciled", timeout_s=120)
    sent, failed = counts
    assert (failed, sent > 50) == (0, True), counts
