"""Kueue's own manager on the test cluster, with its webhooks.

It is built from Kueue's Go module at a pinned version, with the manifests of the same module.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import yaml
from e2e.cluster import images
from e2e.cluster.programs import module_directory
from e2e.program_pods import use_program
from e2e.resources import Resources
from support.runs.conditions import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    from e2e.cluster.backend import Cluster

Manifest = dict[str, Any]
MODULE = "sigs.k8s.io/kueue"
API = "kueue.x-k8s.io/v1beta2"
NAMESPACE = "kueue-system"
IMAGE = "localhost/kueue/kueue:pinned"
MANAGER = "deployment/kueue-controller-manager"
#: The manager makes the certificates of its webhooks before it is ready.
READY_S = 120
CONFIG = "controller_manager_config.yaml"
#: Of what a ShareConsumer runs.
FRAMEWORKS = ["batch/job", "pod", "deployment", "sparkoperator.k8s.io/sparkapplication"]
#: The name of the flavor and of the ClusterQueue.
QUOTA = "shoal-quota"


class Kueue:
    """Kueue in its namespace: it admits what has its label for a queue, in all namespaces."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.resources = Resources(cluster, NAMESPACE)

    def install(self) -> None:
        self.cluster.load(images.program_archive("kueue", IMAGE))
        text = yaml.safe_dump_all(self.manifests())
        # Its definitions are larger than an annotation of `kubectl apply` may be.
        force = ("--server-side", "--force-conflicts")
        self.cluster.kubectl("apply", *force, "--filename=-", stdin_text=text)
        self.resources.kubectl("rollout", "status", MANAGER, f"--timeout={READY_S}s")

    def uninstall(self) -> None:
        """Remove Kueue. Its objects go first, while the manager removes their finalizers."""
        kinds = "workloads,localqueues,clusterqueues,resourceflavors"
        everywhere = ("--all", "--all-namespaces", "--timeout=60s")
        self.cluster.kubectl("delete", kinds, *everywhere, check=False)
        # The namespace goes last: without the manager, its webhooks and its API refuse everything.
        text = yaml.safe_dump_all(reversed([*self.manifests()]))
        options = ("--ignore-not-found", "--timeout=120s")
        self.cluster.kubectl("delete", *options, "--filename=-", stdin_text=text)

    def manifests(self) -> Iterator[Manifest]:
        """Yield what Kueue's own kustomization has, for the test cluster."""
        folder = module_directory("kueue", MODULE) / "config" / "default"
        made = self.cluster.kubectl("kustomize", folder).stdout
        return map(adapt, yaml.safe_load_all(made))

    def set_quota(self, **amounts: str) -> None:
        """Let all workloads of the ClusterQueue together request this much, `cpu` and `memory`."""
        resources = [{"name": name, "nominalQuota": amount} for name, amount in amounts.items()]
        flavors = [{"name": QUOTA, "resources": resources}]
        groups = [{"coveredResources": list(amounts), "flavors": flavors}]
        spec = {"namespaceSelector": {}, "resourceGroups": groups}
        manifests = build("ResourceFlavor"), build("ClusterQueue", spec=spec)
        text = yaml.safe_dump_all(manifests)

        def is_taken() -> bool:
            return not self.cluster.kubectl(
                "apply", "--filename=-", stdin_text=text, check=False
            ).returncode

        # The manager is ready some time before the network leads to its webhooks.
        eventually(is_taken, timeout_s=READY_S, what="Kueue's webhooks answer")

    def usage(self) -> dict[str, str]:
        """Return how much of each resource what is admitted takes."""
        status = self.resources.status(f"clusterqueue/{QUOTA}")
        return {
            entry["name"]: entry["total"]
            for flavor in status.get("flavorsUsage", [])
            for entry in flavor["resources"]
        }


def build(kind: str, name: str = QUOTA, **fields: Any) -> Manifest:
    return {"apiVersion": API, "kind": kind, "metadata": {"name": name}, **fields}


def local_queue(name: str) -> Manifest:
    """Return a queue of a namespace, for the common quota."""
    return build("LocalQueue", name, spec={"clusterQueue": QUOTA})


def adapt(manifest: Manifest) -> Manifest:
    """Return a manifest of Kueue for the test cluster. The integrations are those of
    ShareConsumers."""
    if CONFIG in manifest.get("data", {}):
        config = yaml.safe_load(manifest["data"][CONFIG])
        config["integrations"] = {"frameworks": FRAMEWORKS}
        config["featureGates"] = {"SparkApplicationIntegration": True}
        manifest["data"][CONFIG] = yaml.safe_dump(config)
    if manifest["kind"] == "Deployment":
        use_program(manifest, IMAGE)
        manifest["spec"]["template"]["spec"]["containers"][0]["command"] = ["/kueue"]
    return manifest
