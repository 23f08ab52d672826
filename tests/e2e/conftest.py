"""The Kubernetes cluster that end-to-end tests share, and their common fixtures.

The cluster is started once for a run and removed after it. It stays if it was up before the run, or
with SHOAL_E2E_KEEP=1.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from e2e.cluster import images
from e2e.cluster.backend import Cluster, choose
from e2e.cluster.layout import REPOSITORY, layout_from_environment
from e2e.release import Release
from e2e.resources import Resources, queue_cluster
from support.runs import leaks

if TYPE_CHECKING:
    from collections.abc import Iterator

#: The first test waits for the cluster, which compiles Kubernetes on a bare machine.
TIMEOUT_S = 1200


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here):
            item.add_marker(pytest.mark.e2e)
            if not item.get_closest_marker("timeout"):
                item.add_marker(pytest.mark.timeout(TIMEOUT_S))


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """A cluster with a Ready node, and nothing of the project in it."""
    cluster = choose(layout_from_environment())
    keep = cluster.is_up() or bool(os.environ.get("SHOAL_E2E_KEEP"))
    with leaks.unmarked():
        cluster.up()
    yield cluster
    if not keep:
        cluster.down()


@pytest.fixture(scope="session")
def release(cluster: Cluster) -> Iterator[Release]:
    """The chart, installed once for the run; a test that changes it restores it."""
    for image in ("broker", "operator"):
        cluster.load(images.archive(image))
    release = Release(cluster)
    # helm does not change definitions that an earlier run has left.
    if cluster.kubectl("get", "crd", "queueclusters.shoal.dev", check=False).returncode == 0:
        force = ("--server-side", "--force-conflicts")
        cluster.kubectl("apply", *force, f"--filename={REPOSITORY / 'crds'}")
    release.install()
    yield release
    release.uninstall()


def name_of(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower())[:50].strip("-")


def new_namespace(cluster: Cluster, name: str) -> str:
    cluster.kubectl("delete", "namespace", name, "--ignore-not-found", "--timeout=120s")
    cluster.kubectl("create", "namespace", name)
    return name


@pytest.fixture
def namespace(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[str]:
    """An empty namespace named after the test, deleted after it."""
    name = new_namespace(cluster, name_of(request.node.name))
    yield name
    cluster.kubectl("delete", "namespace", name, "--wait=false")


@pytest.fixture
def resources(
    cluster: Cluster,
    release: Release,  # noqa: ARG001 - the operator runs.
    namespace: str,
) -> Resources:
    """The test's own namespace, with the operator watching it."""
    return Resources(cluster, namespace)


@pytest.fixture(scope="module")
def queue(
    cluster: Cluster,
    release: Release,  # noqa: ARG001 - the operator runs.
    request: pytest.FixtureRequest,
) -> Iterator[Resources]:
    """A namespace that the tests of a file share: the QueueCluster `main` and a client's pod."""
    name = new_namespace(cluster, name_of(request.path.stem))
    resources = Resources(cluster, name)
    resources.apply(queue_cluster(config=getattr(request.module, "BROKER_CONFIG", {})))
    resources.start_client()
    resources.wait("queuecluster/main")
    yield resources
    cluster.kubectl("delete", "namespace", name, "--wait=false")
