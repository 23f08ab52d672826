"""`examples/gitops` in the hands of Flux: an environment that begins, changes, breaks and heals.

The tests share one environment, and each leaves it as it found it. The controllers take minutes to
compile, so the tests run at night. Argo CD itself does not run here: its manifests are checked
against its definitions (`tests/kube/gitops/test_gitops_example.py`), and its scripts run in its
engine.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from e2e.flux import APPLIED_S, Flux, Platform
from e2e.resources import Resources
from support.runs.conditions import ceiling, eventually, stopwatch
from support.runs.release_builds import VERSION

if TYPE_CHECKING:
    from collections.abc import Iterator

    from e2e.cluster.backend import Cluster
    from e2e.release import Release

pytestmark = pytest.mark.nightly
#: How soon a refused spec must fail a Kustomization, whose timeout is 5 minutes.
REFUSED_S_MAX = 30
RETENTION = '  partitions: 2\n  config: {retention.ms: "3600000"}\n'
#: The first line of a definition's annotations, and an annotation of a later version.
ANNOTATED, UPGRADED = "\n  annotations:\n", "example.com/upgraded"
ENVIRONMENT = "orders-staging"
OPERATOR = "deployment/shoal-operator"
#: The version of a later chart.
NEXT = "99.0.0"


@pytest.fixture(scope="module")
def flux(cluster: Cluster, release: Release) -> Iterator[Flux]:
    """Flux, and no operator of ours: its chart comes from the repository."""
    release.uninstall()
    flux = Flux(cluster)
    try:
        flux.install()
        yield flux
    finally:
        flux.uninstall()
        release.install()


@pytest.fixture(scope="module")
def platform(flux: Flux, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    """The repository, which Flux applies to the cluster, until the queue is ready."""
    platform = Platform(flux, tmp_path_factory.mktemp("git") / "platform")
    flux.cluster.kubectl("apply", "--kustomize", platform.folder / "flux/staging")
    try:
        flux.wait_applied("shoal-operator", platform.revision)
        flux.wait_applied("queue", platform.revision)
        yield platform
    finally:
        queue = Resources(flux.cluster, ENVIRONMENT)
        # Pruning spares these. The operator removes the topic's finalizer while it still runs.
        flux.resources.kubectl("delete", "kustomization/queue", "--timeout=120s")
        queue.kubectl("delete", "queuetopics", "--all", "--timeout=60s")
        gone = ("namespace", ENVIRONMENT, "--ignore-not-found", "--timeout=120s")
        flux.cluster.kubectl("delete", *gone)
        flux.resources.kubectl("delete", "kustomization/shoal-operator", "--timeout=120s")
        eventually(lambda: flux.resources.find("helmrelease/shoal") is None, timeout_s=APPLIED_S)
        flux.cluster.kubectl("delete", "namespace", "shoal", "--ignore-not-found")


@pytest.fixture
def queue(platform: Platform) -> Resources:
    """The namespace of the environment."""
    return Resources(platform.flux.cluster, ENVIRONMENT)


def shoal(queue: Resources, *argv: str, stdin_text: str | None = None) -> str:
    """Return what a `shoal` command in the broker's container prints; it needs no user."""
    attached = ("--stdin",) if stdin_text is not None else ()
    command = ("exec", *attached, "main-broker-0", "--", "shoal", *argv)
    return queue.kubectl(*command, stdin_text=stdin_text).stdout


def topic_config(queue: Resources, name: str) -> str:
    rows = json.loads(shoal(queue, "configs", "describe", "topic", "orders", "--format=json"))
    (value,) = [row["value"] for row in rows if row["config"] == name]
    return value


def test_the_kustomization_is_ready_when_the_queue_serves(queue: Resources) -> None:
    """Nothing is waited for: `wait: true` has waited."""
    shoal(queue, "produce", "orders", "--quiet", stdin_text="1\n2\n3\n")
    assert queue.status("queuecluster/main")["brokersReady"] == "1/1"
    assert queue.condition("sharegroup/invoices")["status"] == "True"
    assert queue.find("secret/shop") is not None
    # Consumers start with the lag, and log in as a user of the repository.
    eventually(lambda: queue.status("shareconsumer/invoices").get("readyReplicas"), timeout_s=90)
    queue.wait_status("sharegroup/invoices", lag=0, inFlight=0, timeout_s=120)


def test_a_change_of_a_setting_arrives(queue: Resources, platform: Platform) -> None:
    platform.edit("queue/topics.yaml", "  partitions: 2\n", RETENTION)
    platform.flux.wait_applied("queue", platform.commit("orders: keep records for an hour"))
    assert topic_config(queue, "retention.ms") == "3600000"
    platform.flux.wait_applied("queue", platform.revert())
    assert topic_config(queue, "retention.ms") != "3600000"


def test_consumers_are_scaled(queue: Resources, platform: Platform) -> None:
    platform.edit("queue/consumers.yaml", "minReplicas: 0", "minReplicas: 2")
    platform.flux.wait_applied("queue", platform.commit("invoices: two consumers at least"))
    deployment = queue.get("deployment/invoices")
    assert deployment["spec"]["replicas"] == 2
    assert queue.status("shareconsumer/invoices")["readyReplicas"] == 2
    platform.flux.wait_applied("queue", platform.revert())


