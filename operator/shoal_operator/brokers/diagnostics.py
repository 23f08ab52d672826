"""Diagnoses of a cluster that does not match its spec. Pure.

The sources are the pods and volume claims in Kubernetes, and the brokers' disks and versions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from shoal_operator import clock
from shoal_operator.brokers import pod_causes
from shoal_operator.model.quantities import parse_size_bytes

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

#: Free space below which a volume is nearly full or full: a part of it, or bytes if that is less.
NEARLY_FULL, FULL = 0.1, 0.01
NEARLY_FULL_BYTES, FULL_BYTES = 64 << 20, 8 << 20
#: How long the scheduler may need for a pod until that is a problem.
SCHEDULED_SECONDS_MAX = 10.0
#: How long an init container may run, and a probe may fail, until that is what a pod waits for.
STARTED_SECONDS_MAX = 10.0
#: How long a pod may take to end when its grace period is over.
ENDED_SECONDS_MAX = 30.0
NO_SPACE = "No space left on device"
OOM_KILLED = "OOMKilled"
#: Words before the reason why the kubelet has ended a container.
_KILLING_PROBES = ("Liveness probe failed", "Startup probe failed")
#: The node for which the scheduler wants the volume of a claim.
_SELECTED_NODE = "volume.kubernetes.io/selected-node"
#: The driver that makes the volume of a claim.
_PROVISIONER = "volume.kubernetes.io/storage-provisioner"
_LOST = f"Check the node. {pod_causes.OUT_OF_SERVICE}"


class PodRole(NamedTuple):
    """Whose pods are diagnosed, and what to do when one needs more memory."""

    name: str
    memory: str


BROKER = PodRole("broker", "Raise spec.resources.limits.memory.")
CONSUMER = PodRole("consumer", "Raise the memory limit of the container in the template.")


class Diagnosis(NamedTuple):
    """A reason, one CamelCase word, and a sentence that names the problem and the remedy."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class BrokerDisk:
    """A broker's data directory; -1 bytes means unknown."""

    broker_id: int
    total_bytes: int = -1
    usable_bytes: int = -1
    failed: bool = False


def diagnose_pods(
    pods: Sequence[Mapping[str, Any]],
    claims: Sequence[Mapping[str, Any]],
    events: Sequence[Mapping[str, Any]] = (),
    *,
    role: PodRole = BROKER,
) -> Diagnosis | None:
    """Return the first problem of pods and volume claims.

    `events` are warnings about pods, and about what creates them: a StatefulSet, for example.
    """
    for pod in pods:
        diagnosis = (
            _diagnose_failed(pod)
            or _diagnose_containers(pod, events, role)
            or _diagnose_scheduling(pod, claims, events)
            or _diagnose_init_container(pod)
        )
        if diagnosis:
            return diagnosis
    of_probes = _diagnose_probes(pods, events) if role is CONSUMER else None
    of_nodes = (diagnosis for pod in pods if (diagnosis := _diagnose_node(pod, events)))
    return _diagnose_events(pods, events) or of_probes or next(of_nodes, None)


def _diagnose_failed(pod: Mapping[str, Any]) -> Diagnosis | None:
    """Return why a node has ended a pod, or has not taken it."""
    name, status = pod["metadata"]["name"], pod.get("status", {})
    reason = status.get("reason")
    if status.get("phase") != "Failed" or not reason:
        return None
    node = pod.get("spec", {}).get("nodeName", "")
    message = status.get("message", "").strip().rstrip(".")
    remedy = pod_causes.find_remedy(pod_causes.FAILURES, reason, f"Check the node {node}.")
    return Diagnosis("PodFailed", f"{name}, on the node {node}: {reason}: {message}. {remedy}")


