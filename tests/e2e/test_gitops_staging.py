"""The environment `staging` of `examples/gitops`, applied by kubectl: it serves."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from conditions import eventually
from e2e.cluster.layout import REPOSITORY
from e2e.resources import Resources

if TYPE_CHECKING:
    from collections.abc import Iterator

    from e2e.cluster.backend import Cluster
    from e2e.release import Release

pytestmark = pytest.mark.nightly
STAGING = REPOSITORY / "examples/gitops/environments/staging"


@pytest.fixture
def queue(
    cluster: Cluster,
    release: Release,  # noqa: ARG001 - the operator runs.
) -> Iterator[Resources]:
    cluster.kubectl("apply", "--kustomize", STAGING)
    yield Resources(cluster, "orders-staging")
    cluster.kubectl("delete", "--kustomize", STAGING, "--timeout=120s")


def test_consumers_take_what_is_produced(queue: Resources) -> None:
    queue.wait("queuecluster/main", "queuetopic/orders", "queuetopic/imports", timeout_s=120)
    queue.wait("queueuser/shop", "queueuser/invoices", "sharegroup/invoices")
    queue.wait("shareconsumer/invoices")
    produce = ("exec", "--stdin", "main-broker-0", "--", "shoal", "produce", "orders", "--quiet")
    queue.kubectl(*produce, stdin_text="1\n2\n3\n")
    # The consumers start with the lag, and log in as a user of the repository.
    eventually(lambda: queue.status("shareconsumer/invoices").get("readyReplicas"), timeout_s=90)
    queue.wait_status("sharegroup/invoices", lag=0, inFlight=0, timeout_s=90)
