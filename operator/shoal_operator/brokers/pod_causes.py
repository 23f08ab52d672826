"""What keeps a pod from running, in the words of Kubernetes, and what to do about it. Data only.

Each table has words of a message, or a reason, with the remedy. Reasons are those of the kubelet
(`pkg/kubelet/events`), of its admission and of the scheduler's plugins; a test reads them from the
sources of Kubernetes, so that a new one is missed here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

#: Remedies by words of a message, or by the begin of a reason; the first that matches counts.
Remedies = Mapping[str, str]

#: Reasons of containers that wait for their image.
IMAGE_REASONS = (
    "ErrImagePull",
    "ImagePullBackOff",
    "ErrImageNeverPull",
    "InvalidImageName",
    "RegistryUnavailable",
    "ImageInspectError",
    "SignatureValidationFailed",
)
OUT_OF_SERVICE = (
    "Once it is off for good, add the taint "
    "node.kubernetes.io/out-of-service=nodeshutdown:NoExecute to it, which releases its pods and "
    "volumes."
)
#: Reasons of warnings about a pod that starts which say nothing that its status does not: of the
#: scheduler, of images, of containers and of probes.
STATUS_REASONS = frozenset(
    {
        "BackOff",
        "DNSConfigForming",
        "ErrImageNeverPull",
        "Failed",
        "FailedPostStartHook",
        "FailedScheduling",
        "FailedToRetrieveImagePullSecret",
        "InspectFailed",
        "PossibleMemoryBackedVolumesOnDisk",
        "ProbeWarning",
        "Unhealthy",
    }
)
_DRIVER = "Check the driver of this storage, and its pods on the node."
#: Reasons of warnings about a volume of a pod, with a remedy, if words of the message have none.
VOLUME_EVENTS = {
    "FailedMount": "Create what the message names, or remove the volume from the template.",
    "FailedAttachVolume": _DRIVER,
    "FailedMapVolume": _DRIVER,
    "FileSystemResizeFailed": _DRIVER,
    "VolumeResizeFailed": _DRIVER,
    "FailedMountOnFilesystemMismatch": _DRIVER,
    "AlreadyMountedVolume": _DRIVER,
}
#: Words of such a warning.
VOLUMES: Remedies = {
    "Multi-Attach": f"The volume is still attached to another node. {OUT_OF_SERVICE}",
    "CSI driver": _DRIVER,
    "timed out waiting": _DRIVER,
}
#: The remedy of all others.
NODE_REMEDY = "Check its node, and the network plugin there."
_DEVICES = "Check the ResourceClaim, its DeviceClass and their driver."
#: Reasons of other warnings about a pod that waits before its containers start.
START_EVENTS = {
    "FailedNodeDeclaredFeaturesCheck": "Let it run on nodes that have what it needs.",
    "FailedPrepareDynamicResources": _DEVICES,
    "FailedResourceClaimCreation": _DEVICES,
    "FailedValidation": "Correct the template.",
    "NodeNotReady": "Check its node.",
    "VolumePermissionChangeInProgress": (
        "Wait, or set fsGroupChangePolicy: OnRootMismatch in the securityContext of the template."
    ),
}
#: Reasons of warnings about a pod that does not end.
END_EVENTS = ("FailedKillPod", "ExceededGracePeriod", "FailedPreStopHook")
#: Begins of the reason of a pod that a node has ended, or has not taken.
FAILURES: Remedies = {
    "Evicted": "Free what is short there, or set requests that say what the pod needs.",
    "Preempting": "Give the pod a higher priority, or its node more room.",
    "DeadlineExceeded": "Raise activeDeadlineSeconds in the template, or remove it.",
    "Terminated": "The node shuts down: the pod starts on another one, if there is room.",
    "NodeShutdown": "The node shuts down: the pod starts on another one, if there is room.",
    "NodeAffinity": "The node's labels have changed: correct them, or the template.",
    "OutOf": "The node had no room left: add one, or set requests that say what pods need.",
    "TopologyAffinityError": "Ask for CPUs and devices that one NUMA node of the node has.",
    "AppArmor": "Load the profile on the node, or name another one in the template.",
    "PodLevelResourcesNotSupported": "Set resources for containers, not for the pod.",
}
#: Words of the API server about a pod or claim that it refuses.
REFUSALS: Remedies = {
    "exceeded quota": "Raise the ResourceQuota, or ask for less.",
    "must specify": "The ResourceQuota needs requests and limits: set them in the spec.",
    "per Container": "Stay within the namespace's LimitRange.",
    "per Pod": "Stay within the namespace's LimitRange.",
    "per PersistentVolumeClaim": "Stay within the namespace's LimitRange.",
    "no PriorityClass": "Create the PriorityClass, or correct priorityClassName.",
    "violates PodSecurity": "Set the securityContext that the message names in the template.",
    "security context constraint": (
        "Set no user in the template, or give its ServiceAccount a SecurityContextConstraint."
    ),
    "serviceaccount": "Create the ServiceAccount, or correct serviceAccountName.",
    "RuntimeClass": "Create the RuntimeClass, or correct runtimeClassName.",
    "failed calling webhook": "Start the server of the webhook, or ask its owner.",
    "admission webhook": "Ask the owner of the webhook.",
    "ValidatingAdmissionPolicy": "Ask the owner of the policy.",
    "Invalid value": "Correct the spec.",
    "Required value": "Correct the spec.",
    "being terminated": "The namespace is being deleted.",
}
_OTHER_PLACE = "Its volume is elsewhere: bring that node back, or make room where the volume is."
_CLAIM = "Create the claim, or correct its name in the template."
#: Words of the scheduler, whose messages may have several of them.
UNSCHEDULABLE: Remedies = {
    "Insufficient ": "Add a node with room, or lower the requests.",
    "Too many pods": "Add a node: these have as many pods as they may.",
    "no nodes available": "Add a node.",
    "untolerated taint": "Add a toleration to the template, or remove the taint.",
    "didn't tolerate": "Add a toleration to the template, or remove the taint.",
    "were unschedulable": "Uncordon a node, or add one.",
    "Pod's node affinity/selector": "Correct nodeSelector and affinity, or label a node.",
    "scheduler-enforced node affinity": "Ask who configures the scheduler.",
    "requested node name": "Correct nodeName in the template.",
    "anti-affinity rules": "Add a node, or prefer the anti-affinity in place of requiring it.",
    "pod affinity": "Correct podAffinity: no node with room has the pods that it names.",
    "topology spread constraints": "Add nodes where pods are few, or relax the constraints.",
    "free ports": "Add a node, or remove hostPort: other pods have the port on these nodes.",
    "max volume count": "Add a node: these can attach no further volume.",
    "PersistentVolume's node affinity": _OTHER_PLACE,
    "volume node affinity conflict": _OTHER_PLACE,
    "available volume zone": _OTHER_PLACE,
    "non-existent pv": "The claim has lost its volume: restore that, or delete the claim.",
    "persistent volumes to bind": "Create a volume, or name a storage class that does.",
    "unbound immediate": "Check the storage class of the claim, and its driver.",
    "ReadWriteOncePod": "Stop the other pod of this claim.",
    "available disk": "Stop the other pod of this disk.",
    "enough free storage": "Add a node with more storage, or ask for less.",
    "unknown conditions": "Check the nodes.",
    "persistentvolumeclaim ": _CLAIM,
    "esourceclaim": _DEVICES,
    "allocate all claims": _DEVICES,
}


def find_remedy(table: Remedies, text: str, default: str = "") -> str:
    """Return the remedy of the first row of which the words are in the text."""
    return next(_iterate_remedies(table, text), default)


def list_remedies(table: Remedies, text: str) -> str:
    """Return the remedies of all rows of which the words are in the text, as sentences."""
    return " ".join(dict.fromkeys(_iterate_remedies(table, text)))


def _iterate_remedies(table: Remedies, text: str) -> Iterator[str]:
    return (remedy for words, remedy in table.items() if words in text)
