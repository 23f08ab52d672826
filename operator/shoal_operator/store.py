"""The newest version of each Kubernetes object, by kind, namespace and name.

Lists fill the store and watches update it. Readers get the stored manifests and must not modify
them.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

from shoal_operator.conditions import is_claimed

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from shoal_operator.model.names import Manifest

Key = tuple[str, str]


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
        known = self._kinds[manifest["kind"]].get(key)
        if known is not None and _newer(known["metadata"], meta):
            return
        if known is not None:
            self._forget(known)
        slim = {k: v for k, v in meta.items() if k != "managedFields"}
        self._kinds[manifest["kind"]][key] = {**manifest, "metadata": slim}
        cluster = manifest.get("spec", {}).get("cluster")
        if isinstance(cluster, str):
            of = (manifest["kind"], meta["namespace"], cluster)
            self._by_cluster[of].add(meta["name"])
            if is_claimed(manifest):
                self._claimed[of].add(meta["name"])

    def drop(self, manifest: Manifest) -> None:
        """Remove this object unless another object has its name now."""
        kind, meta = manifest["kind"], manifest["metadata"]
        key = (meta["namespace"], meta["name"])
        known = self._kinds[kind].get(key)
        if known is None or known["metadata"].get("uid") != meta.get("uid"):
            return
        del self._kinds[kind][key]
        self._forget(known)

    def _forget(self, known: Manifest) -> None:
        """Remove a stored version from the indexes."""
        meta = known["metadata"]
        of = (known["kind"], meta["namespace"], str(known.get("spec", {}).get("cluster")))
        for names in (self._by_cluster, self._claimed):
            names[of].discard(meta["name"])

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

    def claimed(self, kind: str, namespace: str, cluster: str) -> list[str]:
        """Return the names of the objects of a kind in a cluster whose topic, group or user an
        older object has. The cost does not depend on the number of other objects."""
        return sorted(self._claimed.get((kind, namespace, cluster), ()))

    def has_any(self, kind: str, namespace: str, cluster: str) -> bool:
        """Return whether there are objects of a kind whose `spec.cluster` is `cluster`."""
        return bool(self._by_cluster.get((kind, namespace, cluster)))


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
