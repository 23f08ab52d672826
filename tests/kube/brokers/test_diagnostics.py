"""Diagnostics of a cluster: each names the object and the remedy, and is reported once."""

import asyncio
import datetime
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from kube.api_server import ApiServer, CrashPoint, resource
from kube.consumers.test_spark_consumers import CONSUMER as OF_SPARK
from kube.consumers.test_spark_consumers import CONTEXT
from shoal_operator.brokers.calls import Brokers
from shoal_operator.brokers.diagnostics import (
    BROKER,
    CONSUMER,
    SCHEDULED_SECONDS_MAX,
    BrokerDisk,
    diagnose_disks,
    diagnose_expansion,
    diagnose_pods,
    diagnose_versions,
)
from shoal_operator.cluster.reconciler import QueueClusterReconciler
from shoal_operator.consumers.workloads import WorkloadManager
from shoal_operator.kube.conditions import Verdict, build_conditions
from shoal_operator.kube.statuses import list_unreported
from shoal_operator.model.consumers import consumer_pod, spark
from shoal_operator.model.names import CONSUMER_LABEL
from shoal_operator.settings import ChartSettings

MIB = 1 << 20
WORKER: Any = OF_SPARK | {
    "spec": {
        "shareGroup": "g",
        "deployment": {"template": {"spec": {"containers": [{"name": "one"}]}}},
    }
}


def pod(waiting=None, last="", **scheduled):
    state = {"waiting": waiting} if waiting else {"running": {}}
    container = {"state": state, "lastState": {"terminated": {"message": last}}}
    rows = [{"type": "PodScheduled", "status": "False", **scheduled}] if scheduled else []
    return {
        "metadata": {"name": "main-broker-0"},
        "status": {"containerStatuses": [container], "conditions": rows},
    }


@pytest.mark.parametrize(
    ("seen", "reason", "words"),
    [
        (pod({"reason": "ErrImageNeverPull", "message": "no x:1"}), "ImageNotPulled", "no x:1"),
        (pod({"reason": "CrashLoopBackOff"}, "bad num.partitions"), "BrokerFails", "bad num"),
        (
            pod({"reason": "CrashLoopBackOff"}, "No space left on device"),
            "DiskFull",
            "storage.size",
        ),
        (pod(message="0/1 nodes: Insufficient cpu."), "Unschedulable", "Insufficient cpu"),
    ],
)
def test_diagnoses_of_pods(seen, reason, words) -> None:
    found = diagnose_pods([seen], [])
    assert found is not None
    assert found.reason == reason
    assert words in found.message
    assert "main-broker-0" in found.message


def ended(reason: str = "", message: str = "", code: int = 1):
    """A pod whose container has ended and is not started again yet."""
    found = pod({"reason": "CrashLoopBackOff", "message": "back-off 20s restarting failed"})
    last = {"reason": reason, "message": message, "exitCode": code}
    found["status"]["containerStatuses"][0]["lastState"] = {"terminated": last}
    return found


def just_ended(code: int, **meta: Any):
    """A pod whose container has ended just now."""
    found = pod()
    ended = {"reason": "Error", "exitCode": code, "message": "boom"}
    found["status"]["containerStatuses"][0]["state"] = {"terminated": ended}
    return found | {"metadata": found["metadata"] | meta}


def of_init(reason: str):
    found = pod({"reason": "PodInitializing"})
    waiting = {"state": {"waiting": {"reason": reason, "message": "secret x not found"}}}
    return found | {
        "status": found["status"] | {"initContainerStatuses": [waiting | {"name": "i"}]}
    }


@pytest.mark.parametrize(
    ("seen", "reason", "words"),
    [
        (
            ended("OOMKilled", code=137),
            "OutOfMemory",
            r"needed more memory .* Raise the memory lim",
        ),
        (ended("Error", code=3), "ConsumerFails", r"CrashLoopBackOff \(exit code 3\) back-off 20s"),
        (ended("Error", "Traceback: boom"), "ConsumerFails", "Traceback: boom"),
        (ended("Completed", code=0), "ConsumerFails", r"\(exit code 0\)"),
        (just_ended(1), "ConsumerFails", r"Error \(exit code 1\) boom"),
        (of_init("CreateContainerConfigError"), "ConsumerFails", "container i: .* secret x not fo"),
        (pod({"reason": "CreateContainerError", "message": "no command"}), "ConsumerFails", "no c"),
        (pod({"reason": "RunContainerError", "message": "exec: x"}), "ConsumerFails", "exec: x"),
        (pod({"reason": "InvalidImageName", "message": "x::"}), "ImageNotPulled", "x::"),
        (pod({"reason": "RegistryUnavailable"}), "ImageNotPulled", "RegistryUnavailable"),
    ],
)
def test_what_ends_a_container_is_named(seen, reason, words) -> None:
    found = diagnose_pods([seen], (), role=CONSUMER)
    assert found is not None
    assert found.reason == reason
    assert re.search(words, found.message), found.message


