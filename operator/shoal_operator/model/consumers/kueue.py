"""Kueue (kueue.x-k8s.io), which admits workloads to quotas: its labels, and why something waits.

A ShareConsumer with Kueue's label for a queue hands its labels on to its workload. Kueue then
decides when a Job, a SparkApplication or a pod of a Deployment may start, by `suspend` or by a
scheduling gate, and reports in a Workload of its own. Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from shoal_operator.model.resources.share_consumer import ShareConsumer

API = "kueue.x-k8s.io/v1beta2"
#: The beginning of Kueue's labels, annotations and scheduling gates.
PREFIX = "kueue.x-k8s.io/"
QUEUE_LABEL = f"{PREFIX}queue-name"
#: The label of a Workload with the uid of what it is for.
OWNER_UID_LABEL = f"{PREFIX}job-uid"


def get_queue(resource: Mapping[str, Any]) -> str:
    """Return the LocalQueue that a resource names, empty without one."""
    return str(resource["metadata"].get("labels", {}).get(QUEUE_LABEL, ""))


def select_labels(consumer: ShareConsumer) -> dict[str, str]:
    """Return Kueue's labels of a ShareConsumer: its queue and its priority, for example."""
    labels = consumer["metadata"].get("labels", {})
    return {name: value for name, value in labels.items() if name.startswith(PREFIX)}


def is_waiting(manifest: Mapping[str, Any]) -> bool:
    """Return whether a Job, a SparkApplication or a pod waits until Kueue admits it."""
    if not get_queue(manifest):
        return False
    gates = manifest["spec"].get("schedulingGates", [])
    gated = any(gate["name"].startswith(PREFIX) for gate in gates)
    return bool(manifest["spec"].get("suspend")) or gated


def list_waiting(manifests: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return those that wait, the oldest first."""
    waiting = [manifest for manifest in manifests if is_waiting(manifest)]
    return sorted(waiting, key=_get_age)


def _get_age(manifest: Mapping[str, Any]) -> tuple[str, str]:
    meta = manifest["metadata"]
    return str(meta.get("creationTimestamp", "")), str(meta["name"])


def find_reason(workload: Mapping[str, Any]) -> str:
    """Return why Kueue does not admit a Workload, in Kueue's words; empty if it has not said."""
    status = workload.get("status", {})
    conditions = {entry["type"]: entry for entry in status.get("conditions", [])}
    reserved, evicted = conditions.get("QuotaReserved", {}), conditions.get("Evicted", {})
    if reserved.get("status") == "True":
        checks = [check for check in status.get("admissionChecks", []) if check["state"] != "Ready"]
        texts = (
            f"{check['name']} is {check['state']}. {check.get('message', '')}" for check in checks
        )
        return " ".join(f"Admission check {text.strip()}" for text in texts)
    # A Workload that waits again says why in the older condition, which may stay.
    for condition in (reserved, evicted if evicted.get("status") == "True" else {}):
        if condition.get("message"):
            return str(condition["message"])
    return ""
