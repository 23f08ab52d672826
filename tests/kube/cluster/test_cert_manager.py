"""Authorities that an issuer of cert-manager signs, and the way from one to the next."""

from __future__ import annotations

import asyncio
import base64
import datetime
from typing import Any

import pytest
from kube.api_server import Crash, resource
from kube.issuers import CertManager
from shoal_operator.cluster.authorities import (
    REPLACE,
    AuthorityLost,
    AuthorityReconciler,
    IssuedCertificates,
)
from shoal_operator.model import cert_manager, certificates, names, security
from shoal_operator.model.ca_renewal import LoadedCertificates
from shoal_operator.model.certificates import KeyPair
from support.security.certificates import Authority, Identity

NOW = datetime.datetime.now(datetime.UTC)
HOUR = datetime.timedelta(hours=1)
ISSUED: dict[str, Any] = {
    "type": "certManager",
    "issuerRef": {"name": "queues"},
    "overlap": "1s",
    "validityDays": 90,
}
CHANGES_MAX = 50
CA, CLIENTS_CA = "main-cluster-ca", "main-clients-ca"


class World:
    """A QueueCluster whose authorities the issuer signs, and one operator after another."""

    def __init__(self, **spec: Any) -> None:
        self.api = CertManager()
        self.cluster = resource("QueueCluster", "main")
        self.cluster["metadata"]["uid"] = "u"
        self.cluster["spec"] = {"clusterCa": ISSUED, "clientsCa": ISSUED, **spec}
        self.now = NOW

    def reconcile(
        self, loaded: dict[str, dict[int, LoadedCertificates]] | None = None
    ) -> IssuedCertificates:
        work = AuthorityReconciler(self.api, self.api.store(), "n", "main").reconcile(
            self.cluster, dns=["b.example"], ips=[], loaded=loaded or {}, now=self.now
        )
        issued = asyncio.run(work)
        self.cluster["status"] = {"certificates": list(issued.status)}
        return issued

    def report_loaded(self) -> dict[str, dict[int, LoadedCertificates]]:
        """What brokers report that have loaded all files."""
        files = self.data("main-broker-tls")
        own = frozenset({certificates.compute_fingerprint(files["broker.crt"])})

        def trusted(key: str) -> frozenset[str]:
            return frozenset(map(certificates.compute_fingerprint, certificates.split(files[key])))

        return {
            "cluster": {0: LoadedCertificates(own, trusted("cluster-ca.crt"))},
            "clients": {0: LoadedCertificates(own, trusted("clients-ca.crt"))},
        }

    def renewed(self) -> list[str]:
        """Reconcile until no renewal is under way. Return the phases of the brokers' authority."""
        phases: list[str] = []
        while not phases or phases[-1]:
            self.now += HOUR
            phases.append(self.reconcile(self.report_loaded()).status[0]["phase"])
            assert len(phases) < 10, phases
        return phases

    def data(self, name: str) -> dict[str, bytes]:
        found = self.api.find("Secret", name)["data"]
        return {key: base64.b64decode(value) for key, value in found.items()}

    def problem(self) -> tuple[str, str, bool]:
        with pytest.raises(AuthorityLost) as lost:
            self.reconcile()
        return lost.value.diagnosis.reason, lost.value.diagnosis.message, lost.value.waits


def test_an_issuer_signs_the_authorities() -> None:
    world = World()
    assert world.reconcile().problem is None
    for name, kind in ((CA, security.CLUSTER), (CLIENTS_CA, security.CLIENTS)):
        spec = world.api.find("Certificate", name)["spec"]
        assert spec["issuerRef"] == {"name": "queues", "kind": "Issuer", "group": "cert-manager.io"}
        assert spec["isCA"] is True
        assert (spec["duration"], spec["renewBefore"]) == ("2160h0m0s", "720h0m0s")
        assert (
            spec["secretName"] == cert_manager.format_secret_name("main", kind) == f"{name}-issued"
        )
        signed = world.data(f"{name}-issued")
        assert world.data(name)["ca.crt"] == signed["tls.crt"]
        # Clients such as librdkafka need the root too.
        shown = world.data(f"{name}-cert")["ca.crt"]
        assert shown == signed["tls.crt"] + signed["ca.crt"]
    files = world.data("main-broker-tls")
    # Brokers trust no other authority of that root, and show what a client with the root needs.
    assert files["clients-ca.crt"] == world.data(CLIENTS_CA)["ca.crt"]
    assert files["cluster-ca.crt"] == world.data(CA)["ca.crt"]
    assert (
        files["broker.pem"] == files["broker.key"] + files["broker.crt"] + files["cluster-ca.crt"]
    )
    assert certificates.is_signed_by(files["broker.crt"], files["cluster-ca.crt"])
    before = {o["metadata"]["name"]: o["data"] for o in world.api.all("Secret")}
    world.reconcile()
    assert {o["metadata"]["name"]: o["data"] for o in world.api.all("Secret")} == before