def before(seconds: float) -> str:
    """Return a time in the past, as Kubernetes writes it."""
    now = datetime.datetime.now(datetime.UTC)
    return (now - datetime.timedelta(seconds=seconds)).isoformat()


def in_init(*, restarts: str = "", seconds: float = 60):
    """A pod whose init container `first` has run for some seconds."""
    found = pod()
    found["status"]["containerStatuses"] = []
    first = {"name": "first", "state": {"running": {"startedAt": before(seconds)}}}
    found["status"]["initContainerStatuses"] = [first]
    restart = {"restartPolicy": restarts} if restarts else {}
    return found | {"spec": {"initContainers": [{"name": "first", **restart}]}}


def make_unscheduled(seconds: float, *, node: str = "", **spec: Any):
    """A pod of which no scheduler has said anything since it was created, perhaps because it waits
    for a volume on this node."""
    meta = {"name": "main-broker-0", "creationTimestamp": before(seconds)}
    chosen = {"nominatedNodeName": node} if node else {}
    return {"metadata": meta, "spec": spec, "status": {"phase": "Pending", **chosen}}


def test_a_pod_that_waits_for_the_volume_of_its_node_has_a_scheduler() -> None:
    """The scheduler binds volumes for up to ten minutes before it writes anything to the pod; only
    Kubernetes 1.35 and later has the node in the pod's status."""
    volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": "data-0"}}]
    unseen = partial(make_unscheduled, 60, schedulerName="default-scheduler", volumes=volumes)
    annotations = {
        "volume.kubernetes.io/selected-node": "far",
        "volume.kubernetes.io/storage-provisioner": "ebs.csi.aws.com",
    }
    claim: Any = {
        "metadata": {"name": "data-0", "annotations": annotations},
        "spec": {"storageClassName": "gp3"},
        "status": {"phase": "Pending"},
    }
    waits = "main-broker-0 waits for its volume claim data-0 on the node far: "
    assert diagnose_pods([unseen()], [claim]) == (
        "VolumeNotBound",
        f"{waits}the driver ebs.csi.aws.com has not made it yet. Check the driver's pods.",
    )
    failed = event("ProvisioningFailed", "access denied", "PersistentVolumeClaim", "data-0")
    assert diagnose_pods([unseen()], [claim], [failed]) == (
        "VolumeNotBound",
        f"{waits}access denied. Check the storage class gp3 and its driver.",
    )
    # The claims of a consumer's pods are not known.
    found = diagnose_pods([unseen(node="far")], (), role=CONSUMER)
    assert found is not None
    assert found.reason == "VolumeNotBound"
    assert "volume claims data-0 on the node far" in found.message
    # Another pod's claim says nothing of this one.
    other = claim | {"metadata": claim["metadata"] | {"name": "data-1"}}
    found = diagnose_pods([unseen()], [other])
    assert found is not None
    assert found.reason == "Unschedulable"


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (
            in_init,
            "InitContainerRuns: main-broker-0 waits for its init container first, which",
        ),
        (partial(in_init, seconds=1), None),
        (partial(in_init, restarts="Always"), None),
        (
            partial(make_unscheduled, 60, schedulerName="mine"),
            "Unschedulable: main-broker-0: .* scheduler mine,",
        ),
        (partial(make_unscheduled, 60, schedulerName="mine", nodeName="here"), None),
        (partial(make_unscheduled, 1, schedulerName="mine"), None),
    ],
)
def test_pods_that_nobody_starts(make: Callable[[], Any], words: str | None) -> None:
    """`kubectl describe` has no warning of them."""
    found = diagnose_pods([make()], ())
    if words is None:
        assert found is None
    else:
        assert found is not None
        assert re.match(words, ": ".join(found))