def test_a_refused_spec_fails_at_once_and_is_mended(queue: Resources, platform: Platform) -> None:
    platform.edit("queue/topics.yaml", "  partitions: 2\n", RETENTION.replace("3600000", "soon"))
    broken = platform.commit("orders: keep records, soon")
    with stopwatch() as passed_s:
        message = platform.flux.wait_failed("queue", broken)
        took = passed_s()
    assert took < ceiling(REFUSED_S_MAX), f"{took:.0f} s until the Kustomization failed"
    assert "QueueTopic/orders-staging/orders" in message
    assert "Failed" in message
    # The rest of the environment continues.
    assert queue.condition("queuecluster/main")["status"] == "True"
    platform.flux.wait_applied("queue", platform.revert())
    queue.wait("queuetopic/orders")


def test_drift_is_restored(queue: Resources, platform: Platform) -> None:
    """Flux takes back all that kubectl has set, and leaves the fields of other managers."""
    queue.patch("sharegroup/invoices", {"spec": {"deliveryLimit": 9, "pauseDelivery": True}})
    assert after_flux(queue, platform) == (5, False)
    patch = ("patch", "sharegroup/invoices", "--type=merge", "--field-manager=on-call")
    queue.kubectl(*patch, '--patch={"spec": {"pauseDelivery": true}}')
    assert after_flux(queue, platform) == (5, True)
    queue.kubectl(*patch, '--patch={"spec": {"pauseDelivery": false}}')
    queue.wait("sharegroup/invoices")


def after_flux(queue: Resources, platform: Platform) -> tuple[int, bool]:
    """Return two settings of the group after Flux has compared it with git."""
    queue.wait("sharegroup/invoices")
    platform.flux.reconcile("kustomization/queue")
    platform.flux.wait_applied("queue", platform.revision)
    spec = queue.get("sharegroup/invoices")["spec"]
    return spec["deliveryLimit"], spec["pauseDelivery"]


def test_pruning_spares_what_has_data(queue: Resources, platform: Platform) -> None:
    before = {what: queue.uid(what) for what in ("queuecluster/main", "queuetopic/imports")}
    shoal(queue, "produce", "imports", "--quiet", stdin_text="kept\n")
    platform.edit(
        "queue/kustomization.yaml",
        "[cluster.yaml, topics.yaml, share-groups.yaml, users.yaml, consumers.yaml]",
        "[share-groups.yaml]",
    )
    platform.flux.wait_applied("queue", platform.commit("queue: lose most files"))
    gone = ("shareconsumer/invoices", "queueuser/shop", "queueuser/invoices", "queuetopic/orders")
    for what in (*gone, "secret/shop"):
        eventually(lambda what=what: queue.find(what) is None, timeout_s=60, what=f"no {what}")
    assert {what: queue.uid(what) for what in before} == before
    assert "orders" in shoal(queue, "topics", "list")
    read = shoal(queue, "consume", "imports", "--from-beginning", "-n", "1", "--format={value}")
    assert read.strip() == "kept"
    platform.flux.wait_applied("queue", platform.revert())
    queue.wait("queuetopic/orders", "queueuser/shop")


def test_a_new_chart_upgrades_definitions_and_operator(platform: Platform) -> None:
    flux = platform.flux
    platform.edit("charts/shoal/Chart.yaml", f"\nversion: {VERSION}\n", f"\nversion: {NEXT}\n")
    crd = "charts/shoal/crds/queuetopics.shoal.dev.yaml"
    platform.edit(crd, ANNOTATED, f'{ANNOTATED}    {UPGRADED}: "yes"\n')
    platform.edit("flux/operator/release.yaml", "localhost}", "localhost}\n    replicas: 2")
    flux.wait_applied("shoal-operator", platform.commit("operator: upgrade"))
    eventually(lambda: deployed(flux) == (NEXT, 2, True), timeout_s=APPLIED_S)
    flux.wait_applied("shoal-operator", platform.revert())
    eventually(lambda: deployed(flux) == (VERSION, 1, False), timeout_s=APPLIED_S)


def deployed(flux: Flux) -> tuple[str, int, bool]:
    """Return the version of the chart, the ready operators, and whether the definition is new."""
    (latest, *_) = flux.resources.status("helmrelease/shoal")["history"]
    crd = flux.resources.get("crd/queuetopics.shoal.dev")["metadata"]
    ready = Resources(flux.cluster, "shoal").status(OPERATOR).get("readyReplicas", 0)
    version = latest["chartVersion"] if latest["status"] == "deployed" else ""
    return version, ready, UPGRADED in crd["annotations"]


def test_a_bad_release_is_rolled_back(queue: Resources, platform: Platform) -> None:
    """The operator's image does not exist, as with a wrong tag in git."""
    flux = platform.flux
    platform.edit("flux/operator/release.yaml", "  timeout: 5m", "  timeout: 10s")
    platform.edit(
        "flux/operator/release.yaml", "{registry: localhost}", "{registry: localhost, tag: none}"
    )
    platform.commit("operator: a tag that does not exist")

    def rolled_back() -> bool:
        condition = flux.resources.condition("helmrelease/shoal", "Remediated")
        assert condition["reason"] == "RollbackSucceeded", condition
        return True

    eventually(rolled_back, timeout_s=APPLIED_S)
    assert queue.condition("queuecluster/main")["status"] == "True"
    flux.wait_applied("shoal-operator", platform.revert())
    (container,) = Resources(flux.cluster, "shoal").get(OPERATOR)["spec"]["template"]["spec"][
        "containers"
    ]
    assert not container["image"].endswith(":none")


def test_a_change_of_the_operator_by_hand_is_restored(platform: Platform) -> None:
    operator = Resources(platform.flux.cluster, "shoal")
    operator.kubectl("scale", OPERATOR, "--replicas=0")
    platform.flux.reconcile("helmrelease/shoal")
    eventually(lambda: operator.get(OPERATOR)["spec"]["replicas"] > 0, timeout_s=APPLIED_S)
