"""Racks of pods: the value of a node's label, as an annotation of each pod that runs there.

A pod asks by the annotation `names.RACK_KEY`, the node's label; the answer is `names.RACK`. The
pod waits for the answer before its main container starts, and gets it as a variable (the downward
API). Only the operator reads nodes. An answer changes if the node gets another label. It is empty
while the node has no such label or cannot be read, so that the pod starts without a rack.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shoal_operator import clock
from shoal_operator.brokers.diagnostics import Diagnosis
from shoal_operator.kube import failures
from shoal_operator.kube.kube import KubeClient, KubeError
from shoal_operator.model import names

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shoal_operator.kube.store import Store
    from shoal_operator.model.names import Manifest

#: How long the labels of a node stay valid.
NODE_MS_MAX = 60_000


class RackReconciler:
    """Annotates the pods of one cluster: its brokers, and consumers of its groups."""

    def __init__(self, kube: KubeClient, store: Store, namespace: str, cluster: str) -> None:
        self._kube, self._store = kube, store
        self._namespace, self._cluster = namespace, cluster
        #: The labels of each node, None if it cannot be read, and when they were read.
        self._nodes: dict[str, tuple[Mapping[str, str] | None, int]] = {}

    def list_names(self) -> list[str]:
        """Return the names of the pods that ask."""
        return [
            pod["metadata"]["name"]
            for pod in self._store.iterate("Pod")
            if pod["metadata"]["namespace"] == self._namespace
            and pod["metadata"].get("labels", {}).get(names.CLUSTER_LABEL) == self._cluster
            and get_rack_key(pod)
        ]

    async def reconcile(self, pods: list[str]) -> float | None:
        """Annotate these pods. Raises `KubeError`, after all of them."""
        stored = (self._store.get("Pod", self._namespace, name) for name in pods)
        await failures.complete_all(
            self._annotate(pod, key, node)
            for pod in stored
            if pod is not None and not pod["metadata"].get("deletionTimestamp")
            if (key := get_rack_key(pod)) and (node := pod.get("spec", {}).get("nodeName"))
        )
        return None

    async def _annotate(self, pod: Manifest, key: str, node: str) -> None:
        have = pod["metadata"]["annotations"].get(names.RACK)
        labels = await self._read_node_labels(node)
        # From Kubernetes 1.35 on, pods have the zone and the region of their node as labels.
        want = (labels or {}).get(key) or pod["metadata"].get("labels", {}).get(key, "")
        if want == have or (have and not want):
            return
        patch = {"metadata": {"annotations": {names.RACK: want}}}
        identity = {**pod, "apiVersion": "v1", "kind": "Pod"}
        written = await self._kube.merge(identity, patch)
        if written is not None:
            self._store.put(written)

    async def _read_node_labels(self, node: str) -> Mapping[str, str] | None:
        """Return the labels of a node, None if it cannot be read."""
        now_ms = clock.now_ms()
        labels, read_ms = self._nodes.get(node, (None, -NODE_MS_MAX))
        if now_ms - read_ms < NODE_MS_MAX:
            return labels
        try:
            manifest = await self._kube.get("v1", "Node", node, "")
            labels = {} if manifest is None else manifest["metadata"].get("labels", {})
        except KubeError as error:
            if error.status != 403:
                raise
            labels = None
        self._nodes[node] = labels, now_ms
        return labels

    def find_problem(self) -> Diagnosis | None:
        """Return why a pod has no rack."""
        for name in self.list_names():
            pod = self._store.get("Pod", self._namespace, name)
            if pod is None or pod["metadata"]["annotations"].get(names.RACK) != "":
                continue
            node, key = pod["spec"].get("nodeName", ""), get_rack_key(pod)
            if self._nodes.get(node, ({}, 0))[0] is None:
                return Diagnosis(
                    "NodesNotReadable",
                    f"Pod {name} has no rack: the operator may not read node {node}. Allow it to "
                    "get nodes, as the chart does.",
                )
            return Diagnosis(
                "NodeWithoutRack",
                f"Pod {name} has no rack: node {node} has no label {key}. Label all nodes, or "
                "remove spec.rack.",
            )
        return None


def get_rack_key(pod: Mapping[str, Any]) -> str:
    """Return the node's label that a pod asks for, empty if it asks for none."""
    return str(pod["metadata"].get("annotations", {}).get(names.RACK_KEY, ""))
