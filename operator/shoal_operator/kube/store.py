"""The newest version of each Kubernetes object, by kind, namespace and name.

Lists fill the store and watches update it. Readers get the stored manifests and must not modify
them. A reader that names a kind by its type, as in `get(ShareGroup, …)`, gets the resource as that
type, so that mypy checks each look-up of a field (ADR 172). At run time it is the plain dict.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, TypeVar, overload

from shoal_operator.kube.conditions import is_claimed
from shoal_operator.model import queue_cluster

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from shoal_operator.model.names import Manifest
    from shoal_operator.model.queue_cluster import QueueCluster

Key = tuple[str, str]
#: The type of a custom resource, from `model.resources`; its name is that of the kind.
R = TypeVar("R", bound="Mapping[str, Any]")


class Store:
    """Objects by kind, then by (namespace, name)."""

    def __init__(self) -> None:
        self._kinds: dict[str, dict[Key, Manifest]] = defaultdict(dict)
        self._by_cluster: dict[tuple[str, str, str], set[str]] = defaultdict(set)
        #: The resources of each cluster whose topic, group or user an older resource has.
        self._claimed: dict[tuple[str, str, str], set[str]] = defaultdict(set)

    def put(self, manifest: Manifest) -> None:
        """Store this version unless the store has a newer one of the same object."""
        meta = manifest["metadata"]
        key = (meta["namespace"], meta["name"])
        stored = self._kinds[manifest["kind"]].get(key)
        if stored is not None and _is_newer(stored["metadata"], meta):
            return
        if stored is not None:
            self._forget(stored)
        slim = {k: v for k, v in meta.items() if k != "managedFields"}
        self._kinds[manifest["kind"]][key] = {**manifest, "metadata": slim}
        cluster = manifest.get("spec", {}).get("cluster")
        if isinstance(cluster, str):
            cluster_key = (manifest["kind"], meta["namespace"], cluster)
            self._by_cluster[cluster_key].add(meta["name"])
            if is_claimed(manifest):
                self._claimed[cluster_key].add(meta["name"])

    def drop(self, manifest: Manifest) -> None:
        """Remove this object unless another object has its name now."""
        kind, meta = manifest["kind"], manifest["metadata"]
        key = (meta["namespace"], meta["name"])
        stored = self._kinds[kind].get(key)
        if stored is None or stored["metadata"].get("uid") != meta.get("uid"):
            return
        del self._kinds[kind][key]
        self._forget(stored)

    def _forget(self, stored: Manifest) -> None:
        """Remove a stored version from the indexes."""
        meta = stored["metadata"]
        cluster_key = (
            stored["kind"],
            meta["namespace"],
            str(stored.get("spec", {}).get("cluster")),
        )
        for names in (self._by_cluster, self._claimed):
            names[cluster_key].discard(meta["name"])

    @overload
    def get(self, kind: str, namespace: str, name: str) -> Manifest | None: ...
    @overload
    def get(self, kind: type[R], namespace: str, name: str) -> R | None: ...
    def get(self, kind: str | type[Any], namespace: str, name: str) -> Any:
        """Return an object, None if it does not exist."""
        return self._kinds[get_kind_name(kind)].get((namespace, name))

    def get_cluster(self, namespace: str, name: str) -> QueueCluster | None:
        """Return a QueueCluster, None if it does not exist."""
        return self.get(queue_cluster.QueueCluster, namespace, name)

    @overload
    def iterate(self, kind: str) -> Iterator[Manifest]: ...
    @overload
    def iterate(self, kind: type[R]) -> Iterator[R]: ...
    def iterate(self, kind: str | type[Any]) -> Iterator[Any]:
        """Yield all objects of a kind in the order of namespace and name."""
        objects = self._kinds[get_kind_name(kind)]
        return (objects[key] for key in sorted(objects))

    def list_labelled(self, kind: str, namespace: str, labels: Mapping[str, str]) -> list[Manifest]:
        """Return the objects of a kind in a namespace that have these labels, by name."""
        return [
            manifest
            for manifest in self.iterate(kind)
            if manifest["metadata"]["namespace"] == namespace
            and labels.items() <= manifest["metadata"].get("labels", {}).items()
        ]

    @overload
    def list_of_cluster(self, kind: str, namespace: str, cluster: str) -> list[Manifest]: ...
    @overload
    def list_of_cluster(self, kind: type[R], namespace: str, cluster: str) -> list[R]: ...
    def list_of_cluster(self, kind: str | type[Any], namespace: str, cluster: str) -> list[Any]:
        """Return the objects of a kind whose `spec.cluster` is `cluster`, in the order of names."""
        objects = self._kinds[get_kind_name(kind)]
        object_names = sorted(self._by_cluster.get((get_kind_name(kind), namespace, cluster), ()))
        return [
            o
            for name in object_names
            if (o := objects.get((namespace, name))) and o["spec"].get("cluster") == cluster
        ]

    def list_claimed(self, kind: str, namespace: str, cluster: str) -> list[str]:
        """Return the names of the objects of a kind in a cluster whose topic, group or user an
        older object has. The cost does not depend on the number of other objects."""
        return sorted(self._claimed.get((kind, namespace, cluster), ()))

    def has_any(self, kind: str, namespace: str, cluster: str) -> bool:
        """Return whether there are objects of a kind whose `spec.cluster` is `cluster`."""
        return bool(self._by_cluster.get((kind, namespace, cluster)))


def get_kind_name(kind: str | type[Any]) -> str:
    """Return the name of a kind that a reader names by its type, or by its name."""
    return kind if isinstance(kind, str) else kind.__name__


def _is_newer(first: Manifest, second: Manifest) -> bool:
    """Return whether both are versions of one object and `first` is the later version.

    Resource versions of one object compare as integers (Kubernetes, "Resource versions").
    """
    if first.get("uid") != second.get("uid"):
        return False
    ours, theirs = first.get("resourceVersion", ""), second.get("resourceVersion", "")
    return ours.isdecimal() and theirs.isdecimal() and int(ours) > int(theirs)


def is_older(first: Mapping[str, Any], second: Mapping[str, Any]) -> bool:
    """Return whether `first` is older: by creation time, then by namespace and name."""
    return _get_age(first) < _get_age(second)


def _get_age(manifest: Mapping[str, Any]) -> tuple[Any, ...]:
    meta = manifest["metadata"]
    return (meta.get("creationTimestamp", ""), meta["namespace"], meta["name"])
