"""The Secrets of a QueueCluster with TLS: made once, renewed, and never replaced silently."""

from __future__ import annotations

import asyncio
import base64
import datetime
from typing import Any

import pytest
from kube.api_server import ApiServer, Crash, CrashPoint, resource
from shoal_operator.cluster.authorities import (
    RENEW,
    REPLACE,
    AuthorityLost,
    AuthorityReconciler,
    IssuedCertificates,
)
from shoal_operator.model import certificates, names
from shoal_operator.model.ca_renewal import LoadedCertificates
from shoal_operator.model.certificates import KeyPair

NOW = datetime.datetime(2026, 6, 1, tzinfo=datetime.UTC)
DAY = datetime.timedelta(days=1)
SECRETS = [
    "main-broker-tls",
    "main-clients-ca",
    "main-clients-ca-cert",
    "main-cluster-ca",
    "main-cluster-ca-cert",
    "main-operator-tls",
]
CHANGES_MAX = 20


class World:
    """An API server with a QueueCluster, and one operator after another."""

    def __init__(self, **spec: Any) -> None:
        self.api = ApiServer(CrashPoint())
        self.cluster = resource("QueueCluster", "main", **spec)
        self.cluster["metadata"]["uid"] = "u"
        self.dns = ["*.main-brokers.n.svc"]

    def reconcile(
        self,
        now: datetime.datetime = NOW,
        loaded: dict[str, dict[int, LoadedCertificates]] | None = None,
    ) -> IssuedCertificates:
        """Reconcile once, as an operator that has just started."""
        authorities = AuthorityReconciler(self.api, self.api.store(), "n", "main")
        work = authorities.reconcile(
            self.cluster, dns=self.dns, ips=["127.0.0.1"], loaded=loaded or {}, now=now
        )
        issued = asyncio.run(work)
        self.cluster["status"] = {"certificates": list(issued.status)}
        return issued

    def data(self, name: str) -> dict[str, bytes]:
        found = self.api.find("Secret", name)["data"]
        return {key: base64.b64decode(value) for key, value in found.items()}

    def everything(self) -> dict[str, dict[str, bytes]]:
        return {o["metadata"]["name"]: self.data(o["metadata"]["name"]) for o in self.secrets()}

    def secrets(self) -> list[dict[str, Any]]:
        return self.api.all("Secret")

    def put(self, name: str, data: dict[str, bytes]) -> None:
        """Write a Secret as a user does."""
        self.api.objects.pop(("Secret", name), None)
        text = {key: base64.b64encode(value).decode() for key, value in data.items()}
        manifest = resource("Secret", name)
        self.api.add({**manifest, "apiVersion": "v1", "data": text})

    def check(self, now: datetime.datetime = NOW) -> None:
        """Check that the certificates belong together."""
        found = self.everything()
        assert sorted(found) == SECRETS
        ca, broker = found["main-cluster-ca"], found["main-broker-tls"]
        operator = found["main-operator-tls"]
        certificates.check_ca(KeyPair(ca["ca.crt"], ca["ca.key"]), now)
        for pem in (broker["broker.crt"], operator["tls.crt"]):
            assert certificates.is_signed_by(pem, ca["ca.crt"])
        certificates.check_pair(KeyPair(broker["broker.crt"], broker["broker.key"]))
        assert broker["broker.pem"] == broker["broker.key"] + broker["broker.crt"]
        assert broker["cluster-ca.crt"] == operator["ca.crt"] == ca["ca.crt"]
        assert found["main-cluster-ca-cert"] == {"ca.crt": ca["ca.crt"]}
        assert broker["clients-ca.crt"] == found["main-clients-ca-cert"]["ca.crt"]
        assert not [o for o in self.secrets() if o.get("spec")]


def test_what_is_made_stays() -> None:
    world = World()
    world.reconcile()
    world.check()
    before = world.everything()
    for day in (0, 1, 300):
        world.reconcile(NOW + day * DAY)
        assert world.everything() == before


def test_an_operator_that_dies_after_any_write_leaves_what_the_next_one_continues() -> None:
    for last in range(1, CHANGES_MAX):
        world = World()
        world.api.crash_point.last = last
        try:
            world.reconcile()
        except Crash:
            made = world.everything()
            world.api.crash_point.last = None
            world.reconcile()
            world.check()
            # No key was made twice: an authority that somebody trusts already stays.
            after = world.everything()
            assert all(after[name] == data for name, data in made.items())
        else:
            break
    assert last == len(SECRETS) + 1


def test_keys_are_only_in_secrets_that_need_them() -> None:
    world = World()
    world.reconcile()
    for name in ("main-cluster-ca-cert", "main-clients-ca-cert"):
        assert list(world.data(name)) == ["ca.crt"]
    ca_key = world.data("main-cluster-ca")["ca.key"]
    mounted = world.data("main-broker-tls")
    assert not [key for key, value in mounted.items() if ca_key in value]
    owners = {
        o["metadata"]["name"] for o in world.secrets() if o["metadata"].get("ownerReferences")
    }
    assert owners == {"main-broker-tls", "main-operator-tls"}


