"""All pods run where the platform assigns users, as OpenShift does."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest
from e2e import openshift
from e2e.resources import (
    Resources,
    client_pod,
    queue_cluster,
    queue_topic,
    share_consumer,
    share_group,
)
from support.runs.conditions import eventually
from support.runs.seeding import SEED

if TYPE_CHECKING:
    from collections.abc import Iterator

    from e2e.cluster.backend import Cluster
    from e2e.release import Release

#: Ranges of namespaces on OpenShift begin here.
FIRST_ID = 1_000_680_000 + openshift.RANGE * random.Random(SEED).randrange(100_000)


@pytest.fixture
def platform(cluster: Cluster, release: Release, namespace: str) -> Iterator[Resources]:
    """An empty namespace on the platform, with an operator that was installed there."""
    openshift.install(cluster, FIRST_ID)
    for name in (namespace, release.namespace):
        cluster.kubectl("label", f"namespace/{name}", f"{openshift.LABEL}=")
    try:
        release.install()
        yield Resources(cluster, namespace)
    finally:
        cluster.kubectl("label", f"namespace/{release.namespace}", f"{openshift.LABEL}-")
        openshift.uninstall(cluster)
        release.install()


def identity(resources: Resources, pod: str) -> list[int]:
    """Return the user and the group of a pod's processes."""
    code = "import os; print(os.getuid(), os.getgid())"
    found = resources.kubectl("exec", pod, "--", "python3", "-c", code).stdout
    return [int(word) for word in found.split()]


def test_all_pods_run_as_an_assigned_user_of_group_zero(
    platform: Resources, release: Release
) -> None:
    platform.apply(queue_cluster(replicas=3))
    platform.wait("queuecluster/main", timeout_s=120)
    platform.apply(queue_topic(), share_group(), share_consumer(scaling={"targetLagPerReplica": 5}))
    platform.start_client()
    platform.wait("queuetopic/jobs", "sharegroup/workers")
    platform.produce("jobs", 20)
    for number in range(3):
        assert identity(platform, f"main-broker-{number}") == [FIRST_ID, 0]
    (operator,) = release.pods()
    assert identity(Resources(platform.cluster, release.namespace), operator) == [FIRST_ID, 0]
    eventually(lambda: platform.status("sharegroup/workers")["lag"] == 0, timeout_s=60)
    consumers = platform.find_all("pods", "shoal.dev/share-consumer=eaters")
    assert consumers
    assert identity(platform, consumers[0]["metadata"]["name"]) == [FIRST_ID, 0]


def test_a_user_outside_of_the_range_is_refused(platform: Resources) -> None:
    """Without it, the test above would prove nothing."""
    pod = client_pod("other")
    pod["spec"]["securityContext"] = {"runAsUser": 1000}
    assert "runAsUser is outside of the range" in platform.refusal(pod)
