"""The Jobs of a ShareConsumer with `spec.job`, and how many of them there should be. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from shoal_operator.model import names
from shoal_operator.model.consumers import consumer_pod, kueue

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from shoal_operator.model.consumers.consumer_pod import PodContext
    from shoal_operator.model.kubernetes import JobSpec
    from shoal_operator.model.names import Manifest
    from shoal_operator.model.resources.share_consumer import ShareConsumer

#: Defaults of the schema, those of a CronJob.
SUCCESSFUL_JOBS_KEPT, FAILED_JOBS_KEPT = 3, 1


class SortedJobs(NamedTuple):
    """The Jobs of a ShareConsumer, by what became of them; ended ones are in order, newest last."""

    active: Sequence[Manifest]
    succeeded: Sequence[Manifest]
    failed: Sequence[Manifest]


def build_manifest(consumer: ShareConsumer, context: PodContext) -> Manifest:
    """Return a new Job, which the API server names."""
    meta, settings = consumer["metadata"], consumer["spec"]["job"]
    template = consumer_pod.build_template(consumer, settings["template"], context)
    template["spec"].setdefault("restartPolicy", "Never")
    for container in template["spec"]["containers"]:
        # The cause of a failure goes into the pod's status and from there into our condition.
        container.setdefault("terminationMessagePolicy", "FallbackToLogsOnError")
    spec: JobSpec = {"backoffLimit": settings.get("backoffLimit", 0), "template": template}
    if "activeDeadlineSeconds" in settings:
        spec["activeDeadlineSeconds"] = settings["activeDeadlineSeconds"]
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "generateName": f"{meta['name']}-",
            "namespace": meta["namespace"],
            "labels": kueue.select_labels(consumer)
            | names.build_consumer_labels(meta["name"], context.cluster),
            "ownerReferences": [names.build_owner_reference(consumer)],
        },
        "spec": spec,
    }


def sort(jobs: Iterable[Manifest]) -> SortedJobs:
    """Return the Jobs by what became of them."""
    by_end: dict[str, list[Manifest]] = {"": [], "Complete": [], "Failed": []}
    for job in sorted(jobs, key=lambda job: get_end_condition(job).get("lastTransitionTime", "")):
        by_end[get_end_condition(job).get("type", "")].append(job)
    return SortedJobs(by_end[""], by_end["Complete"], by_end["Failed"])


def get_end_condition(job: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the condition that ended a Job, empty while it is active."""
    for condition in job.get("status", {}).get("conditions", []):
        if condition["type"] in {"Complete", "Failed"} and condition["status"] == "True":
            end_condition: Mapping[str, Any] = condition
            return end_condition
    return {}


def is_ready(job: Mapping[str, Any]) -> bool:
    """Return whether the pod of an active Job is ready."""
    ready: int = job.get("status", {}).get("ready", 0)
    return ready > 0


def count_work(due: int, in_flight: int, active: int, per_job: int) -> int:
    """Return the records that count for the number of Jobs, at most `due`.

    A Job at work counts once, however many records it holds: another Job would find none of them.
    `in_flight` is negative if it is unknown; then all due records count. `per_job` is
    `scaling.targetLagPerReplica`.
    """
    if in_flight < 0:
        return due
    return min(due, max(0, due - in_flight) + min(active, in_flight) * per_job)


def list_surplus(consumer: ShareConsumer, ends: SortedJobs) -> list[Manifest]:
    """Return the ended Jobs beyond those that `spec.job` keeps, oldest first."""
    settings = consumer["spec"]["job"]
    succeeded = settings.get("successfulJobsHistoryLimit", SUCCESSFUL_JOBS_KEPT)
    failed = settings.get("failedJobsHistoryLimit", FAILED_JOBS_KEPT)
    keep = ((ends.succeeded, succeeded), (ends.failed, failed))
    return [job for jobs, most in keep for job in jobs[: max(0, len(jobs) - most)]]