def test_an_authority_that_has_disappeared_is_not_replaced_silently() -> None:
    world = World()
    known = world.reconcile().status[0]["fingerprint"]
    whole = world.data("main-cluster-ca")
    del world.api.objects["Secret", "main-cluster-ca"]
    for _ in range(2):
        with pytest.raises(AuthorityLost, match=f"{REPLACE}={known}") as lost:
            world.reconcile()
        assert lost.value.diagnosis.reason == "CertificateAuthorityLost"
        assert ("Secret", "main-cluster-ca") not in world.api.objects
    world.put("main-cluster-ca", whole)
    assert world.reconcile().status[0]["fingerprint"] == known
    world.check()

    del world.api.objects["Secret", "main-cluster-ca"]
    world.cluster["metadata"]["annotations"] = {REPLACE: known}
    made = world.reconcile().status[0]["fingerprint"]
    assert made != known
    world.check()
    # The permission was for the authority that was lost, not for the next one.
    del world.api.objects["Secret", "main-cluster-ca"]
    with pytest.raises(AuthorityLost):
        world.reconcile()


@pytest.mark.parametrize("key", ["ca.crt", "ca.key"])
def test_a_half_written_secret_is_reported(key: str) -> None:
    world = World()
    world.reconcile()
    whole = world.data("main-clients-ca")
    world.put("main-clients-ca", {k: v for k, v in whole.items() if k != key})
    with pytest.raises(AuthorityLost, match=f"it has no {key}") as lost:
        world.reconcile()
    assert lost.value.diagnosis.reason == "CertificateAuthorityInvalid"
    world.put("main-clients-ca", whole)
    world.reconcile()
    world.check()


def test_an_own_authority() -> None:
    world = World(clusterCa={"generate": False})
    with pytest.raises(AuthorityLost, match="generate is false") as lost:
        world.reconcile()
    assert lost.value.diagnosis.reason == "CertificateAuthorityNotFound"
    own = certificates.make_ca("mine", now=NOW, validity_days=9)
    world.put("main-cluster-ca", {"ca.crt": own.certificate, "ca.key": own.key})
    world.reconcile()
    world.check()
    # It is the user's, who renews it: nothing is written to it.
    world.cluster["metadata"]["annotations"] = {RENEW: "now"}
    world.reconcile(NOW + 8 * DAY)
    assert world.data("main-cluster-ca") == {"ca.crt": own.certificate, "ca.key": own.key}
    with pytest.raises(AuthorityLost, match="it expired at 2026-06-10"):
        world.reconcile(NOW + 10 * DAY)
    other = certificates.make_ca("mine", now=NOW, validity_days=900)
    world.put("main-cluster-ca", {"ca.crt": other.certificate, "ca.key": other.key})
    world.reconcile(NOW + 10 * DAY)
    world.check()


def test_certificates_follow_the_addresses() -> None:
    world = World()
    world.reconcile()
    before = world.everything()
    world.dns.append("outside.example")
    world.reconcile()
    world.check()
    broker = world.data("main-broker-tls")["broker.crt"]
    assert "outside.example" in certificates.get_alternative_names(broker)[0]
    assert world.data("main-operator-tls") == before["main-operator-tls"]


def test_certificates_are_renewed_before_they_end() -> None:
    world = World(clusterCa={"generate": False, "validityDays": 90})
    own = certificates.make_ca("mine", now=NOW, validity_days=900)
    world.put("main-cluster-ca", {"ca.crt": own.certificate, "ca.key": own.key})
    world.reconcile()
    first = world.data("main-broker-tls")["broker.crt"]
    world.reconcile(NOW + 59 * DAY)
    assert world.data("main-broker-tls")["broker.crt"] == first
    world.reconcile(NOW + 61 * DAY)
    world.check()
    second = world.data("main-broker-tls")["broker.crt"]
    assert certificates.get_expiry(second) > certificates.get_expiry(first)


def test_an_authority_is_renewed_before_it_ends() -> None:
    world = World(clusterCa={"overlap": "1h"}, clientsCa={"validityDays": 4000})
    first = world.reconcile()
    day = NOW + 340 * DAY
    issued = world.reconcile(day)
    assert issued.status[0]["phase"] == "TrustNext"
    assert issued.renewal is not None
    bundle = world.data("main-broker-tls")["cluster-ca.crt"]
    assert bundle == world.data("main-cluster-ca-cert")["ca.crt"]
    assert bundle.startswith(first.cluster_ca)
    following = certificates.compute_fingerprint(bundle[len(first.cluster_ca) :])
    loaded = {"cluster": {0: LoadedCertificates(frozenset(), frozenset({following}))}}
    assert world.reconcile(day, loaded).status[0]["phase"] == "TrustNext"
    later = day + DAY
    assert world.reconcile(later).status[0]["phase"] == "TrustNext"
    issued = world.reconcile(later, loaded)
    assert issued.status[0]["phase"] == "DropPrevious"
    assert issued.status[0]["fingerprint"] == following
    leaf = certificates.compute_fingerprint(world.data("main-broker-tls")["broker.crt"])
    later += DAY
    assert world.reconcile(later, loaded).status[0]["phase"] == "DropPrevious"
    loaded = {"cluster": {0: LoadedCertificates(frozenset({leaf}), frozenset())}}
    issued = world.reconcile(later, loaded)
    assert (issued.status[0]["phase"], issued.renewal) == ("", None)
    assert certificates.compute_fingerprint(issued.cluster_ca) == following
    assert issued.cluster_ca.count(b"BEGIN") == 1
    world.check(later)