def _diagnose_node(pod: Mapping[str, Any], events: Sequence[Mapping[str, Any]]) -> Diagnosis | None:
    """Return why a pod whose containers are ready is not ready itself, or why it does not end."""
    meta, node = pod["metadata"], pod.get("spec", {}).get("nodeName", "")
    name, deleted = meta["name"], meta.get("deletionTimestamp")
    if deleted:
        if clock.count_seconds_since(deleted) < ENDED_SECONDS_MAX:
            return None
        if finalizers := ", ".join(meta.get("finalizers", [])):
            text = f"{name} is deleted, and its finalizers keep it: {finalizers}. "
            return Diagnosis("PodNotEnded", f"{text}Check the controller that removes them.")
        if said := _find_event(name, events, pod_causes.END_EVENTS):
            text = f"{name} is deleted, and its node {node} has not ended it: {said}. "
            return Diagnosis("PodNotEnded", f"{text}Check the container runtime there.")
        text = f"{name} is deleted, and its node {node} has not ended it. "
        return Diagnosis("NodeLost", text + _LOST)
    states = {state["type"]: state for state in pod.get("status", {}).get("conditions", [])}
    ready, containers = states.get("Ready", {}), states.get("ContainersReady", {})
    if ready.get("status") == "True" or containers.get("status") != "True":
        return None
    if ready.get("reason") != "ReadinessGatesNotReady":
        return Diagnosis("NodeLost", f"{name}: its node {node} does not answer. {_LOST}")
    if clock.count_seconds_since(containers["lastTransitionTime"]) < STARTED_SECONDS_MAX:
        return None
    message = ready.get("message", "").rstrip(".")
    text = f"{name}: {message}. Check the controller of this readiness gate."
    return Diagnosis("ReadinessGateWaits", text)


def _diagnose_containers(
    pod: Mapping[str, Any], events: Sequence[Mapping[str, Any]], role: PodRole
) -> Diagnosis | None:
    name, status = pod["metadata"]["name"], pod.get("status", {})
    statuses = [*status.get("initContainerStatuses", []), *status.get("containerStatuses", [])]
    for container in statuses:
        waiting = container.get("state", {}).get("waiting", {})
        reason = waiting.get("reason", "ContainerCreating")
        last = container.get("lastState", {}).get("terminated", {})
        ended = container.get("state", {}).get("terminated", {})
        subject = f"{name}, container {container['name']}" if len(statuses) > 1 else name
        waits = reason not in ("ContainerCreating", "PodInitializing")
        if ended.get("exitCode") and not pod["metadata"].get("deletionTimestamp"):
            # Until the kubelet has decided when to start it again.
            waits, reason, last = True, ended.get("reason", "Error"), ended
        if OOM_KILLED in (ended.get("reason"), last.get("reason") if waits else ""):
            text = f"{subject} needed more memory than its limit ({OOM_KILLED}). {role.memory}"
            return Diagnosis("OutOfMemory", text)
        if not waits:
            continue
        message = (last.get("message", "") or waiting.get("message", "")).strip()
        code = last.get("exitCode")
        exited = f" (exit code {code})" if code is not None else ""
        text = f"{subject}: {reason}{exited} {message}".rstrip()
        if reason in pod_causes.IMAGE_REASONS:
            return Diagnosis("ImageNotPulled", text)
        if NO_SPACE in message:
            return Diagnosis("DiskFull", f"{text} Raise spec.storage.size.")
        if probe := _find_killing_probe(name, events):
            text = f"{text} {probe}. Correct the probe, or give the program more time."
        return Diagnosis("BrokerFails" if role is BROKER else "ConsumerFails", text)
    return None


def _find_event(name: str, events: Sequence[Mapping[str, Any]], reasons: Collection[str]) -> str:
    """Return the message of the newest warning about a pod with one of these reasons."""
    for event in sorted(events, key=_get_time, reverse=True):
        if event["involvedObject"]["name"] == name and event.get("reason") in reasons:
            return str(event.get("message", "")).strip().rstrip(".")
    return ""


