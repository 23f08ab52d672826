"""Workloads that ShareConsumers scale and do not own (`spec.scaleTargetRef`).

Of a Deployment or a StatefulSet, the operator reads and writes the subresource `scale` only. A
SparkApplication scales itself: its driver follows the published number (`shoal_spark.allocation`),
and the operator suspends it at zero executors. Of two ShareConsumers with the same target, the
older one scales it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from shoal_operator import clock
from shoal_operator.brokers import diagnostics, pods
from shoal_operator.consumers import admission
from shoal_operator.consumers.workloads import (
    ScaleTarget,
    WorkloadState,
    add_cause,
    decide_application_verdict,
    diagnose_refused_pods,
    get_age_seconds,
)
from shoal_operator.kube.conditions import Verdict
from shoal_operator.kube.kube import KubeError
from shoal_operator.kube.store import is_older
from shoal_operator.model import names
from shoal_operator.model.consumers import kueue
from shoal_operator.model.resources.share_consumer import ShareConsumer

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from shoal_operator.kube.kube import KubeClient
    from shoal_operator.kube.store import Store
    from shoal_operator.model.names import Manifest
    from shoal_operator.model.resources.share_consumer import (
        ShareConsumerSpecScaleTargetRef,
    )

API_VERSION = "apps/v1"
SPARK = "SparkApplication"
#: Phases of pods that run, or that may say why they do not.
_ALIVE = ("Pending", "Running")
#: How long an observation is used again while nothing changes.
OBSERVED_MS_MAX = 15_000


def _format_selector(application: str, role: str) -> str:
    return f"sparkoperator.k8s.io/app-name={application},spark-role={role}"


def make_not_found_verdict(consumer: ShareConsumer) -> Verdict:
    """Return the verdict on a target that does not exist."""
    ref = consumer["spec"]["scaleTargetRef"]
    text = (
        f"{ref['kind']} {ref['name']!r} of spec.scaleTargetRef does not exist in this namespace. "
        "Create it, or correct the name."
    )
    return Verdict.make_waiting("ScaleTargetNotFound", text)


class ScaleTargets:
    """Reads and scales the targets of the ShareConsumers of one namespace."""

    def __init__(self, kube: KubeClient, store: Store) -> None:
        self._kube, self._store = kube, store
        #: Observations with their times, by name of the ShareConsumer.
        self._observed: dict[
            str, tuple[int, ShareConsumerSpecScaleTargetRef, ScaleTarget | None]
        ] = {}

    def find_refusal(self, consumer: ShareConsumer) -> Verdict | None:
        """Return the verdict on a target that this ShareConsumer may not scale, else None."""
        ref, namespace = consumer["spec"]["scaleTargetRef"], consumer["metadata"]["namespace"]
        subject = f"{ref['kind']} {ref['name']!r}"
        for rival in self._store.iterate(ShareConsumer):
            theirs = rival["spec"].get("scaleTargetRef")
            if (
                rival["metadata"]["namespace"] == namespace
                and theirs
                and (theirs["kind"], theirs["name"]) == (ref["kind"], ref["name"])
                and not rival["metadata"].get("deletionTimestamp")
                and rival["metadata"]["name"] != consumer["metadata"]["name"]
                and is_older(rival, consumer)
            ):
                text = (
                    f"The older ShareConsumer {rival['metadata']['name']!r} scales {subject}. "
                    "Delete one of the two, or name another target."
                )
                return Verdict.make_refused("ScaleTargetClaimed", text)
        # The store has the operator's own objects only.
        if self._store.get(ref["kind"], namespace, ref["name"]) is not None:
            text = (
                f"{subject} belongs to a resource of the operator, which sets its replicas. Name a "
                "workload of your own in spec.scaleTargetRef."
            )
            return Verdict.make_refused("ScaleTargetNotAllowed", text)
        return None

    async def observe(self, consumer: ShareConsumer) -> ScaleTarget | None:
        """Return the target, None if it does not exist. Raises `KubeError`."""
        meta, ref = consumer["metadata"], consumer["spec"]["scaleTargetRef"]
        now_ms, observed = clock.now_ms(), self._observed.get(meta["name"])
        if observed is not None and now_ms - observed[0] < OBSERVED_MS_MAX and observed[1] == ref:
            return observed[2]
        target = await (
            self._observe_application if ref["kind"] == SPARK else self._observe_scaled
        )(ref, meta)
        self._observed[meta["name"]] = (now_ms, ref, target)
        return target

    async def _observe_application(
        self, ref: ShareConsumerSpecScaleTargetRef, meta: Mapping[str, Any]
    ) -> ScaleTarget | None:
        """Return a SparkApplication with its executors."""
        application = await self._kube.get(names.SPARK_API, SPARK, ref["name"], meta["namespace"])
        if application is None:
            return None
        selector = _format_selector(ref["name"], "executor")
        executor_pods, _ = await self._kube.list_snapshot("v1", "Pod", meta["namespace"], selector)
        alive = [p for p in executor_pods if p.get("status", {}).get("phase") in _ALIVE]
        return ScaleTarget(len(alive), alive, selector, application)

    async def _observe_scaled(
        self, ref: ShareConsumerSpecScaleTargetRef, meta: Mapping[str, Any]
    ) -> ScaleTarget | None:
        """Return a workload with the subresource `scale`."""
        scale = await self._kube.get_scale(API_VERSION, ref["kind"], ref["name"], meta["namespace"])
        target = None
        if scale is not None:
            # An empty selector would select all pods of the namespace.
            selector = scale.get("status", {}).get("selector", "")
            target_pods: list[Manifest] = []
            if selector:
                target_pods, _ = await self._kube.list_snapshot(
                    "v1", "Pod", meta["namespace"], selector
                )
            target = ScaleTarget(
                int(scale.get("spec", {}).get("replicas", 0)), target_pods, selector
            )
        return target

    def forget_others(self, consumers: Collection[str]) -> None:
        """Forget the targets of all ShareConsumers but these."""
        for name in self._observed.keys() - set(consumers):
            del self._observed[name]

    async def apply(
        self, consumer: ShareConsumer, target: ScaleTarget, replicas: int
    ) -> WorkloadState:
        """Bring the target to this number of replicas. Raises `KubeError`."""
        ref, meta = consumer["spec"]["scaleTargetRef"], consumer["metadata"]
        if target.application is not None:
            return await self._apply_application(consumer, target, target.application, replicas)
        if target.replicas != replicas:
            await self._kube.set_scale(
                API_VERSION, ref["kind"], ref["name"], meta["namespace"], replicas
            )
        ready = sum(pods.is_ready(pod) for pod in target.pods)
        verdict = Verdict.make_reconciled(f"{replicas} consumers run.")
        if target.replicas != replicas or ready < replicas:
            text = f"{ready} of {replicas} consumers are ready."
            verdict = Verdict(ready > 0 or replicas == 0, "Scaling", text, progressing=True)
            verdict = await self._explain(verdict, ref, meta["namespace"], target.pods)
            # Look again at the next pass.
            self._observed.pop(meta["name"], None)
        return WorkloadState(len(target.pods), ready, target.selector, verdict)

    async def _explain(
        self,
        verdict: Verdict,
        ref: ShareConsumerSpecScaleTargetRef,
        namespace: str,
        target_pods: Sequence[Manifest],
    ) -> Verdict:
        """Add to the verdict on a target that starts why its pods do not, as far as the operator
        may read that."""
        starting = [p for p in target_pods if p.get("status", {}).get("phase") in _ALIVE]
        involved = [ref["name"], *(pod["metadata"]["name"] for pod in starting)]
        events = await self._kube.list_warnings(namespace, involved)
        diagnosis = diagnostics.diagnose_pods(starting, (), events, role=diagnostics.CONSUMER)
        if diagnosis is None and ref["kind"] == "Deployment":
            diagnosis = diagnose_refused_pods(await self._read_deployment(ref["name"], namespace))
        return add_cause(verdict, diagnosis) if diagnosis else verdict

    async def _read_deployment(self, name: str, namespace: str) -> Manifest:
        """Return a Deployment; an empty object without the permission, which the operator has only
        if it may create some (`workloads.deployment` of the chart)."""
        try:
            return await self._kube.get(API_VERSION, "Deployment", name, namespace) or {}
        except KubeError as error:
            if error.status != 403:
                raise
            return {}

    async def _apply_application(
        self, consumer: ShareConsumer, target: ScaleTarget, application: Manifest, replicas: int
    ) -> WorkloadState:
        """Suspend or resume a SparkApplication; its driver requests and removes executors.

        In a queue of Kueue, that field is Kueue's.
        """
        ref, meta = consumer["spec"]["scaleTargetRef"], consumer["metadata"]
        suspend, queued = replicas == 0, bool(kueue.get_queue(application))
        if not queued and bool(application["spec"].get("suspend")) != suspend:
            changed = await self._kube.merge(application, {"spec": {"suspend": suspend}})
            application = changed or application
        running = sum(pod["status"]["phase"] == "Running" for pod in target.pods)
        state = application.get("status", {}).get("applicationState", {}).get("state", "")
        verdict = decide_application_verdict(
            application, replicas, running, "", get_age_seconds(application)
        )
        if verdict.reason in ("Scaling", "ApplicationStarting"):
            drivers, _ = await self._kube.list_snapshot(
                "v1", "Pod", meta["namespace"], _format_selector(ref["name"], "driver")
            )
            own_pods = [*drivers, *target.pods]
            verdict = await self._explain(verdict, ref, meta["namespace"], own_pods)
        if verdict.reason == "Scaling":
            text = f"{verdict.message} Its driver requests them if it has SHOAL_SCALE_URL."
            verdict = replace(verdict, message=text)
        if replicas and (waiting := kueue.list_waiting([application])):
            subject = "The SparkApplication waits"
            verdict = await admission.explain(self._kube, waiting, subject=subject, ready=0)
        if verdict.progressing:
            self._observed.pop(meta["name"], None)
        return WorkloadState(len(target.pods), running, target.selector, verdict, state)
