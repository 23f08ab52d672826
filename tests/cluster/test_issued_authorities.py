"""Three real brokers whose authorities an issuer of cert-manager signs, and clients of librdkafka,
which trust an authority only with its root."""

from __future__ import annotations

import asyncio
import datetime
from typing import TYPE_CHECKING, Any

import pytest
from cluster.test_operator_security import Secured, produced, queue_cluster
from kube.issuers import CertManager
from shoal.client.admin.topics import NewTopic
from shoal.client.client import SyncClient
from shoal_operator.model import certificates, security
from shoal_operator.model.certificates import KeyPair
from support.runs.conditions import eventually
from support.security.certificates import Authority, Identity

if TYPE_CHECKING:
    from pathlib import Path

ISSUED = {"type": "certManager", "issuerRef": {"name": "queues"}, "overlap": "1s"}
MTLS = 9092


def certified(name: str, authority: KeyPair, trusted: str) -> dict[str, str]:
    """Return librdkafka's properties of a client."""
    now = datetime.datetime.now(datetime.UTC)
    own = certificates.issue(authority, name, now=now, validity_days=1)
    return security.build_operator_client(trusted.encode(), own)


@pytest.mark.nightly
def test_an_issuer_renews_its_authorities_under_load(tmp_path: Path) -> None:
    issuer = CertManager()
    spec: dict[str, Any] = queue_cluster()
    spec["spec"] |= {"clusterCa": ISSUED, "clientsCa": ISSUED}
    cluster = Secured(tmp_path, spec, kube=issuer)
    try:
        cluster.start()
        with SyncClient(cluster.bootstrap(9091), cluster.operator()) as admin:
            admin.run(admin.admin.topics.create([NewTopic("jobs", 3, 3)]))
        servers, root = cluster.bootstrap(MTLS), issuer.root.pem

        def client(trusted: str = "") -> dict[str, str]:
            shown = cluster.secret("main-cluster-ca-cert")["ca.crt"].decode()
            return certified("root", cluster.authority(security.CLIENTS), trusted or shown)

        assert produced(servers, client(), "jobs") == ""
        # Brokers show the whole chain to a client that trusts the company's root.
        assert produced(servers, client(root), "jobs") == ""
        # Another authority of the issuer opens nothing.
        other = Authority("somebody else's", parent=issuer.root)
        pair = KeyPair(
            other.pem.encode(), Identity(other.key, other.certificate, []).key_pem().encode()
        )
        shown = cluster.secret("main-cluster-ca-cert")["ca.crt"].decode()
        assert produced(servers, certified("root", pair, shown), "jobs") != ""

        phases: list[str] = []
        before = cluster.renewal()[1]
        for name in ("main-cluster-ca", "main-clients-ca"):
            issuer.sign(name)

        def renewed() -> bool:
            assert produced(servers, client(), "jobs") == ""
            asyncio.run(cluster.reconcile(passes=2))
            cluster.mount()
            found = [one["phase"] for one in cluster.resource["status"]["certificates"]]
            phases.append(found[0])
            return not any(found) and cluster.renewal()[1] != before

        eventually(renewed, timeout_s=60, what="the renewal ends")
        assert list(dict.fromkeys(phases)) == ["TrustNext", "DropPrevious", ""]
        assert all(broker.is_running for broker in cluster.brokers)
    finally:
        cluster.stop()
