"""A release, installed from its archives alone: charts, and images of broker and operator."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from e2e.cluster.images import tag
from e2e.cluster.layout import REPOSITORY
from e2e.release import NAME, NAMESPACE
from e2e.resources import Resources
from shoal_operator.model import names
from support.runs.conditions import eventually
from support.runs.release_builds import VERSION, build

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from e2e.cluster.backend import Cluster
    from e2e.release import Release

REGISTRY = "registry.example.com/team"


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The artifacts of the last commit."""
    folder = tmp_path_factory.mktemp("release")
    build(folder / "clone", folder / "out", "charts", "broker", "operator")
    return folder / "out"


@pytest.fixture
def installed(cluster: Cluster, release: Release, archives: Path) -> Iterator[None]:
    """The operator from the archives, with images of a registry that does not exist."""
    for name in ("broker", "operator"):
        cluster.load(archives / "images" / f"shoal-{name}-{VERSION}.oci.tar")
        cluster.name_image(tag(name), f"{REGISTRY}/shoal/{name}:{VERSION}")
    release.uninstall()
    where = (f"--namespace={NAMESPACE}", "--wait", "--timeout=90s")
    charts = archives / "charts"
    definitions = charts / f"shoal-crds-{VERSION}.tgz"
    # The definitions are there already.
    cluster.helm("install", "shoal-crds", definitions, "--take-ownership", *where)
    chart = charts / f"shoal-{VERSION}.tgz"
    registry = f"--set=image.registry={REGISTRY}"
    cluster.helm("install", NAME, chart, "--skip-crds", registry, *where)
    yield
    cluster.helm("uninstall", "shoal-crds", "--ignore-not-found", *where)
    release.install()


@pytest.mark.usefixtures("installed")
def test_a_queue_drains_on_what_the_archives_have(cluster: Cluster, namespace: str) -> None:
    """With the examples of the README, and more consumers than partitions. The definitions outlive
    their chart."""
    here = Resources(cluster, namespace)
    files = sorted((REPOSITORY / "examples").glob("0[1-5]-*.yaml"))
    here.kubectl("apply", *(f"--filename={file}" for file in files[:3]))
    here.wait("queuecluster/main", "queuetopic/jobs", "sharegroup/workers", timeout_s=120)
    here.kubectl("exec", "main-broker-0", "--", "sh", "-c", "seq 1000 | shoal produce jobs")
    here.wait_status("sharegroup/workers", lag=1000)
    here.kubectl("apply", *(f"--filename={file}" for file in files[3:]))
    consumers = f"{names.CONSUMER_LABEL}=printers"
    eventually(lambda: len(here.find_all("pods", consumers)) > 2, timeout_s=60)
    here.wait_status("sharegroup/workers", lag=0, timeout_s=120)
    images = {c["image"] for pod in here.find_all("pods") for c in pod["spec"]["containers"]}
    assert images == {f"{REGISTRY}/shoal/broker:{VERSION}"}
    broker = here.uid("pod/main-broker-0")
    cluster.helm("uninstall", "shoal-crds", f"--namespace={NAMESPACE}", "--wait")
    cluster.kubectl("get", "crd", "queueclusters.shoal.dev")
    assert here.uid("pod/main-broker-0") == broker
