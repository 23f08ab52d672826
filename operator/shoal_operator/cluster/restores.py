"""Restores the data directories of one QueueCluster from its bucket, before its nodes start.

The StatefulSets of all node pools first have pods that restore. They get the template of the nodes
once all pods of all pools have ended and the status says so. A restore never runs again after that
(`restore.compute_restore_id`), and the command itself replaces nothing but its own unfinished work.
So the operator may end at any moment.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal_operator.brokers import diagnostics, pods
from shoal_operator.cluster import decision
from shoal_operator.kube import kube
from shoal_operator.kube.conditions import Verdict
from shoal_operator.model import names, restore

if TYPE_CHECKING:
    from collections.abc import Iterable

    from shoal_operator.cluster.objects import ClusterObjects
    from shoal_operator.cluster.observation import ClusterObserver
    from shoal_operator.cluster.status import ClusterStatus
    from shoal_operator.kube.kube import KubeClient
    from shoal_operator.kube.store import Store
    from shoal_operator.model.names import Manifest
    from shoal_operator.model.queue_cluster import QueueCluster
    from shoal_operator.model.restore import RestoreResult

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


class RestoreReconciler:
    """The restore of one QueueCluster."""

    def __init__(
        self,
        api: KubeClient,
        store: Store,
        observer: ClusterObserver,
        objects: ClusterObjects,
        status: ClusterStatus,
    ) -> None:
        self._kube, self._store = api, store
        self._observer, self._objects, self._status = observer, objects, status

    async def reconcile(self, cluster: QueueCluster) -> Verdict | None:
        """Continue the restore; return None if there is none, or it has ended. Raises
        `KubeError`."""
        stateful_sets = self._observer.list_all_stateful_sets()
        if earlier := restore.list_blocking(cluster, stateful_sets):
            return Verdict.make_blocked(
                "RestoreWaits",
                f"StatefulSet {earlier[0]} of an earlier QueueCluster of this name still exists. "
                "If it stays for more than a minute, delete it and its pods.",
            )
        restore_id = restore.compute_restore_id(cluster, stateful_sets)
        if not restore_id:
            return self._find_abandoned_refusal(cluster, stateful_sets)
        if not stateful_sets and (verdict := self._find_claim_refusal(cluster)):
            return verdict
        effective = restore.with_restore(cluster, restore_id)
        applied = await self._objects.apply(effective)
        if applied.pending:
            return decision.make_no_address_verdict(effective, applied.pending)
        if not all(map(pods.is_observed, self._observer.get_stateful_sets(effective).values())):
            return Verdict.make_waiting("Restoring", "Kubernetes has not created the pods yet.")
        await self._delete(
            pod for pod in self._observer.list_pods() if restore.is_outdated(pod, restore_id)
        )
        return self._find_leftover_refusal(cluster) or await self._poll_pods(cluster, effective)

    def _find_claim_refusal(self, cluster: QueueCluster) -> Verdict | None:
        """Return the verdict on volume claims of an earlier cluster of this name, also those of
        brokers that the spec does not have: they would start on them when the cluster grows."""
        claims = self._list_claims(cluster)
        claim_names = _join_names(claims)
        if not claims:
            return None
        if all(map(restore.is_leaving, claims)):
            text = f"Volume claims of an earlier cluster are being deleted: {claim_names}."
            return Verdict.make_blocked("RestoreWaits", text)
        return Verdict.make_refused(
            "RestoreRefused",
            "There are volumes of an earlier cluster, which may have data. To restore, delete "
            f"these volume claims: {claim_names}. To start the cluster with its data instead, "
            "remove spec.restoreFrom.",
        )

    def _list_claims(self, cluster: QueueCluster) -> list[Manifest]:
        """Return the volume claims of all clusters of this name, and of all of their pools."""
        meta = cluster["metadata"]
        labels = names.build_selector(meta["name"])
        return self._store.list_labelled("PersistentVolumeClaim", meta["namespace"], labels)

    def _find_leftover_refusal(self, cluster: QueueCluster) -> Verdict | None:
        """Return the verdict on volume claims of nodes that left the spec since the restore began.

        They may have metadata that names other brokers, at the same offset as that of the restored
        nodes. A node that starts on such a volume later would keep it.
        """
        kept_names = {claim["metadata"]["name"] for claim in self._observer.list_claims(cluster)}
        leftover = [
            candidate
            for candidate in self._list_claims(cluster)
            if candidate["metadata"]["name"] not in kept_names
        ]
        if not leftover:
            return None
        if all(candidate["metadata"].get("deletionTimestamp") for candidate in leftover):
            text = f"Volume claims of nodes that left are being deleted: {_join_names(leftover)}."
            return Verdict.make_blocked("RestoreWaits", text)
        return Verdict.make_refused(
            "RestoreRefused",
            "Nodes have left the spec during the restore, and their volumes may have other "
            "metadata than the restored ones. Delete these volume claims: "
            f"{_join_names(leftover)}.",
        )

    def _find_abandoned_refusal(
        self, cluster: QueueCluster, stateful_sets: Iterable[Manifest]
    ) -> Verdict | None:
        """Return the verdict on a spec without a restore that has begun. Nodes with restored data
        and nodes without it must not run together."""
        if not restore.is_given_up(cluster, stateful_sets):
            return None
        if not any(map(restore.has_restored, self._observer.list_pods())):
            return None
        return Verdict.make_refused(
            "RestoreRefused",
            "spec.restoreFrom was removed before all nodes were restored. Set it again, or "
            "delete the QueueCluster and its volume claims, and create it again.",
        )

    async def _poll_pods(self, cluster: QueueCluster, effective: QueueCluster) -> Verdict | None:
        """Report how far the pods are; return None once all have ended."""
        results = restore.parse_results(effective, self._observer.list_pods())
        fields = restore.build_status(results, kube.format_now())
        if fields["phase"] == restore.RESTORED:
            text = (
                f"{fields['topics']} topics with {fields['partitions']} partitions as of "
                f"{fields['backupTime']}."
            )
            once = restore.get_restore_id(effective)
            await self._kube.record_event(cluster, "Restored", text, once=once)
            # From here on, nothing is restored any more.
            await self._status.merge(cluster, {"restore": fields})
            return None
        await self._status.merge(cluster, {"restore": fields})
        return self._decide_verdict(effective, results, fields["brokersRestored"])

    def _decide_verdict(
        self, cluster: QueueCluster, results: Iterable[RestoreResult], restored: str
    ) -> Verdict:
        failed = [result for result in results if not result.done and result.summary is not None]
        # What a person must resolve comes first.
        failed.sort(key=lambda result: str((result.summary or {}).get("error")) not in _REMEDIES)
        for result in failed:
            error = (result.summary or {}).get("error", "Unknown")
            text = f"{result.pod}: {(result.summary or {}).get('message', 'no reason')}"
            if error in _REMEDIES:
                return Verdict.make_refused("RestoreRefused", f"{text} {_REMEDIES[error]}")
            return Verdict.make_blocked("RestoreWaits", f"{text} The pod tries again.")
        return self._make_waiting_verdict(cluster, restored)

    def _make_waiting_verdict(self, cluster: QueueCluster, restored: str) -> Verdict:
        claims = self._observer.list_claims(cluster)
        if diagnosis := diagnostics.diagnose_pods(self._observer.list_pods(), claims):
            return Verdict.make_blocked(diagnosis.reason, diagnosis.message)
        return Verdict.make_waiting("Restoring", f"{restored} nodes have their data.")

    async def end(self) -> Verdict | None:
        """Delete the pods that have restored, once all StatefulSets have the template of the nodes;
        return None if there are none. Raises `KubeError`."""
        restoring = [pod for pod in self._observer.list_pods() if restore.is_restoring(pod)]
        await self._delete(restoring)
        if not restoring:
            return None
        return Verdict.make_waiting("Starting", "The brokers start with the restored data.")

    async def _delete(self, restored_pods: Iterable[Manifest]) -> None:
        for pod in restored_pods:
            if pod["metadata"].get("deletionTimestamp"):
                continue
            deleted = await self._kube.delete(pod)
            if deleted:
                self._store.put(deleted)


def _join_names(manifests: Iterable[Manifest]) -> str:
    return ", ".join(manifest["metadata"]["name"] for manifest in manifests)
