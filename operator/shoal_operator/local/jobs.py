"""The controller of Jobs: one pod at a time until one succeeds, as `batch/v1` defines it."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

from shoal_operator import clock
from shoal_operator.kube.kube import format_now
from shoal_operator.local.pods import Pods, is_ready
from shoal_operator.model.consumers import job as job_model

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from shoal_operator.local.api import LocalApi
    from shoal_operator.model.names import Manifest

#: Kubernetes' defaults: failures that are tried again, and seconds before the first new pod, which
#: double with each one.
BACKOFF_LIMIT, BACKOFF_SECONDS, BACKOFF_SECONDS_MAX = 6, 10.0, 600.0
_COMPLETE = ("Complete", "CompletionsReached", "Reached expected number of succeeded pods")
_LATE = ("Failed", "DeadlineExceeded", "Job was active longer than specified deadline")
_GIVEN_UP = ("Failed", "BackoffLimitExceeded", "Job has reached the specified backoff limit")


class JobController:
    """Runs the Jobs in a folder. `wake_after` lets the machine look again after some seconds."""

    def __init__(self, api: LocalApi, pods: Pods, wake_after: Callable[[float], None]) -> None:
        self._api, self._pods, self._wake_after = api, pods, wake_after

    def sync(self, job: Manifest) -> None:
        """Bring the pods of a Job to its spec, and its status to the pods."""
        if job_model.get_end_condition(job):
            return
        pods = [p for p in self._pods.list_owned(job) if not p["metadata"].get("deletionTimestamp")]
        alive = [p for p in pods if _get_phase(p) in ("Pending", "Running")]
        started = job.get("status", {}).get("startTime") or format_now()
        end = self._decide_end(job, pods, alive, started)
        if end:
            for pod in alive:
                self._pods.delete(pod)
            alive = []
        elif not alive:
            self._start_pod(job, pods)
        status = {
            "startTime": started,
            "active": len(alive),
            "ready": sum(map(is_ready, alive)),
            "succeeded": sum(_get_phase(p) == "Succeeded" for p in pods),
            "failed": sum(_get_phase(p) == "Failed" for p in pods),
        }
        if end:
            kind, reason, message = end
            condition = {"type": kind, "status": "True", "reason": reason, "message": message}
            status["conditions"] = [{**condition, "lastTransitionTime": format_now()}]
        meta = job["metadata"]
        self._api.write(("Job", meta["namespace"], meta["name"]), {**job, "status": status})

    def _decide_end(
        self, job: Manifest, pods: Sequence[Manifest], alive: Sequence[Manifest], started: str
    ) -> tuple[str, str, str] | None:
        """Return type, reason and message of the condition that ends a Job, None if it goes on."""
        if any(_get_phase(pod) == "Succeeded" for pod in pods):
            return _COMPLETE
        if (deadline := job["spec"].get("activeDeadlineSeconds")) is not None:
            left = deadline - clock.count_seconds_since(started)
            if left <= 0:
                return _LATE
            self._wake_after(left)
        failures = sum(_get_phase(pod) == "Failed" for pod in pods)
        failures += sum(
            status["restartCount"]
            for p in alive
            for status in p["status"].get("containerStatuses", [])
        )
        return _GIVEN_UP if failures > job["spec"].get("backoffLimit", BACKOFF_LIMIT) else None

    def _start_pod(self, job: Manifest, failed: Sequence[Manifest]) -> None:
        """Start a pod, the next one after a failure once its pause is over."""
        if failed:
            pause = min(BACKOFF_SECONDS * 2 ** (len(failed) - 1), BACKOFF_SECONDS_MAX)
            ended = max(
                status["state"]["terminated"]["finishedAt"]
                for pod in failed
                for status in pod["status"]["containerStatuses"]
            )
            if (left := pause - clock.count_seconds_since(ended)) > 0:
                self._wake_after(left)
                return
        name = job["metadata"]["name"]
        labels = {"batch.kubernetes.io/job-name": name, "job-name": name}
        self._pods.create(
            job, f"{name}-{secrets.token_hex(3)[:5]}", job["spec"]["template"], labels
        )


def _get_phase(pod: Manifest) -> str:
    phase: str = pod["status"]["phase"]
    return phase