def _find_killing_probe(name: str, events: Sequence[Mapping[str, Any]]) -> str:
    """Return what the newest probe said for which the kubelet ends containers of a pod."""
    messages = [
        str(event.get("message", "")).strip().rstrip(".:")
        for event in sorted(events, key=_get_time, reverse=True)
        if event["involvedObject"]["name"] == name and event.get("reason") == "Unhealthy"
    ]
    return next((text for text in messages if text.startswith(_KILLING_PROBES)), "")


def _diagnose_init_container(pod: Mapping[str, Any]) -> Diagnosis | None:
    """Return an init container that does not end. Sidecars are init containers that never do."""
    sidecars = {
        container["name"]
        for container in pod.get("spec", {}).get("initContainers", [])
        if container.get("restartPolicy") == "Always"
    }
    for container in pod.get("status", {}).get("initContainerStatuses", []):
        started = container.get("state", {}).get("running", {}).get("startedAt")
        if container["name"] in sidecars or not started:
            continue
        if clock.count_seconds_since(started) > STARTED_SECONDS_MAX:
            name = pod["metadata"]["name"]
            text = f"{name} waits for its init container {container['name']}, which still runs. "
            return Diagnosis("InitContainerRuns", text + "See its log.")
    return None


def _diagnose_probes(
    pods: Sequence[Mapping[str, Any]], events: Sequence[Mapping[str, Any]]
) -> Diagnosis | None:
    """Return the newest failed probe of a pod that has started and is not ready.

    Brokers are asked themselves: their readiness fails while they catch up.
    """
    unready = {
        pod["metadata"]["name"]
        for pod in pods
        for condition in pod.get("status", {}).get("conditions", [])
        if condition["type"] == "ContainersReady" and condition["status"] == "False"
        if clock.count_seconds_since(condition["lastTransitionTime"]) > STARTED_SECONDS_MAX
    }
    for event in sorted(events, key=_get_time, reverse=True):
        name = event["involvedObject"]["name"]
        if event.get("reason") == "Unhealthy" and name in unready:
            message = event.get("message", "").strip().rstrip(".:")
            text = f"{name}: {message}. Correct the probe, or the program that it asks."
            return Diagnosis("ConsumerNotReady", text)
    return None


def _diagnose_events(
    pods: Sequence[Mapping[str, Any]], events: Sequence[Mapping[str, Any]]
) -> Diagnosis | None:
    """Return why a pod was not created, or waits before its containers start."""
    starting = {
        pod["metadata"]["name"]: pod["metadata"].get("creationTimestamp")
        for pod in pods
        if pod.get("status", {}).get("phase", "Pending") == "Pending"
    }
    for event in sorted(events, key=_get_time, reverse=True):
        involved, text = event["involvedObject"], event.get("message", "").strip()
        name, reason = involved["name"], event.get("reason", "")
        if reason == "FailedCreate":
            return diagnose_refusal(involved["kind"], name, text)
        if name not in starting or reason in pod_causes.STATUS_REASONS:
            continue
        text = text.rstrip(".")
        if usual := pod_causes.VOLUME_EVENTS.get(reason):
            remedy = pod_causes.find_remedy(pod_causes.VOLUMES, text, usual)
            return Diagnosis("VolumeNotMounted", f"{name}: {text}. {remedy}")
        created = starting[name]
        if not created or clock.count_seconds_since(created) > STARTED_SECONDS_MAX:
            remedy = pod_causes.START_EVENTS.get(reason, pod_causes.NODE_REMEDY)
            return Diagnosis("PodNotStarted", f"{name}: {text}. {remedy}")
    return None


def _get_time(event: Mapping[str, Any]) -> str:
    return str(event.get("lastTimestamp") or event.get("eventTime") or "")


def diagnose_refusal(kind: str, name: str, message: str) -> Diagnosis:
    """Return what is wrong with a pod or claim of this object that the API server refuses."""
    remedy = pod_causes.find_remedy(pod_causes.REFUSALS, message)
    return Diagnosis("PodRefused", f"{kind} {name}: {message.rstrip('.')}. {remedy}".rstrip())


