"""ShareConsumers: the workload of a share group, and its number of consumers.

The number comes from `scaling.decide`, or from `spec.replicas`, which `kubectl scale`, an HPA or
KEDA can set. The operator never writes the spec, so that GitOps tools see no drift; its decision is
in `status.desiredReplicas`.
"""

from __future__ import annotations

import datetime
import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from shoal_operator import (
    clock,
    consumer_users,
    failures,
    idle_members,
    metrics,
    scale_secret,
    scale_targets,
    scaling,
    schedules,
)
from shoal_operator.batch_reconciler import BLOCKED_SECONDS, cluster_not_found
from shoal_operator.conditions import Verdict, is_seen, ready_condition
from shoal_operator.consumer_users import Login
from shoal_operator.drift import has_drifted
from shoal_operator.group_monitor import GroupMonitor, consumer_groups, due_time
from shoal_operator.kube import Kube, KubeError, now
from shoal_operator.model import external, job, names, rack, spark
from shoal_operator.model import groups as group_model
from shoal_operator.quantities import duration_ms
from shoal_operator.scale_targets import ScaleTargets
from shoal_operator.settings import WORKLOADS
from shoal_operator.statuses import Statuses
from shoal_operator.workloads import Target, Workload, Workloads

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from shoal_operator.model.names import Manifest
    from shoal_operator.settings import Settings
    from shoal_operator.store import Store

KIND = "ShareConsumer"
#: Seconds until the next pass while a workload is in progress.
PROGRESS_SECONDS = 2.0
#: The shortest time between two status updates that carry measurements only.
STATUS_SECONDS = 5.0
#: How long a Secret of `spec.userSecret` counts as present.
SECRET_MS = 60_000
#: The default of `scaling.startupTime`.
STARTUP_TIME = "30s"
#: Fields of the status and of a scale signal that are present only while the lag is known.
LAG_FIELDS = (
    "lag",
    "workable",
    "due",
    "inFlight",
    "partitions",
    "nextDueTime",
    "oldestRecordSeconds",
)
POD_KIND = {"apiVersion": "v1", "kind": "Pod"}
#: Reasons of a ShareGroup that keep all its consumers from working.
_GROUP_REASONS = ("TopicNotFound", "PositionsRefused", "OtherGroupType", "FieldNotSupported")
#: Reasons that a person must resolve.
_REFUSED = ("OtherGroupType", "FieldNotSupported")


def policy(spec: Mapping[str, Any], now: datetime.datetime | None = None) -> scaling.Policy:
    """Return `spec.scaling` as numbers, with the schema's defaults.

    Executors have their own bounds, and share the records of one micro-batch. With `now`, the
    bounds are those of the schedules at that time.
    """
    given = spec.get("scaling", {})
    low, high = given.get("minReplicas", 0), given.get("maxReplicas", 10)
    records = given.get("recordsPerReplica", 500)
    batch = 0
    if application := spec.get("spark"):
        low, high = application["minExecutors"], application["maxExecutors"]
        records = application["coresPerExecutor"] * scaling.RECORDS_PER_TASK_MIN
        batch = application["maxRecordsPerTrigger"]
    cooldown_ms = duration_ms(given.get("cooldown", "60s"))
    idle_ms = duration_ms(given.get("scaleToZeroAfter", "5m"))
    if "job" in spec:
        # Jobs end alone, and the next ones start at once.
        cooldown_ms = idle_ms = 0
    names_now: tuple[str, ...] = ()
    if now is not None:
        low, high, names_now = schedules.bounds(given.get("schedules", ()), now, low, high)
    return scaling.Policy(
        replicas_min=low,
        replicas_max=high,
        target_lag=given.get("targetLagPerReplica", 1000),
        records_per_replica=records,
        records_per_batch=batch,
        cooldown_ms=cooldown_ms,
        scale_to_zero_after_ms=idle_ms,
        target_age_ms=duration_ms(given["targetRecordAge"]) if "targetRecordAge" in given else 0,
        schedules=names_now,
    )


def startup_s(spec: Mapping[str, Any]) -> float:
    """Return `scaling.startupTime` in seconds."""
    given = spec.get("scaling", {}).get("startupTime", STARTUP_TIME)
    return duration_ms(given) / 1000


def is_scaled(spec: Mapping[str, Any]) -> bool:
    """Return whether the operator decides the number of consumers."""
    owned = "deployment" in spec
    return "scaling" in spec or (not owned and "replicas" not in spec)