def test_an_issuer_that_signs_roots_needs_no_chain() -> None:
    world = World()
    world.api.signs = False
    assert world.problem()[0] == "CertificatePending"
    for name in (CA, CLIENTS_CA):
        if ("Certificate", name) not in world.api.objects:
            assert world.problem()[0] == "CertificatePending"
        own = certificates.make_ca("self-signed", now=NOW, validity_days=90)
        world.api.write(
            name, {"tls.crt": own.certificate, "tls.key": own.key, "ca.crt": own.certificate}
        )
    world.reconcile()
    files = world.data("main-broker-tls")
    assert world.data(f"{CA}-cert")["ca.crt"] == world.data(CA)["ca.crt"]
    assert files["broker.pem"] == files["broker.key"] + files["broker.crt"]


def test_a_renewal_of_cert_manager_has_three_phases() -> None:
    world = World()
    world.reconcile()
    first = world.data(CA)["ca.crt"]
    assert world.renewed() == [""]
    root = world.api.root
    world.api.root = Authority("Another root")
    second = world.api.sign(CA).pem.encode()
    assert world.reconcile(world.report_loaded()).status[0]["phase"] == "TrustNext"
    assert world.data("main-broker-tls")["cluster-ca.crt"] == first + second
    shown = certificates.split(world.data(f"{CA}-cert")["ca.crt"])
    assert set(shown) == {first, second, root.pem.encode(), world.api.root.pem.encode()}
    # One more renewal meanwhile is followed afterwards.
    third = world.api.sign(CA).pem.encode()
    assert world.renewed() == ["DropPrevious", ""]
    assert world.data(CA)["ca.crt"] == second
    assert world.renewed() == ["TrustNext", "DropPrevious", ""]
    assert world.data(CA)["ca.crt"] == third
    assert world.data(f"{CA}-cert")["ca.crt"] == third + world.api.root.pem.encode()
    assert world.renewed() == [""]


def test_a_renewal_waits_for_users_that_lack_the_root() -> None:
    world = World()
    world.reconcile()
    user = resource("QueueUser", "eve", cluster="main")
    world.api.add({**user, "status": {"conditions": [{"type": "Ready", "status": "True"}]}})
    world.api.sign(CA)
    world.reconcile(world.report_loaded())

    def phase(pem: bytes) -> str:
        labels = {names.USER_LABEL: "eve", names.CLUSTER_LABEL: "main"}
        secret = resource("Secret", "eve")
        secret["metadata"]["labels"] = labels
        data = {"ca.crt": base64.b64encode(pem).decode()}
        world.api.objects.pop(("Secret", "eve"), None)
        world.api.add({**secret, "apiVersion": "v1", "data": data})
        world.now += HOUR
        return world.reconcile(world.report_loaded()).status[0]["phase"]

    assert phase(world.data("main-broker-tls")["cluster-ca.crt"]) == "TrustNext"
    assert phase(world.data(f"{CA}-cert")["ca.crt"]) == "DropPrevious"


