"""How kstatus reads every state of a resource, which Flux and `kubectl wait` tools then show."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest
import shoal_operator
import yaml
from kube.api_server import STATUSES
from kube.kstatus import results
from shoal_operator.conditions import Verdict, conditions
from shoal_operator.model.names import API_VERSION

KINDS = (
    "QueueCluster",
    "QueueRebalance",
    "QueueTopic",
    "QueueUser",
    "Redrive",
    "ShareConsumer",
    "ShareGroup",
)
#: Reasons of the condition Ready, by kstatus result. `test_no_reason_is_missing` compares.
READY = ("Reconciled", "NotManaged", "ScaledToZero")
AT_WORK_AND_READY = (
    "Reassigning",
    "CatchingUp",
    "RollWaits",
    "ResetWaits",
    "ResetRefused",
    "Suspending",
)
AT_WORK = (
    "ClusterNotFound",
    "BrokersUnreachable",
    "Creating",
    "DeletionWaits",
    "Starting",
    "Restarting",
    "TopicNotFound",
    "PositionsRefused",
    "ShareGroupNotFound",
    "SparkOperatorSilent",
    "Rolling",
    "ApplicationStarting",
    "ApplyFailed",
    "StatefulSetNotTakenUp",
    "ListenerWithoutAddress",
    "NoListenerForUser",
    "ClusterNotSecured",
    "PasswordNotFound",
    "UserRefused",
    "UserNotFound",
    "UserNotReady",
    "Redriving",
    "RedriveFailed",
    "Rebalancing",
    "RebalanceFailed",
    "Queued",
    "BrokersMissing",
    "ListenerCertificateInvalid",
    "CredentialsNotFound",
    "LoginFailed",
    "UserSecretNotFound",
    "ScaleTargetNotFound",
    "ShareGroupNotReady",
    "Restoring",
    "RestoreWaits",
)
STALLED = (
    "Defect",
    "RequestRefused",
    "ObjectNotOwned",
    "RestoreRefused",
    "NoMajority",
    "NodePoolNotAllowed",
    "StorageNotAllowed",
    "NodePoolRemoved",
    "ConfigNotAllowed",
    "ConfigTwice",
    "TemplateNotAllowed",
    "WorkloadDisabled",
    "RacksDisabled",
    "ListenerTypeDisabled",
    "SecurityNotSupported",
    "ListenerNotAllowed",
    "UserClaimed",
    "UserOfOtherCluster",
    "UserRequired",
    "UserWithoutCredentials",
    "SecretNotOwned",
    "NotAuthorized",
    "PartitionsNeverShrink",
    "ReplicasNotPlaceable",
    "ReplicasBelowMinIsr",
    "BrokersNotOfCluster",
    "VolumeTooSmall",
    "TopicClaimed",
    "TopicNotAllowed",
    "GroupClaimed",
    "OtherGroupType",
    "ResetNeedsTopics",
    "SparkOperatorMissing",
    "CredentialsInvalid",
    "ShareGroupsDisabled",
    "LagNotReported",
    "FieldNotSupported",
    "NotForExternalCluster",
    "ScaleTargetClaimed",
    "ScaleTargetNotAllowed",
    "ScheduleNotValid",
)
#: Reasons with several states, listed individually below.
SEVERAL = (
    "Paused",
    "ProposalReady",
    "ConfigRefused",
    "BrokerNotReady",
    "ApplicationFailed",
    "JobsFailing",
    "Scaling",
)


def verdicts() -> list[tuple[Verdict, str]]:
    """Return the operator's verdicts on resources, and the kstatus result of each."""
    warning = ("VolumeNearlyFull", "text")
    found = [(Verdict(True, reason, "text"), "Current") for reason in READY]
    found += [(Verdict(True, r, "text", progressing=True), "InProgress") for r in AT_WORK_AND_READY]
    found += [(Verdict.waiting(reason, "text"), "InProgress") for reason in AT_WORK]
    found += [(Verdict.blocked(reason, "text"), "InProgress") for reason in AT_WORK]
    found += [(Verdict.refused(reason, "text"), "Failed") for reason in STALLED]
    return [
        *found,
        (Verdict.fine("text").warned(warning), "Current"),
        (Verdict.waiting("Starting", "text").warned(warning), "InProgress"),
        # A paused cluster does not match its spec; a workload with zero consumers does.
        (Verdict(False, "Paused", "text", paused=True), "InProgress"),
        (Verdict(True, "Paused", "text", paused=True), "Current"),
        # A proposal waits for its approval.
        (Verdict(False, "ProposalReady", "text", paused=True), "InProgress"),
        (Verdict.refused("ConfigRefused", "text"), "Failed"),
        (Verdict(False, "ConfigRefused", "text", progressing=True), "InProgress"),
        (Verdict.blocked("BrokerNotReady", "text"), "InProgress"),
        (Verdict.refused("BrokerNotReady", "text"), "Failed"),
        (Verdict(True, "Scaling", "text", progressing=True), "InProgress"),
        (Verdict(False, "Scaling", "text", progressing=True), "InProgress"),
        # The next Job starts later.
        (Verdict(False, "JobsFailing", "t", progressing=True, degraded=True), "InProgress"),
        # Kubeflow restarts it.
        (Verdict(False, "ApplicationFailed", "t", progressing=True, degraded=True), "InProgress"),
    ]


