"""QueueRebalances: proposals, and the moves of those that a user has approved.

A proposal is in the status, so that its moves are those that the user has seen. Every pass compares
them with what the brokers report. So an operator that restarts continues, whatever the last one was
doing. Order matters in two places: the finalizer and `status.throttle` are written before the
throttle is set, and removed after it, so that no throttle outlives its resource.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from shoal.client.errors import ClientError, KafkaError

from shoal_operator import clock, failures, kube, rebalance_plan, rebalance_steps
from shoal_operator.batch_reconciler import cluster_not_found, live_cluster, of_external
from shoal_operator.conditions import Verdict
from shoal_operator.model import external, names, pod_layout
from shoal_operator.model import rebalance as model
from shoal_operator.statuses import Statuses, transition_key

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from shoal_operator.brokers import Brokers
    from shoal_operator.kube import Kube
    from shoal_operator.model.names import Manifest
    from shoal_operator.rebalance_calls import Placement, RebalanceCalls
    from shoal_operator.rebalance_steps import Step
    from shoal_operator.store import Store

KIND = "QueueRebalance"
PROGRESS_SECONDS = 2.0
RETRY_SECONDS = 10.0
#: Seconds between checks that a proposal still fits the cluster.
PROPOSED_SECONDS = 30.0
#: Seconds after which a partition with other replicas is left out. Until then, its metadata may be
#: old.
UNSETTLED_SECONDS = 10.0
#: How long the end waits for preferred leaders.
ELECTION_SECONDS_MAX = 10.0


@dataclass(slots=True)
class _Run:
    """What this operator has done for a rebalance; another one does it again."""

    proposal: str
    throttle: str | None = None
    #: Since when partitions have been unsettled, in milliseconds.
    unsettled: dict[str, int] = field(default_factory=dict)
    #: Since when nothing but elections is left, in milliseconds.
    elects_ms: int | None = None


class Rebalances:
    """The reconciler of all QueueRebalances of one cluster; one at a time moves replicas."""

    def __init__(
        self, kube: Kube, store: Store, brokers: Brokers, namespace: str, cluster: str
    ) -> None:
        self._kube, self._store, self._brokers = kube, store, brokers
        self._namespace, self._cluster = namespace, cluster
        self._statuses = Statuses(kube, store)
        self._runs: dict[str, _Run] = {}

    def list_names(self) -> list[str]:
        """Return the names of all QueueRebalances of the cluster."""
        return [o["metadata"]["name"] for o in self._resources()]

    def _resources(self) -> list[Manifest]:
        """Return the resources: the one that runs comes first, then the oldest."""

        def rank(one: Manifest) -> tuple[bool, bool, str, str]:
            meta = one["metadata"]
            idle = meta["uid"] not in self._runs
            return not _goes_on(one), idle, meta.get("creationTimestamp", ""), meta["name"]

        return sorted(self._store.of_cluster(KIND, self._namespace, self._cluster), key=rank)

    @property
    def _calls(self) -> RebalanceCalls:
        return self._brokers.rebalances

    async def reconcile(self, _: list[str]) -> float | None:
        """Bring all resources forward; return seconds until the next pass, None without one."""
        again: list[float] = []
        busy = ""
        for resource in self._resources():
            cluster = live_cluster(self._store, self._namespace, self._cluster)
            seconds = await self._guarded(resource, cluster, busy)
            if seconds is not None:
                again.append(seconds)
            found = self._store.get(KIND, self._namespace, resource["metadata"]["name"])
            if found is not None and _goes_on(found):
                busy = busy or found["metadata"]["name"]
        return min(again, default=None)

    async def _guarded(
        self, resource: Manifest, cluster: Manifest | None, busy: str
    ) -> float | None:
        """Bring one resource forward, and report brokers that refuse or do not answer."""
        try:
            if resource["metadata"].get("deletionTimestamp"):
                return await self._end(resource, cluster)
            return await self._one(resource, cluster, busy)
        except KafkaError as error:
            text = f"The brokers refused a request: {error}. The operator retries."
            await self._write(resource, Verdict.blocked("RebalanceFailed", text))
        except ClientError as error:
            text = f"No broker answered: {error}"
            await self._write(resource, Verdict.waiting("BrokersUnreachable", text))
        except Exception as error:
            await self._statuses.write(resource, failures.report(KIND, resource, error))
        return RETRY_SECONDS

    async def _one(self, resource: Manifest, cluster: Manifest | None, busy: str) -> float | None:
        if cluster is None:
            await self._write(resource, cluster_not_found(self._cluster))
            return RETRY_SECONDS
        if external.is_external(cluster):
            await self._write(resource, of_external(KIND, self._cluster))
            return None
        if model.is_complete(resource):
            await self._write(resource, model.complete(resource))
            await self._set_finalizer(resource, wanted=False)
            return None
        if resource["spec"].get("paused"):
            await self._stop(resource, cluster)
            paused = Verdict(False, "Paused", "spec.paused is true.", paused=True)
            await self._write(resource, paused)
            return None
        if model.has_proposal(resource) and model.is_approved(resource) and not busy:
            return await self._run(resource, cluster)
        await self._stop(resource, cluster)
        if busy:
            text = f"QueueRebalance {busy!r} moves replicas of this cluster."
            await self._write(resource, Verdict.waiting("Queued", text))
            return RETRY_SECONDS
        placement = await self._calls.placement()
        if not model.has_proposal(resource) or model.is_stale(resource, placement):
            return await self._propose(resource, cluster, placement)
        if model.approval(resource) != model.proposal_id(resource):
            await self._write(resource, model.proposed(resource))
            return PROPOSED_SECONDS
        fields = {"approved": model.proposal_id(resource), "startTime": kube.now()}
        verdict = Verdict.waiting("Rebalancing", "The proposal is approved.")
        await self._write(resource, verdict, fields)
        return 0.0

    async def _write(
        self, resource: Manifest, verdict: Verdict, fields: Mapping[str, Any] | None = None
    ) -> None:
        shown = _with(resource, fields or {})
        await self._statuses.write(resource, verdict, fields, model.further(shown))

    # Proposals.

    async def _propose(
        self, resource: Manifest, cluster: Manifest, placement: Placement
    ) -> float | None:
        """Write a proposal, or why there is none."""
        verdict, targets = model.not_possible(resource, cluster, placement)
        if verdict is not None:
            await self._write(resource, verdict, model.NO_PROPOSAL)
            return RETRY_SECONDS
        sizes, disks = await self._calls.volumes(sorted(placement.running))
        partitions = model.placed(placement, sizes)
        racks = {broker: rack for broker, rack in placement.running.items() if rack}
        plan = await asyncio.to_thread(
            rebalance_plan.plan,
            model.mode(resource),
            partitions,
            pod_layout.brokers(cluster),
            racks,
            model.chosen(resource),
            model.excluded(resource),
        )
        verdict = model.too_large(plan, [disk for disk in disks if disk.broker_id in targets])
        if verdict is not None:
            await self._write(resource, verdict, model.NO_PROPOSAL)
            return RETRY_SECONDS
        moves = model.movable(plan, placement)
        brokers = {*pod_layout.brokers(cluster), *model.chosen(resource)}
        fields = model.proposal(resource, partitions, moves, brokers, kube.now())
        shown = _with(resource, fields)
        if moves:
            await self._write(resource, model.proposed(shown), fields)
            return 0.0 if model.approval(shown) == model.proposal_id(shown) else PROPOSED_SECONDS
        if placement.targets:
            # What is being reassigned may be all that this mode would move.
            text = f"{len(placement.targets)} partitions are being reassigned by others."
            await self._write(resource, Verdict.waiting("Queued", text), model.NO_PROPOSAL)
            return RETRY_SECONDS
        await self._write(resource, model.complete(shown), {**fields, "completionTime": kube.now()})
        return None

    # Moves.

    async def _run(self, resource: Manifest, cluster: Manifest) -> float | None:
        """Begin the next moves, and report how far the rebalance is."""
        uid, proposal = resource["metadata"]["uid"], model.proposal_id(resource)
        run = self._runs.get(uid)
        if run is None or run.proposal != proposal:
            run = self._runs[uid] = _Run(proposal)
        placement = await self._calls.placement()
        step = self._step(resource, cluster, run, placement)
        await self._set_finalizer(resource, wanted=True)
        if not step.is_last:
            await self._set_throttle(resource, run, step, placement)
            await self._calls.reassign({move.partition: move.after for move in step.begin})
        elects = await self._elect(run, step, placement)
        copied = await self._calls.copied(step.moving, placement.running)
        found = model.progress(resource, step, copied)
        if not step.is_last or elects:
            verdict = model.running(resource, found, step.waits)
            await self._write(resource, verdict, {"progress": found})
            return PROGRESS_SECONDS
        await self._remove_throttle(resource, placement)
        fields = {"progress": found, "completionTime": kube.now()}
        verdict = model.complete(_with(resource, fields))
        once = transition_key(resource["status"].get("conditions", []))
        await self._kube.event(resource, "Rebalanced", verdict.message, once=once)
        await self._write(resource, verdict, fields)
        await self._set_finalizer(resource, wanted=False)
        self._runs.pop(uid, None)
        return None

    def _step(self, resource: Manifest, cluster: Manifest, run: _Run, placement: Placement) -> Step:
        now_ms = clock.now_ms()
        longest_ms = int(UNSETTLED_SECONDS * 1000)
        given_up = {name for name, ms in run.unsettled.items() if now_ms - ms >= longest_ms}
        paused = cluster["spec"].get("paused")
        step = rebalance_steps.step(
            model.moves(resource),
            placement,
            pod_layout.brokers(cluster),
            model.copies_max(resource),
            given_up,
        )
        left = {move.partition for move in (*step.unsettled, *step.left_out)}
        run.unsettled = {name: run.unsettled.get(name, now_ms) for name in left}
        if not paused:
            return step
        text = f"QueueCluster {self._cluster!r} is paused"
        return rebalance_steps.without_begin(step, text)

    async def _elect(self, run: _Run, step: Step, placement: Placement) -> bool:
        """Elect the preferred leaders of partitions that are done; return whether to wait for them.

        One that is out of sync cannot lead. The brokers elect it once it can
        (`auto.leader.rebalance.enable`).
        """
        wanted = [
            move.partition
            for move in step.done
            if move.after[0] in placement.running and not _leads(placement, move.partition)
        ]
        if wanted:
            await self._calls.elect(wanted)
        if not wanted or not step.is_last:
            return bool(wanted)
        now_ms = clock.now_ms()
        run.elects_ms = run.elects_ms or now_ms
        return now_ms - run.elects_ms < ELECTION_SECONDS_MAX * 1000

    async def _stop(self, resource: Manifest, cluster: Manifest) -> None:
        """Take back the moves that are under way, and remove the throttle."""
        self._runs.pop(resource["metadata"]["uid"], None)
        if not model.runs(resource) and not resource.get("status", {}).get("throttle"):
            return
        moves, brokers = model.moves(resource), pod_layout.brokers(cluster)
        placement = await self._calls.placement()
        step = rebalance_steps.step(moves, placement, brokers, 0)
        if step.moving:
            await self._calls.cancel(move.partition for move in step.moving)
            placement = await self._calls.placement()
            step = rebalance_steps.step(moves, placement, brokers, 0)
        # Brokers put the replicas that a cancelled move would have removed at the end.
        disordered = {
            move.partition: move.before
            for move in step.waiting
            if move.added and placement.partitions[move.partition].replicas != move.before
        }
        await self._calls.reassign(disordered)
        await self._remove_throttle(resource, placement)

    async def _end(self, resource: Manifest, cluster: Manifest | None) -> float | None:
        """Release a resource that is being deleted."""
        if names.FINALIZER not in resource["metadata"].get("finalizers", []):
            return None
        if cluster is not None and not external.is_external(cluster):
            await self._stop(resource, cluster)
        await self._set_finalizer(resource, wanted=False)
        return None

    # The throttle and the finalizer.

    async def _set_throttle(
        self, resource: Manifest, run: _Run, step: Step, placement: Placement
    ) -> None:
        wanted = resource["spec"].get("throttle", "")
        rate = model.throttle_bytes(resource)
        if rate is None:
            await self._remove_throttle(resource, placement)
        elif run.throttle != wanted:
            await self._statuses.merge(resource, {"throttle": wanted})
            moves = [*step.moving, *step.waiting, *step.unsettled]
            brokers = {broker for move in moves for broker in (*move.before, *move.added)}
            running = brokers & placement.running.keys()
            await self._calls.throttle(rate, moves, running, _topics(placement.partitions))
        run.throttle = wanted

    async def _remove_throttle(self, resource: Manifest, placement: Placement) -> None:
        stored = self._store.get(KIND, self._namespace, resource["metadata"]["name"]) or resource
        if not stored.get("status", {}).get("throttle"):
            return
        topics = _topics(move.partition for move in model.moves(resource))
        existing = topics & _topics(placement.partitions)
        await self._calls.unthrottle(existing, placement.running)
        await self._statuses.merge(stored, {"throttle": None})

    async def _set_finalizer(self, resource: Manifest, *, wanted: bool) -> None:
        """Add or remove the finalizer, which holds the deletion until the moves are taken back."""
        stored = self._store.get(KIND, self._namespace, resource["metadata"]["name"]) or resource
        finalizers = stored["metadata"].get("finalizers", [])
        if wanted == (names.FINALIZER in finalizers):
            return
        changed = [one for one in finalizers if one != names.FINALIZER]
        changed += [names.FINALIZER] if wanted else []
        written = await self._kube.merge(stored, {"metadata": {"finalizers": changed}})
        if written and (wanted or not written["metadata"].get("deletionTimestamp")):
            self._store.put(written)


def _with(resource: Manifest, fields: Mapping[str, Any]) -> Manifest:
    """Return the resource with these fields of the status."""
    return {**resource, "status": {**resource.get("status", {}), **fields}}


def _goes_on(resource: Manifest) -> bool:
    """Return whether a rebalance moves replicas, and nothing in its resource stops it."""
    meta, spec = resource["metadata"], resource["spec"]
    stopped = meta.get("deletionTimestamp") or spec.get("paused")
    return model.runs(resource) and model.has_proposal(resource) and not stopped


def _leads(placement: Placement, partition: str) -> bool:
    """Return whether the preferred leader leads."""
    found = placement.partitions[partition]
    return found.leader == found.replicas[0]


def _topics(partitions: Iterable[str]) -> set[str]:
    return {name.rpartition("-")[0] for name in partitions}
