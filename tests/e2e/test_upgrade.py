"""The last release is upgraded to this tree under load: definitions, operator and brokers.

Images and chart of the release are built from its commit. A fork may lack the tag, and a shallow
clone lacks both; `git fetch --unshallow` gets them.
"""

from __future__ import annotations

import io
import re
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from e2e.cluster import images
from e2e.cluster.layout import REPOSITORY
from e2e.conftest import new_namespace
from e2e.producing import consuming, producing
from e2e.release import CHART, NAME, NAMESPACE, Release
from e2e.resources import Resources, client_pod, queue_cluster, queue_topic, share_group
from support.runs.conditions import eventually
from support.runs.machine import lacking

if TYPE_CHECKING:
    from collections.abc import Iterator

    from e2e.cluster.backend import Cluster
    from e2e.resources import Manifest

RELEASE, EARLIER, NOW = "0.1.0", "v1alpha1", "v1beta1"
PLAIN = {"name": "plain", "port": 9092, "type": "Internal"}
DEFINITIONS = [
    f"{plural}.shoal.dev"
    for plural in (
        "queueclusters",
        "queuetopics",
        "queueusers",
        "sharegroups",
        "shareconsumers",
        "redrives",
    )
]


def git(*arguments: str) -> bytes:
    done = subprocess.run(["git", "-C", REPOSITORY, *arguments], capture_output=True, check=True)
    return done.stdout


@pytest.fixture(scope="module")
def earlier_tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of the last release."""
    tree = tmp_path_factory.mktemp("earlier")
    subject = f"^release: {re.escape(RELEASE)}$"
    commit = git("log", "-1", "--format=%H", f"--grep={subject}").decode().strip()
    if not commit:
        lacking(f"the history of this clone has no commit of release {RELEASE}")
    with tarfile.open(fileobj=io.BytesIO(git("archive", commit))) as archive:
        archive.extractall(tree, filter="data")
    return tree


@pytest.fixture
def earlier(cluster: Cluster, earlier_tree: Path) -> Iterator[Resources]:
    """A namespace of a cluster with the chart and the definitions of the last release. Afterwards
    the chart of this tree is installed, as other tests expect."""
    build = [sys.executable, str(earlier_tree / "tests/e2e/cluster/cli.py"), "build"]
    built = subprocess.run(
        [*build, "broker", "operator"], capture_output=True, text=True, check=True
    )
    for line in built.stdout.splitlines():
        cluster.load(Path(line.split()[1]))
    cluster.load(images.archive("broker"))
    if cluster.kubectl("get", "crd", DEFINITIONS[0], check=False).returncode == 0:
        # While their operator runs: it removes the finalizers.
        kinds = ",".join(DEFINITIONS)
        cluster.kubectl("delete", kinds, "--all", "--all-namespaces", "--timeout=120s")
    remove = ("uninstall", NAME, f"--namespace={NAMESPACE}", "--wait", "--ignore-not-found")
    cluster.helm(*remove)
    cluster.kubectl("delete", "crd", "--ignore-not-found", "--timeout=60s", *DEFINITIONS)
    where = (f"--namespace={NAMESPACE}", "--create-namespace", "--wait", "--timeout=90s")
    cluster.helm("install", NAME, earlier_tree / CHART.relative_to(REPOSITORY), *where)
    yield Resources(cluster, new_namespace(cluster, "upgrade"))
    cluster.kubectl("delete", "namespace", "upgrade", "--timeout=180s")


def in_earlier_version(*manifests: Manifest) -> list[Manifest]:
    return [one | {"apiVersion": f"shoal.dev/{EARLIER}"} for one in manifests]


def stored_versions(queue: Resources) -> set[str]:
    return {
        version
        for name in DEFINITIONS
        for version in queue.get(f"crd/{name}")["status"]["storedVersions"]
    }


def broker_images(queue: Resources) -> set[str]:
    pods = queue.find_all("pods", "app.kubernetes.io/component=broker")
    return {one["spec"]["containers"][0]["image"] for one in pods}


@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_the_last_release_is_upgraded_under_load(earlier: Resources) -> None:
    queue = earlier
    cluster = queue_cluster(replicas=3, listeners=[PLAIN])
    queue.apply(*in_earlier_version(cluster, queue_topic(partitions=6), share_group()))
    queue.wait("queuecluster/main", "queuetopic/jobs", "sharegroup/workers", timeout_s=180)
    assert stored_versions(queue) == {EARLIER}
    queue.start_pods(client_pod("client"))
    uid = queue.get("queuetopic/jobs")["metadata"]["uid"]
    with consuming(queue, "workers", members=2) as deliveries, producing(queue) as counts:
        force = ("--server-side", "--force-conflicts")
        queue.cluster.kubectl("apply", *force, f"--filename={REPOSITORY / 'crds'}")
        queue.cluster.load(images.archive("operator"))
        Release(queue.cluster).install()
        eventually(lambda: broker_images(queue) == {images.tag("broker")}, timeout_s=400)
        queue.wait("queuecluster/main", "queuetopic/jobs", "sharegroup/workers", timeout_s=180)
        eventually(lambda: stored_versions(queue) == {NOW}, timeout_s=60)
    sent, failed = counts
    assert (failed, sent > 50) == (0, True), counts
    assert {value for value, _ in deliveries} == set(range(sent))
    assert queue.get("queuetopic/jobs")["metadata"]["uid"] == uid
    # Manifests of before can be applied again.
    queue.apply(*in_earlier_version(queue_topic(partitions=8)))
    queue.wait("queuetopic/jobs")
    assert len(queue.get("queuetopic/jobs")["status"]) > 0