def test_a_container_that_ends_as_it_should_is_no_trouble() -> None:
    assert diagnose_pods([just_ended(0)], ()) is None
    assert diagnose_pods([just_ended(143, deletionTimestamp=before(1))], ()) is None


def test_a_probe_that_fails_is_named_for_consumers() -> None:
    """Brokers are asked themselves, and a consumer may need some seconds to start."""
    probe = event("Unhealthy", "Readiness probe failed: no file\n", "Pod", "main-broker-0")

    def unready(seconds: float):
        state = {"type": "ContainersReady", "status": "False"}
        found = pod()
        found["status"]["conditions"] = [state | {"lastTransitionTime": before(seconds)}]
        return [found]

    found = diagnose_pods(unready(60), (), [probe], role=CONSUMER)
    assert found is not None
    assert found.reason == "ConsumerNotReady"
    assert found.message.startswith("main-broker-0: Readiness probe failed: no file. Correct")
    assert diagnose_pods(unready(60), (), [], role=CONSUMER) is None
    assert diagnose_pods(unready(60), (), [probe]) is None
    assert diagnose_pods(unready(1), (), [probe], role=CONSUMER) is None


def event(reason: str, message: str, kind: str = "StatefulSet", name: str = "main-broker"):
    about = {"kind": kind, "name": name}
    stamp = "2026-01-01T00:00:00Z"
    return {"involvedObject": about, "reason": reason, "message": message, "lastTimestamp": stamp}


@pytest.mark.parametrize(
    ("message", "remedy"),
    [
        ('pods "a" is forbidden: exceeded quota: q, used: pods=1', "Raise the ResourceQuota"),
        ("is forbidden: failed quota: q: must specify limits.cpu", "set them in the spec"),
        ("is forbidden: maximum memory usage per Container is 1Gi", "LimitRange"),
        ("minimum storage usage per PersistentVolumeClaim is 1Gi", "LimitRange"),
        ("no PriorityClass with name high was found", "Create the PriorityClass"),
        ('violates PodSecurity "restricted:latest": runAsNonRoot', "securityContext"),
        ('error looking up service account n/x: serviceaccount "x" not found', "Create the Serv"),
        ('admission webhook "w" denied the request: no', "owner of the webhook"),
    ],
)
def test_pods_that_the_api_server_refuses(message: str, remedy: str) -> None:
    found = diagnose_pods([], (), [event("FailedCreate", message)])
    assert found is not None
    assert found.reason == "PodRefused"
    assert found.message.startswith(f"StatefulSet main-broker: {message}. ")
    assert remedy in found.message


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("FailedMount", "VolumeNotMounted"),
        ("FailedAttachVolume", "VolumeNotMounted"),
        ("FailedCreatePodSandBox", "PodNotStarted"),
        ("NetworkNotReady", "PodNotStarted"),
        ("FailedPrepareDynamicResources", "PodNotStarted"),
        # A condition or a container says these.
        ("FailedScheduling", None),
        ("Failed", None),
        ("BackOff", None),
        ("Unhealthy", None),
    ],
)
def test_pods_that_wait_before_their_containers(reason: str, expected: str | None) -> None:
    waits = pod({"reason": "ContainerCreating"})
    about = event(reason, 'configmap "x" not found', "Pod", "main-broker-0")
    found = diagnose_pods([waits], (), [about])
    assert (found and found.reason) == expected
    assert found is None or 'main-broker-0: configmap "x" not found. ' in found.message
    runs = pod()
    runs["status"]["phase"] = "Running"
    assert diagnose_pods([runs], (), [about]) is None


def test_a_warning_of_a_young_pod_may_pass() -> None:
    """A cluster that begins has no false alarms."""
    about = event("NetworkNotReady", "cni plugin not initialized", "Pod", "main-broker-0")
    waits = pod({"reason": "ContainerCreating"})
    waits["metadata"]["creationTimestamp"] = before(1)
    assert diagnose_pods([waits], (), [about]) is None
    waits["metadata"]["creationTimestamp"] = before(60)
    assert diagnose_pods([waits], (), [about]) is not None


