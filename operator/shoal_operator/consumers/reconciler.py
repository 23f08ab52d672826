"""ShareConsumers: the workload of a share group, and its number of consumers.

The number comes from `scaling.decide`, or from `spec.replicas`, which `kubectl scale`, an HPA or
KEDA can set. The operator never writes the spec, so that GitOps tools see no drift; its decision is
in `status.desiredReplicas`.
"""

from __future__ import annotations

import datetime
import math
from dataclasses import replace
from typing import TYPE_CHECKING

from shoal_operator import clock, metrics
from shoal_operator.brokers import idle_members
from shoal_operator.brokers.batch_reconciler import (
    BLOCKED_SECONDS,
    make_hibernated_verdict,
    make_no_cluster_verdict,
)
from shoal_operator.consumers import scale_secret, scale_targets, scaling
from shoal_operator.consumers.scale_targets import ScaleTargets
from shoal_operator.consumers.workloads import ScaleTarget, WorkloadManager, WorkloadState
from shoal_operator.kube import failures
from shoal_operator.kube.conditions import Verdict, get_ready_condition, is_seen
from shoal_operator.kube.drift import has_drifted
from shoal_operator.kube.kube import KubeClient, KubeError, format_now
from shoal_operator.kube.statuses import StatusWriter
from shoal_operator.model import external, field_defaults, hibernation, names, rack
from shoal_operator.model import groups as group_model
from shoal_operator.model.consumers import job, kueue, schedules, spark, spark_templates
from shoal_operator.model.quantities import parse_duration_ms
from shoal_operator.model.resources.share_consumer import ShareConsumer
from shoal_operator.model.resources.share_group import ShareGroup
from shoal_operator.queues.group_monitor import GroupMonitor, format_due_time, list_consumer_groups
from shoal_operator.settings import WORKLOADS
from shoal_operator.users import consumer_users
from shoal_operator.users.consumer_users import PodLogin

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from shoal_operator.kube.store import Store
    from shoal_operator.model.resources.share_consumer import (
        ShareConsumerSpec,
        ShareConsumerSpecScaling,
        ShareConsumerStatusPatch,
    )
    from shoal_operator.model.resources.share_group import ShareGroupSpec
    from shoal_operator.settings import ChartSettings

KIND = "ShareConsumer"
#: Seconds until the next pass while a workload is in progress.
PROGRESS_SECONDS = 2.0
#: The shortest time between two status updates that carry measurements only.
STATUS_SECONDS = 5.0
#: How long a Secret of `spec.userSecret` counts as present.
SECRET_MS = 60_000
#: Removes the fields that a status, and a scale signal, contains only while the lag is known.
NO_LAG: ShareConsumerStatusPatch = {
    "lag": None,
    "workable": None,
    "due": None,
    "inFlight": None,
    "partitions": None,
    "nextDueTime": None,
    "oldestRecordSeconds": None,
}
POD_KIND = {"apiVersion": "v1", "kind": "Pod"}
#: Reasons of a ShareGroup that keep all its consumers from working.
_GROUP_REASONS = ("TopicNotFound", "PositionsRefused", "OtherGroupType", "FieldNotSupported")
#: Reasons that a person must resolve.
_REFUSED = ("OtherGroupType", "FieldNotSupported")


def get_scaling(spec: ShareConsumerSpec) -> ShareConsumerSpecScaling:
    """Return `spec.scaling` with the values of what it leaves out; all of them without it."""
    return field_defaults.fill(spec.get("scaling", {}), field_defaults.SCALING)


