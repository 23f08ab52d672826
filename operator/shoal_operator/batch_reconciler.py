"""The reconciler of the resources that the brokers change in batches: QueueTopics, ShareGroups.

One pass observes all queued resources, decides for each of them, and applies the result with one
request for each kind of change. Then it writes each status. A topic or group that two resources
name belongs to the older resource; the newer one reports that in its status and changes nothing.
"""

from __future__ import annotations

import abc
import asyncio
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from shoal.client.errors import ClientError, KafkaError

from shoal_operator.conditions import Verdict
from shoal_operator.model import names
from shoal_operator.statuses import Statuses
from shoal_operator.store import Store, is_older

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from shoal_operator.brokers import Brokers
    from shoal_operator.kube import Kube
    from shoal_operator.model.names import Manifest

#: Kubernetes requests in flight at once while statuses are written.
WRITES_MAX = 16
#: Seconds until resources are reconciled again whose QueueCluster does not exist.
NO_CLUSTER_SECONDS = 30.0


class Outcome(NamedTuple):
    """What one pass found out about a resource: its conditions, and other fields of its status."""

    resource: Manifest
    verdict: Verdict
    fields: Mapping[str, Any]


def owners(
    resources: Iterable[Manifest], name_of: Callable[[Manifest], str]
) -> dict[str, Manifest]:
    """Return the owner of each topic or group: the oldest resource that names it.

    Resources that are being deleted own nothing.
    """
    found: dict[str, Manifest] = {}
    for resource in resources:
        if resource["metadata"].get("deletionTimestamp"):
            continue
        owner = found.get(name_of(resource))
        if owner is None or is_older(resource, owner):
            found[name_of(resource)] = resource
    return found


def live_cluster(store: Store, namespace: str, name: str) -> Manifest | None:
    """Return the QueueCluster unless it is absent or being deleted."""
    cluster = store.get("QueueCluster", namespace, name)
    if cluster is None or cluster["metadata"].get("deletionTimestamp"):
        return None
    return cluster


def cluster_not_found(name: str) -> Verdict:
    """Return the verdict on a resource without its `live_cluster`."""
    return Verdict.waiting(
        "ClusterNotFound", f"QueueCluster {name!r} does not exist in this namespace."
    )


def of_external(kind: str, name: str) -> Verdict:
    """Return the verdict on a resource that needs Shoal's brokers, in an external cluster."""
    return Verdict.refused(
        "NotForExternalCluster",
        f"QueueCluster {name!r} is external, and a {kind} needs a cluster that the operator runs. "
        "Delete this resource; docs/operator.md has what replaces it.",
    )