def warning(
    spec: Mapping[str, Any], group: Mapping[str, Any], ceiling: int
) -> tuple[str, str] | None:
    """Return the reason and message of a limit that the spec cannot exceed, if any.

    `ceiling` is the limit that the group's record locks set, 0 while it is unknown.
    """
    application = spec.get("spark")
    most = policy(spec).replicas_max
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


def find_sharing(consumer: str, others: Collection[str], group: str) -> tuple[str, str] | None:
    """Return the reason and message of a ShareGroup that has other ShareConsumers, too."""
    if not others:
        return None
    which = ", ".join(map(repr, sorted(others)))
    return (
        "ShareGroupShared",
        f"ShareGroup {group!r} has {consumer!r} and {which}: each starts consumers for the whole "
        "lag, so more run than are needed. Delete all ShareConsumers of the group but one, or give "
        "each a ShareGroup of its own.",
    )


def is_configured(group: Mapping[str, Any]) -> bool:
    """Return whether the brokers have accepted all configs of a ShareGroup's spec.

    Until then, a consumer could reject records of which no dead letter is written, for example.
    """
    configured = group.get("status", {}).get("configuredGeneration")
    return bool(configured == group["metadata"].get("generation", 0))


def _not_configured(group: Mapping[str, Any], replicas: int) -> Verdict:
    ready = ready_condition(group)
    why = "the operator has not configured its newest spec yet."
    if is_seen(group) and ready.get("status") == "False":
        why = ready["message"]
    what = f"keep their number, {replicas}," if replicas else "do not start"
    name = group["metadata"]["name"]
    text = f"Consumers {what} until the group is as its spec says. ShareGroup {name!r}: {why}"
    return Verdict.waiting("ShareGroupNotReady", text)


def group_verdict(group: Mapping[str, Any], replicas: int) -> Verdict | None:
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
            made = Verdict.refused if reason in _REFUSED else Verdict.waiting
            return made(reason, text)
    return None if is_configured(group) else _not_configured(group, replicas)


