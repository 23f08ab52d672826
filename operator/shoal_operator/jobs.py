"""Runs the Jobs of ShareConsumers with `spec.job`.

Jobs are started and never stopped: a record that takes hours is finished by the Job that has it. A
Job that ended counts as active until the lag was read after its end, because an older lag may
contain its records. After a failed Job, the next one starts later each time, until one succeeds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from shoal_operator import clock
from shoal_operator.conditions import Verdict
from shoal_operator.model import consumer_pod, job

if TYPE_CHECKING:
    from collections.abc import Collection

    from shoal_operator.kube import Kube
    from shoal_operator.model.consumer_pod import PodContext
    from shoal_operator.model.names import Manifest
    from shoal_operator.store import Store

#: The most Jobs that one pass starts. The next pass follows after two seconds.
STARTED_MAX = 100
#: The time without new Jobs after the first of several failures, and the longest one.
BACKOFF_MS, BACKOFF_MS_MAX = 10_000, 300_000


@dataclass(slots=True)
class Runs:
    """What is known about the Jobs of one ShareConsumer."""

    active: set[str] = field(default_factory=set)
    #: When Jobs were seen to have ended, which no reading of the lag has followed yet.
    ended_ms: list[int] = field(default_factory=list)
    #: Failures since the last success, and until when no Job starts.
    failures: int = 0
    resume_ms: int = 0


class Jobs:
    """The Jobs of the ShareConsumers of one namespace."""

    def __init__(self, kube: Kube, store: Store) -> None:
        self._kube, self._store = kube, store
        self._runs: dict[str, Runs] = {}

    def forget_others(self, consumers: Collection[str]) -> None:
        """Forget the Jobs of all ShareConsumers but these."""
        for name in self._runs.keys() - set(consumers):
            del self._runs[name]

    def active(self, consumer: Manifest, lag_ms: int) -> int:
        """Return the number of Jobs that may have work. The lag was read at `lag_ms`."""
        runs, ends = self._look(consumer, lag_ms)
        return len(ends.active) + len(runs.ended_ms)

    async def apply(
        self, consumer: Manifest, about: PodContext, wanted: int, lag_ms: int
    ) -> tuple[int, int, Verdict]:
        """Start Jobs until `wanted` are active, and delete old ones that ended. Return the number
        of active Jobs, the number of those that are ready, and the verdict. Raises `KubeError`."""
        runs, ends = self._look(consumer, lag_ms)
        for old in job.surplus(consumer, ends):
            await self._kube.delete(old)
            self._store.drop(old)
        missing = wanted - len(ends.active) - len(runs.ended_ms)
        if clock.now_ms() >= runs.resume_ms:
            for _ in range(min(missing, STARTED_MAX)):
                made = await self._kube.create(job.manifest(consumer, about))
                self._store.put(made)
                runs.active.add(made["metadata"]["name"])
        active, ready = len(runs.active), sum(map(job.is_ready, ends.active))
        if runs.failures:
            return active, ready, _failing(runs, self._cause(ends))
        return active, ready, _verdict(active, ready, wanted)

    def without_pods(self, consumer: Manifest) -> list[str]:
        """Return the names of the Jobs that have not ended and have no pod."""
        meta, label = consumer["metadata"], "batch.kubernetes.io/job-name"
        selector = consumer_pod.selector(meta["name"])
        jobs = self._store.labelled("Job", meta["namespace"], selector)
        pods = self._store.labelled("Pod", meta["namespace"], selector)
        have = {pod["metadata"]["labels"].get(label) for pod in pods}
        names = [one["metadata"]["name"] for one in jobs if not job.end_of(one)]
        return [name for name in names if name not in have]

    def _look(self, consumer: Manifest, lag_ms: int) -> tuple[Runs, job.Ends]:
        """Note which Jobs ended since the last look, and since the lag was read at `lag_ms`."""
        meta, now_ms = consumer["metadata"], clock.now_ms()
        runs = self._runs.get(meta["name"])
        selector = consumer_pod.selector(meta["name"])
        ends = job.sort(
            one
            for one in self._store.labelled("Job", meta["namespace"], selector)
            if not one["metadata"].get("deletionTimestamp")
        )
        if runs is None:
            runs = self._runs[meta["name"]] = Runs(failures=_last_failures(ends))
        active = {one["metadata"]["name"] for one in ends.active}
        succeeded = {one["metadata"]["name"] for one in ends.succeeded}
        failed = {one["metadata"]["name"] for one in ends.failed}
        for gone in sorted(runs.active - active):
            runs.ended_ms.append(now_ms)
            if gone in succeeded:
                runs.failures, runs.resume_ms = 0, 0
            elif gone in failed:
                runs.failures += 1
                wait_ms = min(BACKOFF_MS << min(runs.failures - 1, 10), BACKOFF_MS_MAX)
                runs.resume_ms = now_ms + wait_ms
        runs.active = active
        runs.ended_ms = [when for when in runs.ended_ms if when >= lag_ms]
        return runs, ends

    def _cause(self, ends: job.Ends) -> str:
        """Return why the newest failed Job failed: the last words of its pod, or the condition."""
        if not ends.failed:
            return "it is deleted"
        newest = ends.failed[-1]
        meta = newest["metadata"]
        label = {"batch.kubernetes.io/job-name": meta["name"]}
        for pod in self._store.labelled("Pod", meta["namespace"], label):
            for container in pod.get("status", {}).get("containerStatuses", []):
                ended = container.get("state", {}).get("terminated", {})
                if ended.get("exitCode") and ended.get("message", "").strip():
                    return str(ended["message"].strip().splitlines()[-1])
        end = job.end_of(newest)
        return f"{end.get('reason', '')}: {end.get('message', '')}"


def _last_failures(ends: job.Ends) -> int:
    """Return the failures since the last success that are still listed, after a restart."""
    last = ends.succeeded[-1:] and job.end_of(ends.succeeded[-1])["lastTransitionTime"]
    return sum(job.end_of(one)["lastTransitionTime"] > (last or "") for one in ends.failed)


def _failing(runs: Runs, cause: str) -> Verdict:
    many = "Its last Job" if runs.failures == 1 else f"Its last {runs.failures} Jobs"
    text = f"{many} failed: {cause.rstrip('.')}. New Jobs start later until one succeeds."
    return Verdict(False, "JobsFailing", text, progressing=True, degraded=True)


def _verdict(active: int, ready: int, wanted: int) -> Verdict:
    if active == 0 and wanted == 0:
        return Verdict(True, "ScaledToZero", "No lag: no Job runs.")
    if active < wanted or ready < active:
        text = f"{ready} of {max(active, wanted)} Jobs are ready."
        return Verdict(ready > 0, "Scaling", text, progressing=True)
    return Verdict.fine(f"{active} Jobs run.")