def on_node(*, meta: Any = None, containers: str = "True", **ready: Any):
    """A pod that has started on the node `far`, with these conditions."""
    found = pod()
    stamp = {"lastTransitionTime": before(60)}
    found["status"]["conditions"] = [
        {"type": "Ready", "status": "False"} | stamp | ready,
        {"type": "ContainersReady", "status": containers} | stamp,
    ]
    return found | {"metadata": found["metadata"] | (meta or {}), "spec": {"nodeName": "far"}}


def failed(reason: str, message: str):
    """A pod that its node has ended or has not taken; the kubelet may have ended its container."""
    found = just_ended(137)
    found["status"] |= {"phase": "Failed", "reason": reason, "message": message}
    return found | {"spec": {"nodeName": "far"}}


GATE = {"reason": "ReadinessGatesNotReady", "message": 'readiness gate "lb/a" does not exist'}


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (on_node, "NodeLost: main-broker-0: its node far does not answer. .*out-of-service"),
        # The kubelet says so: its containers are not ready either.
        (partial(on_node, containers="False"), None),
        (partial(on_node, status="True"), None),
        (partial(on_node, **GATE), 'ReadinessGateWaits: .*readiness gate "lb/a" does not exist'),
        (
            lambda: on_node(meta={"deletionTimestamp": before(60)}),
            "NodeLost: main-broker-0 is deleted, and its node far has not ended it",
        ),
        (lambda: on_node(meta={"deletionTimestamp": before(1)}), None),
        (
            lambda: on_node(meta={"deletionTimestamp": before(60), "finalizers": ["mesh/x"]}),
            "PodNotEnded: .*finalizers keep it: mesh/x",
        ),
        (
            lambda: failed("Evicted", "The node was low on resource: ephemeral-storage."),
            "PodFailed: main-broker-0, on the node far: Evicted: The node was low .* Free what",
        ),
        (
            lambda: failed("UnexpectedAdmissionError", "no gpu"),
            "PodFailed: .*: UnexpectedAdmissionError: no gpu. Check the node far",
        ),
    ],
)
def test_what_a_node_does_to_a_pod(make: Callable[[], Any], words: str | None) -> None:
    found = diagnose_pods([make()], ())
    if words is None:
        assert found is None
    else:
        assert found is not None
        assert re.match(words, ": ".join(found)), found


def test_a_probe_that_ends_a_container_is_named() -> None:
    """The kubelet ends it with the code 137, as other causes do."""
    probe = event("Unhealthy", "Liveness probe failed: connection refused", "Pod", "main-broker-0")
    other = event("Unhealthy", "Readiness probe failed: no", "Pod", "main-broker-0")
    for role in (BROKER, CONSUMER):
        found = diagnose_pods([ended("Error", code=137)], (), [other, probe], role=role)
        assert found is not None
        assert "exit code 137" in found.message
        assert "Liveness probe failed: connection refused. Correct the probe" in found.message
    quiet = diagnose_pods([ended("Error", code=137)], (), [other])
    assert quiet is not None
    assert "probe" not in quiet.message


def test_a_pod_that_its_node_has_just_refused_is_why_there_is_no_other() -> None:
    kube = ApiServer(CrashPoint())
    kube.add({"apiVersion": "v1", "kind": "Pod"} | failed("OutOfpods", "no room"))
    meta = kube.find("Pod", "main-broker-0")["metadata"]
    meta |= {"namespace": "n", "labels": consumer_pod.build_selector("c")}

    def look(age: float) -> str:
        meta["creationTimestamp"] = before(age)
        workloads = WorkloadManager(kube, kube.store(), ChartSettings("b:1", "s:1", "r", "http"))
        return asyncio.run(workloads.apply(WORKER, CONTEXT, 1, 0)).verdict.reason

    assert look(5) == "PodFailed"
    assert look(3600) == "Scaling"


