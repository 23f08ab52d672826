"""`helm install`, the demo, and a queue that a client and three consumers share."""

from __future__ import annotations

import os
import subprocess
from collections import Counter
from typing import TYPE_CHECKING

import pytest
import yaml
from e2e.cluster.layout import REPOSITORY
from e2e.release import CHART, KUBE, Release
from e2e.resources import (
    Resources,
    client_pod,
    queue_cluster,
    queue_topic,
    share_consumer,
    share_group,
)
from kube.gitops.kstatus import results
from support.runs.conditions import ceiling, eventually, stopwatch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from e2e.cluster.backend import Cluster

READY_SECONDS_MAX = 30
RECORDS = 3000
#: The first records, produced before any consumer starts.
EARLY = 100


@pytest.fixture
def demo(cluster: Cluster, release: Release) -> Iterator[Resources]:
    """The chart's own demo, in the namespace of the release."""
    release.install(demo__enabled=True)
    demo = Resources(cluster, release.namespace)
    demo.kubectl("delete", "pods", "--selector=tier=client", "--now")
    yield demo
    demo.kubectl("delete", "pods", "--selector=tier=client", "--now")
    release.install()
    demo.kubectl("wait", "--for=delete", "pod/demo-broker-0", "--timeout=60s")
    demo.kubectl("delete", "pvc", "data-demo-broker-0")


def produce_in_the_broker(demo: Resources, numbers: range) -> None:
    lines = "".join(f"{number}\n" for number in numbers)
    produce = ("exec", "--stdin", "demo-broker-0", "--", "shoal", "produce", "jobs")
    demo.kubectl(*produce, stdin_text=lines)


def consume_in_a_pod(demo: Resources, name: str) -> None:
    pod = client_pod(name, "worker")
    pod["metadata"]["labels"] = {"tier": "client"}
    pod["spec"]["restartPolicy"] = "Never"
    (container,) = pod["spec"]["containers"]
    shown = ["--timeout=45s", "--format={partition} {value}"]
    words = ["share-consume", "jobs", "--group=workers", "--max-records=50", *shown]
    container["command"] = ["shoal", *words]
    demo.apply(pod)


def test_three_consumers_share_two_partitions(demo: Resources) -> None:
    demo.wait("queuecluster/demo", "queuetopic/jobs", "sharegroup/workers", "queueuser/worker")
    produce_in_the_broker(demo, range(EARLY))
    demo.wait_status("sharegroup/workers", lag=EARLY)
    pods = [f"consumer-{number}" for number in range(3)]
    for pod in pods:
        consume_in_a_pod(demo, pod)
    # One that starts first would take all records before the next pod has started.
    demo.wait_status("sharegroup/workers", members=3)
    produce_in_the_broker(demo, range(EARLY, RECORDS))
    demo.wait_status("sharegroup/workers", lag=0, inFlight=0, members=0, timeout_s=120)
    counts: dict[str, Counter[str]] = {}
    values: list[str] = []
    for pod in pods:
        demo.kubectl("wait", "--for=jsonpath={.status.phase}=Succeeded", f"pod/{pod}")
        rows = [line.split() for line in demo.kubectl("logs", pod).stdout.splitlines()]
        counts[pod] = Counter(partition for partition, _ in rows)
        values += [value for _, value in rows]
    assert sorted(map(int, values)) == list(range(RECORDS))
    assert all(counts.values()), counts
    # Three members on two partitions: some partition has two readers.
    assert sum(len(partitions) for partitions in counts.values()) > 2, counts


def test_helm_test_passes(release: Release) -> None:
    """With two replicas, of which the Service has the one that does not act, too."""
    release.install(replicas=2)
    try:
        release.cluster.helm("test", "shoal", f"--namespace={release.namespace}", "--timeout=60s")
    finally:
        release.install()


def test_a_cluster_is_ready_soon_and_restricted(resources: Resources) -> None:
    enforce = "pod-security.kubernetes.io/enforce=restricted"
    resources.cluster.kubectl("label", "namespace", resources.namespace, enforce)
    with stopwatch() as passed_s:
        resources.apply(queue_cluster(), queue_topic(), share_group())
        resources.wait("queuecluster/main", "queuetopic/jobs", "sharegroup/workers")
        took = passed_s()
    assert took < ceiling(READY_SECONDS_MAX), f"{took:.0f} s to Ready"
    status = resources.status("queuecluster/main")
    assert status["brokersReady"] == "1/1"
    assert status["bootstrapServers"] == f"main-bootstrap.{resources.namespace}.svc:9092"
    assert [b["pod"] for b in status["brokers"]] == ["main-broker-0"]


def test_nothing_is_written_where_nothing_changes(resources: Resources) -> None:
    whats = (
        "queuecluster/main",
        "queuetopic/jobs",
        "sharegroup/workers",
        "statefulset/main-broker",
    )
    resources.apply(queue_cluster(), queue_topic(), share_group())
    resources.wait(*whats[:3])

    def versions() -> list[str]:
        return [resources.get(what)["metadata"]["resourceVersion"] for what in whats]

    seen = [versions()]

    def settled() -> bool:
        """Return whether ten checks, each a second or more apart, found the same."""
        now = versions()
        if now != seen[-1]:
            seen[:] = [now]
        else:
            seen.append(now)
        return len(seen) > 10

    eventually(settled, timeout_s=60)