class Consumers:
    """The reconciler of all ShareConsumers of one cluster.

    `on_signal` is called after each change of a scale signal.
    """

    def __init__(
        self,
        kube: Kube,
        store: Store,
        monitor: GroupMonitor,
        namespace: str,
        cluster: str,
        settings: Settings,
        *,
        on_signal: Callable[[], None] = lambda: None,
    ) -> None:
        self._kube, self._store, self._monitor = kube, store, monitor
        self._namespace, self._cluster, self._settings = namespace, cluster, settings
        self._on_signal = on_signal
        self._statuses = Statuses(kube, store)
        self._workloads = Workloads(kube, store, settings)
        self._targets = ScaleTargets(kube, store)
        #: Since when ShareConsumers wait for records to remove pods.
        self._shrinking_ms: dict[str, int] = {}
        self._histories: dict[str, scaling.History] = {}
        self._signals: dict[str, dict[str, int]] = {}
        #: When Secrets of `spec.userSecret` were last found.
        self._secrets_seen_ms: dict[str, int] = {}

    def list_names(self) -> list[str]:
        """Return the names of all ShareConsumers of the cluster."""
        return [name for name, _ in self.by_group()]

    def by_group(self) -> list[tuple[str, str]]:
        """Return our ShareConsumers with their ShareGroups, by name."""
        return consumer_groups(self._store, self._namespace, self._cluster)

    async def reconcile(self, wanted: list[str]) -> float | None:
        """Bring these ShareConsumers to their specs; return seconds until the next pass."""
        names_wanted, pauses = set(wanted), [math.inf]
        for name, _ in self.by_group():
            consumer = self._store.get(KIND, self._namespace, name)
            if name not in names_wanted or consumer is None:
                continue
            if consumer["metadata"].get("deletionTimestamp"):
                continue
            pauses.append(await self._apply_apart(consumer))
        gone = self._histories.keys() - set(self.list_names())
        for name in gone:
            del self._histories[name]
            self._signals.pop(name, None)
            self._shrinking_ms.pop(name, None)
        self._targets.forget_others(self.list_names())
        self._workloads.jobs.forget_others(self.list_names())
        again = min(pauses)
        return again if again < math.inf else None

    async def _apply_apart(self, consumer: Manifest) -> float:
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

    def _others(self, consumer: Manifest) -> list[str]:
        """Return the other ShareConsumers of a ShareConsumer's group."""
        own, group = consumer["metadata"]["name"], consumer["spec"]["shareGroup"]
        return [
            str(other["metadata"]["name"])
            for other in self._store.all(KIND)
            if other["spec"]["shareGroup"] == group
            and other["metadata"]["namespace"] == self._namespace
            and other["metadata"]["name"] != own
            and not other["metadata"].get("deletionTimestamp")
        ]

    def signal(self, name: str) -> dict[str, int]:
        """Return the scale signal, without `LAG_FIELDS` if the lag is unknown."""
        consumer = self._store.get(KIND, self._namespace, name)
        found = self._signals.get(name, {})
        group = consumer and self._store.get(
            "ShareGroup", self._namespace, consumer["spec"]["shareGroup"]
        )
        if group and self._monitor.current(group_model.group_id(group)):
            return found
        return {k: v for k, v in found.items() if k not in LAG_FIELDS}

    async def _apply(self, consumer: Manifest) -> bool:
        """Apply the workload; return whether it is still in progress."""
        cluster = self._store.get("QueueCluster", self._namespace, self._cluster)
        group = self._store.get("ShareGroup", self._namespace, consumer["spec"]["shareGroup"])
        assert group is not None, "by_group names only consumers with a group"
        if cluster is None:
            await self._statuses.write(consumer, cluster_not_found(self._cluster))
            return False
        if disabled := _disabled(consumer, self._settings.workloads):
            await self._statuses.write(consumer, disabled)
            return False
        if wrong := schedules.problem(consumer["spec"].get("scaling", {}).get("schedules", ())):
            await self._statuses.write(consumer, Verdict.refused("ScheduleNotValid", wrong))
            return False
        if "scaleTargetRef" in consumer["spec"]:
            return await self._apply_target(consumer, group)
        login = consumer_users.login(self._store, cluster, consumer)
        if problem := await self._missing_secret(consumer):
            await self._statuses.write(consumer, problem)
            return True
        if login.problem and not login.secret:
            await self._statuses.write(consumer, login.problem)
            return login.problem.progressing
        context = spark.WorkloadContext(
            self._cluster,
            login.servers,
            group_model.group_id(group),
            group["spec"].get("topics", []),
            self._settings.spark_image,
            self._settings.scale_url,
            self._settings.driver_role,
            self._settings.spark_pull_policy,
            login.secret,
            scale_secret.name(consumer) if self._settings.http_access else "",
            openshift=self._settings.openshift,
            rack=rack.topology_key(cluster),
        )
        if refused := await self._write_scale_secret(consumer):
            await self._statuses.write(consumer, refused)
            return False
        decision = self._decide(consumer, group)
        if "deployment" in consumer["spec"]:
            have = self._workloads.of_deployment(consumer)
            decision = await self._idle_first(consumer, group, decision, have)
        lag_ms = self._monitor.read_ms(context.group_id)
        workload = await self._workloads.apply(consumer, context, decision.replicas, lag_ms)
        await self._write_status(consumer, group, decision, workload, login)
        return workload.verdict.progressing

    async def _apply_target(self, consumer: Manifest, group: Manifest) -> bool:
        """Scale a workload that the operator does not own; return whether it is in progress."""
        if refused := self._targets.refusal(consumer):
            await self._statuses.write(consumer, refused)
            return False
        if refused := await self._write_scale_secret(consumer):
            await self._statuses.write(consumer, refused)
            return False
        target = await self._targets.observe(consumer)
        if target is None:
            # Without a decision: a target that appears may have replicas at work.
            await self._statuses.write(consumer, scale_targets.not_found(consumer))
            return False
        decision = self._decide(consumer, group, target.replicas)
        # A StatefulSet removes its pods by their numbers.
        if consumer["spec"]["scaleTargetRef"]["kind"] == "Deployment":
            decision = await self._idle_first(consumer, group, decision, target)
        workload = await self._targets.apply(consumer, target, decision.replicas)
        await self._write_status(consumer, group, decision, workload, Login(""), target.replicas)
        return workload.verdict.progressing

    async def _idle_first(
        self,
        consumer: Manifest,
        group: Manifest,
        decision: scaling.Decision,
        have: Target,
    ) -> scaling.Decision:
        """Before a Deployment shrinks, note on its pods what their members hold.

        The number does not fall below the number of pods that hold records, for as long as one
        lock lasts. After that, the members release their records as they stop.
        """
        name, id = consumer["metadata"]["name"], group_model.group_id(group)
        if consumer["spec"].get("paused") or not 0 < decision.replicas < have.replicas:
            self._shrinking_ms.pop(name, None)
            return decision
        holdings = await self._monitor.holdings(id) if self._monitor.current(id) else None
        if holdings is None:
            return decision
        pods = [pod for pod in have.pods if not pod["metadata"].get("deletionTimestamp")]
        costs = idle_members.costs(pods, holdings)
        for pod, cost in idle_members.changes(pods, costs).items():
            (found,) = (p for p in pods if p["metadata"]["name"] == pod)
            noted = {"annotations": {idle_members.ANNOTATION: cost}}
            await self._kube.merge({**found, **POD_KIND}, {"metadata": noted})
        busy, now_ms = sum(cost > 0 for cost in costs.values()), clock.now_ms()
        waited_ms = now_ms - self._shrinking_ms.setdefault(name, now_ms)
        if busy <= decision.replicas or waited_ms > duration_ms(group["spec"]["lockDuration"]):
            return decision
        reason = f"{decision.reason}, {busy} pods hold records"
        return replace(decision, replicas=min(busy, have.replicas), reason=reason)

    async def _missing_secret(self, consumer: Manifest) -> Verdict | None:
        """Return the verdict on a Secret of `spec.userSecret` with which no pod could start."""
        name, now_ms = consumer["spec"].get("userSecret", ""), clock.now_ms()
        if not name or now_ms - self._secrets_seen_ms.get(name, -SECRET_MS) < SECRET_MS:
            return None
        found = await self._kube.get("v1", "Secret", name, self._namespace)
        if found is not None and external.PROPERTIES in found.get("data", {}):
            self._secrets_seen_ms[name] = now_ms
            return None
        text = f"Secret {name!r} of spec.userSecret does not exist in this namespace."
        if found is not None:
            text = (
                f"Secret {name!r} of spec.userSecret has no key {external.PROPERTIES}, from which "
                "consumers read how to log in."
            )
        return Verdict.waiting("UserSecretNotFound", text)

    async def _write_scale_secret(self, consumer: Manifest) -> Verdict | None:
        """Write what a reader of the scale signal needs, if the operator asks for it. Return the
        verdict if a Secret of its name is not ours."""
        access = self._settings.http_access
        if access is None:
            return None
        name = scale_secret.name(consumer)
        want = scale_secret.manifest(consumer, self._cluster, access)
        have = self._store.get("Secret", self._namespace, name)
        have = have or await self._kube.get("v1", "Secret", name, self._namespace)
        own = consumer["metadata"]["name"]
        if have and have["metadata"].get("labels", {}).get(names.CONSUMER_LABEL) != own:
            return Verdict.refused(
                "SecretNotOwned",
                f"Secret {name!r} exists and does not belong to this ShareConsumer. Rename the "
                "ShareConsumer, or delete the Secret.",
            )
        if have is None or has_drifted(want, have):
            self._store.put(await self._kube.apply(want))
        return None

    def _decide(self, consumer: Manifest, group: Manifest, running: int = 0) -> scaling.Decision:
        """Return the number of consumers; `running` is that of a workload before the first
        decision."""
        spec, status = consumer["spec"], consumer.get("status", {})
        name = consumer["metadata"]["name"]
        state = self._monitor.current(group_model.group_id(group))
        top = status.get("ceiling", 0)
        if spec.get("paused"):
            return scaling.Decision(0, top, "spec.paused is true")
        if not is_configured(group):
            # New Jobs would start for each one that ends.
            held = 0 if "job" in spec else status.get("desiredReplicas", running)
            return scaling.Decision(held, top, "the ShareGroup is not as its spec says")
        if not is_scaled(spec):
            return scaling.Decision(spec.get("replicas", 1), top, "spec.replicas")
        current = status.get("desiredReplicas", spec.get("replicas", running))
        if state is None:
            return scaling.Decision(current, top, "the lag is unknown")
        now_ms = clock.now_ms()
        history = self._histories.get(name)
        if history is None:
            since = status.get("idleSince")
            idle_ms = int(clock.seconds_since(since) * 1000) if since else None
            # The number of Jobs does not depend on that of before.
            of_before = scaling.History.resumed(current, idle_ms, now_ms)
            history = scaling.History() if "job" in spec else of_before
            self._histories[name] = history
        locks, partitions = group["spec"]["maxRecordLocks"], max(1, len(state.partitions))
        starts = [p.start_offset for p in state.partitions]
        settled = sum(starts) if starts and min(starts) >= 0 else -1
        ready = status.get("readyReplicas", 0)
        due = state.due(startup_s(spec))
        not_due = state.workable - due
        age_ms = self._monitor.age_ms(state.group)
        if "job" in spec:
            active = self._workloads.jobs.active(consumer, self._monitor.read_ms(state.group))
            per_job = spec.get("scaling", {}).get("targetLagPerReplica", 1000)
            due = job.work(due, state.in_flight, active, per_job)
            # Jobs that find no record end, and would be started again and again.
            settled = age_ms = -1
        load = scaling.Load(due, partitions, locks, settled, ready, state.blocked, not_due, age_ms)
        return scaling.decide(policy(spec, _now()), load, current, history, now_ms)

    async def _write_status(
        self,
        consumer: Manifest,
        group: Manifest,
        decision: scaling.Decision,
        workload: Workload,
        login: Login,
        running: int = 0,
    ) -> None:
        """Write the status, and an event about another number of consumers; `running` is that of a
        workload before the first decision."""
        meta, before = consumer["metadata"], consumer.get("status", {})
        state = self._monitor.current(group_model.group_id(group))
        # An unknown lag is removed from the status: nothing may scale by it.
        measured: dict[str, Any] = {**dict.fromkeys(LAG_FIELDS), "decision": decision.reason}
        if state:
            measured |= {
                "lag": state.lag,
                "workable": state.workable,
                "due": state.due(startup_s(consumer["spec"])),
                "nextDueTime": due_time(state),
                "partitions": len(state.partitions),
            }
            if state.in_flight >= 0:
                measured["inFlight"] = state.in_flight
            age_ms = self._monitor.age_ms(state.group)
            measured["oldestRecordSeconds"] = age_ms // 1000 if age_ms >= 0 else None
        fields: dict[str, Any] = {
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
        fields["idleSince"] = (before.get("idleSince") or now()) if idle else None
        changed = before.get("desiredReplicas") != decision.replicas
        if changed:
            fields |= {"lastScaleTime": now(), **measured}
        labels = (meta["namespace"], meta["name"])
        metrics.WANTED.labels(*labels).set(decision.replicas)
        metrics.READY.labels(*labels).set(workload.ready)
        if is_scaled(consumer["spec"]):
            most = policy(consumer["spec"], _now()).replicas_max
            metrics.MAXIMUM.labels(*labels).set(min(most, decision.ceiling or most))
        if state:
            metrics.DUE.labels(*labels).set(measured["due"])
        numbers = {k: v for k, v in (fields | measured).items() if isinstance(v, int)}
        self._signals[meta["name"]] = numbers
        self._on_signal()
        verdict = group_verdict(group, decision.replicas) or login.problem or workload.verdict
        if consumer["spec"].get("paused"):
            what = "no new Job starts" if "job" in consumer["spec"] else "no consumer runs"
            verdict = Verdict(True, "Paused", f"spec.paused is true: {what}.", paused=True)
        limit = warning(consumer["spec"], group["spec"], decision.ceiling)
        shares = find_sharing(meta["name"], self._others(consumer), group["metadata"]["name"])
        verdict = verdict.warned(shares or limit or login.warning)
        await self._statuses.write(consumer, verdict, fields)
        newest = self._store.get(KIND, self._namespace, meta["name"])
        if newest is not None:
            await self._statuses.update_measurements(newest, measured, STATUS_SECONDS)
        of_before = before.get("desiredReplicas", running)
        if of_before != decision.replicas:
            text = f"{of_before} to {decision.replicas}: {decision.reason}."
            await self._kube.event(consumer, "Scaled", text)


def _now() -> datetime.datetime:
    return datetime.datetime.fromtimestamp(clock.epoch_ms() / 1000, datetime.UTC)


def _disabled(consumer: Manifest, workloads: Collection[str]) -> Verdict | None:
    """Return the verdict on a workload that this operator does not run, else None."""
    for off in (w for w in WORKLOADS if w in consumer["spec"] and w not in workloads):
        text = (
            f"spec.{off} is off in this installation of the operator. Install the chart with "
            f"workloads.{off}=true."
        )
        return Verdict.refused("WorkloadDisabled", text)
    return None
