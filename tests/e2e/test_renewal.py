"""Certificates of brokers and users, and both authorities, are renewed under load on Kubernetes.

A day of the operator lasts a second here. No pod restarts, no produce fails, and no job is lost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from e2e.producing import consuming, producing
from e2e.release import NAMESPACE, OPERATOR
from e2e.resources import queue_cluster, queue_topic, share_group
from support.runs.conditions import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    from e2e.release import Release
    from e2e.resources import Resources

#: Days of the operator. A kubelet passes a changed Secret on to pods within a minute and a half.
AUTHORITY: dict[str, Any] = {"validityDays": 900, "renewalDays": 600, "overlap": "30s"}
#: The Secrets that a renewal changes.
SECRETS = ("main-cluster-ca-cert", "main-clients-ca-cert", "main-broker-tls", "client")


@pytest.fixture
def short_days(release: Release) -> Iterator[None]:
    """The operator counts a second as a day."""

    def set_day(*words: str) -> None:
        where = f"--namespace={NAMESPACE}"
        release.cluster.kubectl("set", "env", OPERATOR, where, *words)
        release.cluster.kubectl("rollout", "status", OPERATOR, where, "--timeout=90s")

    set_day("SHOAL_DAY_SECONDS=1")
    yield
    set_day("SHOAL_DAY_SECONDS-")


def contents(queue: Resources) -> dict[str, Any]:
    return {name: queue.get(f"secret/{name}")["data"] for name in SECRETS}


def restarts(queue: Resources) -> dict[str, int]:
    pods = queue.find_all("pods", "app.kubernetes.io/component=broker")
    return {
        pod["metadata"]["uid"]: sum(c["restartCount"] for c in pod["status"]["containerStatuses"])
        for pod in pods
    }


@pytest.mark.nightly
@pytest.mark.timeout(1800)
@pytest.mark.usefixtures("short_days")
def test_authorities_and_certificates_are_renewed_under_load(resources: Resources) -> None:
    cluster = queue_cluster(replicas=3, clusterCa=AUTHORITY, clientsCa=AUTHORITY)
    resources.apply(cluster, queue_topic(partitions=6), share_group())
    resources.start_client()
    resources.wait("queuecluster/main", "queuetopic/jobs", "sharegroup/workers", timeout_s=180)
    before, pods = contents(resources), restarts(resources)

    def expiries() -> dict[str, str]:
        status = resources.status("queuecluster/main")
        return {row["name"]: row["notAfter"] for row in status["certificates"]}

    def renewed() -> bool:
        now = expiries()
        assert all(now[name] > first[name] for name in first), now
        phases = [r.get("phase") for r in resources.status("queuecluster/main")["certificates"]]
        assert not any(phases), phases
        return True

    first = expiries()
    with consuming(resources, "workers", members=2) as deliveries, producing(resources) as counts:
        eventually(renewed, timeout_s=1200)
    sent, failed = counts
    assert (failed, sent > 50) == (0, True), counts
    assert {value for value, _ in deliveries} == set(range(sent))
    assert restarts(resources) == pods
    after = contents(resources)
    assert all(after[name] != before[name] for name in SECRETS)
    # A client that starts now trusts the new authority only.
    resources.produce("jobs", 5)
