"""`examples/external` with Apache Kafka in a pod: the operator scales its consumers.

`tests/kube/cluster/test_external_cluster.py` has the single steps without Kubernetes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import yaml
from e2e.apache_kafka import ApacheKafka, secret
from e2e.cluster.layout import REPOSITORY
from e2e.conftest import new_namespace
from e2e.resources import (
    MOUNT,
    Resources,
    client_pod,
    consumer_pod,
    queue_topic,
    queue_user,
    share_consumer,
    share_group,
)
from support.kafka import kafka_tools
from support.runs.conditions import eventually
from support.runs.machine import lacking

if TYPE_CHECKING:
    from collections.abc import Iterator

    from e2e.cluster.backend import Cluster
    from e2e.release import Release

pytestmark = pytest.mark.nightly
EXAMPLE = REPOSITORY / "examples" / "external"
SCALING = {
    "minReplicas": 0,
    "maxReplicas": 4,
    "targetLagPerReplica": 50,
    "recordsPerReplica": 10,
    "cooldown": "3s",
    "scaleToZeroAfter": "5s",
}
#: A workload of the platform team, which the operator did not create.
WORKERS = "legacy-workers"


class Shop(Resources):
    """A namespace with Apache Kafka, and a client that logs in to it."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        super().__init__(cluster, namespace)
        self.kafka = ApacheKafka(self)

    def start(self) -> None:
        names = ("kafka-operator", "kafka-payers")
        self.apply(*map(secret, names))
        self.kafka.start()
        self.start_pods(client_pod("client", "kafka-payers"))
        cluster = example("01-cluster.yaml")
        # The example is for a cluster with TLS.
        del cluster["spec"]["external"]["trust"]
        cluster["spec"]["external"]["bootstrapServers"] = self.kafka.bootstrap
        self.apply(cluster)
        self.wait("queuecluster/kafka")

    def produce(self, topic: str, count: int, first: int = 0) -> None:
        servers = f"SHOAL_BOOTSTRAP_SERVERS={self.kafka.bootstrap}"
        command = ("exec", "--stdin", "client", "--", "env", servers, "shoal", "produce", topic)
        lines = "".join(f"{number}\n" for number in range(first, first + count))
        self.kubectl(*command, "--quiet", stdin_text=lines)


@pytest.fixture(scope="module")
def shop(
    cluster: Cluster,
    release: Release,  # noqa: ARG001 - the operator runs.
) -> Iterator[Shop]:
    if reason := kafka_tools.absent():
        lacking(reason)
    shop = Shop(cluster, new_namespace(cluster, "external-kafka"))
    shop.start()
    yield shop
    cluster.kubectl("delete", "namespace", shop.namespace, "--wait=false")


def example(name: str) -> dict[str, Any]:
    return yaml.safe_load((EXAMPLE / name).read_text())


def test_the_example_follows_the_lag_of_a_group_in_kafka(shop: Shop) -> None:
    """The topic exists before the operator, and the consumers log in with a Secret."""
    consumer = example("03-share-consumer.yaml")
    consumer["spec"] |= {
        "scaling": SCALING,
        "deployment": {"template": {"spec": consumer_pod()}},
    }
    shop.apply(queue_topic("payments", cluster="kafka"), example("02-share-group.yaml"), consumer)
    shop.wait("queuetopic/payments", "sharegroup/payers", "shareconsumer/payers")
    shop.produce("payments", 600)
    shop.wait_status("shareconsumer/payers", desiredReplicas=4, readyReplicas=4)
    shop.wait_status("shareconsumer/payers", desiredReplicas=0, replicas=0, timeout_s=120)
    shop.wait_status("sharegroup/payers", lag=0)
    said = shop.events("ShareConsumer", "payers", "Scaled")
    assert said[0].startswith("0 to "), said


def test_a_deployment_of_the_team_follows_the_lag(shop: Shop) -> None:
    shop.apply(queue_topic(cluster="kafka"), share_group(cluster="kafka"), workers(shop))
    target = {"kind": "Deployment", "name": WORKERS}
    shop.apply(share_consumer(user="", scaleTargetRef=target, scaling=SCALING))
    shop.wait("queuetopic/jobs", "sharegroup/workers")
    # It ran before there was work.
    shop.wait_status("shareconsumer/eaters", desiredReplicas=0, replicas=0)
    shop.produce("jobs", 600)
    shop.wait_status("shareconsumer/eaters", desiredReplicas=4, readyReplicas=4)
    assert shop.get(f"deployment/{WORKERS}")["spec"]["replicas"] == 4
    shop.wait_status("shareconsumer/eaters", desiredReplicas=0, replicas=0, timeout_s=120)
    shop.wait_status("sharegroup/workers", lag=0)
    shop.kubectl("delete", "shareconsumer/eaters")
    # The workload belongs to the team, with the number that it had.
    shop.kubectl("scale", f"deployment/{WORKERS}", "--replicas=1")

    def runs() -> bool:
        return shop.status(f"deployment/{WORKERS}").get("readyReplicas") == 1

    eventually(runs, timeout_s=60)
    assert shop.get(f"deployment/{WORKERS}")["spec"]["replicas"] == 1


def workers(shop: Shop) -> dict[str, Any]:
    """Return a Deployment that has the address, the group and the login of its own."""
    pod = consumer_pod()
    (container,) = pod["containers"]
    env = {
        "SHOAL_BOOTSTRAP_SERVERS": shop.kafka.bootstrap,
        "SHOAL_GROUP_ID": "workers",
        "SHOAL_TOPICS": "jobs",
        "SHOAL_COMMAND_CONFIG": f"{MOUNT}/client.properties",
    }
    container["env"] = [{"name": name, "value": value} for name, value in env.items()]
    container["volumeMounts"] = [{"name": "user", "mountPath": MOUNT}]
    pod["volumes"] = [{"name": "user", "secret": {"secretName": "kafka-payers"}}]
    labels = {"app": WORKERS}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": WORKERS},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    }


def test_what_kafka_does_not_have_is_refused_by_name(shop: Shop) -> None:
    user = queue_user("ann")
    user["spec"]["cluster"] = "kafka"
    shop.apply(user, share_group("later", cluster="kafka", delay={"max": "1h"}))
    assert "spec.delay" in shop.wait_reason("sharegroup/later", "FieldNotSupported")
    assert shop.wait_reason("queueuser/ann", "NotForExternalCluster")
