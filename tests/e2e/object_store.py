"""An S3 server in a pod: versitygw, which is built from its Go module."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from e2e.cluster import images

if TYPE_CHECKING:
    from e2e.resources import Resources

Manifest = dict[str, Any]
IMAGE = "localhost/versitygw:v1.8.0"
PORT, USER_ID = 7070, 1000
#: `spec.tieredStorage` of a QueueCluster in the namespace of the store.
TIERED_STORAGE: Manifest = {
    "type": "S3",
    "bucket": "queues",
    "prefix": "test",
    "endpoint": f"http://store:{PORT}",
    "region": "us-east-1",
    "credentials": {"secretName": "store"},
}
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "test-id", "AWS_SECRET_ACCESS_KEY": "test-secret"}


def start_store(resources: Resources) -> None:
    """Start the server with an empty bucket, and create the Secret with its credentials."""
    resources.cluster.load(images.program_archive("versitygw", IMAGE))
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "store"}}
    resources.apply({**secret, "stringData": CREDENTIALS}, _service())
    resources.start_pods(_pod())


def _pod() -> Manifest:
    mount = {"name": "objects", "mountPath": "/objects"}
    make_bucket = "import os, sys; os.makedirs(os.path.join(*sys.argv[1:]))"
    keys = {
        "ROOT_ACCESS_KEY": CREDENTIALS["AWS_ACCESS_KEY_ID"],
        "ROOT_SECRET_KEY": CREDENTIALS["AWS_SECRET_ACCESS_KEY"],
    }
    common = {"imagePullPolicy": "Never", "volumeMounts": [mount]}
    server = {
        "name": "versitygw",
        "image": IMAGE,
        "args": ["--port", f":{PORT}", "posix", "/objects"],
        "env": [{"name": name, "value": value} for name, value in keys.items()],
        "readinessProbe": {"tcpSocket": {"port": PORT}, "periodSeconds": 1},
        **common,
    }
    bucket = {
        "name": "bucket",
        "image": images.tag("broker"),
        "command": ["python3", "-c", make_bucket, "/objects", str(TIERED_STORAGE["bucket"])],
        **common,
    }
    spec = {
        "securityContext": {"runAsUser": USER_ID, "runAsGroup": USER_ID, "fsGroup": USER_ID},
        "initContainers": [bucket],
        "containers": [server],
        "volumes": [{"name": "objects", "emptyDir": {}}],
        "terminationGracePeriodSeconds": 1,
    }
    meta = {"name": "store", "labels": {"app": "store"}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}


def _service() -> Manifest:
    spec = {"selector": {"app": "store"}, "ports": [{"port": PORT}]}
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "store"}, "spec": spec}
