"""How kstatus reads every state of a resource, which Flux and `kubectl wait` tools then show."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from kube.api_server import STATUSES
from kube.gitops.kstatus import results
from kube.pages.test_troubleshooting_page import OF_CRDS, of_operator
from shoal_operator.kube.conditions import Verdict, build_conditions
from shoal_operator.model.names import API_VERSION

KINDS = (
    "QueueCluster",
    "QueueRebalance",
    "QueueSchedule",
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
    "RenewingCertificates",
    "ResizeWaits",
    "Resizing",
    "ResetWaits",
    "ResetRefused",
    "ScalingDown",
    "Suspending",
    "VolumeGrows",
)
#: The resource waits for what is outside of it and may come: other resources, the brokers, room on
#: the nodes. The alarm of `blocked` reports it to a person.
AT_WORK = (
    "BrokerFails",
    "CertManagerMissing",
    "CertificatePending",
    "ConsumerFails",
    "ConsumerNotReady",
    "ExecutorsMissing",
    "ImageNotPulled",
    "InitContainerRuns",
    "IssuerNotReady",
    "IssuerNotSuitable",
    "NodeLost",
    "OutOfMemory",
    "PodFailed",
    "PodNotEnded",
    "PodNotStarted",
    "PodRefused",
    "ReadinessGateWaits",
    "Unschedulable",
    "VolumeNotBound",
    "VolumeNotMounted",
    "ClusterNotFound",
    "Hibernating",
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
    "StatefulSetNotObserved",
    "ListenerWithoutAddress",
    "NoListenerForUser",
    "ClusterNotSecured",
    "PasswordNotFound",
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
    "PayloadNotFound",
    "PreviousUnfinished",
)
#: Waiting does not help.
STALLED = (
    "CertificateAuthorityInvalid",
    "CertificateAuthorityLost",
    "CertificateAuthorityNotFound",
    "Defect",
    "DelegationTokenKeyInvalid",
    "DelegationTokenKeyLost",
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
    "ClusterHibernated",
    "Hibernated",
    "Paused",
    "ProposalReady",
    "ConfigRefused",
    "BrokerNotReady",
    "ApplicationFailed",
    "DiskFailed",
    "DiskFull",
    "JobsFailing",
    "RollWaits",
    "Scaling",
    "UserRefused",
    "WaitsForAdmission",
)
#: Reasons of `Degraded` or of a condition of its own: that of Ready is another one.
WARNINGS = (
    "ApprovalOutdated",
    "AuthorizationOff",
    "DeadLetterTopicForbidden",
    "DeadLetterTopicMissing",
    "DeadLetterTopicRefused",
    "DeadLettersFail",
    "DiskNearlyFull",
    "DeadLetterLimitReached",
    "GatewayApiMissing",
    "KeysHeld",
    "DeadLettersRemaining",
    "MetadataVersionNotLowered",
    "MetadataVersionRefused",
    "MetadataVersionUnknown",
    "MetadataVersionWaits",
    "MetricsTokenMissing",
    "MetricsUnknown",
    "MovesLeftOut",
    "NoUser",
    "NoWindow",
    "NodeWithoutRack",
    "NodesNotReadable",
    "ObjectsMissing",
    "OrderingUnsupported",
    "OtherVersion",
    "ParallelismUnreachable",
    "RenewalOff",
    "ResizeRefused",
    "RouteNotAccepted",
    "RouteNotWritten",
    "ScaleDownRefused",
    "ShareGroupShared",
    "StoreFails",
    "VolumeNotGrown",
    "VolumeNotModified",
    "WindowSet",
    "WindowUnknown",
)


def verdicts() -> list[tuple[Verdict, str]]:
    """Return the operator's verdicts on resources, and the kstatus result of each."""
    found = [(Verdict(True, reason, "text"), "Current") for reason in READY]
    found += [(Verdict(True, r, "text", progressing=True), "InProgress") for r in AT_WORK_AND_READY]
    found += [(Verdict.make_waiting(reason, "text"), "InProgress") for reason in AT_WORK]
    found += [(Verdict.make_blocked(reason, "text"), "InProgress") for reason in AT_WORK]
    found += [(Verdict.make_refused(reason, "text"), "Failed") for reason in STALLED]
    return [
        *found,
        *(
            (Verdict.make_reconciled("text").with_warning((reason, "text")), "Current")
            for reason in WARNINGS
        ),
        (
            Verdict.make_waiting("Starting", "text").with_warning((WARNINGS[0], "text")),
            "InProgress",
        ),
        # A maintenance window comes automatically, and nothing is under way until then.
        (Verdict(True, "RollWaits", "text"), "Current"),
        (Verdict(True, "RollWaits", "text", progressing=True), "InProgress"),
        # Brokers restart one after the other while the others serve.
        (Verdict(True, "Rolling", "text", progressing=True), "InProgress"),
        (Verdict(True, "Restarting", "text", progressing=True), "InProgress"),
        (Verdict.make_blocked("DiskFull", "text"), "InProgress"),
        (Verdict.make_refused("DiskFull", "text"), "Failed"),
        (Verdict.make_refused("DiskFailed", "text"), "Failed"),
        # The brokers may accept it later, or not.
        (Verdict.make_waiting("UserRefused", "text"), "InProgress"),
        (Verdict.make_refused("UserRefused", "text"), "Failed"),
        # A broker has not been ready for two minutes, or a Deployment for its deadline.
        (Verdict.make_refused("ImageNotPulled", "text"), "Failed"),
        # A paused cluster does not match its spec; a workload with zero consumers does.
        (Verdict(False, "Paused", "text", paused=True), "InProgress"),
        (Verdict(True, "Paused", "text", paused=True), "Current"),
        # A hibernated cluster serves nobody, and its resources are as they were.
        (Verdict(False, "Hibernated", "text", paused=True), "InProgress"),
        (Verdict(False, "ClusterHibernated", "text", paused=True), "InProgress"),
        # Some consumers run, or none.
        (Verdict(True, "WaitsForAdmission", "text", progressing=True), "InProgress"),
        (Verdict(False, "WaitsForAdmission", "text", progressing=True), "InProgress"),
        # A proposal waits for its approval.
        (Verdict(False, "ProposalReady", "text", paused=True), "InProgress"),
        (Verdict.make_refused("ConfigRefused", "text"), "Failed"),
        (Verdict(False, "ConfigRefused", "text", progressing=True), "InProgress"),
        (Verdict.make_blocked("BrokerNotReady", "text"), "InProgress"),
        (Verdict.make_refused("BrokerNotReady", "text"), "Failed"),
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
    rows = build_conditions(verdict, 2, "2026-01-01T00:00:00Z", before)
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
    fine = written(Verdict.make_reconciled("text"))
    assert results(
        [
            resource("QueueTopic", fine, generation=3),
            resource("QueueTopic", fine, deletionTimestamp="2026-01-01T00:00:00Z"),
        ]
    ) == ["InProgress", "Terminating"]


@pytest.mark.parametrize(
    ("verdict", "present"),
    [
        (Verdict.make_reconciled("text"), set()),
        (Verdict.make_waiting("Starting", "text"), {"Reconciling"}),
        (Verdict.make_refused("NoMajority", "text"), {"Stalled"}),
    ],
)
def test_conditions_of_kstatus_are_there_only_while_true(verdict: Verdict, present: set) -> None:
    before = written(Verdict.make_refused("ConfigRefused", "text"))["conditions"]
    before += written(Verdict.make_waiting("Starting", "text"))["conditions"]
    rows = written(verdict, before)["conditions"]
    ours = {c["type"]: c["status"] for c in rows if c["type"] in ("Reconciling", "Stalled")}
    assert ours == dict.fromkeys(present, "True")
    always = ("Ready", "Progressing", "Degraded", "Paused")
    assert [c["type"] for c in rows][:4] == list(always)


def test_no_reason_is_missing() -> None:
    """The tables above say for each reason in the operator's source which kstatus result it has."""
    tables = (READY, AT_WORK_AND_READY, AT_WORK, STALLED, SEVERAL, WARNINGS, (OF_CRDS,))
    known = [reason for table in tables for reason in table]
    assert len(known) == len(set(known))
    assert set(known) == of_operator()


def test_the_api_server_shows_ready_of_a_new_resource() -> None:
    """Each kind has a column for the condition Ready."""
    crds = Path(__file__).parents[3] / "crds"
    for file in sorted(crds.glob("*.yaml")):
        version = yaml.safe_load(file.read_text())["spec"]["versions"][0]
        paths = {c["name"]: c["jsonPath"] for c in version["additionalPrinterColumns"]}
        assert paths["Ready"] == '.status.conditions[?(@.type=="Ready")].status'
        assert paths["Reason"] == '.status.conditions[?(@.type=="Ready")].reason'
