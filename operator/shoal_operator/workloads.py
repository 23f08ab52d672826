"""Workloads of ShareConsumers: a Deployment, Jobs, or a SparkApplication of Kubeflow's operator.

`Workloads.apply` applies the objects and returns the state. The driver scales a SparkApplication;
the operator suspends it at zero executors and resumes it when there is work.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from shoal_operator import clock, diagnostics
from shoal_operator.conditions import Verdict
from shoal_operator.drift import has_drifted, marked
from shoal_operator.jobs import Jobs
from shoal_operator.kube import Kube, KubeError
from shoal_operator.model import consumer_pod, deployment, names, spark

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from shoal_operator.diagnostics import Diagnosis
    from shoal_operator.model.names import Manifest
    from shoal_operator.settings import Settings
    from shoal_operator.store import Store

#: A SparkApplication without a state after this time has no Spark operator.
SILENCE_SECONDS_MAX = 30
_FAILED = ("FAILED", "SUBMISSION_FAILED", "FAILING")
#: Reasons of workloads that start, and of which the pods may say why they do not.
_STARTING = ("Scaling", "ApplicationStarting")
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
class Workload:
    """The state of a workload; `selector` is that of its pods, `state` of the SparkApplication."""

    replicas: int
    ready: int
    selector: str
    verdict: Verdict
    state: str = ""


def application_verdict(
    application: Mapping[str, Any], wanted: int, running: int, failure: str, age_seconds: float
) -> Verdict:
    """Return the verdict on a SparkApplication.

    `wanted` and `running` count executors. `failure` is the message of a failed driver, else empty.
    """
    reported = application.get("status", {}).get("applicationState", {})
    state = reported.get("state", "")
    if state in _FAILED or failure:
        cause = failure or _cause(reported.get("errorMessage", "")) or "no reason given"
        text = f"The SparkApplication failed and restarts: {cause}"
        return Verdict(False, "ApplicationFailed", text, progressing=True, degraded=True)
    if wanted == 0:
        if state in ("SUSPENDED", ""):
            return Verdict(True, "ScaledToZero", "No lag: the SparkApplication is suspended.")
        return Verdict(
            True, "Suspending", "No lag: the SparkApplication is stopping.", progressing=True
        )
    if not state and age_seconds > SILENCE_SECONDS_MAX:
        return Verdict.waiting(
            "SparkOperatorSilent",
            "No Spark operator has reconciled the SparkApplication. Check that one runs and "
            "watches this namespace (spark.jobNamespaces of its chart).",
        )
    if state != "RUNNING":
        text = f"The SparkApplication is {state or 'new'}."
        return Verdict.waiting("ApplicationStarting", text)
    if running < wanted:
        text = f"{running} of {wanted} executors run."
        return Verdict(True, "Scaling", text, progressing=True)
    return Verdict.fine(f"{running} executors run.")


class Target(NamedTuple):
    """A workload as it is: its number of replicas, its pods, and the selector of the pods.

    `application` is the object, of a SparkApplication only. Its replicas are executors.
    """

    replicas: int
    pods: Sequence[Manifest]
    selector: str
    application: Manifest | None = None


class Workloads:
    """Applies workloads through the API server and reads them from the store."""

    def __init__(self, kube: Kube, store: Store, settings: Settings) -> None:
        self._kube, self._store, self._settings = kube, store, settings
        self._failures: dict[str, str] = {}
        self._running_since_ms: dict[str, int] = {}
        self.jobs = Jobs(kube, store)

    async def apply(
        self, consumer: Manifest, context: spark.WorkloadContext, replicas: int, lag_ms: int
    ) -> Workload:
        """Bring the workload to this number of consumers; the lag was read at `lag_ms`. Raises
        `KubeError`."""
        if "spark" in consumer["spec"]:
            return await self._apply_application(consumer, context, replicas)
        about = consumer_pod.PodContext(
            context.cluster,
            context.bootstrap_servers,
            context.group_id,
            context.topics,
            self._settings.broker_image,
            self._settings.broker_pull_policy,
            context.user_secret,
            context.rack,
        )
        labels = consumer_pod.selector(consumer["metadata"]["name"])
        selector = names.selector_text(labels)
        if "job" in consumer["spec"]:
            active, ready, verdict = await self.jobs.apply(consumer, about, replicas, lag_ms)
            starting = self.jobs.without_pods(consumer)
            verdict = await self._explain(verdict, consumer, labels, starting)
            return Workload(active, ready, selector, verdict)
        have = await self._apply_manifest(deployment.manifest(consumer, about, replicas))
        status = have.get("status", {})
        ready = status.get("readyReplicas", 0)
        verdict = Verdict.fine(f"{replicas} consumers run.")
        if ready < replicas:
            text = f"{ready} of {replicas} consumers are ready."
            verdict = Verdict(ready > 0, "Scaling", text, progressing=True)
            if refused := _refusal(have):
                verdict = _because(verdict, refused)
            verdict = await self._explain(verdict, consumer, labels)
            if _is_given_up(have):
                verdict = Verdict.refused(verdict.reason, verdict.message)
        return Workload(status.get("replicas", 0), ready, selector, verdict)

    async def _explain(
        self,
        verdict: Verdict,
        consumer: Manifest,
        selector: Mapping[str, str],
        creators: Collection[str] = (),
    ) -> Verdict:
        """Add to the verdict on a workload that starts why its pods do not.

        `selector` is that of the pods, and `creators` are the names of what creates them.
        """
        if verdict.reason not in _STARTING:
            return verdict
        namespace = consumer["metadata"]["namespace"]
        pods = self._pods(namespace, selector)
        involved = {pod["metadata"]["name"] for pod in pods} | set(creators)
        events = await self._kube.warnings(namespace, involved) if involved else []
        found = diagnostics.diagnose_pods(pods, (), events, role=diagnostics.CONSUMER)
        return _because(verdict, found) if found else verdict

    def of_deployment(self, consumer: Manifest) -> Target:
        """Return the Deployment of a ShareConsumer as it is."""
        meta = consumer["metadata"]
        selector = consumer_pod.selector(meta["name"])
        have = self._store.get("Deployment", meta["namespace"], meta["name"]) or {}
        replicas = int(have.get("spec", {}).get("replicas", 0))
        pods = self._pods(meta["namespace"], selector)
        return Target(replicas, pods, names.selector_text(selector))

    async def _apply_manifest(self, want: Manifest) -> Manifest:
        want, meta = marked(want), want["metadata"]
        have = self._store.get(want["kind"], meta["namespace"], meta["name"])
        if have is not None and have.get("roleRef") != want.get("roleRef"):
            # Another release of the chart has made it, and the reference cannot change.
            await self._kube.delete(have)
            self._store.drop(have)
            have = None
        if have is None or has_drifted(want, have):
            have = await self._kube.apply(want)
            self._store.put(have)
        return have

    async def _apply_application(
        self, consumer: Manifest, context: spark.WorkloadContext, replicas: int
    ) -> Workload:
        meta = consumer["metadata"]
        for want in spark.manifests(consumer, context):
            await self._apply_manifest(want)
        selector = spark.executor_selector(meta["name"])
        pods = self._pods(meta["namespace"], selector)
        running = sum(p.get("status", {}).get("phase") == "Running" for p in pods)
        try:
            have = await self._apply_manifest(
                spark.application(consumer, context, suspend=replicas == 0)
            )
        except KubeError as error:
            if error.status != 404:
                raise
            verdict = Verdict(
                False,
                "SparkOperatorMissing",
                "The kind SparkApplication (sparkoperator.k8s.io/v1beta2) does not exist: install "
                "Kubeflow's Spark operator v2.5 or later, with this namespace in its "
                "spark.jobNamespaces. Consumers start after that.",
                degraded=True,
            )
            return Workload(0, 0, names.selector_text(selector), verdict)
        state = have.get("status", {}).get("applicationState", {}).get("state", "")
        verdict = application_verdict(
            have, replicas, running, self.failure_of(consumer, state), age_seconds(have)
        )
        of_application = {names.CONSUMER_LABEL: meta["name"]}
        verdict = await self._explain(verdict, consumer, of_application)
        return Workload(len(pods), running, names.selector_text(selector), verdict, state)

    def _pods(self, namespace: str, selector: Mapping[str, str]) -> Sequence[Manifest]:
        return [
            pod
            for pod in self._store.labelled("Pod", namespace, selector)
            if pod.get("status", {}).get("phase") in ("Pending", "Running")
        ]

    def failure_of(self, consumer: Manifest, state: str) -> str:
        """Return the message of the last failed driver, until a driver has run for long enough.

        The driver's pod is soon deleted, and an application that keeps failing is RUNNING in
        between.
        """
        meta, now_ms = consumer["metadata"], clock.now_ms()
        uid = meta["uid"]
        driver = self._store.get("Pod", meta["namespace"], f"{meta['name']}-driver")
        for container in (driver or {}).get("status", {}).get("containerStatuses", []):
            ended = container.get("state", {}).get("terminated", {})
            if ended.get("exitCode", 0) not in (0, TERMINATED) and ended.get("message"):
                self._failures[uid] = termination_message(ended["message"])
            if ended.get("reason") == "OOMKilled":
                self._failures[uid] = OUT_OF_MEMORY
        if state == "SUSPENDED":
            self._failures.pop(uid, None)
        if state != "RUNNING" or uid not in self._failures:
            self._running_since_ms.pop(uid, None)
        elif now_ms - self._running_since_ms.setdefault(uid, now_ms) > HEALTHY_SECONDS_MIN * 1000:
            del self._failures[uid]
        return self._failures.get(uid, "")


def _because(verdict: Verdict, found: Diagnosis) -> Verdict:
    text = f"{verdict.message} {found.message}"
    return replace(verdict, reason=found.reason, message=text, alarm=True)


def _refusal(deployment: Manifest) -> Diagnosis | None:
    """Return why the pods of a Deployment are refused."""
    for condition in deployment.get("status", {}).get("conditions", []):
        if condition["type"] == "ReplicaFailure" and condition["status"] == "True":
            name, message = deployment["metadata"]["name"], condition["message"]
            return diagnostics.diagnose_refusal("Deployment", name, message)
    return None


def _is_given_up(deployment: Manifest) -> bool:
    """Return whether a rollout has made no progress for `progressDeadlineSeconds`, by default ten
    minutes, which kstatus reads as a failure."""
    found = deployment.get("status", {}).get("conditions", [])
    return any(one.get("reason") == "ProgressDeadlineExceeded" for one in found)


def termination_message(log: str) -> str:
    """Return the line of a driver's log that names the error.

    It is the last line with an error, else the last line that is not Spark's. The project's source
    writes a single line in place of the log.
    """
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    own = [line for line in lines if not _LOGGED.match(line)]
    errors = [line for line in own if _NAMED.match(line)]
    return (errors or own or lines or [""])[-1][:TERMINATION_MESSAGE_MAX]


def _cause(text: str) -> str:
    """Return the cause in Kubeflow's message, which may contain the log of spark-submit."""
    what, _, log = text.partition(": ")
    return f"{what}: {termination_message(log)}" if "\n" in text.strip() else text.strip()


def age_seconds(manifest: Mapping[str, Any]) -> float:
    """Return how long an object has existed."""
    stamp = manifest["metadata"].get("creationTimestamp")
    return clock.seconds_since(stamp) if stamp else 0.0
