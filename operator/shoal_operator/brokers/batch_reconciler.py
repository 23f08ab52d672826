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
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple

import structlog
from shoal.client.errors import ClientError

from shoal_operator.kube import failures
from shoal_operator.kube.conditions import Verdict
from shoal_operator.kube.kube import KubeError
from shoal_operator.kube.statuses import StatusWriter
from shoal_operator.kube.store import R, Store, is_older
from shoal_operator.model import external, hibernation, names

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from shoal.client.errors import KafkaError

    from shoal_operator.brokers.calls import Brokers
    from shoal_operator.kube.kube import KubeClient
    from shoal_operator.model.queue_cluster import QueueCluster

log = structlog.get_logger()
#: Kubernetes requests in flight at once while statuses are written.
WRITES_MAX = 16
#: Seconds until resources are reconciled again whose QueueCluster does not exist.
NO_CLUSTER_SECONDS = 30.0
#: Seconds until the next pass for resources that wait for somebody else.
BLOCKED_SECONDS = 30.0


class ResourceOutcome(NamedTuple, Generic[R]):
    """What one pass found out about a resource: its conditions, and other fields of its status."""

    resource: R
    verdict: Verdict
    fields: Mapping[str, Any]


def find_owners(resources: Iterable[R], name_of: Callable[[R], str]) -> dict[str, R]:
    """Return the owner of each topic or group: the oldest resource that names it.

    Resources that are being deleted own nothing.
    """
    owners: dict[str, R] = {}
    for resource in resources:
        if resource["metadata"].get("deletionTimestamp"):
            continue
        owner = owners.get(name_of(resource))
        if owner is None or is_older(resource, owner):
            owners[name_of(resource)] = resource
    return owners


def find_live_cluster(store: Store, namespace: str, name: str) -> QueueCluster | None:
    """Return the QueueCluster unless it is absent or being deleted."""
    cluster = store.get_cluster(namespace, name)
    if cluster is None or cluster["metadata"].get("deletionTimestamp"):
        return None
    return cluster


def make_no_cluster_verdict(name: str) -> Verdict:
    """Return the verdict on a resource without its `find_live_cluster`."""
    return Verdict.make_waiting(
        "ClusterNotFound", f"QueueCluster {name!r} does not exist in this namespace."
    )


def make_hibernated_verdict(name: str) -> Verdict:
    """Return the verdict on a resource whose cluster has no brokers at present."""
    text = (
        f"QueueCluster {name!r} is hibernated, so the operator changes nothing there. Remove its "
        "spec.hibernated to start the brokers."
    )
    return Verdict(False, "ClusterHibernated", text, paused=True)


def make_external_verdict(kind: str, name: str) -> Verdict:
    """Return the verdict on a resource that needs Shoal's brokers, in an external cluster."""
    return Verdict.make_refused(
        "NotForExternalCluster",
        f"QueueCluster {name!r} is external, and a {kind} needs a cluster that the operator runs. "
        "Delete this resource; docs/operator/clusters.md has what replaces it.",
    )


def require_running(cluster: QueueCluster | None, kind: str, name: str) -> QueueCluster | Verdict:
    """Return the cluster if the operator runs its brokers now, else the verdict on a resource of
    that kind, which needs them.

    `cluster` is the `find_live_cluster` of that name. The verdict is progressing if the cluster may
    still come; of all other changes, the resource hears by an event.
    """
    if cluster is None:
        return make_no_cluster_verdict(name)
    if external.is_external(cluster):
        return make_external_verdict(kind, name)
    if hibernation.is_hibernated(cluster):
        return make_hibernated_verdict(name)
    return cluster