def resource(kind: str, status: dict[str, Any], generation: int = 2, **meta: Any) -> dict[str, Any]:
    about = {"name": "a", "namespace": "n", "generation": generation, **meta}
    return {"apiVersion": API_VERSION, "kind": kind, "metadata": about, "status": status}


def written(verdict: Verdict, before: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    rows = conditions(verdict, 2, "2026-01-01T00:00:00Z", before)
    return {"observedGeneration": 2, "conditions": rows}


def test_kstatus_reads_every_state_of_every_kind() -> None:
    cases = [
        (resource(kind, written(verdict)), f"{kind} {verdict}", expected)
        for kind in KINDS
        for verdict, expected in verdicts()
    ]
    read = results(case[0] for case in cases)
    assert [(case[1], r) for case, r in zip(cases, read, strict=True)] == [c[1:] for c in cases]


def test_a_new_resource_is_in_progress() -> None:
    """As the API server creates it, with the schema's default."""
    assert sorted(STATUSES) == sorted(KINDS)
    for status in STATUSES.values():
        (ready,) = status["conditions"]
        assert (status["observedGeneration"], ready["type"], ready["status"]) == (
            -1,
            "Ready",
            "Unknown",
        )
    new = [resource(kind, status, generation=1) for kind, status in STATUSES.items()]
    assert results(new) == ["InProgress"] * len(KINDS)


def test_a_changed_or_deleted_resource_is_not_current() -> None:
    fine = written(Verdict.fine("text"))
    assert results(
        [
            resource("QueueTopic", fine, generation=3),
            resource("QueueTopic", fine, deletionTimestamp="2026-01-01T00:00:00Z"),
        ]
    ) == ["InProgress", "Terminating"]


@pytest.mark.parametrize(
    ("verdict", "present"),
    [
        (Verdict.fine("text"), set()),
        (Verdict.waiting("Starting", "text"), {"Reconciling"}),
        (Verdict.refused("NoMajority", "text"), {"Stalled"}),
    ],
)
def test_conditions_of_kstatus_are_there_only_while_true(verdict: Verdict, present: set) -> None:
    before = written(Verdict.refused("ConfigRefused", "text"))["conditions"]
    before += written(Verdict.waiting("Starting", "text"))["conditions"]
    rows = written(verdict, before)["conditions"]
    ours = {c["type"]: c["status"] for c in rows if c["type"] in ("Reconciling", "Stalled")}
    assert ours == dict.fromkeys(present, "True")
    always = ("Ready", "Progressing", "Degraded", "Paused")
    assert [c["type"] for c in rows][:4] == list(always)


def test_no_reason_is_missing() -> None:
    """The tables above contain each reason that the operator's source gives a verdict."""
    found = set()
    for file in Path(shoal_operator.__file__).parent.rglob("*.py"):
        for call in ast.walk(ast.parse(file.read_text())):
            if isinstance(call, ast.Call) and ast.unparse(call.func).startswith("Verdict"):
                words = [a.value for a in call.args if isinstance(a, ast.Constant)]
                found |= {w for w in words if isinstance(w, str) and w.isalnum() and w[0].isupper()}
    known = {*READY, *AT_WORK_AND_READY, *AT_WORK, *STALLED, *SEVERAL}
    assert found - known == set()
    assert known - found <= {"Reconciled"}


def test_the_api_server_shows_ready_of_a_new_resource() -> None:
    """Each kind has a column for the condition Ready."""
    crds = Path(__file__).parents[2] / "crds"
    for file in sorted(crds.glob("*.yaml")):
        version = yaml.safe_load(file.read_text())["spec"]["versions"][0]
        paths = {c["name"]: c["jsonPath"] for c in version["additionalPrinterColumns"]}
        assert paths["Ready"] == '.status.conditions[?(@.type=="Ready")].status'
        assert paths["Reason"] == '.status.conditions[?(@.type=="Ready")].reason'
