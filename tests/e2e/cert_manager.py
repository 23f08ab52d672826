"""cert-manager's own controllers on the test cluster, without its webhook.

They are built from cert-manager's Go module at a pinned version, with the definitions of the same
module.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from e2e.cluster import images
from e2e.cluster.programs import module_directory
from e2e.resources import Resources

if TYPE_CHECKING:
    from collections.abc import Iterator

    from e2e.cluster.backend import Cluster

Manifest = dict[str, Any]
NAMESPACE = NAME = "cert-manager"
MODULE = "github.com/cert-manager/cert-manager"
IMAGE = f"localhost/jetstack/{NAME}:pinned"
API_VERSION = "cert-manager.io/v1"


class CertManager:
    """cert-manager in its namespace: it watches all others."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.resources = Resources(cluster, NAMESPACE)

    def install(self) -> None:
        self.cluster.load(images.program_archive(NAME, IMAGE))
        # The definitions are larger than an annotation of `kubectl apply` may be.
        force = ("--server-side", "--force-conflicts")
        self.cluster.kubectl("apply", *force, f"--filename={crds()}")
        self.cluster.kubectl("create", "namespace", NAMESPACE)
        self.resources.apply(*rights(), deployment())
        self.resources.kubectl("rollout", "status", f"deployment/{NAME}", "--timeout=120s")

    def uninstall(self) -> None:
        self.cluster.kubectl("delete", "namespace", NAMESPACE, "--timeout=120s")
        self.cluster.kubectl("delete", "--ignore-not-found", f"--filename={crds()}")
        self.cluster.kubectl("delete", "clusterrolebinding", NAME, "--ignore-not-found")


def crds() -> str:
    return str(module_directory(NAME, MODULE) / "deploy" / "crds")


def rights() -> Iterator[Manifest]:
    """Return the account of the controllers, which may do everything."""
    yield {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": NAME}}
    rbac = "rbac.authorization.k8s.io"
    yield {
        "apiVersion": f"{rbac}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": NAME},
        "roleRef": {"apiGroup": rbac, "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"kind": "ServiceAccount", "name": NAME, "namespace": NAMESPACE}],
    }


def deployment() -> Manifest:
    labels = {"app": NAME}
    container = {"name": NAME, "image": IMAGE, "imagePullPolicy": "Never"}
    pod = {
        "serviceAccountName": NAME,
        "securityContext": {"runAsUser": 65534},
        "containers": [container],
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": NAME},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    }


def company() -> Iterator[Manifest]:
    """Return a company's authority, and the issuer `company` that signs by it."""
    yield _of("Issuer", "root", selfSigned={})
    yield _of(
        "Certificate",
        "company",
        isCA=True,
        commonName="company",
        secretName="company",
        privateKey={"algorithm": "ECDSA", "size": 256},
        issuerRef={"name": "root", "kind": "Issuer"},
    )
    yield _of("Issuer", "company", ca={"secretName": "company"})


def _of(kind: str, name: str, **spec: Any) -> Manifest:
    return {"apiVersion": API_VERSION, "kind": kind, "metadata": {"name": name}, "spec": spec}


def renew(resources: Resources, certificate: str) -> None:
    """Ask for a new certificate, as `cmctl renew` does: by a condition of the status."""
    generation = resources.get(f"certificate/{certificate}")["metadata"]["generation"]
    condition = {
        "type": "Issuing",
        "status": "True",
        "reason": "ManuallyTriggered",
        "message": "Certificate re-issuance manually triggered",
        "observedGeneration": generation,
    }
    before = resources.status(f"certificate/{certificate}").get("conditions", [])
    patch = json.dumps({"status": {"conditions": [*before, condition]}})
    what = ("patch", f"certificate/{certificate}", "--subresource=status", "--type=merge")
    resources.kubectl(*what, f"--patch={patch}")