class BatchReconciler(abc.ABC, Generic[R]):
    """Reconciles all resources of one kind of one QueueCluster.

    Subclasses name, apply and delete the topics or groups in the brokers.
    """

    #: The type of the resources, with the name of their kind.
    kind: type[R]
    #: What the brokers have of it, for messages.
    noun: ClassVar[str]
    #: Seconds until the next pass while a resource is in progress.
    retry_seconds: ClassVar[float]

    def __init__(
        self, kube: KubeClient, store: Store, brokers: Brokers, namespace: str, cluster: str
    ) -> None:
        self._kube, self._store, self._brokers = kube, store, brokers
        self._namespace, self._cluster = namespace, cluster
        self._statuses = StatusWriter(kube, store)

    @abc.abstractmethod
    def get_kafka_name(self, resource: R) -> str:
        """Return the name of the topic or group in the brokers."""

    @abc.abstractmethod
    def needs_deletion(self, resource: R) -> bool:
        """Return whether the topic or group is deleted together with the resource."""

    @abc.abstractmethod
    def make_conflict_outcome(self, resource: R, owner: R) -> ResourceOutcome[R]:
        """Return the outcome for a resource whose topic or group belongs to `owner`."""

    @abc.abstractmethod
    async def apply(self, owned: Sequence[R]) -> list[ResourceOutcome[R]]:
        """Bring the topics or groups of these resources to their specs. Raises `ClientError`."""

    @abc.abstractmethod
    async def delete(self, kafka_names: Sequence[str]) -> Mapping[str, KafkaError]:
        """Delete topics or groups; return the errors by name. Raises `ClientError`."""

    async def remember(self, deleted: Sequence[R]) -> None:
        """Keep what is needed of resources that are deleted while their cluster is away; nothing by
        default. Raises `KubeError`."""

    def list_names(self) -> list[str]:
        """Return the names of all resources of the kind."""
        return [o["metadata"]["name"] for o in self._list_resources()]

    def _list_resources(self) -> list[R]:
        return self._store.list_of_cluster(self.kind, self._namespace, self._cluster)

    async def reconcile(self, resource_names: list[str]) -> float | None:
        """Bring these resources to their specs; return seconds until the next pass, if needed."""
        resources = self._list_resources()
        queued = set(resource_names)
        mine = [o for o in resources if o["metadata"]["name"] in queued]
        deleted = [o for o in mine if o["metadata"].get("deletionTimestamp")]
        live = [o for o in mine if not o["metadata"].get("deletionTimestamp")]
        cluster = find_live_cluster(self._store, self._namespace, self._cluster)
        if cluster is None:
            return await self._wait_for_cluster(live, deleted)
        if hibernation.is_hibernated(cluster):
            verdict = make_hibernated_verdict(self._cluster)
            waiting = [self._make_deletion_outcome(o, verdict.message) for o in deleted]
            await self._write([*(ResourceOutcome(o, verdict, {}) for o in live), *waiting])
            return None
        by_name = find_owners(resources, self.get_kafka_name)
        owned = [o for o in live if by_name[self.get_kafka_name(o)] is o]
        try:
            remaining = await self._delete(deleted, by_name)
            outcomes = await self._apply_apart(owned)
        except ClientError as error:
            verdict = Verdict.make_waiting("BrokersUnreachable", f"No broker answered: {error}")
            await self._write([ResourceOutcome(o, verdict, {}) for o in live])
            raise
        for resource in live:
            owner = by_name[self.get_kafka_name(resource)]
            if owner is not resource:
                outcomes.append(self.make_conflict_outcome(resource, owner))
        try:
            outcomes = await self._write(outcomes, remaining)
        finally:
            self.on_reconciled(outcomes)
        under_way = [outcome.verdict for outcome in outcomes if outcome.verdict.progressing]
        if remaining or not all(verdict.alarm for verdict in under_way):
            return self.retry_seconds
        return BLOCKED_SECONDS if under_way else None

    async def _wait_for_cluster(self, live: Sequence[R], deleted: Sequence[R]) -> float | None:
        """Report that there is no cluster, and let the deleted resources go; return the seconds
        until the next pass, None without one."""
        verdict = make_no_cluster_verdict(self._cluster)
        remaining: list[ResourceOutcome[R]] = []
        try:
            await self.remember(deleted)
            remaining = await self._remove_finalizers(deleted)
        finally:
            await self._write([ResourceOutcome(o, verdict, {}) for o in live], remaining)
        return NO_CLUSTER_SECONDS if remaining or live else None

    async def _apply_apart(self, owned: Sequence[R]) -> list[ResourceOutcome[R]]:
        """Apply these resources at once or, if that fails, each half alone. Raises
        `ClientError` for what concerns all of them."""
        try:
            return await self.apply(owned)
        except Exception as error:
            if failures.is_of_all(error) or not owned:
                raise
            if len(owned) == 1:
                verdict = failures.report(self.kind.__name__, owned[0], error)
                return [ResourceOutcome(owned[0], verdict, {})]
        # What the first attempt has recorded, such as the reset of a group, must be seen.
        newest = [self._find_newest(resource) for resource in owned]
        middle = len(owned) // 2
        first = await self._apply_apart(newest[:middle])
        return first + await self._apply_apart(newest[middle:])

    def _find_newest(self, resource: R) -> R:
        newest = self._store.get(self.kind, self._namespace, resource["metadata"]["name"])
        return (
            newest
            if newest and newest["metadata"]["uid"] == resource["metadata"]["uid"]
            else resource
        )

    def on_reconciled(self, outcomes: Sequence[ResourceOutcome[R]]) -> None:
        """Called after the statuses are written, as far as they can be; does nothing by default."""

    async def _write(
        self,
        outcomes: Sequence[ResourceOutcome[R]],
        remaining: Sequence[ResourceOutcome[R]] = (),
    ) -> list[ResourceOutcome[R]]:
        """Write the finalizers and statuses; return the outcomes, also of refused finalizers.

        `remaining` are resources that are being deleted, whose finalizers stay. Raises the first
        error of a status, after all of them.
        """
        gate = asyncio.Semaphore(WRITES_MAX)

        async def write(outcome: ResourceOutcome[R]) -> ResourceOutcome[R]:
            resource = outcome.resource
            async with gate:
                try:
                    if not resource["metadata"].get("deletionTimestamp"):
                        await self._set_finalizer(resource, self.needs_deletion(resource))
                except KubeError as error:
                    verdict = failures.report(self.kind.__name__, resource, error)
                    outcome = outcome._replace(verdict=verdict)
                await self._statuses.write(*outcome)
                return outcome

        calls, written = map(write, [*outcomes, *remaining]), []
        for result in await asyncio.gather(*calls, return_exceptions=True):
            if isinstance(result, BaseException):
                raise result
            written.append(result)
        return written[: len(outcomes)]

    async def _set_finalizer(self, resource: R, present: bool) -> None:
        """Add or remove the finalizer, which holds the deletion until the brokers have deleted."""
        finalizers = resource["metadata"].get("finalizers", [])
        if present == (names.FINALIZER in finalizers):
            return
        changed = [f for f in finalizers if f != names.FINALIZER]
        changed += [names.FINALIZER] if present else []
        await self._kube.merge(resource, {"metadata": {"finalizers": changed}})

    async def _delete(
        self, deleted: Sequence[R], by_name: Mapping[str, R]
    ) -> list[ResourceOutcome[R]]:
        """Delete what the finalizers ask for; return the resources that remain, and why."""
        finalized = [o for o in deleted if names.FINALIZER in o["metadata"].get("finalizers", [])]
        unowned = sorted({n for o in finalized if (n := self.get_kafka_name(o)) not in by_name})
        errors = await self._delete_apart(unowned) if unowned else {}
        failed = [o for o in finalized if self.get_kafka_name(o) in errors]
        refused = await self._remove_finalizers([o for o in finalized if o not in failed])
        return refused + [
            self._make_deletion_outcome(o, f"{errors[self.get_kafka_name(o)]}.") for o in failed
        ]

    def _make_deletion_outcome(self, resource: R, why: str) -> ResourceOutcome[R]:
        text = f"The {self.noun} is not deleted yet: {why}"
        return ResourceOutcome(resource, Verdict.make_waiting("DeletionWaits", text), {})

    async def _delete_apart(self, kafka_names: Sequence[str]) -> Mapping[str, Exception]:
        """Delete at once or, if that fails, each half alone; return the errors by name. Raises
        `ClientError` for what concerns all of them."""
        try:
            return await self.delete(kafka_names)
        except Exception as error:
            if failures.is_of_all(error):
                raise
            if len(kafka_names) == 1:
                log.warning(
                    "cannot delete", kind=self.kind.__name__, name=kafka_names[0], exc_info=error
                )
                return {kafka_names[0]: error}
        middle = len(kafka_names) // 2
        first = await self._delete_apart(kafka_names[:middle])
        return {**first, **await self._delete_apart(kafka_names[middle:])}

    async def _remove_finalizers(self, deleted: Sequence[R]) -> list[ResourceOutcome[R]]:
        """Let these resources go; return those of which the API server refuses it."""
        refused = []
        for resource in deleted:
            try:
                await self._set_finalizer(resource, False)
            except KubeError as error:
                verdict = failures.report(self.kind.__name__, resource, error)
                refused.append(ResourceOutcome(resource, verdict, {}))
        return refused