def build_policy(
    spec: ShareConsumerSpec, now: datetime.datetime | None = None
) -> scaling.ScalingPolicy:
    """Return `spec.scaling` as numbers.

    Executors have their own bounds, and share the records of one micro-batch. With `now`, the
    bounds are those of the schedules at that time.
    """
    settings = get_scaling(spec)
    low, high = settings["minReplicas"], settings["maxReplicas"]
    records = settings["recordsPerReplica"]
    batch = 0
    if application := spec.get("spark"):
        low, high = application["minExecutors"], application["maxExecutors"]
        records = application["coresPerExecutor"] * scaling.RECORDS_PER_TASK_MIN
        batch = application["maxRecordsPerTrigger"]
    cooldown_ms = parse_duration_ms(settings["cooldown"])
    idle_ms = parse_duration_ms(settings["scaleToZeroAfter"])
    if "job" in spec:
        # Jobs end alone, and the next ones start at once.
        cooldown_ms = idle_ms = 0
    names_now: tuple[str, ...] = ()
    if now is not None:
        low, high, names_now = schedules.compute_bounds(
            settings.get("schedules", ()), now, low, high
        )
    return scaling.ScalingPolicy(
        replicas_min=low,
        replicas_max=high,
        target_lag=settings["targetLagPerReplica"],
        records_per_replica=records,
        records_per_batch=batch,
        cooldown_ms=cooldown_ms,
        scale_to_zero_after_ms=idle_ms,
        target_age_ms=parse_duration_ms(settings["targetRecordAge"])
        if "targetRecordAge" in settings
        else 0,
        schedules=names_now,
    )


def get_startup_s(spec: ShareConsumerSpec) -> float:
    """Return `scaling.startupTime` in seconds."""
    return parse_duration_ms(get_scaling(spec)["startupTime"]) / 1000


def is_scaled(spec: ShareConsumerSpec) -> bool:
    """Return whether the operator decides the number of consumers."""
    owned = "deployment" in spec
    return "scaling" in spec or (not owned and "replicas" not in spec)


def find_limit_warning(
    spec: ShareConsumerSpec, group: ShareGroupSpec, ceiling: int
) -> tuple[str, str] | None:
    """Return the reason and message of a limit that the spec cannot exceed, if any.

    `ceiling` is the limit that the group's record locks set, 0 while it is unknown.
    """
    application = spec.get("spark")
    most = build_policy(spec).replicas_max
    if application and not group.get("renewal", True):
        return (
            "RenewalOff",
            f"The ShareGroup's renewal is false: records of a batch that takes longer than "
            f"{group['lockDuration']} are delivered again. Set renewal to true.",
        )
    if not ceiling or not is_scaled(spec) or most <= ceiling:
        return None
    if application:
        return (
            "ParallelismUnreachable",
            f"spark.maxExecutors is {most}, but a batch of at most "
            f"{application['maxRecordsPerTrigger']} records within {group['maxRecordLocks']} "
            f"record locks per partition is enough for {ceiling}. Raise "
            f"spark.maxRecordsPerTrigger or the ShareGroup's maxRecordLocks.",
        )
    return (
        "ParallelismUnreachable",
        f"scaling.maxReplicas is {most}, but the group's record locks are enough for {ceiling} "
        f"consumers. Lower scaling.recordsPerReplica or raise the ShareGroup's maxRecordLocks.",
    )


def find_sharing(consumer: str, rivals: Collection[str], group: str) -> tuple[str, str] | None:
    """Return the reason and message of a ShareGroup that has other ShareConsumers, too."""
    if not rivals:
        return None
    rival_names = ", ".join(map(repr, sorted(rivals)))
    return (
        "ShareGroupShared",
        f"ShareGroup {group!r} has {consumer!r} and {rival_names}: each starts consumers for the "
        "whole "
        "lag, so more run than are needed. Delete all ShareConsumers of the group but one, or give "
        "each a ShareGroup of its own.",
    )


def is_configured(group: ShareGroup) -> bool:
    """Return whether the brokers have accepted all configs of a ShareGroup's spec.

    Until then, a consumer could reject records of which no dead letter is written, for example.
    """
    configured = group.get("status", {}).get("configuredGeneration")
    return bool(configured == group["metadata"].get("generation", 0))


