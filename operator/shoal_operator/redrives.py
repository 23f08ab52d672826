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
from shoal.client.redrive import Redrive
from shoal.protocol.errors import ErrorCode

from shoal_operator import clock, failures, kube, redrive_users
from shoal_operator.batch_reconciler import cluster_not_found, live_cluster, of_external
from shoal_operator.conditions import Verdict, is_ready
from shoal_operator.model import external
from shoal_operator.model import redrive as model
from shoal_operator.statuses import Statuses, transition_key

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shoal.client.client import Client
    from shoal.client.redrive import Plan

    from shoal_operator.brokers import Brokers
    from shoal_operator.kube import Kube
    from shoal_operator.model.names import Manifest
    from shoal_operator.store import Store

KIND = "Redrive"
#: Redrives of one cluster that run at once.
RUNS_MAX = 4
PROGRESS_SECONDS = 2.0
RETRY_SECONDS = 10.0


@dataclass(slots=True)
class _Run:
    """A Redrive that runs."""

    asked: Manifest
    plan: Plan
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
            self.total = await self.redrive.size()
            await self.redrive.run(self._look, self._wait)
        finally:
            if self.client is not None:
                await self.client.close()

    def _look(self, records: int) -> None:
        self.looked_at += records
        self.waits = ""

    def _wait(self, why: str) -> None:
        self.waits = why

    def counts(self) -> dict[str, int]:
        return model.counts(self.redrive.result, self.looked_at, self.sent_before)


class Redrives:
    """The reconciler of all Redrives of one cluster."""

    def __init__(
        self, kube: Kube, store: Store, brokers: Brokers, namespace: str, cluster: str
    ) -> None:
        self._kube, self._store, self._brokers = kube, store, brokers
        self._namespace, self._cluster = namespace, cluster
        self._statuses = Statuses(kube, store)
        self._runs: dict[str, _Run] = {}
        self._retry_ms: dict[str, int] = {}

    def list_names(self) -> list[str]:
        """Return the names of all Redrives of the cluster."""
        return [o["metadata"]["name"] for o in self._resources().values()]

    def _resources(self) -> dict[str, Manifest]:
        return {
            o["metadata"]["uid"]: o
            for o in self._store.of_cluster(KIND, self._namespace, self._cluster)
            if not o["metadata"].get("deletionTimestamp")
        }

    async def reconcile(self, _: list[str]) -> float | None:
        """Start and stop Redrives and report them; return seconds until the next pass, if any."""
        resources = self._resources()
        for uid in list(self._runs):
            if not self._goes_on(uid, resources.get(uid)):
                await self._stop(uid)
        waiting = [await self._safely(uid, one) for uid, one in resources.items()]
        return min((seconds for seconds in waiting if seconds is not None), default=None)

    async def close(self) -> None:
        """Stop all runs; another operator continues them."""
        for uid in list(self._runs):
            await self._stop(uid)

    def _goes_on(self, uid: str, resource: Manifest | None) -> bool:
        """Return whether a run is still what its resource asks for."""
        if resource is None or resource["spec"].get("paused"):
            return False
        return self._runs[uid].asked == model.asked(resource)

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

    async def _safely(self, uid: str, resource: Manifest) -> float | None:
        """Report one Redrive; its failure becomes its condition, and the others continue."""
        try:
            return await self._one(uid, resource)
        except Exception as error:
            if failures.is_of_all(error):
                raise
            await self._statuses.write(resource, failures.report(KIND, resource, error))
            return RETRY_SECONDS

    async def _one(self, uid: str, resource: Manifest) -> float | None:
        """Report one Redrive; return seconds until the next pass, None without one."""
        run = self._runs.get(uid)
        cluster = live_cluster(self._store, self._namespace, self._cluster)
        if cluster is None:
            await self._statuses.write(resource, cluster_not_found(self._cluster))
            return RETRY_SECONDS
        if external.is_external(cluster):
            await self._statuses.write(resource, of_external(KIND, self._cluster))
            return None
        if model.is_complete(resource):
            await self._statuses.write(resource, _completed(resource))
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

    async def _start(self, uid: str, resource: Manifest, cluster: Manifest) -> float:
        if clock.now_ms() < self._retry_ms.get(uid, 0):
            return PROGRESS_SECONDS
        if len(self._runs) >= RUNS_MAX:
            text = f"{RUNS_MAX} other Redrives of this cluster run."
            await self._statuses.write(resource, Verdict.waiting("Queued", text))
            return RETRY_SECONDS
        before = model.started(resource)
        plan = model.plan(resource, before["startTime"])
        client = redrive_users.connect(self._store, cluster, resource)
        if isinstance(client, Verdict):
            await self._statuses.write(resource, client)
            return RETRY_SECONDS
        try:
            redrive = Redrive(client.cluster, plan) if client else self._brokers.redrive(plan)
        except ValueError as error:
            await self._statuses.write(resource, Verdict.refused("TopicNotAllowed", f"{error}."))
            return RETRY_SECONDS
        start = before["startTime"] or kube.now()
        run = _Run(model.asked(resource), plan, redrive, client, start, before["sent"])
        # The start comes first: an operator that continues must find it.
        await self._report(resource, run)
        run.task = asyncio.create_task(run.run(), name=f"Redrive {resource['metadata']['name']}")
        self._runs[uid] = run
        return PROGRESS_SECONDS

    async def _report(self, resource: Manifest, run: _Run) -> None:
        found = run.counts()
        verdict = model.verdict(resource, run.total, found, ended=False)
        if run.waits:
            verdict = Verdict.waiting("Queued", f"{run.waits}.")
        fields = model.fields(resource, run.start, run.total, found)
        await self._statuses.write(resource, verdict, fields)

    async def _end(self, uid: str, resource: Manifest, run: _Run) -> float | None:
        """Report a run that has ended, or why it failed."""
        found = run.counts()
        fields = model.fields(resource, run.start, run.total, found)
        try:
            run.task.result()
        except ClientError as error:
            self._retry_ms[uid] = clock.now_ms() + int(RETRY_SECONDS * 1000)
            await self._statuses.write(resource, _failed(run.plan, error), fields)
            return RETRY_SECONDS
        self._retry_ms.pop(uid, None)
        verdict = model.verdict(resource, run.total, found, ended=True)
        if not is_ready(resource):
            once = transition_key(resource.get("status", {}).get("conditions", []))
            await self._kube.event(resource, "Redriven", verdict.message, once=once)
        fields["completionTime"] = kube.now()
        await self._statuses.write(resource, verdict, fields)
        return None


def _failed(plan: Plan, error: ClientError) -> Verdict:
    if isinstance(error, KafkaError) and error.code == ErrorCode.unknown_topic_or_partition:
        text = f"{error}. Check spec.topic ({plan.topic}), spec.to and spec.letters.partitions."
        return Verdict.blocked("TopicNotFound", text)
    return Verdict.blocked("RedriveFailed", f"{error}. It continues where it stopped.")


def _completed(resource: Manifest) -> Verdict:
    status: Mapping[str, int] = resource["status"]
    found = {name: status.get(name, 0) for name in model.COUNTS}
    return model.verdict(resource, status.get("total", 0), found, ended=True)