def _diagnose_scheduling(
    pod: Mapping[str, Any],
    claims: Sequence[Mapping[str, Any]],
    events: Sequence[Mapping[str, Any]],
) -> Diagnosis | None:
    name = pod["metadata"]["name"]
    if _is_unseen(pod):
        return _diagnose_binding(pod, claims, events)
    for condition in pod.get("status", {}).get("conditions", []):
        if condition["type"] != "PodScheduled" or condition["status"] != "False":
            continue
        # A volume is being made, or a pod that restarts has not freed its place yet.
        transition_time = condition.get("lastTransitionTime")
        if transition_time and clock.count_seconds_since(transition_time) < SCHEDULED_SECONDS_MAX:
            continue
        message = condition.get("message", "").rstrip(".")
        # A claim that waits for its first consumer is also pending while no node has room.
        of_volumes = any(
            word in message.lower() for word in ("persistentvolumeclaim", "storageclass")
        )
        for claim in claims:
            if of_volumes and claim.get("status", {}).get("phase") == "Pending":
                cause = _find_provisioning_failure(claim, events)
                text = f"{name}: {message}; volume claim {claim['metadata']['name']} is pending"
                return Diagnosis("VolumeNotBound", f"{text}: {cause}")
        if gates := pod.get("spec", {}).get("schedulingGates", []):
            gate_names = ", ".join(gate["name"] for gate in gates)
            text = f"{name}: {message}: {gate_names}. Check the controllers that remove them."
            return Diagnosis("Unschedulable", text)
        remedies = pod_causes.list_remedies(pod_causes.UNSCHEDULABLE, message)
        return Diagnosis("Unschedulable", f"{name}: {message}. {remedies}".rstrip())
    return None


def _find_provisioning_failure(
    claim: Mapping[str, Any], events: Sequence[Mapping[str, Any]]
) -> str:
    """Return why a claim has no volume: what its events say, else which driver is silent, or a
    guess."""
    storage_class = claim["spec"].get("storageClassName") or "the default one"
    for event in sorted(events, key=_get_time, reverse=True):
        if event["involvedObject"]["name"] == claim["metadata"]["name"]:
            message = event.get("message", "").strip().rstrip(".")
            return f"{message}. Check the storage class {storage_class} and its driver."
    if driver := claim["metadata"].get("annotations", {}).get(_PROVISIONER):
        return f"the driver {driver} has not made it yet. Check the driver's pods."
    return f"is there a storage class {storage_class}?"


def _is_unseen(pod: Mapping[str, Any]) -> bool:
    """Return whether the scheduler has said nothing about a pod for longer than it needs."""
    spec, status = pod.get("spec", {}), pod.get("status", {})
    if any(entry["type"] == "PodScheduled" for entry in status.get("conditions", [])):
        return False
    if not spec.get("schedulerName") or spec.get("nodeName"):
        return False
    created = pod["metadata"].get("creationTimestamp")
    return clock.count_seconds_since(created) >= SCHEDULED_SECONDS_MAX


def _diagnose_binding(
    pod: Mapping[str, Any],
    claims: Sequence[Mapping[str, Any]],
    events: Sequence[Mapping[str, Any]],
) -> Diagnosis:
    """Return why the scheduler has said nothing about a pod: it waits up to ten minutes for the
    volumes of the node that it has chosen, or there is no scheduler."""
    name, spec = pod["metadata"]["name"], pod["spec"]
    mounted = [
        volume["persistentVolumeClaim"]["claimName"]
        for volume in spec.get("volumes", [])
        if "persistentVolumeClaim" in volume
    ]
    for claim in claims:
        node = claim["metadata"].get("annotations", {}).get(_SELECTED_NODE)
        pending = claim.get("status", {}).get("phase") == "Pending"
        if claim["metadata"]["name"] in mounted and node and pending:
            text = f"{name} waits for its volume claim {claim['metadata']['name']} on the node"
            cause = _find_provisioning_failure(claim, events)
            return Diagnosis("VolumeNotBound", f"{text} {node}: {cause}")
    if node := pod.get("status", {}).get("nominatedNodeName"):
        listed = f"volume claims {', '.join(mounted)}" if mounted else "devices"
        text = f"{name} waits for its {listed} on the node {node}. Check their events and drivers."
        return Diagnosis("VolumeNotBound", text)
    scheduler = spec["schedulerName"]
    text = f"{name}: no scheduler has looked at it. Run the scheduler {scheduler}, or name another"
    return Diagnosis("Unschedulable", f"{text} one.")