class BatchReconciler(abc.ABC):
    """Reconciles all resources of one kind of one QueueCluster.

    Subclasses name, apply and delete the topics or groups in the brokers.
    """

    #: The kind of the resources.
    kind: ClassVar[str]
    #: What the brokers have of it, for messages.
    noun: ClassVar[str]
    #: Seconds until the next pass while a resource is in progress.
    retry_seconds: ClassVar[float]

    def __init__(
        self, kube: Kube, store: Store, brokers: Brokers, namespace: str, cluster: str
    ) -> None:
        self._kube, self._store, self._brokers = kube, store, brokers
        self._namespace, self._cluster = namespace, cluster
        self._statuses = Statuses(kube, store)

    @abc.abstractmethod
    def name_of(self, resource: Manifest) -> str:
        """Return the name of the topic or group in the brokers."""

    @abc.abstractmethod
    def deletes(self, resource: Manifest) -> bool:
        """Return whether the topic or group is deleted together with the resource."""

    @abc.abstractmethod
    def conflict(self, resource: Manifest, owner: Manifest) -> Outcome:
        """Return the outcome for a resource whose topic or group belongs to `owner`."""

    @abc.abstractmethod
    async def apply(self, owned: Sequence[Manifest]) -> list[Outcome]:
        """Bring the topics or groups of these resources to their specs. Raises `ClientError`."""

    @abc.abstractmethod
    async def delete(self, wanted: Sequence[str]) -> Mapping[str, KafkaError]:
        """Delete topics or groups; return the errors by name. Raises `ClientError`."""

    def list_names(self) -> list[str]:
        """Return the names of all resources of the kind."""
        return [o["metadata"]["name"] for o in self._resources()]

    def _resources(self) -> list[Manifest]:
        return self._store.of_cluster(self.kind, self._namespace, self._cluster)

    async def reconcile(self, wanted: list[str]) -> float | None:
        """Bring these resources to their specs; return seconds until the next pass, if needed."""
        resources = self._resources()
        queued = set(wanted)
        mine = [o for o in resources if o["metadata"]["name"] in queued]
        deleted = [o for o in mine if o["metadata"].get("deletionTimestamp")]
        kept = [o for o in mine if not o["metadata"].get("deletionTimestamp")]
        if live_cluster(self._store, self._namespace, self._cluster) is None:
            await self._remove_finalizers(deleted)
            verdict = cluster_not_found(self._cluster)
            await self._write([Outcome(o, verdict, {}) for o in kept])
            return NO_CLUSTER_SECONDS if kept else None
        by_name = owners(resources, self.name_of)
        owned = [o for o in kept if by_name[self.name_of(o)] is o]
        try:
            pending = await self._delete(deleted, by_name)
            outcomes = await self.apply(owned)
        except ClientError as error:
            verdict = Verdict.waiting("BrokersUnreachable", f"No broker answered: {error}")
            await self._write([Outcome(o, verdict, {}) for o in kept])
            raise
        for resource in kept:
            owner = by_name[self.name_of(resource)]
            if owner is not resource:
                outcomes.append(self.conflict(resource, owner))
        await self._write(outcomes)
        self.reconciled(outcomes)
        pending |= any(outcome.verdict.progressing for outcome in outcomes)
        return self.retry_seconds if pending else None

    def reconciled(self, outcomes: Sequence[Outcome]) -> None:  # noqa: B027, an optional hook
        """Called after the statuses are written; does nothing by default."""

    async def _write(self, outcomes: Sequence[Outcome]) -> None:
        gate = asyncio.Semaphore(WRITES_MAX)

        async def write(outcome: Outcome) -> None:
            async with gate:
                await self._set_finalizer(outcome.resource, self.deletes(outcome.resource))
                await self._statuses.write(*outcome)

        await asyncio.gather(*map(write, outcomes))

    async def _set_finalizer(self, resource: Manifest, wanted: bool) -> None:
        """Add or remove the finalizer, which holds the deletion until the brokers have deleted."""
        finalizers = resource["metadata"].get("finalizers", [])
        if wanted == (names.FINALIZER in finalizers):
            return
        changed = [f for f in finalizers if f != names.FINALIZER]
        changed += [names.FINALIZER] if wanted else []
        await self._kube.merge(resource, {"metadata": {"finalizers": changed}})

    async def _delete(self, deleted: Sequence[Manifest], by_name: Mapping[str, Manifest]) -> bool:
        """Delete what the finalizers ask for; return whether some deletions have to be retried."""
        finalized = [o for o in deleted if names.FINALIZER in o["metadata"].get("finalizers", [])]
        unowned = sorted({n for o in finalized if (n := self.name_of(o)) not in by_name})
        failures = await self.delete(unowned) if unowned else {}
        failed = [o for o in finalized if self.name_of(o) in failures]
        for resource in failed:
            text = f"The {self.noun} is not deleted yet: {failures[self.name_of(resource)]}."
            await self._statuses.write(resource, Verdict.waiting("DeletionWaits", text))
        await self._remove_finalizers([o for o in finalized if o not in failed])
        return bool(failed)

    async def _remove_finalizers(self, deleted: Sequence[Manifest]) -> None:
        for resource in deleted:
            await self._set_finalizer(resource, False)
