"""A new cluster is secured: only users with permissions get in, and commands run in the broker."""

from __future__ import annotations

import yaml
from e2e.resources import (
    Resources,
    client_pod,
    queue_cluster,
    queue_topic,
    queue_user,
    share_consumer,
    share_group,
)

#: What the schema's default was before clusters were secured, in today's words.
OLD_LISTENER = {
    "name": "plain",
    "port": 9092,
    "type": "Internal",
    "tls": {"enabled": False},
    "authentication": {"type": "none"},
}


def test_a_cluster_from_before_stays_as_it_is(resources: Resources) -> None:
    """The old default is in the stored object, and not in the manifest that users apply again."""
    stored = queue_cluster(listeners=[OLD_LISTENER])
    resources.kubectl("create", "--filename=-", stdin_text=yaml.safe_dump(stored))
    resources.wait("queuecluster/main")
    before = resources.uid("pod/main-broker-0")
    applied = queue_cluster(config={"log.retention.ms": "1000000"})
    resources.apply(applied, queue_topic(), share_group(), share_consumer(user="", replicas=1))
    resources.wait(
        "queuecluster/main", "queuetopic/jobs", "sharegroup/workers", "shareconsumer/eaters"
    )
    assert resources.get("queuecluster/main")["spec"]["listeners"] == [OLD_LISTENER]
    resources.start_pods(client_pod("client"))
    resources.produce("jobs", 20)
    resources.wait_status("sharegroup/workers", lag=0)
    resources.kubectl("replace", "--filename=-", stdin_text=yaml.safe_dump(applied))
    said = resources.wait_reason("queuecluster/main", "SecurityNotSupported")
    assert "Add the previous listener again" in said
    resources.produce("jobs", 20)
    resources.wait_status("sharegroup/workers", lag=0)
    assert resources.uid("pod/main-broker-0") == before


def test_only_users_with_permissions_reach_a_secured_cluster(resources: Resources) -> None:
    resources.apply(queue_cluster(), queue_topic(), share_group())
    may = (
        {"producer": {"topics": ["jobs"]}},
        {"shareConsumer": {"topics": ["jobs"], "groups": ["workers"]}},
    )
    resources.apply(queue_user("client", *may), queue_user("guest"))
    ready = ("queuecluster/main", "queuetopic/jobs", "sharegroup/workers")
    resources.wait(*ready, "queueuser/client", "queueuser/guest", timeout_s=120)
    status = resources.status("queuecluster/main")
    assert {row["name"] for row in status["certificates"]} == {"cluster-ca", "clients-ca"}
    assert status["listeners"][0]["caCertificateSecret"] == "main-cluster-ca-cert"

    listed = resources.kubectl("exec", "main-broker-0", "--", "shoal", "topics", "list")
    assert "jobs" in listed.stdout

    users = [client_pod(name, name) for name in ("client", "guest")]
    resources.start_pods(*users, client_pod("stranger"))
    resources.produce("jobs", 3)
    assert sorted(resources.share_consume("jobs", "workers", "-n", "3")) == ["0", "1", "2"]
    for pod in ("guest", "stranger"):
        refused = resources.shoal_result(
            "produce", "jobs", "--quiet", stdin_text="4\n", client=pod, check=False
        )
        assert refused.returncode != 0, f"{pod}: {refused.stdout}"