def diagnose_expansion(
    claims: Sequence[Mapping[str, Any]],
) -> tuple[Diagnosis | None, Diagnosis | None]:
    """Return a volume that cannot grow, or one that has not grown yet."""
    for claim in claims:
        name, status = claim["metadata"]["name"], claim.get("status", {})
        requested = claim["spec"]["resources"]["requests"]["storage"]
        have = status.get("capacity", {}).get("storage")
        if have is None or parse_size_bytes(have) >= parse_size_bytes(requested):
            continue
        messages = [c["message"] for c in status.get("conditions", []) if c.get("message")]
        text = f"{name} has {have} of {requested} so far" + "".join(
            f" ({message.strip(' .')})" for message in messages
        )
        resizing = status.get("allocatedResourceStatuses", {}).get("storage", "")
        if resizing.endswith("Infeasible"):
            text += (
                "; its storage driver cannot make it that large: check the claim's events. The "
                f"size in the spec can return to {have}, or to that of status.volumeSize."
            )
            return Diagnosis("VolumeNotGrown", text), None
        return None, Diagnosis("VolumeGrows", f"{text}.")
    return None, None


def diagnose_disks(disks: Sequence[BrokerDisk]) -> tuple[Diagnosis | None, Diagnosis | None]:
    """Return a disk that stops its broker, or one that is nearly full."""
    broken = [d for d in disks if d.failed]
    known_disks = sorted((d for d in disks if d.total_bytes > 0), key=lambda d: d.usable_bytes)
    if broken and not (known_disks and _is_below(known_disks[0], FULL, FULL_BYTES)):
        return Diagnosis(
            "DiskFailed",
            f"Broker {broken[0].broker_id} cannot write to its volume, or cannot open a partition."
            " Its log and /readyz say more. Check the node's disk.",
        ), None
    if not known_disks:
        return None, None
    worst = known_disks[0]
    size, free = worst.total_bytes >> 20, worst.usable_bytes >> 20
    text = (
        f"The volume of broker {worst.broker_id} has {free} of {size} MiB left; raise "
        "spec.storage.size, lower retention, or delete topics."
    )
    if _is_below(worst, FULL, FULL_BYTES):
        return Diagnosis("DiskFull", text), None
    if _is_below(worst, NEARLY_FULL, NEARLY_FULL_BYTES):
        return None, Diagnosis("DiskNearlyFull", text)
    return None, None


def _is_below(disk: BrokerDisk, part: float, least_bytes: int) -> bool:
    """Return whether the free space is below `part` of the volume or, if more, `least_bytes`."""
    return disk.usable_bytes < max(disk.total_bytes * part, min(least_bytes, disk.total_bytes / 4))


def diagnose_versions(versions: Mapping[int, str], requested: str, ours: str) -> Diagnosis | None:
    """Return a broker whose version is not the wanted one.

    `versions` lacks brokers that do not report it; `requested` is `spec.version` or empty; `ours`
    is the operator's version.
    """
    for broker_id, version in sorted(versions.items()):
        if requested and version != requested:
            return Diagnosis(
                "OtherVersion",
                f"Broker {broker_id} is version {version}, and spec.version is {requested}; set "
                "spec.image or spec.version so that they agree.",
            )
        if not requested and version != ours:
            return Diagnosis(
                "OtherVersion",
                f"Broker {broker_id} is version {version}, and this operator is {ours}; use an "
                f"image of {ours}, or set spec.version to {version} if that is intended.",
            )
    return None
