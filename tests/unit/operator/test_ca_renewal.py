"""Renewal of an authority: brokers, clients and the operator trust each other at every moment."""

from __future__ import annotations

import datetime
import random
import re
from functools import cache
from typing import Any

import pytest
from shoal_operator.model import ca_renewal, certificates
from shoal_operator.model.ca_renewal import CertificateAuthority, LoadedCertificates, RenewalAction
from shoal_operator.model.certificates import KeyPair, compute_fingerprint

START = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
SECOND = datetime.timedelta(seconds=1)
OVERLAP, RENEWAL = 10 * SECOND, datetime.timedelta(days=30)
BROKERS = (0, 1, 2)


@cache
def pair(number: int) -> KeyPair:
    return certificates.make_ca(f"ca-{number}", now=START, validity_days=365)


@cache
def leaf_of(authority: bytes) -> str:
    """The fingerprint of the brokers' certificate that an authority has signed."""
    return f"leaf of {compute_fingerprint(authority)}"


@cache
def trusted_by(bundle: bytes) -> frozenset[str]:
    parts = bundle.decode().split("-----BEGIN")[1:]
    return frozenset(compute_fingerprint(f"-----BEGIN{part}".encode()) for part in parts)


class Renewal:
    """An operator that may die before its write, brokers that load files when they like, and
    clients that fetch the authorities within `OVERLAP`."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now = self.fetched = START
        self.secret = CertificateAuthority(pair(0))
        self.made = 1
        self.renewals = 0
        self.requested = ""
        self.client = trusted_by(self.secret.trust_bundle)
        own = frozenset({leaf_of(self.secret.current.certificate)})
        self.brokers = {b: LoadedCertificates(own, self.client) for b in BROKERS}

    def request(self) -> None:
        self.requested = f"request {self.made}"

    def time_passes(self) -> None:
        self.now += SECOND * self.random.randint(1, 9)
        if self.now - self.fetched >= OVERLAP:
            self.fetch()

    def fetch(self) -> None:
        """The client reads the Secret with the authorities."""
        self.client, self.fetched = trusted_by(self.secret.trust_bundle), self.now

    def load(self) -> None:
        """The kubelet has updated the files of a broker, which loads them."""
        own = frozenset({leaf_of(self.secret.current.certificate)})
        self.brokers[self.random.choice(BROKERS)] = LoadedCertificates(
            own, trusted_by(self.secret.trust_bundle)
        )

    def reconcile(self) -> None:
        answers = self.random.random() < 0.8
        step = ca_renewal.choose_next_step(
            self.secret,
            now=self.now,
            renewal=RENEWAL,
            overlap=OVERLAP,
            requested=self.requested,
            loaded=dict(self.brokers) if answers else None,
            leaf=leaf_of(self.secret.current.certificate),
        )
        dies = self.random.random() < 0.2
        if step.action is RenewalAction.KEEP or dies:
            return
        made = None
        if step.action is RenewalAction.TRUST_NEXT:
            made, self.made = pair(self.made), self.made + 1
        self.renewals += step.action is RenewalAction.DROP
        before = self.secret.phase
        self.secret = ca_renewal.apply_action(
            self.secret, step.action, now=self.now, requested=self.requested, new_pair=made
        )
        assert self.secret.phase != before

    def check(self) -> None:
        """The operator shows a certificate of the authority that signs, as a broker does once it
        has loaded it."""
        signs = compute_fingerprint(self.secret.current.certificate)
        for broker, loaded in self.brokers.items():
            assert signs in loaded.trusted, f"broker {broker} refuses the operator"
            (own,) = loaded.own
            issuer = own.removeprefix("leaf of ")
            assert all(issuer in other.trusted for other in self.brokers.values())
            assert issuer in self.client, f"the client refuses broker {broker}"
            assert issuer in trusted_by(self.secret.trust_bundle), f"the operator refuses {broker}"


def test_all_trust_each_other_at_every_moment(seed: int) -> None:
    renewals = 0
    for number in range(80):
        walk = Renewal(seed + number)
        actions = [walk.request, walk.time_passes, walk.fetch, *[walk.load, walk.reconcile] * 4]
        for _ in range(100):
            walk.random.choice(actions)()
            walk.check()
        renewals += walk.renewals
    assert renewals > 15


def step(have: CertificateAuthority, **given: Any) -> ca_renewal.RenewalStep:
    wanted = {
        "now": START + 60 * SECOND,
        "renewal": RENEWAL,
        "overlap": OVERLAP,
        "requested": "",
        "loaded": {},
        "leaf": "",
        **given,
    }
    return ca_renewal.choose_next_step(have, **wanted)


BOTH = CertificateAuthority(pair(0), pair(1), b"", START)
NEW = CertificateAuthority(pair(1), None, pair(0).certificate, START)
NEXT = compute_fingerprint(pair(1).certificate)


def test_a_renewal_begins_when_it_is_due_or_asked_for() -> None:
    days = datetime.timedelta(days=1)
    have = CertificateAuthority(pair(0))
    assert step(have).action is RenewalAction.KEEP
    assert step(have, now=START + 334 * days).action is RenewalAction.KEEP
    assert step(have, now=START + 335 * days).action is RenewalAction.TRUST_NEXT
    assert step(have, requested="now").action is RenewalAction.TRUST_NEXT
    assert step(have._replace(handled="now"), requested="now").action is RenewalAction.KEEP


@pytest.mark.parametrize(
    ("have", "given", "why"),
    [
        (BOTH, {"now": START + 9 * SECOND}, "clients get until 00:00:10 UTC"),
        (BOTH, {"loaded": None}, "not all brokers report"),
        (
            BOTH,
            {"loaded": {1: LoadedCertificates(frozenset(), frozenset())}},
            r"brokers \[1\] do not trust",
        ),
        (BOTH, {"unfetched": "QueueUsers eve"}, "QueueUsers eve"),
        (NEW, {"unfetched": "QueueUsers eve"}, "QueueUsers eve"),
        (
            NEW,
            {"loaded": {2: LoadedCertificates(frozenset(), frozenset())}, "leaf": "x"},
            r"brokers \[2\] do",
        ),
    ],
)
def test_what_a_phase_waits_for(
    have: CertificateAuthority, given: dict[str, Any], why: str
) -> None:
    found = step(have, **given)
    assert found.action is RenewalAction.KEEP
    assert re.match(why, found.why)


def test_phases_end_when_all_brokers_are_ready() -> None:
    ready = {1: LoadedCertificates(frozenset({"x"}), frozenset({NEXT}))}
    assert step(BOTH, loaded=ready).action is RenewalAction.SIGN
    assert step(NEW, loaded=ready, leaf="x").action is RenewalAction.DROP
    assert [have.phase for have in (CertificateAuthority(pair(0)), BOTH, NEW)] == [
        "",
        "TrustNext",
        "DropPrevious",
    ]