def _make_unconfigured_verdict(group: ShareGroup, replicas: int) -> Verdict:
    ready = get_ready_condition(group)
    why = "the operator has not configured its newest spec yet."
    if is_seen(group) and ready.get("status") == "False":
        why = ready["message"]
    effect = f"keep their number, {replicas}," if replicas else "do not start"
    name = group["metadata"]["name"]
    text = f"Consumers {effect} until the group is as its spec says. ShareGroup {name!r}: {why}"
    return Verdict.make_waiting("ShareGroupNotReady", text)


def decide_group_verdict(group: ShareGroup, replicas: int) -> Verdict | None:
    """Return the verdict on a ShareGroup that no consumer can use, else None.

    Without it, the consumer would scale to zero for lack of lag and report that it is ready.
    `replicas` is the number of consumers that the operator keeps.
    """
    meta = group["metadata"]
    for condition in group.get("status", {}).get("conditions", []):
        current = condition.get("observedGeneration") == meta.get("generation", 0)
        reason = condition["reason"]
        if condition["type"] == "Ready" and reason in _GROUP_REASONS and current:
            text = f"ShareGroup {meta['name']!r}: {condition['message']}"
            make_verdict = Verdict.make_refused if reason in _REFUSED else Verdict.make_waiting
            return make_verdict(reason, text)
    return None if is_configured(group) else _make_unconfigured_verdict(group, replicas)


