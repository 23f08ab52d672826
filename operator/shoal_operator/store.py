"""The newest version of each Kubernetes object, by kind, namespace and name.

Lists fill the store and watches update it. Readers get the stored manifests and must not modify
them.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from shoal_operator.model.names import Manifest

Key = tuple[str, str]


class Store:
    """Objects by kind, then by (namespace, name)."""

    def __init__(self) -> None:
        self._kinds: dict[str, dict[Key, Manifest]] = defaultdict(dict)
        self._by_cluster: dict[tuple[str, str, str], set[str]] = defaultdict(set)

    def put(self, manifest: Manifest) -> None:
        """Store this version unless the store has a newer one of the same object."""
        meta = manifest["metadata"]
        key = (meta["namespace"], meta["name"])
        known = self._kinds[manifest["kind"]].get(key)
        if known is not None and _newer(known["metadata"], meta):
            return
        slim = {k: v for k, v in meta.items() if k != "managedFields"}
        self._kinds[manifest["kind"]][key] = {**manifest, "metadata": slim}
        cluster = manifest.get("spec", {}).get("cluster")
        if isinstance(cluster, str):
            self._by_cluster[manifest["kind"], meta["namespace"], cluster].add(meta["name"])

    def drop(self, manifest: Manifest) -> None:
        """Remove this object unless another object has its name now."""
        kind, meta = manifest["kind"], manifest["metadata"]
        key = (meta["namespace"], meta["name"])
        known = self._kinds[kind].get(key)
        if known is None or known["metadata"].get("uid") != meta.get("uid"):
            return
        del self._kinds[kind][key]
        cluster = known.get("spec", {}).get("cluster")
        self._by_cluster[kind, meta["namespace"], str(cluster)].discard(meta["name"])

    def get(self, kind: str, namespace: str, name: str) -> Manifest | None:
        """Return an object, None if it does not exist."""
        return self._kinds[kind].get((namespace, name))

    def all(self, kind: str) -> Iterator[Manifest]:
        """Yield all objects of a kind in the order of namespace and name."""
        found = self._kinds[kind]
        return (found[key] for key in sorted(found))

    def labelled(self, kind: str, namespace: str, labels: Mapping[str, str]) -> list[Manifest]:
        """Return the objects of a kind in a namespace that have these labels, by name."""
        return [
            found
            for found in self.all(kind)
            if found["metadata"]["namespace"] == namespace
            and labels.items() <= found["metadata"].get("labels", {}).items()
        ]

    def of_cluster(self, kind: str, namespace: str, cluster: str) -> list[Manifest]:
        """Return the objects of a kind whose `spec.cluster` is `cluster`, in the order of names."""
        found = self._kinds[kind]
        wanted = sorted(self._by_cluster.get((kind, namespace, cluster), ()))
        return [
            o
            for name in wanted
            if (o := found.get((namespace, name))) and o["spec"].get("cluster") == cluster
        ]


def _newer(one: Manifest, other: Manifest) -> bool:
    """Return whether both are versions of one object and `one` is the later version.

    Resource versions of one object compare as integers (Kubernetes, "Resource versions").
    """
    if one.get("uid") != other.get("uid"):
        return False
    ours, theirs = one.get("resourceVersion", ""), other.get("resourceVersion", "")
    return ours.isdecimal() and theirs.isdecimal() and int(ours) > int(theirs)


def is_older(one: Manifest, other: Manifest) -> bool:
    """Return whether `one` is older: by creation time, then by namespace and name."""
    return _age(one) < _age(other)


def _age(manifest: Manifest) -> tuple[Any, ...]:
    meta = manifest["metadata"]
    return (meta.get("creationTimestamp", ""), meta["namespace"], meta["name"])
