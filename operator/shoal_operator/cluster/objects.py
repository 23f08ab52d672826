"""Applies the Kubernetes objects of a QueueCluster, only where they have drifted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal_operator import pods
from shoal_operator.cluster.routes import Routes
from shoal_operator.diagnostics import Diagnosis
from shoal_operator.drift import APPLIED, REVERTED, has_drifted, marked
from shoal_operator.kube import Kube, KubeError
from shoal_operator.model import cluster as model
from shoal_operator.model import listeners, names, node_pools, storage
from shoal_operator.quantities import size_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shoal_operator.cluster.observation import Observer
    from shoal_operator.model.names import Manifest
    from shoal_operator.model.node_pools import NodePool
    from shoal_operator.store import Store


class ClusterObjects:
    """Writes the objects; `image` and `pull_policy` are the chart's defaults for brokers. `routed`
    are the types of listeners whose routes the operator may write."""

    def __init__(
        self,
        kube: Kube,
        store: Store,
        observer: Observer,
        image: str,
        pull_policy: str,
        operator_namespace: str = "",
        *,
        openshift: bool = False,
        routed: frozenset[str] = frozenset(listeners.ROUTED),
    ) -> None:
        self._kube, self._store, self._observer = kube, store, observer
        self._image, self._pull_policy = image, pull_policy
        self._operator_namespace, self._openshift = operator_namespace, openshift
        #: Digest of the manifest and the resourceVersion of its last apply, by kind and name.
        self._applied: dict[tuple[str, str], tuple[str, str]] = {}
        #: A volume that the API server refuses to grow.
        self.not_grown: Diagnosis | None = None
        self._routes = Routes(kube, routed)
        #: Why clients outside do not reach a listener behind a proxy.
        self.not_routed: Diagnosis | None = None

    async def apply(self, cluster: Manifest) -> list[str]:
        """Apply all objects and delete those that are no longer wanted. Raises `KubeError`.

        Returns the names of external Services without an address: brokers advertise it, so that
        nothing but the Services is applied before all have one.
        """
        for want in model.service_manifests(cluster):
            await self._apply(cluster, want)
        services = self._observer.services(cluster)
        pending = listeners.pending(cluster, services)
        if pending:
            return pending
        wanted = model.manifests(
            cluster,
            self._image,
            services,
            self._pull_policy,
            self._operator_namespace,
            openshift=self._openshift,
        )
        self.not_grown = None
        for want in wanted:
            await self._apply(cluster, want)
        keys = {(w["kind"], w["metadata"]["name"]) for w in wanted}
        for kind in ("Service", "NetworkPolicy"):
            for have in self._observer.owned(cluster, kind):
                if (kind, have["metadata"]["name"]) not in keys:
                    await self._kube.delete(have)
                    self._store.drop(have)
        pools = {pool.stateful_set for pool in node_pools.of(cluster)}
        for have in self._observer.owned(cluster, "StatefulSet"):
            if have["metadata"]["name"] not in pools:
                # Its pool was removed when it had no pods. The volume claims stay.
                await self._kube.delete(have, orphan=True)
                self._store.drop(have)
        self.not_routed = await self._routes.reconcile(cluster)
        return []

    async def _apply(self, cluster: Manifest, want: Manifest) -> None:
        meta = want["metadata"]
        have = self._store.get(want["kind"], meta["namespace"], meta["name"])
        if want["kind"] == "StatefulSet" and have:
            # Claim templates are immutable, so the claims themselves are changed.
            (pool,) = [p for p in node_pools.of(cluster) if p.stateful_set == meta["name"]]
            if templates := have["spec"].get("volumeClaimTemplates"):
                await self._create_claims(cluster, pool, templates)
                await self._resize_claims(cluster, pool)
                await self._label_claims(cluster, pool, templates)
                kept = {"volumeClaimTemplates": templates}
                want = {**want, "spec": {**want["spec"], **kept}}
        want = marked(want)
        digest = want["metadata"]["annotations"][APPLIED]
        key = (want["kind"], meta["name"])
        version = have["metadata"]["resourceVersion"] if have else ""
        if have and (not has_drifted(want, have) or self._applied.get(key) == (digest, version)):
            return
        made = await self._kube.apply(want)
        if have and have["metadata"].get("annotations", {}).get(APPLIED) == digest:
            text = f"Somebody else had changed {want['kind']} {meta['name']}."
            # A webhook may change it each time.
            await self._kube.event(cluster, REVERTED, text, once=f"{key} {digest}")
        self._applied[key] = (digest, made["metadata"]["resourceVersion"])
        self._store.put(made)

    async def _label_claims(
        self, cluster: Manifest, pool: NodePool, templates: Sequence[Manifest]
    ) -> None:
        """Give the volume claims of a pool the labels and annotations of the spec.

        `templates` are the claim templates, whose labels and annotations new claims have.
        """
        wanted = model.claim_metadata(node_pools.view(cluster, pool), pool)
        for claim in self._observer.claims(cluster, pool):
            identity = {key: claim["metadata"][key] for key in ("name", "namespace")}
            want = {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "metadata": {**identity, **wanted},
            }
            # The controller that created the claim owns these, so that apply does not remove them.
            stale = {
                field: {
                    key: None
                    for template in templates
                    for key in template["metadata"].get(field, {})
                    if key not in wanted.get(field, {}) and key in claim["metadata"].get(field, {})
                }
                for field in ("labels", "annotations")
            }
            if APPLIED in claim["metadata"].get("annotations", {}):
                differs = has_drifted(marked(want), claim)
            else:
                # A new claim has all from its template. A change would race the scheduler, which
                # then reports that it cannot bind the claim.
                differs = has_drifted(want, claim) or any(stale.values())
            if not differs:
                continue
            if any(stale.values()):
                await self._kube.merge(claim, {"metadata": stale})
            # The controller of the StatefulSet has created it, or the user from a snapshot.
            self._store.put(await self._kube.apply(marked(want), adopt=True))

    async def _create_claims(
        self, cluster: Manifest, pool: NodePool, templates: Sequence[Manifest]
    ) -> None:
        """Create the claims of new pods of a pool whose volumes have grown: from `templates`, which
        cannot change, the StatefulSet would give them the former size."""
        view = node_pools.view(cluster, pool)
        wanted = storage.claim_templates(view, model.claim_metadata(view, pool))
        sizes = [
            {t["metadata"]["name"]: t["spec"]["resources"]["requests"]["storage"] for t in some}
            for some in (wanted, templates)
        ]
        if sizes[0] == sizes[1]:
            return
        known = {claim["metadata"]["name"] for claim in self._observer.claims(cluster, pool)}
        running = {pods.ordinal(pod) for pod in self._observer.pods()}
        for pod in (one for one in pool.pods if one not in running):
            for template in wanted:
                name = names.claim(f"{pool.stateful_set}-{pod}", template["metadata"]["name"])
                if name in known:
                    continue
                place = {"name": name, "namespace": cluster["metadata"]["namespace"]}
                claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", **template}
                claim["metadata"] = {**template["metadata"], **place}
                try:
                    self._store.put(await self._kube.create(claim))
                except KubeError as error:
                    # 409: it exists, and is not in the store yet.
                    if error.status != 409:
                        raise

    async def _resize_claims(self, cluster: Manifest, pool: NodePool) -> None:
        """Raise the requests of a pool's volume claims to its `storage.size`, or take back one that
        was raised and that the storage driver has not met."""
        size = node_pools.view(cluster, pool)["spec"]["storage"]["size"]
        kept: list[str] = []
        for claim in self._observer.claims(cluster, pool):
            name, status = claim["metadata"]["name"], claim.get("status", {})
            asked = size_bytes(claim["spec"]["resources"]["requests"]["storage"])
            have = size_bytes(status.get("capacity", {}).get("storage", size))
            grows = asked < size_bytes(size)
            returns = have <= size_bytes(size) < asked
            if not grows and not returns:
                continue
            try:
                patch = {"spec": {"resources": {"requests": {"storage": size}}}}
                await self._kube.merge(claim, patch)
            except KubeError as error:
                if error.status not in (403, 422):
                    raise
                kept.append(name)
                text = f"{', '.join(kept)}: no volume becomes {size}: {error}. Allow it in the "
                text += "storage class, or set the size to that of status.volumeSize."
                self.not_grown = Diagnosis("VolumeNotGrown", text)
                continue
            if grows:
                await self._kube.event(
                    cluster, "VolumeGrows", f"{name} grows to {size}.", once=f"{name} {size}"
                )