class ShareConsumerReconciler:
    """The reconciler of all ShareConsumers of one cluster.

    `on_signal` is called after each change of a scale signal.
    """

    def __init__(
        self,
        kube: KubeClient,
        store: Store,
        monitor: GroupMonitor,
        namespace: str,
        cluster: str,
        settings: ChartSettings,
        *,
        on_signal: Callable[[], None] = lambda: None,
    ) -> None:
        self._kube, self._store, self._monitor = kube, store, monitor
        self._namespace, self._cluster, self._settings = namespace, cluster, settings
        self._on_signal = on_signal
        self._statuses = StatusWriter(kube, store)
        self._workloads = WorkloadManager(kube, store, settings)
        self._targets = ScaleTargets(kube, store)
        #: Since when ShareConsumers wait for records to remove pods.
        self._shrinking_ms: dict[str, int] = {}
        self._histories: dict[str, scaling.ScalingHistory] = {}
        self._signals: dict[str, dict[str, int]] = {}
        #: When Secrets of `spec.userSecret` were last found.
        self._secrets_seen_ms: dict[str, int] = {}

    def list_names(self) -> list[str]:
        """Return the names of all ShareConsumers of the cluster."""
        return [name for name, _ in self.list_consumer_groups()]

    def list_consumer_groups(self) -> list[tuple[str, str]]:
        """Return our ShareConsumers with their ShareGroups, by name."""
        return list_consumer_groups(self._store, self._namespace, self._cluster)

    async def reconcile(self, resource_names: list[str]) -> float | None:
        """Bring these ShareConsumers to their specs; return seconds until the next pass. Raises the
        first error of a status, after all of them."""
        own_names = set(resource_names).intersection(self.list_names())
        consumers = (
            self._store.get(ShareConsumer, self._namespace, name) for name in sorted(own_names)
        )
        pauses = await failures.complete_all(
            self._apply_apart(consumer)
            for consumer in consumers
            if consumer is not None and not consumer["metadata"].get("deletionTimestamp")
        )
        removed = self._histories.keys() - set(self.list_names())
        for name in removed:
            del self._histories[name]
            self._signals.pop(name, None)
            self._shrinking_ms.pop(name, None)
        self._targets.forget_others(self.list_names())
        self._workloads.jobs.forget_others(self.list_names())
        again = min(pauses, default=math.inf)
        return again if again < math.inf else None

    async def _apply_apart(self, consumer: ShareConsumer) -> float:
        """Apply one ShareConsumer; return the seconds until the next pass, infinite without one.

        Its failure becomes its condition. Raises `KubeError` if that cannot be written.
        """
        try:
            return PROGRESS_SECONDS if await self._apply(consumer) else math.inf
        except Exception as error:
            if failures.is_of_all(error):
                raise
            if isinstance(error, KubeError) and error.terminating:
                return math.inf
            verdict = failures.report(KIND, consumer, error)
        await self._statuses.write(consumer, verdict)
        return BLOCKED_SECONDS if verdict.alarm or not verdict.progressing else PROGRESS_SECONDS

    def _list_rivals(self, consumer: ShareConsumer) -> list[str]:
        """Return the other ShareConsumers of a ShareConsumer's group."""
        own, group = consumer["metadata"]["name"], consumer["spec"]["shareGroup"]
        return [
            str(rival["metadata"]["name"])
            for rival in self._store.iterate(ShareConsumer)
            if rival["spec"]["shareGroup"] == group
            and rival["metadata"]["namespace"] == self._namespace
            and rival["metadata"]["name"] != own
            and not rival["metadata"].get("deletionTimestamp")
        ]

    def get_signal(self, name: str) -> dict[str, int]:
        """Return the scale signal, without the fields of `NO_LAG` if the lag is unknown."""
        consumer = self._store.get(ShareConsumer, self._namespace, name)
        signal = self._signals.get(name, {})
        group = consumer and self._store.get(
            ShareGroup, self._namespace, consumer["spec"]["shareGroup"]
        )
        if group and self._monitor.get_current(group_model.get_group_id(group)):
            return signal
        return {k: v for k, v in signal.items() if k not in NO_LAG}

    async def _apply(self, consumer: ShareConsumer) -> bool:
        """Apply the workload; return whether it is still in progress."""
        spec, cluster = consumer["spec"], self._store.get_cluster(self._namespace, self._cluster)
        group = self._store.get(ShareGroup, self._namespace, spec["shareGroup"])
        assert group is not None, "by_group names only consumers with a group"
        if cluster is None:
            await self._statuses.write(consumer, make_no_cluster_verdict(self._cluster))
            return False
        if refused := _find_refusal(consumer, self._settings):
            await self._statuses.write(consumer, refused)
            return False
        if "scaleTargetRef" in spec:
            return await self._apply_target(consumer, group)
        login = consumer_users.resolve_login(
            self._store, cluster, spec.get("user", ""), spec.get("userSecret", "")
        )
        if problem := await self._find_missing_secret(consumer):
            await self._statuses.write(consumer, problem)
            return True
        if login.problem and not login.secret:
            await self._statuses.write(consumer, login.problem)
            return login.problem.progressing
        context = spark.WorkloadContext(
            self._cluster,
            login.servers,
            group_model.get_group_id(group),
            group["spec"].get("topics", []),
            self._settings.spark_image,
            self._settings.driver_role_kind,
            self._settings.spark_pull_policy,
            login.secret,
            scale_secret.format_name(consumer) if self._settings.scale_url else "",
            scale_login=self._settings.http_access is not None,
            openshift=self._settings.openshift,
            rack=rack.get_topology_key(cluster),
        )
        if refused := await self._write_scale_secret(consumer):
            await self._statuses.write(consumer, refused)
            return False
        decision = _limit_to_admitted(consumer, self._decide(consumer, group))
        if "deployment" in spec:
            have = self._workloads.observe_deployment(consumer)
            decision = await self._prefer_idle_pods(consumer, group, decision, have)
        lag_ms = self._monitor.get_read_ms(context.group_id)
        workload = await self._workloads.apply(consumer, context, decision.replicas, lag_ms)
        await self._write_status(consumer, group, decision, workload, login)
        return workload.verdict.progressing

    async def _apply_target(self, consumer: ShareConsumer, group: ShareGroup) -> bool:
        """Scale a workload that the operator does not own; return whether it is in progress."""
        if refused := self._targets.find_refusal(consumer):
            await self._statuses.write(consumer, refused)
            return False
        if refused := await self._write_scale_secret(consumer):
            await self._statuses.write(consumer, refused)
            return False
        target = await self._targets.observe(consumer)
        if target is None:
            # Without a decision: a target that appears may have replicas at work.
            await self._statuses.write(consumer, scale_targets.make_not_found_verdict(consumer))
            return False
        decision = self._decide(consumer, group, target.replicas)
        # A StatefulSet removes its pods by their numbers.
        if consumer["spec"]["scaleTargetRef"]["kind"] == "Deployment":
            decision = await self._prefer_idle_pods(consumer, group, decision, target)
        workload = await self._targets.apply(consumer, target, decision.replicas)
        await self._write_status(consumer, group, decision, workload, PodLogin(""), target.replicas)
        return workload.verdict.progressing

    def _find_rest(self, spec: ShareConsumerSpec) -> Verdict | None:
        """Return the verdict on consumers that nobody wants at present, else None."""
        if spec.get("paused"):
            effect = "no new Job starts" if "job" in spec else "no consumer runs"
            return Verdict(True, "Paused", f"spec.paused is true: {effect}.", paused=True)
        return make_hibernated_verdict(self._cluster) if self._is_hibernated() else None

    def _is_hibernated(self) -> bool:
        cluster = self._store.get_cluster(self._namespace, self._cluster)
        return cluster is not None and hibernation.is_hibernated(cluster)

    async def _prefer_idle_pods(
        self,
        consumer: ShareConsumer,
        group: ShareGroup,
        decision: scaling.ScalingDecision,
        have: ScaleTarget,
    ) -> scaling.ScalingDecision:
        """Before a Deployment shrinks, note on its pods what their members hold.

        The number does not fall below the number of pods that hold records, for as long as one
        lock lasts. After that, the members release their records as they stop.
        """
        name, id = consumer["metadata"]["name"], group_model.get_group_id(group)
        if consumer["spec"].get("paused") or not 0 < decision.replicas < have.replicas:
            self._shrinking_ms.pop(name, None)
            return decision
        holdings = await self._monitor.list_holdings(id) if self._monitor.get_current(id) else None
        if holdings is None:
            return decision
        pods = [pod for pod in have.pods if not pod["metadata"].get("deletionTimestamp")]
        costs = idle_members.compute_costs(pods, holdings)
        for pod, cost in idle_members.build_annotations(pods, costs).items():
            (manifest,) = (p for p in pods if p["metadata"]["name"] == pod)
            noted = {"annotations": {idle_members.ANNOTATION: cost}}
            await self._kube.merge({**manifest, **POD_KIND}, {"metadata": noted})
        busy, now_ms = sum(cost > 0 for cost in costs.values()), clock.now_ms()
        waited_ms = now_ms - self._shrinking_ms.setdefault(name, now_ms)
        if busy <= decision.replicas or waited_ms > parse_duration_ms(
            group["spec"]["lockDuration"]
        ):
            return decision
        reason = f"{decision.reason}, {busy} pods hold records"
        return replace(decision, replicas=min(busy, have.replicas), reason=reason)

    async def _find_missing_secret(self, consumer: ShareConsumer) -> Verdict | None:
        """Return the verdict on a Secret of `spec.userSecret` with which no pod could start."""
        name, now_ms = consumer["spec"].get("userSecret", ""), clock.now_ms()
        if not name or now_ms - self._secrets_seen_ms.get(name, -SECRET_MS) < SECRET_MS:
            return None
        manifest = await self._kube.get("v1", "Secret", name, self._namespace)
        if manifest is not None and external.PROPERTIES in manifest.get("data", {}):
            self._secrets_seen_ms[name] = now_ms
            return None
        text = f"Secret {name!r} of spec.userSecret does not exist in this namespace."
        if manifest is not None:
            text = (
                f"Secret {name!r} of spec.userSecret has no key {external.PROPERTIES}, from which "
                "consumers read how to log in."
            )
        return Verdict.make_waiting("UserSecretNotFound", text)

    async def _write_scale_secret(self, consumer: ShareConsumer) -> Verdict | None:
        """Write what a reader of the scale signal needs: a driver, and all others if the operator
        asks for a login. Return the verdict if a Secret of its name is not ours."""
        access, url = self._settings.http_access, self._settings.scale_url
        if not url or (access is None and "spark" not in consumer["spec"]):
            return None
        name = scale_secret.format_name(consumer)
        want = scale_secret.build_manifest(consumer, self._cluster, url, access)
        have = self._store.get("Secret", self._namespace, name)
        have = have or await self._kube.get("v1", "Secret", name, self._namespace)
        own = consumer["metadata"]["name"]
        if have and have["metadata"].get("labels", {}).get(names.CONSUMER_LABEL) != own:
            return Verdict.make_refused(
                "SecretNotOwned",
                f"Secret {name!r} exists and does not belong to this ShareConsumer. Rename the "
                "ShareConsumer, or delete the Secret.",
            )
        if have is None or has_drifted(want, have):
            self._store.put(await self._kube.apply(want))
        return None

    def _decide(
        self, consumer: ShareConsumer, group: ShareGroup, running: int = 0
    ) -> scaling.ScalingDecision:
        """Return the number of consumers; `running` is that of a workload before the first
        decision."""
        spec, status = consumer["spec"], consumer.get("status", {})
        name = consumer["metadata"]["name"]
        state = self._monitor.get_current(group_model.get_group_id(group))
        top = status.get("ceiling", 0)
        if spec.get("paused"):
            return scaling.ScalingDecision(0, top, "spec.paused is true")
        if self._is_hibernated():
            return scaling.ScalingDecision(0, top, "the QueueCluster is hibernated")
        if not is_configured(group):
            # New Jobs would start for each one that ends.
            kept_replicas = 0 if "job" in spec else status.get("desiredReplicas", running)
            return scaling.ScalingDecision(
                kept_replicas, top, "the ShareGroup is not as its spec says"
            )
        if not is_scaled(spec):
            return scaling.ScalingDecision(spec.get("replicas", 1), top, "spec.replicas")
        current = status.get("desiredReplicas", spec.get("replicas", running))
        if state is None:
            return scaling.ScalingDecision(current, top, "the lag is unknown")
        now_ms = clock.now_ms()
        history = self._histories.get(name)
        if history is None:
            idle_since = status.get("idleSince")
            idle_ms = int(clock.count_seconds_since(idle_since) * 1000) if idle_since else None
            # The number of Jobs does not depend on that of before.
            of_before = scaling.ScalingHistory.from_restart(current, idle_ms, now_ms)
            history = scaling.ScalingHistory() if "job" in spec else of_before
            self._histories[name] = history
        locks, partitions = group["spec"]["maxRecordLocks"], max(1, len(state.partitions))
        starts = [p.start_offset for p in state.partitions]
        settled = sum(starts) if starts and min(starts) >= 0 else -1
        ready = status.get("readyReplicas", 0)
        due = state.count_due(get_startup_s(spec))
        not_due = state.workable - due
        age_ms = self._monitor.get_oldest_age_ms(state.group)
        if "job" in spec:
            active = self._workloads.jobs.count_active(
                consumer, self._monitor.get_read_ms(state.group)
            )
            per_job = get_scaling(spec)["targetLagPerReplica"]
            due = job.count_work(due, state.in_flight, active, per_job)
            # Jobs that find no record end, and would be started again and again.
            settled = age_ms = -1
        load = scaling.GroupLoad(
            due, partitions, locks, settled, ready, state.blocked, not_due, age_ms
        )
        return scaling.decide(build_policy(spec, _get_now()), load, current, history, now_ms)

    async def _write_status(
        self,
        consumer: ShareConsumer,
        group: ShareGroup,
        decision: scaling.ScalingDecision,
        workload: WorkloadState,
        login: PodLogin,
        running: int = 0,
    ) -> None:
        """Write the status, and an event about another number of consumers; `running` is that of a
        workload before the first decision."""
        meta, spec, before = consumer["metadata"], consumer["spec"], consumer.get("status", {})
        state = self._monitor.get_current(group_model.get_group_id(group))
        # An unknown lag is removed from the status: nothing may scale by it.
        measured: ShareConsumerStatusPatch = {**NO_LAG, "decision": decision.reason}
        labels = (meta["namespace"], meta["name"])
        if state:
            due = state.count_due(get_startup_s(spec))
            metrics.DUE.labels(*labels).set(due)
            measured |= {
                "lag": state.lag,
                "workable": state.workable,
                "due": due,
                "nextDueTime": format_due_time(state),
                "partitions": len(state.partitions),
            }
            if state.in_flight >= 0:
                measured["inFlight"] = state.in_flight
            age_ms = self._monitor.get_oldest_age_ms(state.group)
            measured["oldestRecordSeconds"] = age_ms // 1000 if age_ms >= 0 else None
        fields: ShareConsumerStatusPatch = {
            "replicas": workload.replicas,
            "readyReplicas": workload.ready,
            "desiredReplicas": decision.replicas,
            "ceiling": decision.ceiling,
            "selector": workload.selector,
        }
        if workload.state:
            fields["applicationState"] = workload.state
        history = self._histories.get(meta["name"])
        idle = history is not None and history.idle_since_ms is not None
        fields["idleSince"] = (before.get("idleSince") or format_now()) if idle else None
        changed = before.get("desiredReplicas") != decision.replicas
        if changed:
            fields |= {"lastScaleTime": format_now(), **measured}
        metrics.WANTED.labels(*labels).set(decision.replicas)
        metrics.READY.labels(*labels).set(workload.ready)
        if is_scaled(spec):
            most = build_policy(spec, _get_now()).replicas_max
            metrics.MAXIMUM.labels(*labels).set(min(most, decision.ceiling or most))
        numbers = {k: v for k, v in (fields | measured).items() if isinstance(v, int)}
        self._signals[meta["name"]] = numbers
        self._on_signal()
        verdict = (
            self._find_rest(spec)
            or decide_group_verdict(group, decision.replicas)
            or login.problem
            or workload.verdict
        )
        limit = find_limit_warning(spec, group["spec"], decision.ceiling)
        shares = find_sharing(meta["name"], self._list_rivals(consumer), group["metadata"]["name"])
        verdict = verdict.with_warning(shares or limit or login.warning)
        await self._statuses.write(consumer, verdict, fields)
        newest = self._store.get(ShareConsumer, self._namespace, meta["name"])
        if newest is not None:
            await self._statuses.update_measurements(newest, measured, STATUS_SECONDS)
        of_before = before.get("desiredReplicas", running)
        if of_before != decision.replicas:
            text = f"{of_before} to {decision.replicas}: {decision.reason}."
            await self._kube.record_event(consumer, "Scaled", text)


