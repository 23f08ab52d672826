"""A secured cluster: only users with permissions get in, and commands run in the broker."""

from __future__ import annotations

from typing import Any

from e2e.cluster import images
from e2e.resources import PAUSE, Resources, queue_cluster, queue_topic, share_group

MTLS = {
    "name": "mtls",
    "port": 9092,
    "type": "Internal",
    "tls": {},
    "authentication": {"type": "tls"},
}
MOUNT = "/etc/shoal/user"


def queue_user(name: str, *acls: Any) -> dict[str, Any]:
    spec = {"cluster": "main", "authentication": {"type": "tls"}, "acls": list(acls)}
    api = "shoal.dev/v1alpha1"
    return {"apiVersion": api, "kind": "QueueUser", "metadata": {"name": name}, "spec": spec}


def client_of(user: str) -> dict[str, Any]:
    """Return a pod in which `shoal` has the Secret of a user."""
    container = {
        "name": "client",
        "image": images.tag("broker"),
        "imagePullPolicy": "Never",
        "command": ["python3", "-c", PAUSE],
        "env": [{"name": "SHOAL_COMMAND_CONFIG", "value": f"{MOUNT}/client.properties"}],
        "volumeMounts": [{"name": "user", "mountPath": MOUNT}],
    }
    volume = {"name": "user", "secret": {"secretName": user}}
    spec = {"containers": [container], "volumes": [volume]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": user}, "spec": spec}


def test_only_users_with_permissions_reach_a_secured_cluster(resources: Resources) -> None:
    resources.apply(queue_cluster(listeners=[MTLS]), queue_topic(), share_group())
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

    resources.apply(client_of("client"), client_of("guest"))
    resources.start_client("stranger")
    for pod in ("client", "guest"):
        resources.kubectl("wait", "--for=condition=Ready", f"pod/{pod}", "--timeout=60s")
    resources.produce("jobs", 3)
    assert sorted(resources.share_consume("jobs", "workers", "-n", "3")) == ["0", "1", "2"]
    for pod in ("guest", "stranger"):
        refused = resources.shoal_result(
            "produce", "jobs", "--quiet", stdin_text="4\n", client=pod, check=False
        )
        assert refused.returncode != 0, f"{pod}: {refused.stdout}"