def test_rights_may_end_at_a_namespace(resources: Resources, release: Release) -> None:
    release.install(watchNamespaces=[resources.namespace])
    try:
        resources.apply(queue_cluster(), queue_topic(), share_group())
        resources.wait("queuecluster/main", "queuetopic/jobs", "sharegroup/workers")
        account = f"--as=system:serviceaccount:{release.namespace}:shoal-operator"
        for namespace, allowed in ((resources.namespace, "yes"), ("default", "no")):
            ask = ("auth", "can-i", "delete", "pods", account, f"--namespace={namespace}")
            assert release.cluster.kubectl(*ask, check=False).stdout.strip() == allowed
    finally:
        release.install()


def test_a_resource_that_no_operator_sees_is_in_progress(
    resources: Resources, release: Release
) -> None:
    release.install(watchNamespaces=[release.namespace])
    try:
        made = (queue_cluster(), queue_topic(), share_group(), share_consumer())
        resources.apply(*made)
        names = [f"{m['kind']}/{m['metadata']['name']}" for m in made]
        unseen = [resources.get(name) for name in names]
        assert results(unseen) == ["InProgress"] * len(made)
        for found in unseen:
            (ready,) = found["status"]["conditions"]
            assert (found["status"]["observedGeneration"], ready["status"]) == (-1, "Unknown")
        shown = resources.kubectl("get", "shoal", "--no-headers").stdout.splitlines()
        assert sum("Unknown" in line for line in shown) == len(made), shown
        resources.kubectl("delete", names[3])
    finally:
        release.install()
    resources.wait(*names[:3])
    assert results(map(resources.get, names[:3])) == ["Current"] * 3
    resources.patch("queuetopic/jobs", {"spec": {"config": {"retention.ms": "soon"}}})
    eventually(lambda: results([resources.get("queuetopic/jobs")]) == ["Failed"], timeout_s=20)
    assert resources.condition("queuetopic/jobs", "Stalled")["status"] == "True"
    resources.patch("queuetopic/jobs", {"spec": {"config": {"retention.ms": "60000"}}})
    resources.wait("queuetopic/jobs")
    assert results([resources.get("queuetopic/jobs")]) == ["Current"]


def test_images_are_pulled_with_the_policy_of_the_chart(release: Release) -> None:
    values = "brokerImage.pullPolicy=Always,imagePullSecrets[0].name=mine"
    text = release.cluster.helm("template", "shoal", CHART, KUBE, f"--set={values}").stdout
    made = {m["kind"]: m for m in yaml.safe_load_all(text) if m}
    (tried,) = made["Pod"]["spec"]["containers"]
    assert tried["imagePullPolicy"] == "Always"
    assert made["Pod"]["spec"]["imagePullSecrets"] == [{"name": "mine"}]
    operator = made["Deployment"]["spec"]["template"]["spec"]["containers"][0]
    assert {"name": "SHOAL_BROKER_PULL_POLICY", "value": "Always"} in operator["env"]


def run_the_notes(release: Release, namespace: str) -> None:
    """Run the commands of `helm install`'s notes as they are printed, in a namespace."""
    notes = release.cluster.helm("get", "notes", "shoal", f"--namespace={release.namespace}").stdout
    script = notes[notes.index("kubectl -n") : notes.index("`helm uninstall`")]
    done = subprocess.run(
        ("bash", "-euo", "pipefail", "-c", script.replace(release.namespace, namespace)),
        env={**os.environ, **release.cluster.environment()},
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert done.returncode == 0, done.stderr
    assert "jobs-" in done.stdout
    assert "delivery 1" in done.stdout


def test_the_notes_of_the_chart_lead_to_a_queue_that_works(
    resources: Resources, release: Release
) -> None:
    run_the_notes(release, resources.namespace)


def test_the_notes_of_the_charts_demo_work(demo: Resources, release: Release) -> None:
    run_the_notes(release, demo.namespace)


def test_examples_and_chart_pass_the_api_server(resources: Resources) -> None:
    dry = ("--dry-run=server", f"--filename={REPOSITORY / 'examples'}")
    resources.kubectl("apply", *dry)


@pytest.mark.parametrize("name", ["staging", "production"])
def test_the_repository_for_gitops_passes_the_api_server(resources: Resources, name: str) -> None:
    folder = REPOSITORY / "examples/gitops/environments" / name
    text = resources.cluster.kubectl("kustomize", folder).stdout
    namespace, *found = [one for one in yaml.safe_load_all(text) if one]
    assert namespace["kind"] == "Namespace"
    where = {one["metadata"].pop("namespace") for one in found}
    assert where == {namespace["metadata"]["name"]} == {f"orders-{name}"}
    dry = ("apply", "--dry-run=server", "--filename=-")
    resources.kubectl(*dry, stdin_text=yaml.safe_dump_all(found))


def test_explain_reads_like_documentation(release: Release) -> None:
    text = release.cluster.kubectl("explain", "sharegroup.spec.lockDuration").stdout
    assert "How long a member may hold the lock of a record" in " ".join(text.split())