def test_a_consumer_says_why_its_pods_are_not_ready() -> None:
    """From its Deployment, its pods or the events about them."""
    kube = ApiServer(CrashPoint())

    def look(**status: Any) -> Verdict:
        found = kube.objects.get(("Deployment", "c"), {})
        found["status"] = {"replicas": 1, **status}
        workloads = WorkloadManager(kube, kube.store(), ChartSettings("b:1", "s:1", "r", "http"))
        return asyncio.run(workloads.apply(WORKER, CONTEXT, 2, 0)).verdict

    assert look().reason == "Scaling"
    text = 'pods "c-1" is forbidden: violates PodSecurity "restricted:latest"'
    failure = {"type": "ReplicaFailure", "status": "True", "message": text}
    said = look(conditions=[failure])
    assert (said.ready, said.reason, said.alarm) == (False, "PodRefused", True)
    assert "0 of 2 consumers are ready. Deployment c: " in said.message
    late = {"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded"}
    gone = look(conditions=[failure, late])
    assert (gone.is_stalled, gone.reason, gone.message) == (True, said.reason, said.message)
    waits = pod({"reason": "ContainerCreating"})
    waits["metadata"] |= {"namespace": "n", "labels": consumer_pod.build_selector("c")}
    waits["status"]["phase"] = "Pending"
    kube.add({"apiVersion": "v1", "kind": "Pod", **waits})
    assert look().reason == "Scaling"
    about = event("FailedMount", 'secret "x" not found', "Pod", "main-broker-0")
    meta = {"name": "e", "namespace": "n"}
    made = {"apiVersion": "v1", "kind": "Event", "metadata": meta, "type": "Warning"}
    kube.add(made | about)
    assert look(readyReplicas=1).reason == "VolumeNotMounted"
    assert look(readyReplicas=2).ready


def test_jobs_and_drivers_say_why_their_pods_are_not_there() -> None:
    kube = ApiServer(CrashPoint())
    kube.installed["sparkoperator.k8s.io/v1beta2"] = ["SparkApplication"]

    def look(consumer: Any, replicas: int = 1) -> Verdict:
        workloads = WorkloadManager(kube, kube.store(), ChartSettings("b:1", "s:1", "r", "http"))
        return asyncio.run(workloads.apply(consumer, CONTEXT, replicas, 0)).verdict

    pods = {"template": {"spec": {"containers": [{"name": "one"}]}}}
    worker = WORKER | {"spec": {"shareGroup": "g", "job": pods}}
    assert look(worker).reason == "Scaling"
    (job,) = (one["metadata"]["name"] for one in kube.all("Job"))
    made = {"apiVersion": "v1", "kind": "Event", "type": "Warning"}
    about = event("FailedCreate", "exceeded quota: q", "Job", job)
    kube.add(made | {"metadata": {"name": "e", "namespace": "n"}} | about)
    said = look(worker)
    assert (said.ready, said.reason) == (False, "PodRefused")
    assert f"0 of 1 Jobs are ready. Job {job}: exceeded quota: q. Raise the Res" in said.message
    # The driver of a SparkApplication.
    look(OF_SPARK)
    state = {"applicationState": {"state": "SUBMITTED"}}
    kube.find("SparkApplication", "c")["status"] = state
    assert look(OF_SPARK).reason == "ApplicationStarting"
    driver = pod(message="0/1 nodes are available: Insufficient cpu.")
    labels = {CONSUMER_LABEL: "c", "spark-role": "driver"}
    driver["metadata"] |= {"name": "c-driver", "namespace": "n", "labels": labels}
    driver["status"]["phase"] = "Pending"
    kube.add({"apiVersion": "v1", "kind": "Pod", **driver})
    said = look(OF_SPARK)
    assert said.reason == "Unschedulable"
    assert "The SparkApplication is SUBMITTED. c-driver: 0/1 nodes" in said.message
    # Its executors: it is ready as soon as one of them works.
    kube.find("SparkApplication", "c")["status"]["applicationState"]["state"] = "RUNNING"
    kube.find("Pod", "c-driver")["status"] = {"phase": "Running"}
    executor = pod(message="0/1 nodes are available: Insufficient memory.")
    labels = {**spark.build_executor_selector("c"), CONSUMER_LABEL: "c"}
    meta = executor["metadata"]
    meta |= {"name": "c-exec-1", "namespace": "n", "labels": labels}
    executor["status"]["phase"] = "Pending"
    kube.add({"apiVersion": "v1", "kind": "Pod", **executor})
    said = look(OF_SPARK)
    assert (said.ready, said.reason) == (False, "Unschedulable")
    assert "0 of 1 executors run. c-exec-1: 0/1 nodes" in said.message
    second = executor | {"status": {"phase": "Running"}}
    kube.add({"apiVersion": "v1", "kind": "Pod", **second, "metadata": meta | {"name": "c-exec-2"}})
    said = look(OF_SPARK, 2)
    assert (said.ready, said.reason) == (True, "Unschedulable")