def user_secret(world: World, data: dict[str, bytes], ready: str = "True") -> None:
    """Write a QueueUser and its Secret as the operator does."""
    user = resource("QueueUser", "eve", cluster="main")
    user["status"] = {"conditions": [{"type": "Ready", "status": ready}]}
    world.api.objects.pop(("QueueUser", "eve"), None)
    world.api.add(user)
    world.put("eve", data)
    labels = {names.USER_LABEL: "eve", names.CLUSTER_LABEL: "main"}
    world.api.find("Secret", "eve")["metadata"]["labels"] = labels


def test_a_renewal_waits_for_the_secrets_of_users() -> None:
    """For the new authorities in them, and for certificates that clients have had time to fetch."""
    world = World(clusterCa={"overlap": "1h"}, clientsCa={"overlap": "1h"})
    world.reconcile()
    first = world.data("main-clients-ca")
    old = certificates.issue(
        KeyPair(first["ca.crt"], first["ca.key"]), "eve", now=NOW, validity_days=90
    )
    user_secret(world, {"ca.crt": world.data("main-cluster-ca")["ca.crt"]})
    world.cluster["metadata"]["annotations"] = {RENEW: "1"}
    world.reconcile()
    later = NOW + DAY
    ready = {kind: {0: trusting(world, kind)} for kind in ("cluster", "clients")}
    issued = world.reconcile(later, ready)
    assert [one["phase"] for one in issued.status] == ["TrustNext", "DropPrevious"]
    assert issued.renewal is not None
    assert "The cluster CA: QueueUsers eve get new certificates" in issued.renewal.message
    bundle = world.data("main-cluster-ca-cert")["ca.crt"]
    user_secret(world, {"ca.crt": bundle, "user.crt": old.certificate})
    assert world.reconcile(later, ready).status[0]["phase"] == "DropPrevious"

    later += DAY
    now = world.data("main-clients-ca")
    current = KeyPair(now["ca.crt"], now["ca.key"])
    new = certificates.issue(current, "eve", now=later, validity_days=90)
    leaf = certificates.compute_fingerprint(world.data("main-broker-tls")["broker.crt"])
    ready = {
        kind: {0: LoadedCertificates(frozenset({leaf}), frozenset())}
        for kind in ("cluster", "clients")
    }
    bundle = world.data("main-cluster-ca-cert")["ca.crt"]
    for pem, at, phases in (
        (old.certificate, later, ["", "DropPrevious"]),
        (new.certificate, later + DAY / 48, ["", "DropPrevious"]),
        (new.certificate, later + DAY / 12, ["", ""]),
    ):
        user_secret(world, {"ca.crt": bundle, "user.crt": pem})
        issued = world.reconcile(at, ready)
        assert [one["phase"] for one in issued.status] == phases
        bundle = world.data("main-cluster-ca-cert")["ca.crt"]


def test_a_user_that_is_not_ready_does_not_hold_up_a_renewal() -> None:
    """Its Secret stays old, for example because the cluster has no listener for it any more."""
    world = World(clusterCa={"overlap": "1h"})
    world.reconcile()
    user_secret(world, {"ca.crt": world.data("main-cluster-ca")["ca.crt"]}, ready="False")
    world.cluster["metadata"]["annotations"] = {RENEW: "1"}
    world.reconcile()
    ready = {kind: {0: trusting(world, kind)} for kind in ("cluster", "clients")}
    assert world.reconcile(NOW + DAY, ready).status[0]["phase"] == "DropPrevious"


@pytest.mark.parametrize("key", ["broker.crt", "broker.key"])
def test_a_certificate_that_somebody_spoiled_is_made_again(key: str) -> None:
    world = World()
    world.reconcile()
    world.api.find("Secret", "main-broker-tls")["data"][key] = base64.b64encode(b"x").decode()
    world.reconcile()
    world.check()


def trusting(world: World, kind: str) -> LoadedCertificates:
    """What a broker reports that trusts the next authority."""
    following = world.data(f"main-{kind}-ca")["next.crt"]
    return LoadedCertificates(frozenset(), frozenset({certificates.compute_fingerprint(following)}))
