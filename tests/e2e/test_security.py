"""A secured cluster: only clients that log in and have permissions, and commands in the broker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from e2e.cluster import images
from e2e.resources import PAUSE, Resources, queue_cluster, queue_topic, share_group

if TYPE_CHECKING:
    import subprocess

SCRAM = {
    "name": "scram",
    "port": 9092,
    "type": "Internal",
    "tls": {},
    "authentication": {"type": "scram-sha-512"},
}
PASSWORD = "a-secret-of-ann"
CA_FILE = "/mnt/cluster/ca.crt"


def client_of(user: str) -> dict[str, Any]:
    """Return a pod that trusts the cluster's authority and has the password of a user."""
    given = {
        "SECURITY_PROTOCOL": "SASL_SSL",
        "SSL_CA_LOCATION": CA_FILE,
        "SASL_MECHANISM": "SCRAM-SHA-512",
        "SASL_USERNAME": user,
        "SASL_PASSWORD": PASSWORD,
    }
    container = {
        "name": "client",
        "image": images.tag("broker"),
        "imagePullPolicy": "Never",
        "command": ["python3", "-c", PAUSE],
        "env": [{"name": f"SHOAL_CLIENT_{name}", "value": text} for name, text in given.items()],
        "volumeMounts": [{"name": "ca", "mountPath": "/mnt/cluster"}],
    }
    volume = {"name": "ca", "secret": {"secretName": "main-cluster-ca-cert"}}
    spec = {"containers": [container], "volumes": [volume]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "client"}, "spec": spec}


def in_broker(
    resources: Resources, *argv: str, stdin_text: str | None = None
) -> subprocess.CompletedProcess[str]:
    attached = ("--stdin",) if stdin_text is not None else ()
    command = ("exec", *attached, "main-broker-0", "--", "shoal", *argv)
    return resources.kubectl(*command, stdin_text=stdin_text)


def test_only_users_with_permissions_reach_a_secured_cluster(resources: Resources) -> None:
    resources.apply(queue_cluster(listeners=[SCRAM]), queue_topic(), share_group())
    resources.wait("queuecluster/main", "queuetopic/jobs", "sharegroup/workers", timeout_s=120)
    status = resources.status("queuecluster/main")
    assert {row["name"] for row in status["certificates"]} == {"cluster-ca", "clients-ca"}
    assert status["listeners"][0]["caCertificateSecret"] == "main-cluster-ca-cert"
    assert "jobs" in in_broker(resources, "topics", "list").stdout
    in_broker(resources, "users", "add", "ann", "--password-file", "-", stdin_text=PASSWORD)
    resources.apply(client_of("ann"))
    resources.kubectl("wait", "--for=condition=Ready", "pod/client", "--timeout=60s")
    refused = resources.shoal_result("produce", "jobs", stdin_text="0\n", check=False)
    assert refused.returncode != 0
    assert "authorization" in refused.stderr.lower()
    for role in (("--producer",), ("--share-consumer", "-g", "workers")):
        in_broker(resources, "acls", "add", "-p", "ann", *role, "-t", "jobs")
    resources.produce("jobs", 3)
    assert sorted(resources.share_consume("jobs", "workers", "-n", "3")) == ["0", "1", "2"]
    resources.start_client("stranger")
    stranger = resources.shoal_result("topics", "list", client="stranger", check=False)
    assert stranger.returncode != 0
