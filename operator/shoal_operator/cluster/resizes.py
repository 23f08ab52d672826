"""Gives running brokers other CPU and memory, where the API server can, without a restart."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal_operator.brokers import resizing
from shoal_operator.brokers.diagnostics import Diagnosis
from shoal_operator.kube.kube import KubeClient, KubeError

if TYPE_CHECKING:
    from shoal_operator.cluster.observation import ClusterObserver
    from shoal_operator.kube.store import Store
    from shoal_operator.model.names import Manifest
    from shoal_operator.model.queue_cluster import QueueCluster

#: A restart replaces the pod where the API server has no such resize (404, 405), refuses this one
#: (422), or does not let the operator resize.
_RESTARTED = (404, 405, 422)
_NO_PERMISSION = 'cannot patch resource "pods/resize"'


class PodResizer:
    """The resizes of one cluster's pods; notes in the observer which pods need a restart."""

    def __init__(self, kube: KubeClient, store: Store, observer: ClusterObserver) -> None:
        self._kube, self._store, self._observer = kube, store, observer

    async def resize(self, cluster: QueueCluster) -> Diagnosis | None:
        """Resize the pods that differ from their templates in CPU and memory only. Return what the
        API server forbids, although a restart would not help. Raises `KubeError`."""
        refused = None
        sets, unresizable = self._observer.get_stateful_sets(cluster), self._observer.unresizable
        for pod in self._observer.list_pods():
            meta = pod["metadata"]
            patch = resizing.build_resize(pod, sets.get(meta["name"].rpartition("-")[0]))
            if patch is None or meta["uid"] in unresizable or meta.get("deletionTimestamp"):
                continue
            try:
                resized = await self._kube.resize(pod, patch)
            except KubeError as error:
                if _needs_restart(error):
                    unresizable.add(meta["uid"])
                elif error.status == 403:
                    refused = _make_refusal(pod, error)
                else:
                    raise
                continue
            self._store.put(resized)
            text = f"{meta['name']} gets other CPU and memory without a restart."
            await self._kube.record_event(
                cluster, "BrokerResized", text, once=resized["metadata"]["resourceVersion"]
            )
        return refused


def _needs_restart(error: KubeError) -> bool:
    return error.status in _RESTARTED or _NO_PERMISSION in str(error)


def _make_refusal(pod: Manifest, error: KubeError) -> Diagnosis:
    """Say what keeps a resize back: a quota or a LimitRange would refuse the next pod as well."""
    text = f"{pod['metadata']['name']} keeps its CPU and memory: {error}. "
    text += "Correct spec.resources, or what limits them in this namespace."
    return Diagnosis("ResizeRefused", text)
