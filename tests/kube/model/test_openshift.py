"""Pods on OpenShift, which assigns user, group and seccomp profile (ADR 73)."""

from __future__ import annotations

import copy
import dataclasses
import random
from typing import Any

import pytest
from kube import rendered
from kube.consumers import test_spark_consumers
from kube.restricted_v2 import RANGE, Refused, admitted
from shoal_operator.model import cluster, security
from shoal_operator.model.consumers import deployment, spark
from shoal_operator.model.consumers.consumer_pod import PodContext
from support.runs.seeding import SEED

#: Ranges of namespaces on OpenShift begin here.
FIRST_ID = 1_000_680_000


@pytest.fixture
def first_id() -> int:
    """The first id of the range of a namespace."""
    return FIRST_ID + RANGE * random.Random(SEED).randrange(100_000)


def broker_pod(resource: Any, *, openshift: bool) -> dict:
    made = cluster.build_manifests(
        resource, "i:1", rendered.services(resource), openshift=openshift
    )
    return made[-1]["spec"]["template"]["spec"]


def secured_cluster(per_pod: int) -> Any:
    """Return a cluster with every volume that a broker's pod can have."""
    resource = copy.deepcopy(rendered.clusters()["whole"])
    resource["spec"] |= {"brokersPerPod": per_pod}
    del resource["spec"]["rack"]
    tls = {"name": "own", "port": 9096, "type": "Internal", "tls": {"secretName": "theirs"}}
    resource["spec"]["listeners"].append(tls)
    token = {"secretKeyRef": {"name": "scrape", "key": "token"}}
    resource["spec"]["metrics"] |= {"tls": {}, "token": token}
    return security.resolve(resource, security.InternalTls.FULL)


@pytest.mark.parametrize("per_pod", [1, 3])
def test_brokers_run_as_the_assigned_user(per_pod: int, first_id: int) -> None:
    pod = admitted(broker_pod(secured_cluster(per_pod), openshift=True), first_id)
    assert [c["securityContext"]["runAsUser"] for c in pod["containers"]] == [first_id] * per_pod
    assert pod["securityContext"]["fsGroup"] == first_id
    assert pod["securityContext"]["runAsNonRoot"]
    # Only the group reads the certificates, and the user is not the one of the image.
    modes = [v["secret"]["defaultMode"] for v in pod["volumes"] if "secret" in v]
    assert len(modes) == 4
    assert set(modes) == {0o440}


def test_on_kubernetes_the_operator_sets_what_openshift_refuses(first_id: int) -> None:
    pod = broker_pod(secured_cluster(1), openshift=False)
    assert pod["securityContext"]["runAsUser"] == 1000
    with pytest.raises(Refused, match="runAsUser 1000"):
        admitted(pod, first_id)


def test_consumers_run_as_the_assigned_user(first_id: int) -> None:
    consumer: Any = {
        "kind": "ShareConsumer",
        "metadata": {"name": "eaters", "namespace": "n", "uid": "u"},
        "spec": {"deployment": {"template": {"spec": {"containers": [{"name": "c"}]}}}},
    }
    made = deployment.build_manifest(
        consumer,
        PodContext(
            "main", "b:9092", "g", ["jobs"], "r/broker:1", "IfNotPresent", user_secret="worker"
        ),
        1,
    )
    pod = admitted(made["spec"]["template"]["spec"], first_id)
    assert pod["containers"][0]["securityContext"]["runAsUser"] == first_id


def test_drivers_and_executors_run_as_the_assigned_user(first_id: int) -> None:
    context = dataclasses.replace(test_spark_consumers.CONTEXT, user_secret="worker")
    consumer = test_spark_consumers.consumer()
    for role in ("driver", "executor"):
        made = spark.build_application(consumer, context, suspend=False)["spec"][role]
        with pytest.raises(Refused, match="fsGroup 185"):
            admitted(made["template"]["spec"], first_id)
        on = dataclasses.replace(context, openshift=True)
        made = spark.build_application(consumer, on, suspend=False)["spec"][role]
        pod = admitted(made["template"]["spec"], first_id)
        assert pod["containers"][0]["securityContext"]["runAsUser"] == first_id
        assert pod["securityContext"]["fsGroup"] == first_id
