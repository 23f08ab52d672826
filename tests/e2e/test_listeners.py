"""Clients outside of Kubernetes: Kafka's own tools with a user's Secret over a NodePort, and load
balancers."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from e2e.resources import Resources, queue_cluster, queue_topic, share_group
from support.kafka.kafka_tools import KafkaTools
from support.runs.conditions import eventually

if TYPE_CHECKING:
    from pathlib import Path

SECURE = {"tls": {}, "authentication": {"type": "tls"}}
#: The listener of a new cluster.
INSIDE = {"name": "tls", "port": 9092, "type": "Internal", **SECURE}
OUTSIDE = {"name": "outside", "port": 9094, "type": "NodePort", **SECURE}
WORLD = {"name": "world", "port": 9095, "type": "LoadBalancer", **SECURE}


def outside(queue: Resources, name: str) -> str:
    """Return the bootstrap address of a listener in the status."""
    rows = queue.status("queuecluster/main")["listeners"]
    return next(row["bootstrapServers"] for row in rows if row["name"] == name)


@pytest.mark.java
def test_kafkas_tools_see_what_was_applied(queue: Resources, tmp_path: Path) -> None:
    queue.apply(queue_cluster(listeners=[INSIDE, OUTSIDE]))
    queue.apply(queue_topic(partitions=3), share_group(lockDuration="45s", deliveryLimit=7))
    queue.wait("queuecluster/main", "queuetopic/jobs", "sharegroup/workers", timeout_s=120)
    queue.produce("jobs", 5)
    servers = eventually(lambda: outside(queue, "outside"), timeout_s=20)
    tools = KafkaTools(servers, queue.user_properties("client", tmp_path))
    described = tools.run("topics", "--describe", "--topic", "jobs")
    assert "PartitionCount: 3" in described
    settings = tools.run(
        "configs", "--describe", "--entity-type", "groups", "--entity-name", "workers"
    )
    assert "share.record.lock.duration.ms=45000" in settings
    assert "share.delivery.count.limit=7" in settings
    rows = tools.rows("share-groups", "--describe", "--group", "workers")
    assert sum(int(row["LAG"]) for row in rows) == 5
    assert {row["TOPIC"] for row in rows} == {"jobs"}


def test_a_new_port_restarts_that_broker_and_an_old_service_goes(queue: Resources) -> None:
    queue.apply(queue_cluster(listeners=[INSIDE, OUTSIDE]))
    queue.wait("queuecluster/main", timeout_s=120)
    before = queue.uid("pod/main-broker-0")
    port = queue.get("service/main-outside-0")["spec"]["ports"][0]["nodePort"]
    other = port - 1 if port > 30000 else port + 1
    ports = [{"name": "outside", "port": 9094, "nodePort": other, "targetPort": "outside"}]
    queue.patch("service/main-outside-0", {"spec": {"ports": ports}})
    queue.wait_event("QueueCluster", "main", "BrokerRestart", "external address")
    queue.wait_replaced("pod/main-broker-0", before)
    queue.wait("queuecluster/main", timeout_s=90)
    queue.apply(queue_cluster())
    eventually(lambda: queue.find("service/main-outside-0") is None, timeout_s=30)
    queue.wait("queuecluster/main", timeout_s=90)
    assert queue.find("service/main-bootstrap")


def test_a_load_balancer_without_an_address_is_reported(resources: Resources) -> None:
    resources.apply(queue_cluster(listeners=[INSIDE, WORLD]))
    said = resources.wait_reason("queuecluster/main", "ListenerWithoutAddress")
    assert "main-world-bootstrap" in said
    resources.wait_event("QueueCluster", "main", "ListenerWithoutAddress")
    assert resources.find_all("pods") == []
    for name, address in (("main-world-bootstrap", "192.0.2.1"), ("main-world-0", "192.0.2.2")):
        status = {"status": {"loadBalancer": {"ingress": [{"ip": address}]}}}
        patch = ("--type=merge", f"--patch={json.dumps(status)}")
        resources.kubectl("patch", f"service/{name}", "--subresource=status", *patch)
    resources.wait("queuecluster/main", timeout_s=90)
    assert outside(resources, "world") == "192.0.2.1:9095"
    shown = resources.kubectl(
        "exec",
        "main-broker-0",
        "--",
        "shoal",
        "configs",
        "describe",
        "broker",
        "0",
        "advertised.listeners",
        "--format=json",
    ).stdout
    assert "WORLD://192.0.2.2:9095" in shown
