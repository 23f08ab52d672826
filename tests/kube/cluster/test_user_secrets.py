"""The authority in the Secret of a QueueUser whose listener shows a certificate of its own."""

from __future__ import annotations

import base64
import datetime
from typing import Any

import pytest
from kube.api_server import resource
from kube.users.test_revoked_users import World, user
from shoal_operator.cluster.authorities import OWN_CERTIFICATE, AuthorityReconciler
from shoal_operator.model.ca_renewal import CertificateAuthority as Renewed
from shoal_operator.model.certificates import KeyPair
from support.security.certificates import Authority

NOW = datetime.datetime.now(datetime.UTC)
ROOT = Authority("Company CA")
INTERMEDIATE = Authority("Company Issuing CA", parent=ROOT)
LEAF = INTERMEDIATE.issue("brokers")
SELF_SIGNED = ROOT.issue("brokers")
OWN = {
    "name": "own",
    "port": 9092,
    "tls": {"secretName": "mine"},
    "authentication": {"type": "tls"},
}
CLUSTER = {**OWN, "name": "tls", "port": 9094, "tls": {}}


def world(*listeners: Any, **data: str) -> World:
    """A cluster with these listeners, and the Secret `mine`."""
    found = World()
    found.api.add(
        {**resource("QueueCluster", "main", replicas=1, listeners=list(listeners)), "status": {}}
    )
    if data:
        names = {name.replace("_", "."): text.encode() for name, text in data.items()}
        found.secret("mine", {"tls.key": LEAF.key_pem().encode(), **names})
    found.add(user("eve"))
    return found


def content(found: World) -> dict[str, str]:
    data = found.api.find("Secret", "eve")["data"]
    return {k: base64.b64decode(v).decode() for k, v in data.items() if k != "user.p12"}


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        # cert-manager and others write the authority.
        ({"tls_crt": LEAF.chain_pem, "ca_crt": ROOT.pem}, ROOT.pem),
        ({"tls_crt": LEAF.chain_pem + ROOT.pem}, ROOT.pem),
        # Public authorities: the system has the root.
        ({"tls_crt": LEAF.chain_pem}, ""),
        ({"tls_crt": LEAF.chain_pem, "ca_crt": ""}, ""),
    ],
)
def test_clients_trust_the_authority_of_the_listener(data: dict[str, str], expected: str) -> None:
    found = world(OWN, **data)
    found.reconcile()
    files = content(found)
    assert files.get("ca.crt", "") == expected
    assert ("ssl.truststore.location" in files["client.properties"]) is bool(expected)
    assert ("ssl.ca.location" in files["librdkafka.properties"]) is bool(expected)


def test_it_follows_the_secret_and_the_listener() -> None:
    found = world(OWN, tls_crt=LEAF.chain_pem, ca_crt=ROOT.pem)
    found.reconcile()
    other = Authority("Another CA")
    found.secret(
        "mine", {"tls.crt": other.issue("b").chain_pem.encode(), "ca.crt": other.pem.encode()}
    )
    found.reconcile()
    assert content(found)["ca.crt"] == other.pem
    # A listener with a certificate of the cluster's authority is preferred.
    spec = {"replicas": 1, "listeners": [OWN, CLUSTER]}
    found.api.add({**resource("QueueCluster", "main", **spec), "status": {}})
    found.reconcile()
    cluster_ca = base64.b64decode(
        found.api.find("Secret", "main-cluster-ca-cert")["data"]["ca.crt"]
    )
    assert content(found)["ca.crt"] == cluster_ca.decode()


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({}, "Secret 'mine' does not exist"),
        ({"ca_crt": ""}, "has no tls.crt"),
        ({"tls_crt": "no certificate"}, "there is no certificate in PEM format"),
    ],
)
def test_a_secret_that_cannot_be_used_is_named(data: dict[str, str], said: str) -> None:
    found = world(OWN, **data)
    found.reconcile()
    conditions = found.api.find("QueueUser", "eve")["status"]["conditions"]
    (ready,) = [one for one in conditions if one["type"] == "Ready"]
    assert (ready["status"], ready["reason"]) == ("False", "ListenerCertificateInvalid")
    assert said in ready["message"]


@pytest.mark.parametrize("own", [True, False])
def test_a_renewal_of_the_cluster_ca_does_not_wait_for_others(own: bool) -> None:
    """Secrets with the authority of a listener never get the new cluster CA."""
    found = world(OWN if own else CLUSTER, tls_crt=LEAF.chain_pem, ca_crt=ROOT.pem)
    found.reconcile()
    annotations = found.api.find("Secret", "eve")["metadata"].get("annotations", {})
    assert (OWN_CERTIFICATE in annotations) is own
    authorities = AuthorityReconciler(found.api, found.api.store(), "n", "main")
    next_ca = Renewed(authorities_pair(found), authorities_pair(found), began=NOW)
    late = authorities._describe_late_users("cluster", next_ca, NOW)  # noqa: SLF001
    assert late == ("" if own else "QueueUsers eve get new certificates")


def authorities_pair(found: World) -> KeyPair:
    data = found.api.find("Secret", "main-clients-ca")["data"]
    return KeyPair(base64.b64decode(data["ca.crt"]), base64.b64decode(data["ca.key"]))
