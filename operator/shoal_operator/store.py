"""What the watches have shown: the newest version of each object, by kind, namespace and name.

The store is the operator's only memory of Kubernetes: lists fill it and watches keep it up to
date. Whoever reads it gets plain manifests and must not change them.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shoal_operator.model.names import Manifest

Key = tuple[str, str]


class Store:
    """Objects by kind, then by (namespace, name)."""

    def __init__(self) -> None:
        self._kinds: dict[str, dict[Key, Manifest]] = defaultdict(dict)
        self._by_cluster: dict[tuple[str, str, str], set[str]] = defaultdict(set)

    def put(self, manifest: Manifest) -> None:
        """Keep this version, unless a newer one of the same object is known already."""
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
        """Forget this object, unless another one stands under its name by now."""
        kind, meta = manifest["kind"], manifest["metadata"]
        key = (meta["namespace"], meta["name"])
        known = self._kinds[kind].get(key)
        if known is None or known["metadata"].get("uid") != meta.get("uid"):
            return
        del self._kinds[kind][key]
        cluster = known.get("spec", {}).get("cluster")
        self._by_cluster[kind, meta["namespace"], str(cluster)].discard(meta["name"])

    def get(self, kind: str, namespace: str, name: str) -> Manifest | None:
        return self._kinds[kind].get((namespace, name))

    def all(self, kind: str) -> Iterator[Manifest]:
        """All objects of a kind, in order of namespace and name."""
        found = self._kinds[kind]
        return (found[key] for key in sorted(found))

    def of_cluster(self, kind: str, namespace: str, cluster: str) -> list[Manifest]:
        """Objects of a kind whose `spec.cluster` is that cluster, by name."""
        found = self._kinds[kind]
        wanted = sorted(self._by_cluster.get((kind, namespace, cluster), ()))
        return [
            o
            for name in wanted
            if (o := found.get((namespace, name))) and o["spec"].get("cluster") == cluster
        ]


def _newer(one: Manifest, other: Manifest) -> bool:
    """Whether `one` is a later version of the object that `other` is a version of.

    Versions of one object compare as whole numbers (Kubernetes, "Resource versions").
    """
    if one.get("uid") != other.get("uid"):
        return False
    ours, theirs = one.get("resourceVersion", ""), other.get("resourceVersion", "")
    return ours.isdecimal() and theirs.isdecimal() and int(ours) > int(theirs)


def is_older(one: Manifest, other: Manifest) -> bool:
    """Whether `one` came first: by creation time, then by namespace and name."""
    return _age(one) < _age(other)


def _age(manifest: Manifest) -> tuple[Any, ...]:
    meta = manifest["metadata"]
    return (meta.get("creationTimestamp", ""), meta["namespace"], meta["name"])
