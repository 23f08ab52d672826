"""Applies the Kubernetes objects of a QueueCluster, only where they have drifted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from shoal_operator.brokers import pods
from shoal_operator.brokers.diagnostics import Diagnosis
from shoal_operator.cluster.routes import RouteReconciler
from shoal_operator.kube.drift import APPLIED, REVERTED, has_drifted, with_digest
from shoal_operator.kube.kube import KubeClient, KubeError
from shoal_operator.model import cluster as model
from shoal_operator.model import listeners, names, node_pools, storage
from shoal_operator.model.quantities import parse_size_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from shoal_operator.cluster.observation import ClusterObserver
    from shoal_operator.kube.store import Store
    from shoal_operator.model.names import Manifest
    from shoal_operator.model.node_pools import NodePool
    from shoal_operator.model.queue_cluster import QueueCluster


class AppliedObjects(NamedTuple):
    """What became of the objects of a QueueCluster."""

    #: The names of external Services without an address. Nothing else was applied then.
    pending: Sequence[str] = ()
    #: A volume that the API server refuses to grow.
    not_grown: Diagnosis | None = None
    #: A volume that does not get its VolumeAttributesClass.
    not_modified: Diagnosis | None = None
    #: Why clients outside do not reach a listener behind a proxy.
    not_routed: Diagnosis | None = None


class ClusterObjects:
    """Writes the objects; `image` and `pull_policy` are the chart's defaults for brokers. `routed`
    are the types of listeners whose routes the operator may write."""

    def __init__(
        self,
        kube: KubeClient,
        store: Store,
        observer: ClusterObserver,
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
        self._routes = RouteReconciler(kube, routed)

    async def apply(self, cluster: QueueCluster) -> AppliedObjects:
        """Apply all objects and delete those that are no longer wanted. Raises `KubeError`.

        Brokers advertise the addresses of external Services, so nothing but the Services is applied
        before all have one.
        """
        for want in model.build_service_manifests(cluster):
            await self._apply(cluster, want)
        services = self._observer.get_services(cluster)
        pending = listeners.list_pending(cluster, services)
        if pending:
            return AppliedObjects(pending)
        manifests = model.build_manifests(
            cluster,
            self._image,
            services,
            self._pull_policy,
            self._operator_namespace,
            openshift=self._openshift,
        )
        not_grown = not_modified = None
        for want in manifests:
            if want["kind"] == "StatefulSet":
                want, *problems = await self._change_claims(cluster, want)
                not_grown, not_modified = problems[0] or not_grown, problems[1] or not_modified
            await self._apply(cluster, want)
        keys = {(w["kind"], w["metadata"]["name"]) for w in manifests}
        for kind in ("Service", "NetworkPolicy"):
            for have in self._observer.list_owned(cluster, kind):
                if (kind, have["metadata"]["name"]) not in keys:
                    await self._kube.delete(have)
                    self._store.drop(have)
        pools = {pool.stateful_set for pool in node_pools.list_pools(cluster)}
        for have in self._observer.list_owned(cluster, "StatefulSet"):
            if have["metadata"]["name"] not in pools:
                # Its pool was removed when it had no pods. The volume claims stay.
                await self._kube.delete(have, orphan=True)
                self._store.drop(have)
        not_routed = await self._routes.reconcile(cluster)
        return AppliedObjects((), not_grown, not_modified, not_routed)

    async def _apply(self, cluster: QueueCluster, want: Manifest) -> None:
        meta = want["metadata"]
        have = self._store.get(want["kind"], meta["namespace"], meta["name"])
        want = with_digest(want)
        digest = want["metadata"]["annotations"][APPLIED]
        key = (want["kind"], meta["name"])
        version = have["metadata"]["resourceVersion"] if have else ""
        if have and (not has_drifted(want, have) or self._applied.get(key) == (digest, version)):
            return
        applied = await self._kube.apply(want)
        if have and have["metadata"].get("annotations", {}).get(APPLIED) == digest:
            text = f"Somebody else had changed {want['kind']} {meta['name']}."
            # A webhook may change it each time.
            await self._kube.record_event(cluster, REVERTED, text, once=f"{key} {digest}")
        self._applied[key] = (digest, applied["metadata"]["resourceVersion"])
        self._store.put(applied)

    async def _change_claims(
        self, cluster: QueueCluster, want: Manifest
    ) -> tuple[Manifest, Diagnosis | None, Diagnosis | None]:
        """Bring the volume claims of a StatefulSet to the spec: claim templates are immutable.

        Returns the StatefulSet with the templates that it has, and why volumes do not grow or are
        not modified.
        """
        meta = want["metadata"]
        have = self._store.get("StatefulSet", meta["namespace"], meta["name"])
        templates = have["spec"].get("volumeClaimTemplates") if have else None
        if not templates:
            return want, None, None
        (pool,) = [p for p in node_pools.list_pools(cluster) if p.stateful_set == meta["name"]]
        await self._create_claims(cluster, pool, templates)
        not_grown = await self._resize_claims(cluster, pool)
        not_modified = await self._modify_claims(cluster, pool)
        await self._label_claims(cluster, pool, templates)
        spec = {**want["spec"], "volumeClaimTemplates": templates}
        return {**want, "spec": spec}, not_grown, not_modified

    async def _label_claims(
        self, cluster: QueueCluster, pool: NodePool, templates: Sequence[Manifest]
    ) -> None:
        """Give the volume claims of a pool the labels and annotations of the spec.

        `templates` are the claim templates, whose labels and annotations new claims have.
        """
        view = node_pools.make_view(cluster, pool)
        metadata: Mapping[str, Any] = model.build_claim_metadata(view, pool)
        for claim in self._observer.list_claims(cluster, pool):
            identity = {key: claim["metadata"][key] for key in ("name", "namespace")}
            want = {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "metadata": {**identity, **metadata},
            }
            # The controller that created the claim owns these, so that apply does not remove them.
            stale = {
                field: {
                    key: None
                    for template in templates
                    for key in template["metadata"].get(field, {})
                    if key not in metadata.get(field, {})
                    and key in claim["metadata"].get(field, {})
                }
                for field in ("labels", "annotations")
            }
            if APPLIED in claim["metadata"].get("annotations", {}):
                differs = has_drifted(with_digest(want), claim)
            else:
                # A new claim has all from its template. A change would race the scheduler, which
                # then reports that it cannot bind the claim.
                differs = has_drifted(want, claim) or any(stale.values())
            if not differs:
                continue
            if any(stale.values()):
                await self._kube.merge(claim, {"metadata": stale})
            # The controller of the StatefulSet has created it, or the user from a snapshot.
            self._store.put(await self._kube.apply(with_digest(want), adopt=True))

    async def _create_claims(
        self, cluster: QueueCluster, pool: NodePool, templates: Sequence[Manifest]
    ) -> None:
        """Create the claims of new pods of a pool whose volumes have grown: from `templates`, which
        cannot change, the StatefulSet would give them the former size."""
        view = node_pools.make_view(cluster, pool)
        new_templates = storage.build_claim_templates(view, model.build_claim_metadata(view, pool))
        sizes = [
            {t["metadata"]["name"]: t["spec"]["resources"]["requests"]["storage"] for t in claims}
            for claims in (new_templates, templates)
        ]
        if sizes[0] == sizes[1]:
            return
        existing = {
            claim["metadata"]["name"] for claim in self._observer.list_claims(cluster, pool)
        }
        running = {pods.get_ordinal(pod) for pod in self._observer.list_pods()}
        for pod in (candidate for candidate in pool.pods if candidate not in running):
            for template in new_templates:
                name = names.format_claim(
                    f"{pool.stateful_set}-{pod}", template["metadata"]["name"]
                )
                if name in existing:
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

    async def _resize_claims(self, cluster: QueueCluster, pool: NodePool) -> Diagnosis | None:
        """Raise the requests of a pool's volume claims to its `storage.size`, or take back one that
        was raised and that the storage driver has not met. Return which volumes do not grow."""
        size = node_pools.make_view(cluster, pool)["spec"]["storage"]["size"]
        rejected: list[str] = []
        not_grown = None
        for claim in self._observer.list_claims(cluster, pool):
            name, status = claim["metadata"]["name"], claim.get("status", {})
            requested_bytes = parse_size_bytes(claim["spec"]["resources"]["requests"]["storage"])
            have = parse_size_bytes(status.get("capacity", {}).get("storage", size))
            grows = requested_bytes < parse_size_bytes(size)
            returns = have <= parse_size_bytes(size) < requested_bytes
            if not grows and not returns:
                continue
            try:
                patch = {"spec": {"resources": {"requests": {"storage": size}}}}
                await self._kube.merge(claim, patch)
            except KubeError as error:
                if error.status not in (403, 422):
                    raise
                rejected.append(name)
                text = f"{', '.join(rejected)}: no volume becomes {size}: {error}. Allow it in the "
                text += "storage class, or set the size to that of status.volumeSize."
                not_grown = Diagnosis("VolumeNotGrown", text)
                continue
            if grows:
                await self._kube.record_event(
                    cluster, "VolumeGrows", f"{name} grows to {size}.", once=f"{name} {size}"
                )
        return not_grown

    async def _modify_claims(self, cluster: QueueCluster, pool: NodePool) -> Diagnosis | None:
        """Give the volume claims of a pool its VolumeAttributesClass; return which do not get it.

        Without one in the spec, they keep theirs: Kubernetes does not remove it from a volume.
        """
        storage_spec = node_pools.make_view(cluster, pool)["spec"]["storage"]
        attributes_class = storage_spec.get("volumeAttributesClassName", "")
        not_modified = None
        for claim in self._observer.list_claims(cluster, pool) if attributes_class else ():
            name, why = claim["metadata"]["name"], _find_infeasible(claim, attributes_class)
            if claim["spec"].get("volumeAttributesClassName") != attributes_class:
                try:
                    patch = {"spec": {"volumeAttributesClassName": attributes_class}}
                    changed = await self._kube.merge(claim, patch) or {}
                    if changed.get("spec", {}).get("volumeAttributesClassName") != attributes_class:
                        why = "this Kubernetes has no VolumeAttributesClasses. They need 1.34"
                except KubeError as error:
                    if error.status not in (403, 422):
                        raise
                    why = str(error)
            if why:
                text = (
                    f"{name} does not get the VolumeAttributesClass {attributes_class!r}: "
                    f"{why.rstrip('.')}. "
                    "Correct spec.storage.volumeAttributesClassName, or the class."
                )
                not_modified = Diagnosis("VolumeNotModified", text)
        return not_modified


def _find_infeasible(claim: Manifest, attributes_class: str) -> str:
    """Return why the storage driver refuses this class for a volume, empty if it does not."""
    status = claim.get("status", {})
    modify = status.get("modifyVolumeStatus", {})
    if modify.get("status") != "Infeasible":
        return ""
    if modify.get("targetVolumeAttributesClassName") != attributes_class:
        return ""
    messages = [c.get("message", "") for c in status.get("conditions", [])]
    return " ".join(filter(None, messages)) or "its storage driver cannot do that"
