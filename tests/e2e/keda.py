"""KEDA's own operator and metrics server on the test cluster.

They are built from KEDA's Go module at a pinned version, with the manifests of the same module.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import yaml
from e2e.cluster import images
from e2e.cluster.keda import MODULE
from e2e.cluster.programs import KEDA, module_directory
from e2e.program_pods import use_program
from e2e.resources import Resources

if TYPE_CHECKING:
    from collections.abc import Iterator

    from e2e.cluster.backend import Cluster

Manifest = dict[str, Any]
NAMESPACE = "keda"
API = "v1beta1.external.metrics.k8s.io"
#: The operator ends once, when it has made its certificates, and the kubelet starts it again.
READY_S = 120


class Keda:
    """KEDA in its namespace: it watches all others, and serves metrics to autoscalers."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.resources = Resources(cluster, NAMESPACE)

    def install(self) -> None:
        for name in KEDA:
            self.cluster.load(images.program_archive(name, image(name)))
        text = yaml.safe_dump_all(self.manifests())
        # Its definitions are larger than an annotation of `kubectl apply` may be.
        force = ("--server-side", "--force-conflicts")
        self.cluster.kubectl("apply", *force, "--filename=-", stdin_text=text)
        available = ("wait", "--for=condition=Available", f"apiservice/{API}")
        self.cluster.kubectl(*available, f"--timeout={READY_S}s")
        for name in ("keda-operator", "keda-metrics-apiserver"):
            wait = ("rollout", "status", f"deployment/{name}", f"--timeout={READY_S}s")
            self.resources.kubectl(*wait)

    def uninstall(self) -> None:
        """Remove KEDA. Its objects go first, while the operator removes their finalizers."""
        everywhere = ("--all", "--all-namespaces", "--timeout=60s")
        self.cluster.kubectl("delete", "scaledobjects", *everywhere, check=False)
        text = yaml.safe_dump_all(self.manifests())
        options = ("--ignore-not-found", "--timeout=120s")
        self.cluster.kubectl("delete", *options, "--filename=-", stdin_text=text)

    def manifests(self) -> Iterator[Manifest]:
        """Yield what KEDA's own kustomization without its webhooks has, for the test cluster."""
        folder = module_directory("keda", MODULE) / "config" / "minimal"
        made = self.cluster.kubectl("kustomize", folder).stdout
        return map(adapt, yaml.safe_load_all(made))


def image(name: str) -> str:
    return f"localhost/kedacore/{name}:pinned"


def adapt(manifest: Manifest) -> Manifest:
    """Return a manifest of KEDA for the test cluster. Without webhooks there are none to patch."""
    if manifest["kind"] != "Deployment":
        return manifest
    (container,) = manifest["spec"]["template"]["spec"]["containers"]
    name = container["command"][0].removeprefix("/")
    use_program(manifest, image(name))
    if name == "keda":
        container["args"].append("--enable-webhook-patching=false")
    return manifest
