"""Hibernates a QueueCluster: consumers stop first, then all brokers; volumes and Services stay."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal_operator import clock
from shoal_operator.kube.conditions import Verdict
from shoal_operator.kube.drift import APPLIED
from shoal_operator.model import hibernation as model
from shoal_operator.model import names

if TYPE_CHECKING:
    from shoal_operator.cluster.observation import ClusterObserver
    from shoal_operator.kube.kube import KubeClient
    from shoal_operator.kube.store import Store
    from shoal_operator.model.names import Manifest
    from shoal_operator.model.queue_cluster import QueueCluster

#: How long the brokers wait for consumers to finish. Later, their records are delivered again.
CONSUMERS_MS = 120_000


class Hibernation:
    """The hibernation of one QueueCluster."""

    def __init__(self, kube: KubeClient, store: Store, observer: ClusterObserver) -> None:
        self._kube, self._store, self._observer = kube, store, observer
        #: Since when consumers are waited for.
        self._waits_since_ms: int | None = None

    async def reconcile(self, cluster: QueueCluster) -> Verdict:
        """Remove the pods, once consumers have stopped; return the verdict. Raises `KubeError`."""
        sets = self._observer.list_owned(cluster, "StatefulSet")
        running = [stateful_set for stateful_set in sets if stateful_set["spec"]["replicas"]]
        now_ms = clock.now_ms()
        if self._waits_since_ms is None:
            self._waits_since_ms = now_ms
        consumers = self._list_consumers(cluster)
        if running and consumers and now_ms - self._waits_since_ms < CONSUMERS_MS:
            text = f"The brokers stop after the pods of ShareConsumers: {', '.join(consumers)}."
            return Verdict.make_waiting("Hibernating", text)
        for stateful_set in running:
            # Without its digest, the change is not taken for one by somebody else.
            replicas = str(stateful_set["spec"]["replicas"])
            notes = {model.REPLICAS: replicas, APPLIED: None}
            patch = {"metadata": {"annotations": notes}, "spec": {"replicas": 0}}
            await self._merge(stateful_set, patch)
        if pods := self._observer.list_pods():
            return Verdict.make_waiting("Hibernating", f"{len(pods)} pods stop.")
        text = (
            "spec.hibernated is true: no broker runs, and volumes and Services are kept. Remove "
            "the field to start the brokers."
        )
        return Verdict(False, "Hibernated", text, paused=True)

    def _list_consumers(self, cluster: QueueCluster) -> list[str]:
        """Return the names of the ShareConsumers of the cluster that have pods of their own."""
        meta = cluster["metadata"]
        labels = {names.CLUSTER_LABEL: meta["name"]}
        pods = self._store.list_labelled("Pod", meta["namespace"], labels)
        return sorted(
            {
                pod["metadata"]["labels"][names.CONSUMER_LABEL]
                for pod in pods
                if names.CONSUMER_LABEL in pod["metadata"]["labels"]
                and pod.get("status", {}).get("phase") in ("Pending", "Running")
            }
        )

    async def end(self, cluster: QueueCluster) -> None:
        """Forget the hibernation of StatefulSets that have pods again. Raises `KubeError`."""
        self._waits_since_ms = None
        for stateful_set in self._observer.list_owned(cluster, "StatefulSet"):
            noted = model.REPLICAS in stateful_set["metadata"].get("annotations", {})
            if noted and stateful_set["spec"]["replicas"]:
                forget = {"metadata": {"annotations": {model.REPLICAS: None}}}
                await self._merge(stateful_set, forget)

    async def _merge(self, stateful_set: Manifest, patch: Manifest) -> None:
        if changed := await self._kube.merge(stateful_set, patch):
            self._store.put(changed)
