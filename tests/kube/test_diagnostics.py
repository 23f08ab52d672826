"""Diagnostics of a cluster: each names the object and the remedy, and is reported once."""

import pytest
from shoal_operator.conditions import Verdict, conditions
from shoal_operator.diagnostics import (
    Disk,
    diagnose_disks,
    diagnose_expansion,
    diagnose_pods,
    diagnose_versions,
)
from shoal_operator.statuses import unreported

MIB = 1 << 20


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


def test_a_pod_that_starts_or_runs_is_no_trouble() -> None:
    assert diagnose_pods([pod(), pod({"reason": "ContainerCreating"})], []) is None


def test_a_claim_that_is_not_bound_names_its_class() -> None:
    claim = {
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
        (Disk(0, 1000 * MIB, 500 * MIB), (None, None)),
        (Disk(0, 1000 * MIB, 90 * MIB), (None, "DiskNearlyFull")),
        (Disk(0, 1000 * MIB, 5 * MIB), ("DiskFull", None)),
        (Disk(0, 32 * MIB, 31 * MIB), (None, None)),
        (Disk(0, 32 * MIB, 1 * MIB), ("DiskFull", None)),
        (Disk(0, 1000 * MIB, 500 * MIB, failed=True), ("DiskFailed", None)),
        (Disk(0, 1000 * MIB, 0, failed=True), ("DiskFull", None)),
        (Disk(0), (None, None)),
    ],
)
def test_disks(disk, reasons) -> None:
    roomy = Disk(1, 1000 * MIB, 900 * MIB)
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
    full = Verdict.refused("DiskFull", "x")
    assert unreported(full, []) == [("DiskFull", "x")]
    assert unreported(full, conditions(full, 1, "t", None)) == []
    soon = Verdict.fine("y").warned(("DiskNearlyFull", "z"))
    assert unreported(soon, conditions(full, 1, "t", None)) == [("DiskNearlyFull", "z")]
    assert unreported(soon, conditions(soon, 1, "t", None)) == []
    assert unreported(Verdict.waiting("Starting", "w"), []) == []
