"""The pods of workloads: what the controllers of Kubernetes create, list and delete."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal_operator.kube.kube import format_now
from shoal_operator.local.containers import BROKER

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shoal_operator.local.api import LocalApi
    from shoal_operator.model.names import Manifest


class Pods:
    """The pods in a folder, by the object that owns them."""

    def __init__(self, api: LocalApi) -> None:
        self._api = api

    def list_owned(self, owner: Manifest) -> list[Manifest]:
        """Return the pods of an object."""
        uid = owner["metadata"]["uid"]
        return [
            pod
            for pod in self._api.iterate("Pod")
            if any(r["uid"] == uid for r in pod["metadata"].get("ownerReferences", []))
        ]

    def create(
        self,
        owner: Manifest,
        name: str,
        template: Manifest,
        labels: Mapping[str, str],
        status: Manifest | None = None,
    ) -> None:
        """Create a pod from a template, with more labels."""
        namespace, meta = owner["metadata"]["namespace"], template.get("metadata", {})
        manifest = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "labels": {**meta.get("labels", {}), **labels},
                "annotations": dict(meta.get("annotations", {})),
                "ownerReferences": [build_owner(owner)],
            },
            "spec": {**template["spec"], "nodeName": "localhost"},
            "status": status or {"phase": "Pending"},
        }
        self._api.write(("Pod", namespace, name), manifest)

    def find_root(self, owned: Manifest) -> Manifest:
        """Return the object for which an object is there: the owner of its owner, and so on; itself
        if nothing owns it."""
        meta = owned["metadata"]
        for reference in meta.get("ownerReferences", []):
            owner = self._api.find(reference["kind"], meta["namespace"], reference["name"])
            if owner is not None and owner["metadata"]["uid"] == reference["uid"]:
                return self.find_root(owner)
        return owned

    def delete(self, pod: Manifest) -> None:
        """Let a pod end; it stays until its processes have ended."""
        meta = pod["metadata"]
        if not meta.get("deletionTimestamp"):
            key = ("Pod", meta["namespace"], meta["name"])
            self._api.write(key, {**pod, "metadata": {**meta, "deletionTimestamp": format_now()}})


def is_broker(pod: Manifest) -> bool:
    """Return whether a pod is of a QueueCluster."""
    return BROKER.items() <= pod["metadata"].get("labels", {}).items()


def is_running(pod: Manifest) -> bool:
    """Return whether a process of a pod runs."""
    statuses = pod.get("status", {}).get("containerStatuses", [])
    return any("running" in status["state"] for status in statuses)


def is_ready(pod: Manifest) -> bool:
    """Return whether a pod is ready and not being deleted."""
    if pod["metadata"].get("deletionTimestamp"):
        return False
    conditions = pod.get("status", {}).get("conditions", [])
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


def build_owner(owner: Manifest) -> Manifest:
    """Return the reference to an object that owns a pod."""
    meta = owner["metadata"]
    return {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": meta["name"],
        "uid": meta["uid"],
        "controller": True,
    }
