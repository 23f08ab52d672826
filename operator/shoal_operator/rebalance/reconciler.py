"""QueueRebalances: proposals, and the moves of those that a user has approved.

A proposal is in the status, so that its moves are those that the user has seen. Every pass compares
them with what the brokers report. So an operator that restarts continues, whatever the last one was
doing. Order matters in two places: the finalizer and `status.throttle` are written before the
throttle is set, and removed after it, so that no throttle outlives its resource. The brokers of
`RemoveBrokers` are cordoned in the same order. They stay so after the end, until the resource is
deleted or asks for something else.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from shoal.client.errors import ClientError, KafkaError

from shoal_operator import clock
from shoal_operator.brokers.batch_reconciler import (
    find_live_cluster,
    require_running,
)
from shoal_operator.brokers.cordons import BrokerCordons, list_cordoned
from shoal_operator.kube import failures, kube
from shoal_operator.kube.conditions import Verdict
from shoal_operator.kube.statuses import StatusWriter, build_transition_key
from shoal_operator.model import external, names, pod_layout
from shoal_operator.model.resources.queue_rebalance import QueueRebalance
from shoal_operator.rebalance import planner, steps
from shoal_operator.rebalance import status as model
from shoal_operator.rebalance.planner import RebalanceMode

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from shoal_operator.brokers.calls import Brokers
    from shoal_operator.brokers.rebalance_calls import Placement, RebalanceCalls
    from shoal_operator.kube.kube import KubeClient
    from shoal_operator.kube.store import Store
    from shoal_operator.model.queue_cluster import QueueCluster
    from shoal_operator.model.resources.queue_rebalance import QueueRebalanceStatus
    from shoal_operator.rebalance.steps import RebalanceStep

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
class _RebalanceRun:
    """What this operator has done for a rebalance; another one does it again."""

    proposal: str
    throttle: str | None = None
    #: Since when partitions have been unsettled, in milliseconds.
    unsettled: dict[str, int] = field(default_factory=dict)
    #: Since when nothing but elections is left, in milliseconds.
    elects_ms: int | None = None


class QueueRebalanceReconciler:
    """The reconciler of all QueueRebalances of one cluster; one at a time moves replicas."""

    def __init__(
        self, kube: KubeClient, store: Store, brokers: Brokers, namespace: str, cluster: str
    ) -> None:
        self._kube, self._store, self._brokers = kube, store, brokers
        self._namespace, self._cluster = namespace, cluster
        self._statuses = StatusWriter(kube, store)
        self._cordons = BrokerCordons(kube, store, brokers)
        self._runs: dict[str, _RebalanceRun] = {}

    def list_names(self) -> list[str]:
        """Return the names of all QueueRebalances of the cluster."""
        return [o["metadata"]["name"] for o in self._list_resources()]

    def _list_resources(self) -> list[QueueRebalance]:
        """Return the resources: the one that runs comes first, then the oldest."""

        def rank(resource: QueueRebalance) -> tuple[bool, bool, str, str]:
            meta = resource["metadata"]
            idle = meta["uid"] not in self._runs
            return (
                not _may_continue(resource),
                idle,
                meta.get("creationTimestamp", ""),
                meta["name"],
            )

        manifests = self._store.list_of_cluster(QueueRebalance, self._namespace, self._cluster)
        return sorted(manifests, key=rank)

    @property
    def _calls(self) -> RebalanceCalls:
        return self._brokers.rebalances

    async def reconcile(self, _: list[str]) -> float | None:
        """Bring all resources forward; return seconds until the next pass, None without one. Raises
        the first error of a status, after all of them."""
        busy = ""

        async def reconcile_one(resource: QueueRebalance) -> float | None:
            nonlocal busy
            cluster = find_live_cluster(self._store, self._namespace, self._cluster)
            name = resource["metadata"]["name"]
            try:
                return await self._reconcile_guarded(resource, cluster, busy)
            finally:
                newest = self._store.get(QueueRebalance, self._namespace, name)
                if newest is not None and _may_continue(newest):
                    busy = busy or name

        waits = await failures.complete_all(map(reconcile_one, self._list_resources()))
        return min((seconds for seconds in waits if seconds is not None), default=None)

    async def _reconcile_guarded(
        self, resource: QueueRebalance, cluster: QueueCluster | None, busy: str
    ) -> float | None:
        """Bring one resource forward, and report brokers that refuse or do not answer."""
        try:
            if resource["metadata"].get("deletionTimestamp"):
                return await self._end(resource, cluster)
            return await self._reconcile_one(resource, cluster, busy)
        except KafkaError as error:
            text = f"The brokers refused a request: {error}. The operator retries."
            await self._write(resource, Verdict.make_blocked("RebalanceFailed", text))
        except ClientError as error:
            text = f"No broker answered: {error}"
            await self._write(resource, Verdict.make_waiting("BrokersUnreachable", text))
        except Exception as error:
            await self._statuses.write(resource, failures.report(KIND, resource, error))
        return RETRY_SECONDS

    async def _reconcile_one(
        self, resource: QueueRebalance, live: QueueCluster | None, busy: str
    ) -> float | None:
        cluster = require_running(live, KIND, self._cluster)
        if isinstance(cluster, Verdict):
            await self._write(resource, cluster)
            return RETRY_SECONDS if cluster.progressing else None
        if model.is_complete(resource):
            await self._write(resource, model.make_complete_verdict(resource))
            await self._set_finalizer(resource, present=bool(list_cordoned(resource)))
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
            await self._write(resource, Verdict.make_waiting("Queued", text))
            return RETRY_SECONDS
        placement = await self._calls.describe_placement()
        if not model.has_proposal(resource) or model.is_stale(resource, placement):
            return await self._propose(resource, cluster, placement)
        if model.get_approval(resource) != model.get_proposal_id(resource):
            await self._write(resource, model.make_proposed_verdict(resource))
            return PROPOSED_SECONDS
        fields = {"approved": model.get_proposal_id(resource), "startTime": kube.format_now()}
        verdict = Verdict.make_waiting("Rebalancing", "The proposal is approved.")
        await self._write(resource, verdict, fields)
        return 0.0

    async def _write(
        self,
        resource: QueueRebalance,
        verdict: Verdict,
        fields: Mapping[str, Any] | None = None,
    ) -> None:
        shown = _with_status(resource, fields or {})
        await self._statuses.write(resource, verdict, fields, model.build_extra_conditions(shown))

    # Proposals.

    async def _propose(
        self, resource: QueueRebalance, cluster: QueueCluster, placement: Placement
    ) -> float | None:
        """Write a proposal, or why there is none."""
        verdict, targets = model.choose_targets(resource, cluster, placement)
        if verdict is not None:
            await self._write(resource, verdict, model.NO_PROPOSAL)
            return RETRY_SECONDS
        sizes, disks = await self._calls.describe_volumes(sorted(placement.running))
        partitions = model.build_partitions(placement, sizes)
        racks = {broker: rack for broker, rack in placement.running.items() if rack}
        plan = await asyncio.to_thread(
            planner.make_plan,
            model.get_mode(resource),
            partitions,
            pod_layout.list_brokers(cluster),
            racks,
            model.get_brokers(resource),
            model.get_excluded_topics(resource),
        )
        verdict = model.find_plan_refusal(
            plan, [disk for disk in disks if disk.broker_id in targets]
        )
        if verdict is not None:
            await self._write(resource, verdict, model.NO_PROPOSAL)
            return RETRY_SECONDS
        moves = model.list_movable(plan, placement)
        brokers = {*pod_layout.list_brokers(cluster), *model.get_brokers(resource)}
        fields = model.build_proposal(resource, partitions, moves, brokers, kube.format_now())
        shown = _with_status(resource, fields)
        if moves:
            await self._write(resource, model.make_proposed_verdict(shown), fields)
            return (
                0.0
                if model.get_approval(shown) == model.get_proposal_id(shown)
                else PROPOSED_SECONDS
            )
        if placement.targets:
            # What is being reassigned may be all that this mode would move.
            text = f"{len(placement.targets)} partitions are being reassigned by others."
            await self._write(resource, Verdict.make_waiting("Queued", text), model.NO_PROPOSAL)
            return RETRY_SECONDS
        await self._cordon(resource, placement)
        await self._write(
            resource,
            model.make_complete_verdict(shown),
            {**fields, "completionTime": kube.format_now()},
        )
        return None

    # Moves.

    async def _run(self, resource: QueueRebalance, cluster: QueueCluster) -> float | None:
        """Begin the next moves, and report how far the rebalance is."""
        uid, proposal = resource["metadata"]["uid"], model.get_proposal_id(resource)
        run = self._runs.get(uid)
        if run is None or run.proposal != proposal:
            run = self._runs[uid] = _RebalanceRun(proposal)
        placement = await self._calls.describe_placement()
        step = self._choose_step(resource, cluster, run, placement)
        await self._set_finalizer(resource, present=True)
        await self._cordon(resource, placement)
        if not step.is_last:
            await self._set_throttle(resource, run, step, placement)
            await self._calls.reassign({move.partition: move.after for move in step.begin})
        elects = await self._elect(run, step, placement)
        copied = await self._calls.count_copied_bytes(step.moving, placement.running)
        progress = model.build_progress(resource, step, copied)
        if not step.is_last or elects:
            verdict = model.make_running_verdict(resource, progress, step.waits)
            await self._write(resource, verdict, {"progress": progress})
            return PROGRESS_SECONDS
        await self._remove_throttle(resource, placement)
        fields = {"progress": progress, "completionTime": kube.format_now()}
        verdict = model.make_complete_verdict(_with_status(resource, fields))
        once = build_transition_key(resource["status"].get("conditions", []))
        await self._kube.record_event(resource, "Rebalanced", verdict.message, once=once)
        await self._write(resource, verdict, fields)
        await self._set_finalizer(
            resource, present=bool(list_cordoned(self._find_newest(resource)))
        )
        self._runs.pop(uid, None)
        return None

    def _choose_step(
        self,
        resource: QueueRebalance,
        cluster: QueueCluster,
        run: _RebalanceRun,
        placement: Placement,
    ) -> RebalanceStep:
        now_ms = clock.now_ms()
        longest_ms = int(UNSETTLED_SECONDS * 1000)
        given_up = {name for name, ms in run.unsettled.items() if now_ms - ms >= longest_ms}
        paused = cluster["spec"].get("paused")
        step = steps.choose_step(
            model.parse_moves(resource),
            placement,
            pod_layout.list_brokers(cluster),
            model.get_copies_max(resource),
            given_up,
        )
        unsettled = {move.partition for move in (*step.unsettled, *step.left_out)}
        run.unsettled = {name: run.unsettled.get(name, now_ms) for name in unsettled}
        if not paused:
            return step
        text = f"QueueCluster {self._cluster!r} is paused"
        return steps.without_begin(step, text)

    async def _elect(self, run: _RebalanceRun, step: RebalanceStep, placement: Placement) -> bool:
        """Elect the preferred leaders of partitions that are done; return whether to wait for them.

        One that is out of sync cannot lead. The brokers elect it once it can
        (`auto.leader.rebalance.enable`).
        """
        partitions = [
            move.partition
            for move in step.done
            if move.after[0] in placement.running
            and not _has_preferred_leader(placement, move.partition)
        ]
        if partitions:
            await self._calls.elect(partitions)
        if not partitions or not step.is_last:
            return bool(partitions)
        now_ms = clock.now_ms()
        run.elects_ms = run.elects_ms or now_ms
        return now_ms - run.elects_ms < ELECTION_SECONDS_MAX * 1000

    async def _stop(self, resource: QueueRebalance, cluster: QueueCluster) -> None:
        """Take back the moves that are under way, and remove the throttle and the cordons."""
        self._runs.pop(resource["metadata"]["uid"], None)
        # This comes first: a cordoned broker could not have its replicas back.
        await self._cordons.uncordon(resource)
        if not model.is_running(resource) and not resource.get("status", {}).get("throttle"):
            return
        moves, brokers = model.parse_moves(resource), pod_layout.list_brokers(cluster)
        placement = await self._calls.describe_placement()
        step = steps.choose_step(moves, placement, brokers, 0)
        if step.moving:
            await self._calls.cancel(move.partition for move in step.moving)
            placement = await self._calls.describe_placement()
            step = steps.choose_step(moves, placement, brokers, 0)
        # Brokers put the replicas that a cancelled move would have removed at the end.
        disordered = {
            move.partition: move.before
            for move in step.waiting
            if move.added_brokers and placement.partitions[move.partition].replicas != move.before
        }
        await self._calls.reassign(disordered)
        await self._remove_throttle(resource, placement)

    async def _end(self, resource: QueueRebalance, cluster: QueueCluster | None) -> float | None:
        """Release a resource that is being deleted."""
        if names.FINALIZER not in resource["metadata"].get("finalizers", []):
            return None
        if cluster is not None and not external.is_external(cluster):
            await self._stop(resource, cluster)
        await self._set_finalizer(resource, present=False)
        return None

    # The cordons, the throttle and the finalizer.

    async def _cordon(self, resource: QueueRebalance, placement: Placement) -> None:
        """Cordon the brokers that are to be empty, and hold the deletion until that ends."""
        if model.get_mode(resource) is not RebalanceMode.REMOVE_BROKERS:
            return
        await self._set_finalizer(resource, present=True)
        brokers = set(model.get_brokers(resource)) & placement.running.keys()
        await self._cordons.cordon(resource, brokers)

    async def _set_throttle(
        self,
        resource: QueueRebalance,
        run: _RebalanceRun,
        step: RebalanceStep,
        placement: Placement,
    ) -> None:
        throttle = resource["spec"].get("throttle", "")
        rate = model.get_throttle_bytes(resource)
        if rate is None:
            await self._remove_throttle(resource, placement)
        elif run.throttle != throttle:
            await self._statuses.merge(resource, {"throttle": throttle})
            moves = [*step.moving, *step.waiting, *step.unsettled]
            brokers = {broker for move in moves for broker in (*move.before, *move.added_brokers)}
            running = brokers & placement.running.keys()
            await self._calls.throttle(rate, moves, running, _list_topics(placement.partitions))
        run.throttle = throttle

    async def _remove_throttle(self, resource: QueueRebalance, placement: Placement) -> None:
        stored = self._find_newest(resource)
        if not stored.get("status", {}).get("throttle"):
            return
        topics = _list_topics(move.partition for move in model.parse_moves(resource))
        existing = topics & _list_topics(placement.partitions)
        await self._calls.unthrottle(existing, placement.running)
        await self._statuses.merge(stored, {"throttle": None})

    async def _set_finalizer(self, resource: QueueRebalance, *, present: bool) -> None:
        """Add or remove the finalizer, which holds the deletion until the moves are taken back."""
        stored = self._find_newest(resource)
        finalizers = stored["metadata"].get("finalizers", [])
        if present == (names.FINALIZER in finalizers):
            return
        changed = [finalizer for finalizer in finalizers if finalizer != names.FINALIZER]
        changed += [names.FINALIZER] if present else []
        written = await self._kube.merge(stored, {"metadata": {"finalizers": changed}})
        if written and (present or not written["metadata"].get("deletionTimestamp")):
            self._store.put(written)

    def _find_newest(self, resource: QueueRebalance) -> QueueRebalance:
        """Return the resource with what this pass has written."""
        newest = self._store.get(QueueRebalance, self._namespace, resource["metadata"]["name"])
        return newest or resource


def _with_status(resource: QueueRebalance, fields: Mapping[str, Any]) -> QueueRebalance:
    """Return the resource with these fields of the status."""
    status = {**resource.get("status", {}), **fields}
    return {**resource, "status": cast("QueueRebalanceStatus", status)}


def _may_continue(resource: QueueRebalance) -> bool:
    """Return whether a rebalance moves replicas, and nothing in its resource stops it."""
    meta, spec = resource["metadata"], resource["spec"]
    stopped = meta.get("deletionTimestamp") or spec.get("paused")
    return model.is_running(resource) and model.has_proposal(resource) and not stopped


def _has_preferred_leader(placement: Placement, partition: str) -> bool:
    """Return whether the preferred leader leads."""
    replicas = placement.partitions[partition]
    return replicas.leader == replicas.replicas[0]


def _list_topics(partitions: Iterable[str]) -> set[str]:
    return {name.rpartition("-")[0] for name in partitions}
