"""The reconciler of the resources that the brokers change in batches: QueueTopics, ShareGroups.

One pass observes all queued resources, decides for each of them, and applies the result with one
request for each kind of change. Then it writes each status. A topic or group that two resources
name belongs to the older resource; the newer one reports that in its status and changes nothing.

A resource at which a pass fails gets the failure as its condition, and the others continue: the
pass is repeated for each half of its resources, until the failing ones are alone.
"""

from __future__ import annotations

import abc
import asyncio
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import structlog
from shoal.client.errors import ClientError

from shoal_operator import failures
from shoal_operator.conditions import Verdict
from shoal_operator.kube import KubeError
from shoal_operator.model import names
from shoal_operator.statuses import Statuses
from shoal_operator.store import Store, is_older

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from shoal.client.errors import KafkaError

    from shoal_operator.brokers import Brokers
    from shoal_operator.kube import Kube
    from shoal_operator.model.names import Manifest

log = structlog.get_logger()
#: Kubernetes requests in flight at once while statuses are written.
WRITES_MAX = 16
#: Seconds until resources are reconciled again whose QueueCluster does not exist.
NO_CLUSTER_SECONDS = 30.0
#: Seconds until the next pass for resources that wait for somebody else.
BLOCKED_SECONDS = 30.0


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
        "Delete this resource; docs/operator/clusters.md has what replaces it.",
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

    async def remember(self, deleted: Sequence[Manifest]) -> None:  # noqa: B027, an optional hook
        """Keep what is needed of resources that are deleted while their cluster is away; nothing by
        default. Raises `KubeError`."""

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
            verdict = cluster_not_found(self._cluster)
            await self._write([Outcome(o, verdict, {}) for o in kept])
            await self.remember(deleted)
            removed = await self._remove_finalizers(deleted)
            return None if removed and not kept else NO_CLUSTER_SECONDS
        by_name = owners(resources, self.name_of)
        owned = [o for o in kept if by_name[self.name_of(o)] is o]
        try:
            pending = await self._delete(deleted, by_name)
            outcomes = await self._apply_apart(owned)
        except ClientError as error:
            verdict = Verdict.waiting("BrokersUnreachable", f"No broker answered: {error}")
            await self._write([Outcome(o, verdict, {}) for o in kept])
            raise
        for resource in kept:
            owner = by_name[self.name_of(resource)]
            if owner is not resource:
                outcomes.append(self.conflict(resource, owner))
        outcomes = await self._write(outcomes)
        self.reconciled(outcomes)
        under_way = [outcome.verdict for outcome in outcomes if outcome.verdict.progressing]
        if pending or not all(verdict.alarm for verdict in under_way):
            return self.retry_seconds
        return BLOCKED_SECONDS if under_way else None

    async def _apply_apart(self, owned: Sequence[Manifest]) -> list[Outcome]:
        """Apply these resources at once or, if that fails, each half alone. Raises
        `ClientError` for what concerns all of them."""
        try:
            return await self.apply(owned)
        except Exception as error:
            if failures.is_of_all(error) or not owned:
                raise
            if len(owned) == 1:
                verdict = failures.report(self.kind, owned[0], error)
                return [Outcome(owned[0], verdict, {})]
        # What the first attempt has recorded, such as the reset of a group, must be seen.
        newest = [self._newest(resource) for resource in owned]
        middle = len(owned) // 2
        first = await self._apply_apart(newest[:middle])
        return first + await self._apply_apart(newest[middle:])

    def _newest(self, resource: Manifest) -> Manifest:
        found = self._store.get(self.kind, self._namespace, resource["metadata"]["name"])
        return (
            found if found and found["metadata"]["uid"] == resource["metadata"]["uid"] else resource
        )

    def reconciled(self, outcomes: Sequence[Outcome]) -> None:  # noqa: B027, an optional hook
        """Called after the statuses are written; does nothing by default."""

    async def _write(self, outcomes: Sequence[Outcome]) -> list[Outcome]:
        """Write the finalizers and statuses; return the outcomes, also of refused finalizers.

        Raises the first error of a status, after all of them.
        """
        gate = asyncio.Semaphore(WRITES_MAX)

        async def write(outcome: Outcome) -> Outcome:
            resource = outcome.resource
            async with gate:
                try:
                    await self._set_finalizer(resource, self.deletes(resource))
                except KubeError as error:
                    verdict = failures.report(self.kind, resource, error)
                    outcome = outcome._replace(verdict=verdict)
                await self._statuses.write(*outcome)
                return outcome

        written = []
        for result in await asyncio.gather(*map(write, outcomes), return_exceptions=True):
            if isinstance(result, BaseException):
                raise result
            written.append(result)
        return written

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
        errors = await self._delete_apart(unowned) if unowned else {}
        failed = [o for o in finalized if self.name_of(o) in errors]
        for resource in failed:
            text = f"The {self.noun} is not deleted yet: {errors[self.name_of(resource)]}."
            await self._statuses.write(resource, Verdict.waiting("DeletionWaits", text))
        removed = await self._remove_finalizers([o for o in finalized if o not in failed])
        return bool(failed) or not removed

    async def _delete_apart(self, wanted: Sequence[str]) -> Mapping[str, Exception]:
        """Delete at once or, if that fails, each half alone; return the errors by name. Raises
        `ClientError` for what concerns all of them."""
        try:
            return await self.delete(wanted)
        except Exception as error:
            if failures.is_of_all(error):
                raise
            if len(wanted) == 1:
                log.warning("cannot delete", kind=self.kind, name=wanted[0], exc_info=error)
                return {wanted[0]: error}
        middle = len(wanted) // 2
        first = await self._delete_apart(wanted[:middle])
        return {**first, **await self._delete_apart(wanted[middle:])}

    async def _remove_finalizers(self, deleted: Sequence[Manifest]) -> bool:
        """Let these resources go; return whether the API server accepted it for all of them."""
        accepted = True
        for resource in deleted:
            try:
                await self._set_finalizer(resource, False)
            except KubeError as error:
                await self._statuses.write(resource, failures.report(self.kind, resource, error))
                accepted = False
        return accepted
