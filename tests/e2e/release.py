"""The Helm release of the chart that end-to-end tests share."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from e2e.cluster import images
from e2e.cluster.layout import KUBERNETES_VERSION, REPOSITORY
from prometheus_client.parser import text_string_to_metric_families
from support.runs.conditions import eventually

if TYPE_CHECKING:
    from e2e.cluster.backend import Cluster

NAME = "shoal"
NAMESPACE = "shoal-system"
CHART = REPOSITORY / "helm" / "shoal"
#: For `helm template`, which asks no API server for its version.
KUBE = f"--kube-version={KUBERNETES_VERSION}"
OPERATOR = "deployment/shoal-operator"


class Release:
    """`helm install shoal` in its own namespace."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.namespace = NAMESPACE

    def install(self, name: str = NAME, **values: Any) -> None:
        """Install or upgrade with exactly these values; return when its pods are ready."""
        # A cluster that stayed up may run an operator of the same tag from an older tree.
        built = {"built": images.archive("operator").stem}
        # Each test has resources in a namespace of its own.
        values.setdefault("watchNamespaces", [])
        values["podAnnotations"] = built | values.get("podAnnotations", {})
        settings = [f"--set-json={k.replace('__', '.')}={json.dumps(v)}" for k, v in values.items()]
        where = (f"--namespace={NAMESPACE}", "--create-namespace", "--wait", "--timeout=90s")
        # Without it, helm reuses the former values if none are given.
        self.cluster.helm("upgrade", "--install", "--reset-values", name, CHART, *where, *settings)

    def uninstall(self, name: str = NAME) -> None:
        where = (f"--namespace={NAMESPACE}", "--wait", "--timeout=90s", "--ignore-not-found")
        self.cluster.helm("uninstall", name, *where)

    def pods(self) -> list[str]:
        """The names of the operator's pods that are not terminating."""
        label = "--selector=app.kubernetes.io/name=shoal-operator"
        get = ("get", "pods", f"--namespace={NAMESPACE}", label, "--output=json")
        items = json.loads(self.cluster.kubectl(*get).stdout)["items"]
        return sorted(
            p["metadata"]["name"] for p in items if "deletionTimestamp" not in p["metadata"]
        )

    def leader(self) -> str:
        """The pod that holds the Lease, or an empty string."""
        get = ("get", "lease/shoal-operator", f"--namespace={NAMESPACE}", "--output=json")
        found = self.cluster.kubectl(*get, check=False)
        if found.returncode:
            return ""
        return json.loads(found.stdout)["spec"].get("holderIdentity") or ""

    def kill(self, pod: str) -> None:
        """Kill an operator's pod as a crash would, without a signal that it could handle."""
        now = ("--grace-period=0", "--force", f"--namespace={NAMESPACE}")
        self.cluster.kubectl("delete", "pod", pod, *now)

    def wait_leader(self, other_than: str = "") -> str:
        """Wait until one of the present pods leads."""

        def led() -> str:
            leader = self.leader()
            return leader if leader != other_than and leader in self.pods() else ""

        return eventually(led, timeout_s=60, what="a leader among the operator's pods")

    def metrics(self) -> dict[str, float]:
        """Return the values of the operator's samples by name and labels."""
        path = f"/api/v1/namespaces/{NAMESPACE}/services/shoal-operator:metrics/proxy/metrics"
        text = self.cluster.kubectl("get", "--raw", path).stdout
        return {
            f"{sample.name}{sample.labels}": sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }
