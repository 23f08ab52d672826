"""What runs a ShareConsumer's consumers: a Deployment, or a SparkApplication of Kubeflow's.

`bring` applies what is missing and tells how the workload is. A SparkApplication is scaled by its
own driver; the operator suspends it at zero and lets it go on when there is work.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shoal_operator import clock
from shoal_operator.conditions import Verdict
from shoal_operator.drift import has_drifted
from shoal_operator.kube import Kube, KubeError
from shoal_operator.model import deployment, spark

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from shoal_operator.model.names import Manifest
    from shoal_operator.store import Store

#: A SparkApplication without any state after so long has nobody who takes care of it.
SILENCE_SECONDS_MAX = 30
_FAILED = ("FAILED", "SUBMISSION_FAILED", "FAILING")
#: Exit code of a driver that was told to end: suspended, evicted or deleted, it did not fail.
TERMINATED = 143
#: The log of a driver that was killed ends anywhere.
OUT_OF_MEMORY = (
    "its driver needed more memory than its container has (OOMKilled): raise "
    "spark.driver.memoryOverhead, for Python's part, or spark.driver.memory."
)
#: An application that failed counts as well again when it has run for so long.
HEALTHY_SECONDS_MIN = 60
#: Characters that a failed driver's last words are cut to.
TERMINATION_MESSAGE_MAX = 1000
#: `ValueError: …`, `some.module.SomeClass: …`, `Caused by: java.…Exception: …`
_NAMED = re.compile(
    r"(Caused by: )?(([\w$]+\.)+[A-Z][\w$]*|[\w$]*([Ee]rror|Exception|Exit)[\w$]*): "
    r"(?!.*Traceback \(most)\S"
)
#: What Spark logs of its own end, after whatever ended it.
_LOGGED = re.compile(r"\d\d/\d\d/\d\d \d\d:\d\d:\d\d (INFO|WARN) ")


@dataclass(frozen=True, slots=True)
class Workload:
    """How a workload is; `state` is the SparkApplication's, in Kubeflow's words."""

    replicas: int
    ready: int
    selector: Mapping[str, str]
    verdict: Verdict
    state: str = ""


def application_verdict(
    application: Mapping[str, Any], wanted: int, running: int, said: str, age_seconds: float
) -> Verdict:
    """What a SparkApplication's state means to people.

    `said` are its driver's last words if it failed, `age_seconds` is how long the application has
    been there.
    """
    reported = application.get("status", {}).get("applicationState", {})
    state = reported.get("state", "")
    if state in _FAILED or said:
        cause = said or _cause(reported.get("errorMessage", "")) or "it gives no reason"
        text = f"The SparkApplication failed and is started again: {cause}"
        return Verdict(False, "ApplicationFailed", text, progressing=True, degraded=True)
    if wanted == 0:
        if state in ("SUSPENDED", ""):
            return Verdict(True, "ScaledToZero", "No lag: the SparkApplication is suspended.")
        return Verdict(True, "Suspending", "No lag: the SparkApplication ends.", progressing=True)
    if not state and age_seconds > SILENCE_SECONDS_MAX:
        return Verdict.waiting(
            "SparkOperatorSilent",
            "No Spark operator has taken up the SparkApplication; is one running that watches "
            "this namespace (spark.jobNamespaces of its chart)?",
        )
    if state != "RUNNING":
        text = f"The SparkApplication is {state or 'new'}."
        return Verdict.waiting("ApplicationStarting", text)
    if running < wanted:
        text = f"{running} of {wanted} executors run."
        return Verdict(True, "Scaling", text, progressing=True)
    return Verdict.fine(f"{running} executors run.")


class Workloads:
    """Applies workloads through the API server and reads them from the store."""

    def __init__(self, kube: Kube, store: Store) -> None:
        self._kube, self._store = kube, store
        self._failures: dict[str, str] = {}
        self._running_since_ms: dict[str, int] = {}

    async def apply(self, consumer: Manifest, place: spark.Place, replicas: int) -> Workload:
        """Bring the workload to so many consumers. Raises `KubeError`."""
        if "spark" in consumer["spec"]:
            return await self._apply_application(consumer, place, replicas)
        want = deployment.manifest(
            consumer,
            cluster=place.cluster,
            replicas=replicas,
            bootstrap_servers=place.bootstrap_servers,
            group_id=place.group_id,
            topics=place.topics,
        )
        have = await self._apply_manifest(want)
        status = have.get("status", {})
        ready = status.get("readyReplicas", 0)
        verdict = Verdict.fine(f"{replicas} consumers run.")
        if ready < replicas:
            text = f"{ready} of {replicas} consumers are ready."
            verdict = Verdict(ready > 0, "Scaling", text, progressing=True)
        selector = deployment.consumer_selector(consumer["metadata"]["name"])
        return Workload(status.get("replicas", 0), ready, selector, verdict)

    async def _apply_manifest(self, want: Manifest) -> Manifest:
        meta = want["metadata"]
        have = self._store.get(want["kind"], meta["namespace"], meta["name"])
        if have is None or has_drifted(want, have):
            have = await self._kube.apply(want)
            self._store.put(have)
        return have

    async def _apply_application(
        self, consumer: Manifest, place: spark.Place, replicas: int
    ) -> Workload:
        meta = consumer["metadata"]
        for want in spark.manifests(consumer, place):
            await self._apply_manifest(want)
        selector = spark.executor_selector(meta["name"])
        pods = self._pods(meta["namespace"], selector)
        running = sum(p.get("status", {}).get("phase") == "Running" for p in pods)
        try:
            have = await self._apply_manifest(
                spark.application(consumer, place, suspend=replicas == 0)
            )
        except KubeError as error:
            if error.status != 404:
                raise
            verdict = Verdict(
                False,
                "SparkOperatorMissing",
                "There is no resource SparkApplication (sparkoperator.k8s.io/v1beta2): install "
                "Kubeflow's Spark operator v2.5 or later, with this namespace among its "
                "spark.jobNamespaces. Consumers start when it is there.",
                degraded=True,
            )
            return Workload(0, 0, selector, verdict)
        state = have.get("status", {}).get("applicationState", {}).get("state", "")
        verdict = application_verdict(
            have, replicas, running, self.failure_of(consumer, state), _age_seconds(have)
        )
        return Workload(len(pods), running, selector, verdict, state)

    def _pods(self, namespace: str, selector: Mapping[str, str]) -> Sequence[Manifest]:
        return [
            p
            for p in self._store.all("Pod")
            if p["metadata"]["namespace"] == namespace
            and not has_drifted(selector, p["metadata"].get("labels", {}))
            and p.get("status", {}).get("phase") in ("Pending", "Running")
        ]

    def failure_of(self, consumer: Manifest, state: str) -> str:
        """The last words of the driver that failed last, until one has run for long enough.

        The pod itself is soon gone, and an application that fails again and again is RUNNING
        in between.
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


def termination_message(log: str) -> str:
    """Of the end of a driver's log, the last line that names an error, else the last line that is
    not Spark's. A driver with our source leaves the one line that matters in the log's place."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    said = [line for line in lines if not _LOGGED.match(line)]
    named = [line for line in said if _NAMED.match(line)]
    return (named or said or lines or [""])[-1][:TERMINATION_MESSAGE_MAX]


def _cause(text: str) -> str:
    """Kubeflow's message; that of a submission has all that spark-submit has logged."""
    what, _, log = text.partition(": ")
    return f"{what}: {termination_message(log)}" if "\n" in text.strip() else text.strip()


def _age_seconds(manifest: Mapping[str, Any]) -> float:
    stamp = manifest["metadata"].get("creationTimestamp")
    return clock.seconds_since(stamp) if stamp else 0.0
