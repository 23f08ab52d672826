"""Each cause that Kubernetes knows for a pod that does not run has a place: its words are read from
the sources of Kubernetes, so a release with new ones fails here."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
from e2e.cluster.layout import ClusterError
from e2e.cluster.programs import module_directory
from kube.brokers.test_diagnostics import before, event, on_node, pod
from shoal_operator.brokers import pod_causes
from shoal_operator.brokers.diagnostics import diagnose_pods, diagnose_refusal
from support.runs.machine import lacking

if TYPE_CHECKING:
    from pathlib import Path

#: What the kubelet reports about a node, or when all is well, or about a change of running pods,
#: which `status.conditions` of a QueueCluster has from the pods themselves (`cluster/resizes.py`).
NO_CAUSE = set(
    """
    CgroupV1 Created Started Killing Preempting Pulling Pulled
    NodeReady NodeSchedulable NodeNotSchedulable
    Starting KubeletSetupFailed Rebooted Shutdown ContainerGCFailed ImageGCFailed SandboxChanged
    FailedNodeAllocatableEnforcement NodeAllocatableEnforced InvalidDiskCapacity FreeDiskSpaceFailed
    VolumeResizeSuccessful FileSystemResizeSuccessful SuccessfulAttachVolume SuccessfulMountVolume
    ResizeDeferred ResizeInfeasible ResizeCompleted ResizeStarted ResizeError
    """.split()
)
#: Warnings for which the remedy is about the node and its network.
OF_NODE = {
    "FailedCreatePodContainer",
    "FailedCreatePodSandBox",
    "FailedPodSandBoxStatus",
    "FailedSync",
    "NetworkNotReady",
}


@pytest.fixture(scope="module")
def sources() -> Path:
    """The sources of the Kubernetes that the tests run."""
    try:
        return module_directory("kubernetes", "k8s.io/kubernetes") / "pkg"
    except ClusterError as error:
        lacking(f"the sources of Kubernetes cannot be had: {error}")


def find_all(pattern: str, *files: Path) -> set[str]:
    found = {match for file in files for match in re.findall(pattern, file.read_text(), re.M)}
    assert len(found) > 3, "the sources have another form"
    return found


def waits(**status: Any) -> Any:
    """A pod whose containers have not started for a minute."""
    meta = {"name": "main-broker-0", "creationTimestamp": before(60)}
    return {"metadata": meta, "spec": {}, "status": {"phase": "Pending", **status}}


def test_each_event_of_the_kubelet_has_a_place(sources: Path) -> None:
    reasons = find_all(r'^\s+[A-Z]\w+ += "(\w+)"', sources / "kubelet" / "events" / "event.go")
    places = (
        NO_CAUSE,
        pod_causes.STATUS_REASONS,
        pod_causes.VOLUME_EVENTS.keys(),
        pod_causes.START_EVENTS.keys(),
        OF_NODE,
        set(pod_causes.END_EVENTS),
    )
    for reason in sorted(reasons):
        assert sum(reason in place for place in places) == 1, reason
        about = event(reason, "it says so", "Pod", "main-broker-0")
        found = diagnose_pods([waits()], (), [about])
        if reason in pod_causes.STATUS_REASONS or reason in NO_CAUSE:
            continue
        if reason in pod_causes.END_EVENTS:
            found = diagnose_pods([on_node(meta={"deletionTimestamp": before(60)})], (), [about])
        assert found is not None, reason
        assert re.search(r": it says so\. [A-Z].+\.$", found.message), found.message


def test_each_word_of_the_scheduler_has_a_remedy(sources: Path) -> None:
    plugins = (sources / "scheduler" / "framework" / "plugins").rglob("*.go")
    files = [file for file in plugins if not file.name.endswith("_test.go")]
    texts = find_all(r'[eE]rrReason\w* += "([^"]+)"', *files)
    texts |= find_all(r'Reason: +"(Insufficient [^"]+|Too many pods)"', *files)
    for text in sorted(texts - {"pod affinity terms conflict"}):
        assert pod_causes.list_remedies(pod_causes.UNSCHEDULABLE, text), text


def test_each_reason_of_a_container_without_an_image_has_a_place(sources: Path) -> None:
    types = find_all(r'errors\.New\("(\w+)"\)', sources / "kubelet" / "images" / "types.go")
    assert types <= set(pod_causes.IMAGE_REASONS)


@pytest.mark.parametrize(
    ("message", "remedies"),
    [
        (
            "0/3 nodes are available: 1 Insufficient cpu, 2 node(s) had untolerated taint {a: b}. "
            "preemption: 0/3 nodes are available: 1 No preemption victims found for incoming pod.",
            "Add a node with room, or lower the requests. Add a toleration to the template, or "
            "remove the taint.",
        ),
        (
            "0/1 nodes are available: 1 Insufficient cpu, 1 Insufficient memory.",
            "Add a node with room, or lower the requests.",
        ),
        ('persistentvolumeclaim "x" not found', "Create the claim, or correct its name in the te"),
        ("0/1 nodes are available: 1 cannot allocate all claims.", "Check the ResourceClaim, its"),
        ("0/2 nodes are available: 2 node(s) didn't match pod anti-affinity rules.", "Add a node,"),
        ("no nodes available to schedule pods", "Add a node."),
        ("something new", ""),
    ],
)
def test_what_to_do_about_a_pod_without_a_node(message: str, remedies: str) -> None:
    found = diagnose_pods([pod(message=message)], ())
    assert found is not None
    assert found.reason == "Unschedulable"
    expected = f"main-broker-0: {message.rstrip('.')}. {remedies}".rstrip()
    assert found.message.startswith(expected), found.message
    if remedies.endswith("."):
        assert found.message == expected, "and nothing else"


def test_a_scheduling_gate_is_named() -> None:
    held = pod(reason="SchedulingGated", message="Scheduling is blocked due to non-empty gates")
    held["spec"] = {"schedulingGates": [{"name": "example.com/quota"}]}
    found = diagnose_pods([held], ())
    assert found is not None
    assert found.message.endswith("example.com/quota. Check the controllers that remove them.")


@pytest.mark.parametrize(
    ("reason", "message", "words"),
    [
        ("FailedMount", 'configmap "x" not found', "Create what the message names"),
        ("FailedAttachVolume", "Multi-Attach error for volume", "still attached .*out-of-service"),
        (
            "FailedMount",
            "driver name x not found in the list of registered CSI drivers",
            "Check th",
        ),
        ("FailedMount", "timed out waiting for the condition", "Check the driver of this storage"),
    ],
)
def test_what_to_do_about_a_volume(reason: str, message: str, words: str) -> None:
    found = diagnose_pods([waits()], (), [event(reason, message, "Pod", "main-broker-0")])
    assert found is not None
    assert found.reason == "VolumeNotMounted"
    assert re.search(words, found.message), found.message


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("DeadlineExceeded", "activeDeadlineSeconds"),
        ("Terminated", "The node shuts down"),
        ("NodeAffinity", "labels have changed"),
        ("OutOfcpu", "had no room left"),
        ("SomethingNew", "Check the node far"),
    ],
)
def test_what_to_do_about_a_pod_that_a_node_ends(reason: str, words: str) -> None:
    ended = waits(phase="Failed", reason=reason, message="it says so") | {
        "spec": {"nodeName": "far"}
    }
    found = diagnose_pods([ended], ())
    assert found is not None
    assert found.reason == "PodFailed"
    assert words in found.message


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ("unable to validate against any security context constraint: []", "Set no user"),
        ('pod rejected: RuntimeClass "x" not found', "Create the RuntimeClass"),
        ('failed calling webhook "x": connection refused', "Start the server of the webhook"),
        ('admission webhook "x" denied the request: no', "Ask the owner of the webhook"),
        ("ValidatingAdmissionPolicy 'x' with binding 'y' denied request", "owner of the policy"),
        ('Pod "x" is invalid: spec.containers[0].image: Required value', "Correct the spec"),
        ("unable to create new content in namespace n because it is being terminated", "is being"),
    ],
)
def test_what_to_do_about_a_pod_that_is_refused(message: str, words: str) -> None:
    assert words in diagnose_refusal("StatefulSet", "main-broker", message).message