def _limit_to_admitted(
    consumer: ShareConsumer, decision: scaling.ScalingDecision
) -> scaling.ScalingDecision:
    """Return the decision within the executors that Kueue admits, which `spec.replicas` and
    schedules may exceed."""
    most = consumer["spec"].get("spark", {}).get("maxExecutors", 0)
    if not most or not kueue.get_queue(consumer) or decision.replicas <= most:
        return decision
    reason = f"{decision.reason}, Kueue admits {most}"
    return replace(decision, replicas=most, reason=reason)


def _get_now() -> datetime.datetime:
    return datetime.datetime.fromtimestamp(clock.epoch_ms() / 1000, datetime.UTC)


def _find_refusal(consumer: ShareConsumer, settings: ChartSettings) -> Verdict | None:
    """Return the verdict on a spec that this operator cannot run, else None."""
    spec = consumer["spec"]
    for off in (w for w in WORKLOADS if w in spec and w not in settings.workloads):
        text = f"spec.{off} is off in this installation of the operator. "
        text += settings.workload_remedy.format(workload=off)
        return Verdict.make_refused("WorkloadDisabled", text)
    if wrong := schedules.find_problem(spec.get("scaling", {}).get("schedules", ())):
        return Verdict.make_refused("ScheduleNotValid", wrong)
    if reserved := spark_templates.find_problem(consumer):
        return Verdict.make_refused("TemplateNotAllowed", reserved)
    return None
