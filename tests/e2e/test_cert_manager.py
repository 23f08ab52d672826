"""Authorities that cert-manager itself signs, and renews under load."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING

import pytest
from cryptography import x509
from e2e.cert_manager import CertManager, company, renew
from e2e.producing import consuming, producing
from e2e.resources import queue_cluster, queue_topic, share_group
from e2e.test_renewal import restarts
from support.runs.conditions import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    from e2e.cluster.backend import Cluster
    from e2e.release import Release
    from e2e.resources import Resources

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1800)]
ISSUED = {
    "type": "certManager",
    "issuerRef": {"name": "company"},
    "validityDays": 90,
    "renewalDays": 30,
    "overlap": "5s",
}


@pytest.fixture(scope="module", autouse=True)
def cert_manager(cluster: Cluster, release: Release) -> Iterator[CertManager]:
    cert_manager = CertManager(cluster)
    release.install(certManager={"enabled": True})
    try:
        cert_manager.install()
        yield cert_manager
    finally:
        cert_manager.uninstall()
        release.install()


def chain(resources: Resources, secret: str, key: str) -> list[x509.Certificate]:
    data = resources.get(f"secret/{secret}")["data"][key]
    return x509.load_pem_x509_certificates(base64.b64decode(data))


def authorities(resources: Resources) -> list[x509.Certificate]:
    """Return the authorities of the brokers and of the clients."""
    return [chain(resources, f"main-{kind}-ca", "ca.crt")[0] for kind in ("cluster", "clients")]


def test_cert_manager_signs_and_renews_the_authorities(resources: Resources) -> None:
    cluster = queue_cluster(replicas=3, clusterCa=ISSUED, clientsCa=ISSUED)
    resources.apply(cluster, queue_topic(partitions=6), share_group())
    # The issuer comes later, as with GitOps.
    resources.wait_reason("queuecluster/main", "IssuerNotReady")
    resources.apply(*company())
    resources.start_client()
    resources.wait("queuecluster/main", "queuetopic/jobs", "sharegroup/workers", timeout_s=180)
    (root,) = chain(resources, "company", "tls.crt")
    before, pods = authorities(resources), restarts(resources)
    for authority in before:
        authority.verify_directly_issued_by(root)
    (broker, *_) = chain(resources, "main-broker-tls", "broker.crt")
    broker.verify_directly_issued_by(before[0])

    def renewed() -> bool:
        now = authorities(resources)
        assert all(
            new.public_key() != old.public_key() for new, old in zip(now, before, strict=True)
        )
        phases = [r.get("phase") for r in resources.status("queuecluster/main")["certificates"]]
        assert not any(phases), phases
        return True

    with consuming(resources, "workers", members=2) as deliveries, producing(resources) as counts:
        for kind in ("cluster", "clients"):
            renew(resources, f"main-{kind}-ca")
        eventually(renewed, timeout_s=900)
    sent, failed = counts
    assert (failed, sent > 50) == (0, True), counts
    assert {value for value, _ in deliveries} == set(range(sent))
    assert restarts(resources) == pods
    for authority in authorities(resources):
        authority.verify_directly_issued_by(root)
    # A client that starts now trusts the new authority only.
    resources.produce("jobs", 5)
