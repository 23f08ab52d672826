"""Runs the Jobs of ShareConsumers with `spec.job`.

Jobs are started and never stopped: a record that takes hours is finished by the Job that has it. A
Job that ended counts as active until the lag was read after its end, because an older lag may
contain its records. After a failed Job, the next one starts later each time, until one succeeds.
A Job that waits for its admission by Kueue has no record; it is deleted when it is not needed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from shoal_operator import clock
from shoal_operator.consumers import admission
from shoal_operator.kube.conditions import Verdict
from shoal_operator.model.consumers import consumer_pod, job, kueue

if TYPE_CHECKING:
    from collections.abc import Collection

    from shoal_operator.kube.kube import KubeClient
    from shoal_operator.kube.store import Store
    from shoal_operator.model.consumers.consumer_pod import PodContext
    from shoal_operator.model.resources.share_consumer import ShareConsumer

#: The most Jobs that one pass starts. The next pass follows after two seconds.
STARTED_MAX = 100
#: The time without new Jobs after the first of several failures, and the longest one.
BACKOFF_MS, BACKOFF_MS_MAX = 10_000, 300_000


@dataclass(slots=True)
class JobRuns:
    """What is known about the Jobs of one ShareConsumer."""

    active: set[str] = field(default_factory=set)
    #: When Jobs were seen to have ended, which no reading of the lag has followed yet.
    ended_ms: list[int] = field(default_factory=list)
    #: Failures since the last success, and until when no Job starts.
    failures: int = 0
    resume_ms: int = 0


class JobRunner:
    """The Jobs of the ShareConsumers of one namespace."""

    def __init__(self, kube: KubeClient, store: Store) -> None:
        self._kube, self._store = kube, store
        self._runs: dict[str, JobRuns] = {}

    def forget_others(self, consumers: Collection[str]) -> None:
        """Forget the Jobs of all ShareConsumers but these."""
        for name in self._runs.keys() - set(consumers):
            del self._runs[name]

    def count_active(self, consumer: ShareConsumer, lag_ms: int) -> int:
        """Return the number of Jobs that may have work. The lag was read at `lag_ms`."""
        runs, ends = self._poll(consumer, lag_ms)
        return len(ends.active) + len(runs.ended_ms)

    async def apply(
        self, consumer: ShareConsumer, context: PodContext, target: int, lag_ms: int
    ) -> tuple[int, int, Verdict]:
        """Start Jobs until `target` are active, and delete old ones that ended. Return the number
        of active Jobs, the number of those that are ready, and the verdict. Raises `KubeError`."""
        runs, ends = self._poll(consumer, lag_ms)
        for old in job.list_surplus(consumer, ends):
            await self._kube.delete(old)
            self._store.drop(old)
        missing = target - len(ends.active) - len(runs.ended_ms)
        waiting = kueue.list_waiting(ends.active)
        while waiting and missing < 0:
            newest = waiting.pop()
            await self._kube.delete(newest)
            self._store.drop(dict(newest))
            runs.active.discard(newest["metadata"]["name"])
            missing += 1
        if clock.now_ms() >= runs.resume_ms:
            for _ in range(min(missing, STARTED_MAX)):
                new_job = await self._kube.create(job.build_manifest(consumer, context))
                self._store.put(new_job)
                runs.active.add(new_job["metadata"]["name"])
        active, ready = len(runs.active), sum(map(job.is_ready, ends.active))
        if runs.failures:
            return active, ready, _make_failing_verdict(runs, self._find_cause(ends))
        if waiting:
            subject = f"{len(waiting)} of {active} Jobs {'waits' if active == 1 else 'wait'}"
            verdict = await admission.explain(self._kube, waiting, subject=subject, ready=ready)
            return active, ready, verdict
        return active, ready, _decide_verdict(active, ready, target)

    def list_without_pods(self, consumer: ShareConsumer) -> list[str]:
        """Return the names of the Jobs that have not ended and have no pod."""
        meta, label = consumer["metadata"], "batch.kubernetes.io/job-name"
        selector = consumer_pod.build_selector(meta["name"])
        jobs = self._store.list_labelled("Job", meta["namespace"], selector)
        pods = self._store.list_labelled("Pod", meta["namespace"], selector)
        have = {pod["metadata"]["labels"].get(label) for pod in pods}
        names = [
            resource["metadata"]["name"] for resource in jobs if not job.get_end_condition(resource)
        ]
        return [name for name in names if name not in have]

    def _poll(self, consumer: ShareConsumer, lag_ms: int) -> tuple[JobRuns, job.SortedJobs]:
        """Note which Jobs ended since the last look, and since the lag was read at `lag_ms`."""
        meta, now_ms = consumer["metadata"], clock.now_ms()
        runs = self._runs.get(meta["name"])
        selector = consumer_pod.build_selector(meta["name"])
        ends = job.sort(
            resource
            for resource in self._store.list_labelled("Job", meta["namespace"], selector)
            if not resource["metadata"].get("deletionTimestamp")
        )
        if runs is None:
            runs = self._runs[meta["name"]] = JobRuns(failures=_count_last_failures(ends))
        active = {resource["metadata"]["name"] for resource in ends.active}
        succeeded = {resource["metadata"]["name"] for resource in ends.succeeded}
        failed = {resource["metadata"]["name"] for resource in ends.failed}
        for job_name in sorted(runs.active - active):
            runs.ended_ms.append(now_ms)
            if job_name in succeeded:
                runs.failures, runs.resume_ms = 0, 0
            elif job_name in failed:
                runs.failures += 1
                wait_ms = min(BACKOFF_MS << min(runs.failures - 1, 10), BACKOFF_MS_MAX)
                runs.resume_ms = now_ms + wait_ms
        runs.active = active
        runs.ended_ms = [when for when in runs.ended_ms if when >= lag_ms]
        return runs, ends

    def _find_cause(self, ends: job.SortedJobs) -> str:
        """Return why the newest failed Job failed: the last words of its pod, or the condition."""
        if not ends.failed:
            return "it is deleted"
        newest = ends.failed[-1]
        meta = newest["metadata"]
        label = {"batch.kubernetes.io/job-name": meta["name"]}
        for pod in self._store.list_labelled("Pod", meta["namespace"], label):
            for container in pod.get("status", {}).get("containerStatuses", []):
                ended = container.get("state", {}).get("terminated", {})
                if ended.get("exitCode") and ended.get("message", "").strip():
                    return str(ended["message"].strip().splitlines()[-1])
        end = job.get_end_condition(newest)
        return f"{end.get('reason', '')}: {end.get('message', '')}"


def _count_last_failures(ends: job.SortedJobs) -> int:
    """Return the failures since the last success that are still listed, after a restart."""
    last = ends.succeeded[-1:] and job.get_end_condition(ends.succeeded[-1])["lastTransitionTime"]
    return sum(
        job.get_end_condition(resource)["lastTransitionTime"] > (last or "")
        for resource in ends.failed
    )


def _make_failing_verdict(runs: JobRuns, cause: str) -> Verdict:
    many = "Its last Job" if runs.failures == 1 else f"Its last {runs.failures} Jobs"
    text = f"{many} failed: {cause.rstrip('.')}. New Jobs start later until one succeeds."
    return Verdict(False, "JobsFailing", text, progressing=True, degraded=True)


def _decide_verdict(active: int, ready: int, target: int) -> Verdict:
    if active == 0 and target == 0:
        return Verdict(True, "ScaledToZero", "No lag: no Job runs.")
    if active < target or ready < active:
        text = f"{ready} of {max(active, target)} Jobs are ready."
        return Verdict(ready > 0, "Scaling", text, progressing=True)
    return Verdict.make_reconciled(f"{active} Jobs run.")
