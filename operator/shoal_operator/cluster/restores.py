"""Restores the data directories of one QueueCluster from its bucket, before its nodes start.

The StatefulSets of all node pools first have pods that restore. They get the template of the nodes
once all pods of all pools have ended and the status says so. A restore never runs again after that
(`restore.wanted_id`), and the command itself replaces nothing but its own unfinished work. So the
operator may end at any moment.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal_operator import diagnostics, kube, pods
from shoal_operator.cluster import decision
from shoal_operator.conditions import Verdict
from shoal_operator.model import names, restore

if TYPE_CHECKING:
    from collections.abc import Iterable

    from shoal_operator.cluster.objects import ClusterObjects
    from shoal_operator.cluster.observation import Observer
    from shoal_operator.cluster.status import ClusterStatus
    from shoal_operator.kube import Kube
    from shoal_operator.model.names import Manifest
    from shoal_operator.model.restore import Result
    from shoal_operator.store import Store

#: What to do about each error of the command that a person must resolve.
_REMEDIES = {
    "DataNotEmpty": (
        "A volume has other data. Delete the QueueCluster and its volume claims, and create it "
        "again."
    ),
    "BackupNotFound": "Check spec.restoreFrom.clusterId and spec.tieredStorage.",
    "TopicNotFound": "Change spec.restoreFrom.topics.",
    "KeyUnavailable": (
        "The Secret of spec.tieredStorage.encryption must have each key with which objects are "
        "encrypted."
    ),
    "BackupInTheClear": (
        "On Kubernetes: remove spec.tieredStorage.encryption.keyId until the cluster is restored."
    ),
    "StoreInvalid": "Change spec.tieredStorage.",
    "ObjectDamaged": "Restore the object from an older version in the bucket.",
}


class Restores:
    """The restore of one QueueCluster."""

    def __init__(
        self,
        api: Kube,
        store: Store,
        observer: Observer,
        objects: ClusterObjects,
        status: ClusterStatus,
    ) -> None:
        self._kube, self._store = api, store
        self._observer, self._objects, self._status = observer, objects, status

    async def reconcile(self, cluster: Manifest) -> Verdict | None:
        """Continue the restore; return None if there is none, or it has ended. Raises
        `KubeError`."""
        stateful_sets = self._observer.every_stateful_set()
        if earlier := restore.in_the_way(cluster, stateful_sets):
            return Verdict.blocked(
                "RestoreWaits",
                f"StatefulSet {earlier[0]} of an earlier QueueCluster of this name still exists. "
                "If it stays for more than a minute, delete it and its pods.",
            )
        restore_id = restore.wanted_id(cluster, stateful_sets)
        if not restore_id:
            return self._given_up(cluster, stateful_sets)
        if not stateful_sets and (found := self._of_claims(cluster)):
            return found
        effective = restore.under_way(cluster, restore_id)
        if pending := await self._objects.apply(effective):
            return decision.no_address(effective, pending)
        if not all(map(pods.is_observed, self._observer.stateful_sets(effective).values())):
            return Verdict.waiting("Restoring", "Kubernetes has not created the pods yet.")
        await self._delete(
            pod for pod in self._observer.pods() if restore.is_outdated(pod, restore_id)
        )
        return self._left_behind(cluster) or await self._look(cluster, effective)

    def _of_claims(self, cluster: Manifest) -> Verdict | None:
        """Return the verdict on volume claims of an earlier cluster of this name, also those of
        brokers that the spec does not have: they would start on them when the cluster grows."""
        found = self._claims(cluster)
        which = _names(found)
        if not found:
            return None
        if all(map(restore.is_leaving, found)):
            text = f"Volume claims of an earlier cluster are being deleted: {which}."
            return Verdict.blocked("RestoreWaits", text)
        return Verdict.refused(
            "RestoreRefused",
            "There are volumes of an earlier cluster, which may have data. To restore, delete "
            f"these volume claims: {which}. To start the cluster with its data instead, remove "
            "spec.restoreFrom.",
        )

    def _claims(self, cluster: Manifest) -> list[Manifest]:
        """Return the volume claims of all clusters of this name, and of all of their pools."""
        meta = cluster["metadata"]
        labels = names.selector(meta["name"])
        return self._store.labelled("PersistentVolumeClaim", meta["namespace"], labels)

    def _left_behind(self, cluster: Manifest) -> Verdict | None:
        """Return the verdict on volume claims of nodes that left the spec since the restore began.

        They may have metadata that names other brokers, at the same offset as that of the restored
        nodes. A node that starts on such a volume later would keep it.
        """
        wanted = {claim["metadata"]["name"] for claim in self._observer.claims(cluster)}
        found = [one for one in self._claims(cluster) if one["metadata"]["name"] not in wanted]
        if not found:
            return None
        if all(one["metadata"].get("deletionTimestamp") for one in found):
            text = f"Volume claims of nodes that left are being deleted: {_names(found)}."
            return Verdict.blocked("RestoreWaits", text)
        return Verdict.refused(
            "RestoreRefused",
            "Nodes have left the spec during the restore, and their volumes may have other "
            f"metadata than the restored ones. Delete these volume claims: {_names(found)}.",
        )

    def _given_up(self, cluster: Manifest, stateful_sets: Iterable[Manifest]) -> Verdict | None:
        """Return the verdict on a spec without a restore that has begun. Nodes with restored data
        and nodes without it must not run together."""
        if not restore.is_given_up(cluster, stateful_sets):
            return None
        if not any(map(restore.has_restored, self._observer.pods())):
            return None
        return Verdict.refused(
            "RestoreRefused",
            "spec.restoreFrom was removed before all nodes were restored. Set it again, or "
            "delete the QueueCluster and its volume claims, and create it again.",
        )

    async def _look(self, cluster: Manifest, effective: Manifest) -> Verdict | None:
        """Report how far the pods are; return None once all have ended."""
        found = restore.results(effective, self._observer.pods())
        fields = restore.status(found, kube.now())
        if fields["phase"] == restore.RESTORED:
            text = (
                f"{fields['topics']} topics with {fields['partitions']} partitions as of "
                f"{fields['backupTime']}."
            )
            once = restore.id_of(effective)
            await self._kube.event(cluster, "Restored", text, once=once)
            # From here on, nothing is restored any more.
            await self._status.merge(cluster, {"restore": fields})
            return None
        await self._status.merge(cluster, {"restore": fields})
        return self._verdict(effective, found, fields["brokersRestored"])

    def _verdict(self, cluster: Manifest, found: Iterable[Result], restored: str) -> Verdict:
        failed = [one for one in found if not one.done and one.summary is not None]
        # What a person must resolve comes first.
        failed.sort(key=lambda one: str((one.summary or {}).get("error")) not in _REMEDIES)
        for one in failed:
            error = (one.summary or {}).get("error", "Unknown")
            text = f"{one.pod}: {(one.summary or {}).get('message', 'no reason')}"
            if error in _REMEDIES:
                return Verdict.refused("RestoreRefused", f"{text} {_REMEDIES[error]}")
            return Verdict.blocked("RestoreWaits", f"{text} The pod tries again.")
        return self._waiting(cluster, restored)

    def _waiting(self, cluster: Manifest, restored: str) -> Verdict:
        claims = self._observer.claims(cluster)
        if found := diagnostics.diagnose_pods(self._observer.pods(), claims):
            return Verdict.blocked(found.reason, found.message)
        return Verdict.waiting("Restoring", f"{restored} nodes have their data.")

    async def end(self) -> Verdict | None:
        """Delete the pods that have restored, once all StatefulSets have the template of the nodes;
        return None if there are none. Raises `KubeError`."""
        left = [pod for pod in self._observer.pods() if restore.is_restoring(pod)]
        await self._delete(left)
        if not left:
            return None
        return Verdict.waiting("Starting", "The brokers start with the restored data.")

    async def _delete(self, found: Iterable[Manifest]) -> None:
        for pod in found:
            if pod["metadata"].get("deletionTimestamp"):
                continue
            deleted = await self._kube.delete(pod)
            if deleted:
                self._store.put(deleted)


def _names(found: Iterable[Manifest]) -> str:
    return ", ".join(one["metadata"]["name"] for one in found)