@pytest.mark.parametrize(
    ("about", "reason"),
    [
        (
            event("FailedMount", 'configmap "x" not found', "Pod", "main-broker-0"),
            "VolumeNotMounted",
        ),
        (event("FailedCreate", "exceeded quota: q"), "PodRefused"),
        (
            event("ProvisioningFailed", "no room", "PersistentVolumeClaim", "data-main-broker-0"),
            "VolumeNotBound",
        ),
        (event("FailedMount", "of another pod", "Pod", "other-0"), "Starting"),
    ],
)
def test_a_cluster_says_why_a_broker_is_not_there(about: dict[str, Any], reason: str) -> None:
    """Also in a namespace with more warnings about others than the API server lists at once."""
    kube = ApiServer(CrashPoint())
    for number in range(600):
        noise = event("BackOff", "of another team", "Pod", "other-0")
        meta = {"name": f"a-{number}", "namespace": "n"}
        made = {"apiVersion": "v1", "kind": "Event", "metadata": meta, "type": "Warning"}
        kube.objects["Event", meta["name"]] = made | noise
    kube.unready.add("main-broker-0")
    spec = {"replicas": 1, "storage": {"size": "1Gi"}, "metrics": {"port": 9404}}
    kube.add(resource("QueueCluster", "main", listeners=[{"name": "p", "port": 9092}], **spec))
    made = {"apiVersion": "v1", "kind": "Event", "type": "Warning"}
    kube.add(made | {"metadata": {"name": "e", "namespace": "n"}} | about)

    async def reconcile() -> None:
        brokers = Brokers("nowhere:1")
        place = (kube, kube.store(), brokers, "n", "main")
        try:
            await QueueClusterReconciler(*place, "i:1", on_reachable=lambda: None).reconcile(
                ["main"]
            )
        finally:
            await brokers.close()

    asyncio.run(reconcile())
    if reason == "PodRefused":
        del kube.objects["Pod", "main-broker-0"]
    elif reason == "VolumeNotBound":
        claim = {"metadata": {"name": "data-main-broker-0", "namespace": "n"}}
        requests = {"resources": {"requests": {"storage": "1Gi"}}}
        pending = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "status": {}}
        kube.add(pending | claim | {"spec": requests})
        kube.find("PersistentVolumeClaim", "data-main-broker-0")["status"]["phase"] = "Pending"
        unbound = {"type": "PodScheduled", "status": "False", "message": "persistentvolumeclaim"}
        kube.find("Pod", "main-broker-0")["status"]["conditions"].append(unbound)
    asyncio.run(reconcile())
    conditions = kube.find("QueueCluster", "main")["status"]["conditions"]
    (ready,) = [one for one in conditions if one["type"] == "Ready"]
    assert (ready["status"], ready["reason"]) == ("False", reason)
    if reason == "VolumeNotBound":
        assert "no room. Check the storage class" in ready["message"]


def test_a_pod_that_is_not_scheduled_at_once_is_no_trouble() -> None:
    """A volume is being made, or the pod before it has not freed its place yet."""
    unbound = "pod has unbound immediate PersistentVolumeClaims."
    now = datetime.datetime.now(datetime.UTC)
    since = now - datetime.timedelta(seconds=SCHEDULED_SECONDS_MAX)
    young, old = (stamp.isoformat() for stamp in (now, since))
    assert diagnose_pods([pod(message=unbound, lastTransitionTime=young)], []) is None
    found = diagnose_pods([pod(message=unbound, lastTransitionTime=old)], [])
    assert found is not None
    assert found.reason == "Unschedulable"


def test_a_pod_that_starts_or_runs_is_no_trouble() -> None:
    assert diagnose_pods([pod(), pod({"reason": "ContainerCreating"})], []) is None


