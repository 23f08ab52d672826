"""Diagnoses of a cluster that does not match its spec. Pure.

The sources are the pods and volume claims in Kubernetes, and the brokers' disks and versions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from shoal_operator.quantities import size_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

#: Free space below which a volume is nearly full or full: a part of it, or bytes if that is less.
NEARLY_FULL, FULL = 0.1, 0.01
NEARLY_FULL_BYTES, FULL_BYTES = 64 << 20, 8 << 20
NO_SPACE = "No space left on device"
_PULL = ("ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "InvalidImageName")


class Diagnosis(NamedTuple):
    """A reason, one CamelCase word, and a sentence that names the problem and the remedy."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Disk:
    """A broker's data directory; -1 bytes means unknown."""

    broker_id: int
    total_bytes: int = -1
    usable_bytes: int = -1
    failed: bool = False


def diagnose_pods(
    pods: Sequence[Mapping[str, Any]], claims: Sequence[Mapping[str, Any]]
) -> Diagnosis | None:
    """Return the first problem of the brokers' pods and volume claims."""
    for pod in pods:
        found = _of_containers(pod) or _of_scheduling(pod, claims)
        if found:
            return found
    return None


def _of_containers(pod: Mapping[str, Any]) -> Diagnosis | None:
    name = pod["metadata"]["name"]
    statuses = pod.get("status", {}).get("containerStatuses", [])
    for status in statuses:
        waiting = status.get("state", {}).get("waiting", {})
        reason = waiting.get("reason", "ContainerCreating")
        if reason in ("ContainerCreating", "PodInitializing"):
            continue
        last = status.get("lastState", {}).get("terminated", {})
        message = (last.get("message", "") or waiting.get("message", "")).strip()
        which = f"{name}, container {status['name']}" if len(statuses) > 1 else name
        text = f"{which}: {reason} {message}".rstrip()
        if reason in _PULL:
            return Diagnosis("ImageNotPulled", text)
        if NO_SPACE in message:
            return Diagnosis("DiskFull", f"{text} Raise spec.storage.size.")
        return Diagnosis("BrokerFails", text)
    return None


def _of_scheduling(pod: Mapping[str, Any], claims: Sequence[Mapping[str, Any]]) -> Diagnosis | None:
    name = pod["metadata"]["name"]
    for condition in pod.get("status", {}).get("conditions", []):
        if condition["type"] != "PodScheduled" or condition["status"] != "False":
            continue
        message = condition.get("message", "").rstrip(".")
        # A claim that waits for its first consumer is also pending while no node has room.
        of_volumes = any(
            word in message.lower() for word in ("persistentvolumeclaim", "storageclass")
        )
        for claim in claims:
            if of_volumes and claim.get("status", {}).get("phase") == "Pending":
                wanted = claim["spec"].get("storageClassName") or "the default one"
                return Diagnosis(
                    "VolumeNotBound",
                    f"{name}: {message}; volume claim {claim['metadata']['name']} is pending: is "
                    f"there a storage class {wanted}?",
                )
        return Diagnosis("Unschedulable", f"{name}: {message}")
    return None


def diagnose_expansion(
    claims: Sequence[Mapping[str, Any]],
) -> tuple[Diagnosis | None, Diagnosis | None]:
    """Return a volume that cannot grow, or one that has not grown yet."""
    for claim in claims:
        name, status = claim["metadata"]["name"], claim.get("status", {})
        wanted = claim["spec"]["resources"]["requests"]["storage"]
        have = status.get("capacity", {}).get("storage")
        if have is None or size_bytes(have) >= size_bytes(wanted):
            continue
        messages = [c["message"] for c in status.get("conditions", []) if c.get("message")]
        text = f"{name} has {have} of {wanted} so far" + "".join(
            f" ({one.strip(' .')})" for one in messages
        )
        resizing = status.get("allocatedResourceStatuses", {}).get("storage", "")
        if resizing.endswith("Infeasible"):
            text += "; its storage driver cannot make it that large: check the claim's events."
            return Diagnosis("VolumeNotGrown", text), None
        return None, Diagnosis("VolumeGrows", f"{text}.")
    return None, None


def diagnose_disks(disks: Sequence[Disk]) -> tuple[Diagnosis | None, Diagnosis | None]:
    """Return a disk that stops its broker, or one that is nearly full."""
    broken = [d for d in disks if d.failed]
    known = sorted((d for d in disks if d.total_bytes > 0), key=lambda d: d.usable_bytes)
    if broken and not (known and _below(known[0], FULL, FULL_BYTES)):
        return Diagnosis(
            "DiskFailed",
            f"Broker {broken[0].broker_id} could not write to its volume and restarts. "
            "Check the node's disk.",
        ), None
    if not known:
        return None, None
    worst = known[0]
    size, left = worst.total_bytes >> 20, worst.usable_bytes >> 20
    text = (
        f"The volume of broker {worst.broker_id} has {left} of {size} MiB left; raise "
        "spec.storage.size, lower retention, or delete topics."
    )
    if _below(worst, FULL, FULL_BYTES):
        return Diagnosis("DiskFull", text), None
    if _below(worst, NEARLY_FULL, NEARLY_FULL_BYTES):
        return None, Diagnosis("DiskNearlyFull", text)
    return None, None


def _below(disk: Disk, part: float, least_bytes: int) -> bool:
    """Return whether the free space is below `part` of the volume or, if more, `least_bytes`."""
    return disk.usable_bytes < max(disk.total_bytes * part, min(least_bytes, disk.total_bytes / 4))


def diagnose_versions(versions: Mapping[int, str], asked: str, ours: str) -> Diagnosis | None:
    """Return a broker whose version is not the wanted one.

    `versions` lacks brokers that do not report it; `asked` is `spec.version` or empty; `ours` is
    the operator's version.
    """
    for broker_id, version in sorted(versions.items()):
        if asked and version != asked:
            return Diagnosis(
                "OtherVersion",
                f"Broker {broker_id} is version {version}, and spec.version is {asked}; set "
                "spec.image or spec.version so that they agree.",
            )
        if not asked and version != ours:
            return Diagnosis(
                "OtherVersion",
                f"Broker {broker_id} is version {version}, and this operator is {ours}; use an "
                f"image of {ours}, or set spec.version to {version} if that is intended.",
            )
    return None
