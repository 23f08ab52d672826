"""On the cluster, the chart's permissions fit what is on; Kubernetes' roles know Shoal's kinds."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from e2e.release import OPERATOR
from e2e.resources import Resources, queue_cluster, queue_topic, share_consumer, share_group
from support.runs.conditions import eventually

if TYPE_CHECKING:
    from e2e.release import Release


def refusals(release: Release) -> list[str]:
    """Return the lines of the operator's log about requests that the API server refused."""
    text = release.cluster.kubectl("logs", OPERATOR, f"--namespace={release.namespace}").stdout
    return [line for line in text.splitlines() if re.search("forbidden|HTTP 403|Forbidden", line)]


def test_nothing_is_refused_with_all_permissions(queue: Resources, release: Release) -> None:
    queue.apply(queue_topic(), share_group(), share_consumer(scaling={"targetLagPerReplica": 5}))
    queue.wait("queuetopic/jobs", "sharegroup/workers", "shareconsumer/eaters")
    queue.produce("jobs", 10)
    eventually(lambda: queue.status("sharegroup/workers")["lag"] == 0, timeout_s=60)
    queue.apply(queue_cluster(listeners=[INSIDE, OUTSIDE], networkPolicy={"enabled": False}))
    queue.wait("queuecluster/main", timeout_s=120)
    queue.apply(queue_cluster())
    queue.wait("queuecluster/main", timeout_s=120)
    assert refusals(release) == []


SECURE = {"tls": {}, "authentication": {"type": "tls"}}
INSIDE = {"name": "tls", "port": 9092, "type": "Internal", **SECURE}
OUTSIDE = {"name": "outside", "port": 9094, "type": "NodePort", **SECURE}


def test_nothing_is_refused_in_one_namespace_without_workloads(
    resources: Resources, release: Release
) -> None:
    release.install(
        watchNamespaces=[resources.namespace],
        workloads={"deployment": False, "spark": False, "job": False},
    )
    try:
        resources.apply(queue_cluster(), queue_topic(), share_group(), share_consumer(user=""))
        resources.wait("queuecluster/main", timeout_s=120)
        resources.wait("queuetopic/jobs", "sharegroup/workers")
        said = resources.wait_reason("shareconsumer/eaters", "WorkloadDisabled")
        assert "workloads.deployment=true" in said
        assert resources.find_all("deployments") == []
        assert refusals(release) == []
    finally:
        release.install()
    resources.patch("shareconsumer/eaters", {"spec": {"user": "client"}})
    resources.start_client()
    resources.wait("shareconsumer/eaters", timeout_s=60)


def test_kubernetes_roles_have_shoals_resources(resources: Resources) -> None:
    def may(role: str, verb: str, resource: str) -> bool:
        who = f"--as=system:serviceaccount:{resources.namespace}:{role}"
        asked = ("auth", "can-i", verb, f"{resource}.shoal.dev", who)
        return resources.kubectl(*asked, check=False).stdout.strip() == "yes"

    for role in ("view", "edit", "admin"):
        resources.kubectl("create", "serviceaccount", role)
        bound = (f"--clusterrole={role}", f"--serviceaccount={resources.namespace}:{role}")
        resources.kubectl("create", "rolebinding", role, *bound)
    eventually(lambda: may("admin", "create", "queueusers"), timeout_s=30)
    allowed = {
        role: (
            may(role, "list", "queueusers"),
            may(role, "patch", "sharegroups"),
            may(role, "create", "queueusers"),
        )
        for role in ("view", "edit", "admin")
    }
    assert allowed == {
        "view": (True, False, False),
        "edit": (True, True, False),
        "admin": (True, True, True),
    }
