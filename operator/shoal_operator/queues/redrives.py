"""Redrives: dead letters that the operator sends back as a QueueUser, once for each `spec.id`.

Each runs as a task beside the reconcile loop, which writes its progress. The client's ledger keeps
what was sent. So a Redrive that is interrupted, by a pause or by the operator's end, continues
where it stopped and sends nothing twice.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from shoal.client.errors import ClientError, KafkaError
from shoal.dead_letters.redrive import Redrive
from shoal.protocol.errors import ErrorCode

from shoal_operator import clock
from shoal_operator.brokers.batch_reconciler import (
    find_live_cluster,
    require_running,
)
from shoal_operator.kube import failures, kube
from shoal_operator.kube.conditions import Verdict, is_ready
from shoal_operator.kube.statuses import StatusWriter, build_transition_key
from shoal_operator.model import hibernation
from shoal_operator.model.resources import redrive as resources
from shoal_operator.queues import redrive_status as model
from shoal_operator.users import acting_users

if TYPE_CHECKING:
    from shoal.client.client import Client
    from shoal.dead_letters.redrive import RedrivePlan

    from shoal_operator.brokers.calls import Brokers
    from shoal_operator.kube.kube import KubeClient
    from shoal_operator.kube.store import Store
    from shoal_operator.model.names import Manifest
    from shoal_operator.model.queue_cluster import QueueCluster

KIND = "Redrive"
#: Redrives of one cluster that run at once.
RUNS_MAX = 4
PROGRESS_SECONDS = 2.0
RETRY_SECONDS = 10.0


@dataclass(slots=True)
class _RedriveRun:
    """A Redrive that runs."""

    run_spec: Manifest
    plan: RedrivePlan
    redrive: Redrive
    #: The connection of the Redrive's user; None for the operator's own.
    client: Client | None
    start: str
    sent_before: int
    total: int = 0
    looked_at: int = 0
    #: Why it waits, empty while it does not.
    waits: str = ""
    task: asyncio.Task[None] = field(init=False)

    async def run(self) -> None:
        """Run it to its end. Raises `ClientError`."""
        try:
            self.total = await self.redrive.count_records()
            await self.redrive.run(self._count_looked_at, self._on_wait)
        finally:
            if self.client is not None:
                await self.client.close()

    def _count_looked_at(self, records: int) -> None:
        self.looked_at += records
        self.waits = ""

    def _on_wait(self, why: str) -> None:
        self.waits = why

    def build_counts(self) -> model.RedriveCounts:
        return model.build_counts(self.redrive.result, self.looked_at, self.sent_before)


class RedriveReconciler:
    """The reconciler of all Redrives of one cluster."""

    def __init__(
        self, kube: KubeClient, store: Store, brokers: Brokers, namespace: str, cluster: str
    ) -> None:
        self._kube, self._store, self._brokers = kube, store, brokers
        self._namespace, self._cluster = namespace, cluster
        self._statuses = StatusWriter(kube, store)
        self._runs: dict[str, _RedriveRun] = {}
        self._retry_ms: dict[str, int] = {}

    def list_names(self) -> list[str]:
        """Return the names of all Redrives of the cluster."""
        return [o["metadata"]["name"] for o in self._map_resources().values()]

    def _map_resources(self) -> dict[str, resources.Redrive]:
        """Return the Redrives by uid."""
        return {
            o["metadata"]["uid"]: o
            for o in self._store.list_of_cluster(resources.Redrive, self._namespace, self._cluster)
            if not o["metadata"].get("deletionTimestamp")
        }

    async def reconcile(self, _: list[str]) -> float | None:
        """Start and stop Redrives and report them; return seconds until the next pass, if any.
        Raises the first error of a status, after all of them."""
        resources = self._map_resources()
        for uid in list(self._runs):
            if not self._may_continue(uid, resources.get(uid)):
                await self._stop(uid)
        waiting = await failures.complete_all(
            self._reconcile_safely(uid, resource) for uid, resource in resources.items()
        )
        return min((seconds for seconds in waiting if seconds is not None), default=None)

    async def close(self) -> None:
        """Stop all runs; another operator continues them."""
        for uid in list(self._runs):
            await self._stop(uid)

    def _may_continue(self, uid: str, resource: resources.Redrive | None) -> bool:
        """Return whether a run is still what its resource asks for."""
        cluster = find_live_cluster(self._store, self._namespace, self._cluster)
        if resource is None or resource["spec"].get("paused"):
            return False
        if cluster is not None and hibernation.is_hibernated(cluster):
            return False
        return self._runs[uid].run_spec == model.get_run_spec(resource)

    async def _stop(self, uid: str) -> None:
        run = self._runs[uid]
        # A second cancellation would keep the run from leaving its group.
        if not run.task.cancelling():
            run.task.cancel()
        # Not `await run.task`: what cancels this loop meanwhile must end it.
        await asyncio.wait((run.task,))
        del self._runs[uid]
        if not run.task.cancelled():
            with contextlib.suppress(ClientError):
                run.task.result()

    async def _reconcile_safely(self, uid: str, resource: resources.Redrive) -> float | None:
        """Report one Redrive; its failure becomes its condition, and the others continue."""
        try:
            return await self._reconcile_one(uid, resource)
        except Exception as error:
            if failures.is_of_all(error):
                raise
            await self._statuses.write(resource, failures.report(KIND, resource, error))
            return RETRY_SECONDS

    async def _reconcile_one(self, uid: str, resource: resources.Redrive) -> float | None:
        """Report one Redrive; return seconds until the next pass, None without one."""
        run = self._runs.get(uid)
        live = find_live_cluster(self._store, self._namespace, self._cluster)
        cluster = require_running(live, KIND, self._cluster)
        if isinstance(cluster, Verdict):
            await self._statuses.write(resource, cluster)
            return RETRY_SECONDS if cluster.progressing else None
        if model.is_complete(resource):
            await self._statuses.write(resource, _make_completed_verdict(resource))
            return None
        if resource["spec"].get("paused"):
            paused = Verdict(False, "Paused", "spec.paused is true.", paused=True)
            await self._statuses.write(resource, paused)
            return None
        if run is None:
            return await self._start(uid, resource, cluster)
        if not run.task.done():
            await self._report(resource, run)
            return PROGRESS_SECONDS
        del self._runs[uid]
        return await self._end(uid, resource, run)

    async def _start(self, uid: str, resource: resources.Redrive, cluster: QueueCluster) -> float:
        if clock.now_ms() < self._retry_ms.get(uid, 0):
            return PROGRESS_SECONDS
        if len(self._runs) >= RUNS_MAX:
            text = f"{RUNS_MAX} other Redrives of this cluster run."
            await self._statuses.write(resource, Verdict.make_waiting("Queued", text))
            return RETRY_SECONDS
        before = model.get_start(resource)
        plan = model.build_plan(resource, before.time)
        client = acting_users.connect(
            self._store, cluster, resource["spec"].get("user", ""), "redrive"
        )
        if isinstance(client, Verdict):
            await self._statuses.write(resource, client)
            return RETRY_SECONDS
        try:
            redrive = Redrive(client.cluster, plan) if client else self._brokers.redrive(plan)
        except ValueError as error:
            await self._statuses.write(
                resource, Verdict.make_refused("TopicNotAllowed", f"{error}.")
            )
            return RETRY_SECONDS
        start = before.time or kube.format_now()
        run = _RedriveRun(model.get_run_spec(resource), plan, redrive, client, start, before.sent)
        # The start comes first: an operator that continues must find it. The status of a run that
        # failed stays until the next one knows better.
        if not before.time:
            await self._report(resource, run)
        run.task = asyncio.create_task(run.run(), name=f"Redrive {resource['metadata']['name']}")
        self._runs[uid] = run
        return PROGRESS_SECONDS

    async def _report(self, resource: resources.Redrive, run: _RedriveRun) -> None:
        counts = run.build_counts()
        verdict = model.decide_verdict(resource, run.total, counts, ended=False)
        if run.waits:
            verdict = Verdict.make_waiting("Queued", f"{run.waits}.")
        fields = model.build_fields(resource, run.start, run.total, counts)
        await self._statuses.write(resource, verdict, fields)

    async def _end(self, uid: str, resource: resources.Redrive, run: _RedriveRun) -> float | None:
        """Report a run that has ended, or why it failed."""
        counts = run.build_counts()
        fields = model.build_fields(resource, run.start, run.total, counts)
        try:
            run.task.result()
        except ClientError as error:
            self._retry_ms[uid] = clock.now_ms() + int(RETRY_SECONDS * 1000)
            await self._statuses.write(resource, _make_failed_verdict(run.plan, error), fields)
            return RETRY_SECONDS
        self._retry_ms.pop(uid, None)
        verdict = model.decide_verdict(resource, run.total, counts, ended=True)
        if not is_ready(resource):
            once = build_transition_key(resource.get("status", {}).get("conditions", []))
            await self._kube.record_event(resource, "Redriven", verdict.message, once=once)
        fields["completionTime"] = kube.format_now()
        await self._statuses.write(resource, verdict, fields)
        return None


def _make_failed_verdict(plan: RedrivePlan, error: ClientError) -> Verdict:
    if isinstance(error, KafkaError) and error.code == ErrorCode.unknown_topic_or_partition:
        text = f"{error}. Check spec.topic ({plan.topic}), spec.to and spec.letters.partitions."
        return Verdict.make_blocked("TopicNotFound", text)
    return Verdict.make_blocked("RedriveFailed", f"{error}. It continues where it stopped.")


def _make_completed_verdict(resource: resources.Redrive) -> Verdict:
    total = resource["status"].get("total", 0)
    return model.decide_verdict(resource, total, model.read_counts(resource), ended=True)