@pytest.mark.parametrize("settings", [ISSUED, {"overlap": "1s"}])
def test_an_operator_that_dies_in_a_renewal_is_continued(settings: dict[str, Any]) -> None:
    """After any of its writes, whether an issuer or the operator itself signs. There is one new
    authority, and clients always trust that of the brokers' certificate."""
    for last in range(1, CHANGES_MAX):
        world = World(clusterCa=settings, clientsCa=settings)
        world.reconcile()
        authorities = {world.data(CA)["ca.crt"]}
        world.cluster["metadata"]["annotations"] = {"shoal.dev/renew": "1"}
        if settings is ISSUED:
            world.api.sign(CA)
            world.api.sign(CLIENTS_CA)
        point = world.api.crash_point
        point.last = point.changes + last
        phases = ["begins"]
        while any(phases):
            world.now += HOUR
            try:
                phases = [one["phase"] for one in world.reconcile(world.report_loaded()).status]
            except Crash:
                point.last = None
            files = world.data("main-broker-tls")
            shown = certificates.split(world.data(f"{CA}-cert")["ca.crt"])
            assert any(certificates.is_signed_by(files["broker.crt"], one) for one in shown)
            authorities |= set(certificates.split(files["cluster-ca.crt"]))
        assert len(authorities) == 2
        if point.last is not None:
            break
    else:
        raise AssertionError(f"a renewal needs more than {CHANGES_MAX} writes")


def test_the_annotation_for_new_keys_is_for_the_operators_own_authorities() -> None:
    world = World(clientsCa={"overlap": "1s"})
    world.reconcile()
    world.cluster["metadata"]["annotations"] = {"shoal.dev/renew": "1"}
    issued = world.reconcile(world.report_loaded())
    assert [one["phase"] for one in issued.status] == ["", "TrustNext"]


def test_a_cluster_moves_to_an_issuer_and_back() -> None:
    world = World(clusterCa={"overlap": "1s"}, clientsCa={"overlap": "1s"})
    world.reconcile()
    first = world.data(CA)["ca.crt"]
    world.cluster["spec"]["clusterCa"] = ISSUED
    assert world.renewed() == ["TrustNext", "DropPrevious", ""]
    signed = world.data(f"{CA}-issued")
    assert world.data(CA)["ca.crt"] == signed["tls.crt"] != first
    # The operator's own one comes with the next renewal.
    world.cluster["spec"]["clusterCa"] = {"overlap": "1s"}
    assert world.renewed() == [""]
    world.cluster["metadata"]["annotations"] = {"shoal.dev/renew": "1"}
    assert world.renewed() == ["TrustNext", "DropPrevious", ""]
    assert world.data(CA)["ca.crt"] not in (first, signed["tls.crt"])
    assert world.data(f"{CA}-cert")["ca.crt"] == world.data(CA)["ca.crt"]


def test_a_new_cluster_waits_for_its_authorities() -> None:
    world = World()
    world.api.signs = False
    world.api.refuses = 404
    reason, message, waits = world.problem()
    assert (reason, waits) == ("CertManagerMissing", True)
    assert message == (
        "The cluster CA: cert-manager is not installed: the API server has no Certificates. "
        "Install it."
    )
    world.api.refuses = 403
    assert "certManager.enabled" in world.problem()[1]
    world.api.refuses = 0
    del world.api.objects["Issuer", "queues"]
    assert world.problem()[:2] == (
        "IssuerNotReady",
        "The cluster CA: Issuer 'queues' does not exist. Create it, or correct issuerRef.",
    )
    world.api.issuer("False", "the Secret with the key does not exist")
    assert "is not ready: the Secret with the key does not exist" in world.problem()[1]
    world.api.issuer("True", "")
    world.api.find("Certificate", CA)["status"] = {
        "conditions": [{"type": "Issuing", "status": "True", "message": "waiting for approval"}]
    }
    assert world.problem() == (
        "CertificatePending",
        "The cluster CA: cert-manager has not written Secret 'main-cluster-ca-issued' yet: waiting "
        "for approval",
        True,
    )
    assert ("Secret", CA) not in world.api.objects
    world.api.signs = True
    world.api.sign(CA)
    assert world.reconcile().problem is None