def test_a_claim_that_is_not_bound_names_its_class() -> None:
    claim: Any = {
        "metadata": {"name": "data-main-broker-0"},
        "spec": {"storageClassName": "fast"},
        "status": {"phase": "Pending"},
    }
    unbound = "0/1 nodes are available: pod has unbound immediate PersistentVolumeClaims."
    found = diagnose_pods([pod(message=unbound)], [claim])
    assert found is not None
    assert found.reason == "VolumeNotBound"
    assert "data-main-broker-0" in found.message
    assert "storage class fast" in found.message
    said = 'driver "fast": quota of the storage exceeded.'
    about = event("ProvisioningFailed", said, "PersistentVolumeClaim", "data-main-broker-0")
    found = diagnose_pods([pod(message=unbound)], [claim], [about])
    assert found is not None
    assert 'is pending: driver "fast": quota of the storage exceeded. Check the ' in found.message
    full = diagnose_pods([pod(message="0/1 nodes are available: 1 Insufficient cpu.")], [claim])
    assert full is not None
    assert full.reason == "Unschedulable"


def claim(capacity: str, wanted: str, **status):
    return {
        "metadata": {"name": "data-main-broker-0"},
        "spec": {"resources": {"requests": {"storage": wanted}}},
        "status": {"phase": "Bound", "capacity": {"storage": capacity}, **status},
    }


def test_a_volume_that_grows_or_cannot() -> None:
    waits = {"type": "FileSystemResizePending", "message": "Waiting for user to (re-)start a pod"}
    infeasible = {"storage": "ControllerResizeInfeasible"}
    assert diagnose_expansion([claim("1Gi", "1024Mi"), claim("2Gi", "1Gi")]) == (None, None)
    stuck, growing = diagnose_expansion(
        [claim("1Gi", "1Gi"), claim("1Gi", "2Gi", conditions=[waits])]
    )
    assert stuck is None
    assert growing is not None
    assert growing.reason == "VolumeGrows"
    assert "data-main-broker-0 has 1Gi of 2Gi so far" in growing.message
    assert "(re-)start a pod" in growing.message
    stuck, growing = diagnose_expansion([claim("1Gi", "2Gi", allocatedResourceStatuses=infeasible)])
    assert growing is None
    assert stuck is not None
    assert stuck.reason == "VolumeNotGrown"
    unbound = claim("1Gi", "2Gi")
    del unbound["status"]["capacity"]
    assert diagnose_expansion([unbound]) == (None, None)


@pytest.mark.parametrize(
    ("disk", "reasons"),
    [
        (BrokerDisk(0, 1000 * MIB, 500 * MIB), (None, None)),
        (BrokerDisk(0, 1000 * MIB, 90 * MIB), (None, "DiskNearlyFull")),
        (BrokerDisk(0, 1000 * MIB, 5 * MIB), ("DiskFull", None)),
        (BrokerDisk(0, 32 * MIB, 31 * MIB), (None, None)),
        (BrokerDisk(0, 32 * MIB, 1 * MIB), ("DiskFull", None)),
        (BrokerDisk(0, 1000 * MIB, 500 * MIB, failed=True), ("DiskFailed", None)),
        (BrokerDisk(0, 1000 * MIB, 0, failed=True), ("DiskFull", None)),
        (BrokerDisk(0), (None, None)),
    ],
)
def test_disks(disk, reasons) -> None:
    roomy = BrokerDisk(1, 1000 * MIB, 900 * MIB)
    assert tuple(t and t.reason for t in diagnose_disks([roomy, disk])) == reasons


def test_versions() -> None:
    assert diagnose_versions({0: "1.0"}, "", "1.0") is None
    assert diagnose_versions({}, "2.0", "1.0") is None
    assert diagnose_versions({0: "2.0"}, "2.0", "1.0") is None
    newer = diagnose_versions({0: "1.0", 1: "2.0"}, "", "1.0")
    assert newer is not None
    assert "Broker 1 is version 2.0, and this operator is 1.0" in newer.message
    wanted = diagnose_versions({0: "2.0"}, "3.0", "1.0")
    assert wanted is not None
    assert "spec.version is 3.0" in wanted.message


def test_an_alarm_is_news_once() -> None:
    full = Verdict.make_refused("DiskFull", "x")
    assert list_unreported(full, []) == [("DiskFull", "x")]
    assert list_unreported(full, build_conditions(full, 1, "t", None)) == []
    soon = Verdict.make_reconciled("y").with_warning(("DiskNearlyFull", "z"))
    assert list_unreported(soon, build_conditions(full, 1, "t", None)) == [("DiskNearlyFull", "z")]
    assert list_unreported(soon, build_conditions(soon, 1, "t", None)) == []
    assert list_unreported(Verdict.make_waiting("Starting", "w"), []) == []
