"""Workloads of ShareConsumers: a Deployment, Jobs, or a SparkApplication.

`WorkloadManager.apply` applies the objects and returns the state. The driver scales a
SparkApplication; the operator suspends it at zero executors and resumes it when there is work.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from shoal_operator import clock
from shoal_operator.brokers import diagnostics
from shoal_operator.consumers import admission, missing_executors
from shoal_operator.consumers.jobs import JobRunner
from shoal_operator.kube.conditions import Verdict
from shoal_operator.kube.drift import APPLIED, has_drifted, with_digest
from shoal_operator.kube.kube import KubeClient, KubeError
from shoal_operator.model import names
from shoal_operator.model.consumers import apache_spark, consumer_pod, deployment, kueue, spark

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from shoal_operator.brokers.diagnostics import Diagnosis
    from shoal_operator.kube.store import Store
    from shoal_operator.model.names import Manifest
    from shoal_operator.model.resources.share_consumer import ShareConsumer
    from shoal_operator.settings import ChartSettings

#: A SparkApplication without a state after this time has no Spark operator.
SILENCE_SECONDS_MAX = 30
#: The age up to which a pod that a node has not taken is why no other one runs.
REFUSED_SECONDS_MAX = 60.0
_FAILED = ("FAILED", "SUBMISSION_FAILED", "FAILING")
#: Reasons of workloads that start, and of which the pods may say why they do not.
_STARTING = ("Scaling", "ApplicationStarting")
#: What to install, by the operator of a SparkApplication: its API version, and its name.
_MISSING = {
    apache_spark.APACHE: (
        apache_spark.API,
        "Apache's Spark operator 1.0 or later, with this namespace among its workload namespaces",
    ),
    apache_spark.KUBEFLOW: (
        names.SPARK_API,
        "Kubeflow's Spark operator v2.5 or later, with this namespace in its spark.jobNamespaces",
    ),
}
#: Exit code after SIGTERM: the driver was suspended, evicted or deleted, and did not fail.
TERMINATED = 143
#: The message for a killed driver, whose log does not have the cause.
OUT_OF_MEMORY = (
    "its driver needed more memory than its container has (OOMKilled): raise "
    "spark.driver.memoryOverhead, for Python's part, or spark.driver.memory."
)
#: A failed application counts as healthy after it has run for this time.
HEALTHY_SECONDS_MIN = 60
#: Maximum characters of a failed driver's message.
TERMINATION_MESSAGE_MAX = 1000
#: `ValueError: …`, `some.module.SomeClass: …`, `Caused by: java.…Exception: …`
_NAMED = re.compile(
    r"(Caused by: )?(([\w$]+\.)+[A-Z][\w$]*|[\w$]*([Ee]rror|Exception|Exit)[\w$]*): "
    r"(?!.*Traceback \(most)\S"
)
#: Spark's log lines about its shutdown, which follow the cause.
_LOGGED = re.compile(r"\d\d/\d\d/\d\d \d\d:\d\d:\d\d (INFO|WARN) ")


@dataclass(frozen=True, slots=True)
class WorkloadState:
    """The state of a workload; `selector` is that of its pods, `state` of the SparkApplication."""

    replicas: int
    ready: int
    selector: str
    verdict: Verdict
    state: str = ""


def decide_application_verdict(
    application: Mapping[str, Any], replicas: int, running: int, failure: str, age_seconds: float
) -> Verdict:
    """Return the verdict on a SparkApplication.

    `replicas` and `running` count executors. `failure` is the message of a failed driver, else
    empty.
    """
    reported = application.get("status", {}).get("applicationState", {})
    state = reported.get("state", "")
    if state in _FAILED or failure:
        cause = failure or _find_cause(reported.get("errorMessage", "")) or "no reason given"
        text = f"The SparkApplication failed and restarts: {cause}"
        return Verdict(False, "ApplicationFailed", text, progressing=True, degraded=True)
    if replicas == 0:
        if state in ("SUSPENDED", ""):
            return Verdict(True, "ScaledToZero", "No lag: the SparkApplication is suspended.")
        return Verdict(
            True, "Suspending", "No lag: the SparkApplication is stopping.", progressing=True
        )
    if not state and age_seconds > SILENCE_SECONDS_MAX:
        return Verdict.make_waiting(
            "SparkOperatorSilent",
            "No Spark operator has reconciled the SparkApplication. Check that one runs and "
            "watches this namespace (spark.jobNamespaces of Kubeflow's chart, "
            "workloadResources.namespaces of Apache's).",
        )
    if state != "RUNNING":
        text = f"The SparkApplication is {state or 'new'}."
        return Verdict.make_waiting("ApplicationStarting", text)
    if running < replicas:
        text = f"{running} of {replicas} executors run."
        return Verdict(True, "Scaling", text, progressing=True)
    return Verdict.make_reconciled(f"{running} executors run.")


class ScaleTarget(NamedTuple):
    """A workload as it is: its number of replicas, its pods, and the selector of the pods.

    `application` is the object, of a SparkApplication only. Its replicas are executors.
    """

    replicas: int
    pods: Sequence[Manifest]
    selector: str
    application: Manifest | None = None


class WorkloadManager:
    """Applies workloads through the API server and reads them from the store."""

    def __init__(self, kube: KubeClient, store: Store, settings: ChartSettings) -> None:
        self._kube, self._store, self._settings = kube, store, settings
        self._failures: dict[str, str] = {}
        self._running_since_ms: dict[str, int] = {}
        #: Since when drivers run with fewer pods of executors than they request.
        self._missing_since_ms: dict[str, int] = {}
        self.jobs = JobRunner(kube, store)

    async def apply(
        self, consumer: ShareConsumer, context: spark.WorkloadContext, replicas: int, lag_ms: int
    ) -> WorkloadState:
        """Bring the workload to this number of consumers; the lag was read at `lag_ms`. Raises
        `KubeError`."""
        if "spark" in consumer["spec"]:
            return await self._apply_application(consumer, context, replicas)
        pod_context = consumer_pod.PodContext(
            context.cluster,
            context.bootstrap_servers,
            context.group_id,
            context.topics,
            self._settings.broker_image,
            self._settings.broker_pull_policy,
            context.user_secret,
            context.rack,
        )
        labels = consumer_pod.build_selector(consumer["metadata"]["name"])
        selector = names.format_selector(labels)
        if "job" in consumer["spec"]:
            active, ready, verdict = await self.jobs.apply(consumer, pod_context, replicas, lag_ms)
            starting = self.jobs.list_without_pods(consumer)
            verdict = await self._explain(verdict, consumer, labels, starting)
            return WorkloadState(active, ready, selector, verdict)
        return await self._apply_deployment(consumer, pod_context, replicas)

    async def _apply_deployment(
        self, consumer: ShareConsumer, context: consumer_pod.PodContext, replicas: int
    ) -> WorkloadState:
        have = await self._apply_manifest(deployment.build_manifest(consumer, context, replicas))
        labels = consumer_pod.build_selector(consumer["metadata"]["name"])
        status = have.get("status", {})
        ready = status.get("readyReplicas", 0)
        verdict = Verdict.make_reconciled(f"{replicas} consumers run.")
        if ready < replicas:
            text = f"{ready} of {replicas} consumers are ready."
            verdict = Verdict(ready > 0, "Scaling", text, progressing=True)
            if refused := diagnose_refused_pods(have):
                verdict = add_cause(verdict, refused)
            verdict = await self._explain(verdict, consumer, labels)
            pods = self._list_pods(consumer["metadata"]["namespace"], labels)
            if waiting := kueue.list_waiting(pods):
                number = len(waiting)
                subject = f"{number} of {replicas} consumers {'waits' if number == 1 else 'wait'}"
                verdict = await admission.explain(self._kube, waiting, subject=subject, ready=ready)
            elif _is_given_up(have):
                verdict = Verdict.make_refused(verdict.reason, verdict.message)
        selector = names.format_selector(labels)
        return WorkloadState(status.get("replicas", 0), ready, selector, verdict)

    async def _explain(
        self,
        verdict: Verdict,
        consumer: ShareConsumer,
        selector: Mapping[str, str],
        creators: Collection[str] = (),
    ) -> Verdict:
        """Add to the verdict on a workload that starts why its pods do not.

        `selector` is that of the pods, and `creators` are the names of what creates them.
        """
        if verdict.reason not in _STARTING:
            return verdict
        namespace = consumer["metadata"]["namespace"]
        pods = self._list_pods(namespace, selector) or self._list_refused(namespace, selector)
        involved = [*creators, *(pod["metadata"]["name"] for pod in pods)]
        events = await self._kube.list_warnings(namespace, involved)
        diagnosis = diagnostics.diagnose_pods(pods, (), events, role=diagnostics.CONSUMER)
        return add_cause(verdict, diagnosis) if diagnosis else verdict

    def observe_deployment(self, consumer: ShareConsumer) -> ScaleTarget:
        """Return the Deployment of a ShareConsumer as it is."""
        meta = consumer["metadata"]
        selector = consumer_pod.build_selector(meta["name"])
        have = self._store.get("Deployment", meta["namespace"], meta["name"]) or {}
        replicas = int(have.get("spec", {}).get("replicas", 0))
        pods = self._list_pods(meta["namespace"], selector)
        return ScaleTarget(replicas, pods, names.format_selector(selector))

    async def _apply_manifest(self, want: Manifest) -> Manifest:
        want, meta = with_digest(want), want["metadata"]
        have = self._store.get(want["kind"], meta["namespace"], meta["name"])
        if have is not None and _must_replace(want, have):
            have = await self._remove(have)
        if have is not None and have["metadata"].get("deletionTimestamp"):
            return have
        if have is None or has_drifted(want, have):
            have = await self._kube.apply(want)
            self._store.put(have)
        return have

    async def _remove(self, have: Manifest) -> Manifest | None:
        """Delete an object; return it while finalizers hold it, else None."""
        deleted = await self._kube.delete(have)
        self._store.drop(have)
        if deleted is None or not deleted.get("metadata", {}).get("finalizers"):
            return None
        self._store.put(deleted)
        return deleted

    async def _apply_application(
        self, consumer: ShareConsumer, context: spark.WorkloadContext, replicas: int
    ) -> WorkloadState:
        meta = consumer["metadata"]
        for want in spark.build_manifests(consumer, context):
            await self._apply_manifest(want)
        selector = spark.build_executor_selector(meta["name"])
        of_apache = apache_spark.is_chosen(consumer)
        if replicas == 0 and (of_apache or kueue.get_queue(consumer)):
            return await self._remove_application(meta, selector)
        want = spark.build_application(consumer, context, suspend=replicas == 0)
        if of_apache:
            want = apache_spark.build_application(consumer, context)
        pods = self._list_pods(meta["namespace"], selector)
        running = sum(p.get("status", {}).get("phase") == "Running" for p in pods)
        try:
            have = await self._apply_manifest(want)
        except KubeError as error:
            if error.status != 404:
                raise
            verdict = _make_missing_verdict(of_apache=of_apache)
            return WorkloadState(0, 0, names.format_selector(selector), verdict)
        if have["metadata"].get("deletionTimestamp"):
            verdict = Verdict.make_waiting("ApplicationStarting", "The former application ends.")
            return WorkloadState(len(pods), 0, names.format_selector(selector), verdict)
        reported = apache_spark.get_state(have) if of_apache else ""
        if of_apache:
            have = apache_spark.translate_status(have)
        state = have.get("status", {}).get("applicationState", {}).get("state", "")
        verdict = decide_application_verdict(
            have, replicas, running, self.find_failure(consumer, state), get_age_seconds(have)
        )
        if waiting := kueue.list_waiting([have]):
            subject = "The SparkApplication waits"
            verdict = await admission.explain(self._kube, waiting, subject=subject, ready=0)
        of_application = {names.CONSUMER_LABEL: meta["name"]}
        missing = replicas - len(pods) if state == "RUNNING" else 0
        verdict = await self._explain(verdict, consumer, of_application)
        verdict = await self._explain_missing(verdict, consumer, context, missing)
        if verdict.alarm:
            verdict = replace(verdict, ready=verdict.ready and running > 0)
        shown = reported or state
        return WorkloadState(len(pods), running, names.format_selector(selector), verdict, shown)

    async def _explain_missing(
        self,
        verdict: Verdict,
        consumer: ShareConsumer,
        context: spark.WorkloadContext,
        missing: int,
    ) -> Verdict:
        """Add to the verdict on an application why this number of its executors have no pods, if
        they have had none for some time, and nothing else is wrong."""
        meta, now_ms = consumer["metadata"], clock.now_ms()
        if missing <= 0:
            self._missing_since_ms.pop(meta["uid"], None)
            return verdict
        waited_ms = now_ms - self._missing_since_ms.setdefault(meta["uid"], now_ms)
        if verdict.reason != "Scaling" or waited_ms < missing_executors.MISSING_SECONDS_MAX * 1000:
            return verdict
        driver = self._find_driver(meta).get("metadata", {}).get("name", f"{meta['name']}-driver")
        selector = spark.build_executor_selector(meta["name"])
        pods = self._store.list_labelled("Pod", meta["namespace"], selector)
        application = spark.build_application(consumer, context, suspend=False)["spec"]
        needs = missing_executors.compute_needs(application, pods)
        diagnosis = await missing_executors.explain(
            self._kube, meta["namespace"], driver, needs, missing
        )
        return add_cause(verdict, diagnosis)

    async def _remove_application(
        self, meta: Manifest, selector: Mapping[str, str]
    ) -> WorkloadState:
        """Delete a SparkApplication that the operator cannot suspend: Apache's operator suspends
        none, and in a queue of Kueue, one that exists keeps its quota or its place."""
        have = self._store.get("SparkApplication", meta["namespace"], meta["name"])
        if have is not None:
            await self._remove(have)
        self._failures.pop(meta["uid"], None)
        text = "No lag: there is no SparkApplication."
        verdict = Verdict(True, "ScaledToZero", text)
        return WorkloadState(0, 0, names.format_selector(selector), verdict)

    def _list_pods(self, namespace: str, selector: Mapping[str, str]) -> Sequence[Manifest]:
        return [
            pod
            for pod in self._store.list_labelled("Pod", namespace, selector)
            if pod.get("status", {}).get("phase") in ("Pending", "Running")
        ]

    def _list_refused(self, namespace: str, selector: Mapping[str, str]) -> Sequence[Manifest]:
        """Return the newest pods that have failed. Older ones tell nothing about those that start
        now."""
        return [
            pod
            for pod in self._store.list_labelled("Pod", namespace, selector)
            if pod.get("status", {}).get("phase") == "Failed"
            and get_age_seconds(pod) < REFUSED_SECONDS_MAX
        ]

    def _find_driver(self, meta: Mapping[str, Any]) -> Manifest:
        """Return the driver's pod, empty without one; Apache's operator gives it a name by the
        number of the attempt."""
        named = self._store.get("Pod", meta["namespace"], f"{meta['name']}-driver")
        labels = {names.CONSUMER_LABEL: meta["name"], "spark-role": "driver"}
        attempts = self._store.list_labelled("Pod", meta["namespace"], labels)
        newest = max(attempts, key=lambda pod: pod["metadata"]["creationTimestamp"], default={})
        return named or newest

    def find_failure(self, consumer: ShareConsumer, state: str) -> str:
        """Return the message of the last failed driver, until a driver has run for long enough.

        The driver's pod is soon deleted, and an application that keeps failing is RUNNING in
        between.
        """
        meta, now_ms = consumer["metadata"], clock.now_ms()
        uid = meta["uid"]
        driver = self._find_driver(meta)
        for container in driver.get("status", {}).get("containerStatuses", []):
            ended = container.get("state", {}).get("terminated", {})
            if ended.get("exitCode", 0) not in (0, TERMINATED) and ended.get("message"):
                self._failures[uid] = find_termination_message(ended["message"])
            if ended.get("reason") == "OOMKilled":
                self._failures[uid] = OUT_OF_MEMORY
        if state == "SUSPENDED":
            self._failures.pop(uid, None)
        if state != "RUNNING" or uid not in self._failures:
            self._running_since_ms.pop(uid, None)
        elif now_ms - self._running_since_ms.setdefault(uid, now_ms) > HEALTHY_SECONDS_MIN * 1000:
            del self._failures[uid]
        return self._failures.get(uid, "")


def _make_missing_verdict(*, of_apache: bool) -> Verdict:
    api, operator = _MISSING[apache_spark.APACHE if of_apache else apache_spark.KUBEFLOW]
    text = f"The kind SparkApplication ({api}) does not exist: install {operator}. "
    text += "Consumers start after that."
    return Verdict(False, "SparkOperatorMissing", text, degraded=True)


def _must_replace(want: Manifest, have: Manifest) -> bool:
    """Return whether an object has to be created anew.

    The role of a binding cannot change, which another release of the chart has made. Kueue refuses
    another queue for a SparkApplication that it has admitted. One of Apache's operator runs on as
    it was created.
    """
    if want["apiVersion"] == apache_spark.API:
        applied = want["metadata"]["annotations"][APPLIED]
        return bool(have["metadata"].get("annotations", {}).get(APPLIED) != applied)
    of_spark = want["kind"] == "SparkApplication"
    moved = of_spark and kueue.get_queue(want) != kueue.get_queue(have)
    return moved or have.get("roleRef") != want.get("roleRef")


def add_cause(verdict: Verdict, diagnosis: Diagnosis) -> Verdict:
    """Return the verdict on a workload that starts, with the reason why its pods do not."""
    text = f"{verdict.message} {diagnosis.message}"
    return replace(verdict, reason=diagnosis.reason, message=text, alarm=True)


def diagnose_refused_pods(deployment: Manifest) -> Diagnosis | None:
    """Return why the pods of a Deployment are refused."""
    for condition in deployment.get("status", {}).get("conditions", []):
        if condition["type"] == "ReplicaFailure" and condition["status"] == "True":
            name, message = deployment["metadata"]["name"], condition["message"]
            return diagnostics.diagnose_refusal("Deployment", name, message)
    return None


def _is_given_up(deployment: Manifest) -> bool:
    """Return whether a rollout has made no progress for `progressDeadlineSeconds`, by default ten
    minutes, which kstatus reads as a failure."""
    conditions = deployment.get("status", {}).get("conditions", [])
    return any(condition.get("reason") == "ProgressDeadlineExceeded" for condition in conditions)


def find_termination_message(log: str) -> str:
    """Return the line of a driver's log that names the error.

    It is the last line with an error, else the last line that is not Spark's. The project's source
    writes a single line in place of the log.
    """
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    own = [line for line in lines if not _LOGGED.match(line)]
    errors = [line for line in own if _NAMED.match(line)]
    return (errors or own or lines or [""])[-1][:TERMINATION_MESSAGE_MAX]


def _find_cause(text: str) -> str:
    """Return the cause in Kubeflow's message, which may contain the log of spark-submit."""
    summary, _, log = text.partition(": ")
    return f"{summary}: {find_termination_message(log)}" if "\n" in text.strip() else text.strip()


def get_age_seconds(manifest: Mapping[str, Any]) -> float:
    """Return how long an object has existed."""
    stamp = manifest["metadata"].get("creationTimestamp")
    return clock.count_seconds_since(stamp) if stamp else 0.0