@pytest.mark.parametrize(
    ("ref", "kind"),
    [
        ({"name": "queues", "kind": "ClusterIssuer"}, "ClusterIssuer"),
        ({"name": "queues"}, "Issuer"),
    ],
)
def test_the_kind_of_the_issuer(ref: dict[str, str], kind: str) -> None:
    world = World(clusterCa={**ISSUED, "issuerRef": ref})
    world.api.signs = False
    world.api.objects.pop(("Issuer", "queues"))
    assert f"{kind} 'queues' does not exist" in world.problem()[1]
    world.api.issuer("True", "", kind)
    assert world.problem()[0] == "CertificatePending"
    other = {"name": "queues", "kind": "Issuer", "group": "issuers.example"}
    world.cluster["spec"]["clusterCa"] = {**ISSUED, "issuerRef": other}
    world.api.objects.pop((kind, "queues"))
    assert world.problem()[0] == "CertificatePending"
    assert world.api.find("Certificate", CA)["spec"]["issuerRef"] == other


def unusable() -> dict[str, dict[str, bytes]]:
    root = Authority("root")
    signed = Authority("signed", parent=root)
    own = certificates.make_ca("own", now=NOW, validity_days=90)
    leaf = certificates.issue(own, "leaf", now=NOW, validity_days=1)
    old = certificates.make_ca("old", now=NOW - 3 * 24 * HOUR, validity_days=1)
    return {
        "is no certificate authority": {
            "tls.crt": leaf.certificate,
            "tls.key": leaf.key,
            "ca.crt": own.certificate,
        },
        "its key belongs to another certificate": {"tls.crt": own.certificate, "tls.key": leaf.key},
        "its key cannot be read": {"tls.crt": own.certificate},
        "its root is neither in tls.crt nor in ca.crt": {
            "tls.crt": signed.pem.encode(),
            "tls.key": key_of(signed),
        },
        "it expired at": {"tls.crt": old.certificate, "tls.key": old.key},
        "no certificate in PEM format": {"tls.crt": b"x", "tls.key": own.key},
    }


def key_of(authority: Authority) -> bytes:
    return Identity(authority.key, authority.certificate, []).key_pem().encode()


UNUSABLE = unusable()


@pytest.mark.parametrize("why", UNUSABLE)
def test_an_issuer_that_signs_no_authority_is_named(why: str) -> None:
    """A cluster that runs keeps the authority that it has."""
    world = World()
    world.reconcile()
    before = world.data(CA)
    world.api.write(CA, UNUSABLE[why])
    issued = world.reconcile(world.report_loaded())
    assert issued.problem is not None
    assert issued.problem.reason == "IssuerNotSuitable"
    assert why in issued.problem.message
    assert "Use an issuer that signs authorities" in issued.problem.message
    assert world.data(CA) == before
    assert [one["phase"] for one in issued.status] == ["", ""]
    new = World()
    new.api.signs = False
    assert new.problem()[0] == "CertificatePending"
    new.api.write(CA, UNUSABLE[why])
    assert new.problem()[::2] == ("IssuerNotSuitable", True)


def test_a_running_cluster_survives_the_loss_of_cert_manager() -> None:
    world = World()
    world.reconcile()
    for status in (404, 403):
        world.api.refuses = status
        issued = world.reconcile(world.report_loaded())
        assert issued.problem is not None
        assert issued.problem.reason == "CertManagerMissing"
        assert certificates.is_signed_by(issued.operator.certificate, world.data(CA)["ca.crt"])


def test_a_lost_secret_comes_back_from_that_of_cert_manager() -> None:
    """If that has another authority by now, the loss is reported, as ever."""
    world = World()
    world.reconcile()
    before = world.data(CA)
    del world.api.objects["Secret", CA]
    world.reconcile()
    assert world.data(CA) == before
    world.api.sign(CA)
    del world.api.objects["Secret", CA]
    reason, message, waits = world.problem()
    assert (reason, waits) == ("CertificateAuthorityLost", False)
    known = certificates.compute_fingerprint(before["ca.crt"])
    assert f"{REPLACE}={known}" in message
    world.api.refuses = 404
    assert world.problem()[0] == "CertificateAuthorityLost"
    world.api.refuses = 0
    world.cluster["metadata"]["annotations"] = {REPLACE: known}
    world.reconcile()
    found = world.data(CA)
    certificates.check_pair(KeyPair(found["ca.crt"], found["ca.key"]))
    assert found["ca.crt"] == world.data(f"{CA}-issued")["tls.crt"]
