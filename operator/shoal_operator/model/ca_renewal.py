"""Renewal of a certificate authority in three phases, without a moment without trust. Pure.

1. The next authority is trusted beside the current one, which still signs.
2. The next one becomes the current one and signs. The previous one is still trusted.
3. The previous one is dropped.

A phase begins once all brokers report what the phase before it needs. Clients fetch the trusted
authorities themselves, so phases 2 and 3 also wait for `overlap`. One write begins a phase, so an
operator that dies in between has either begun it or not.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from shoal_operator.model import certificates

if TYPE_CHECKING:
    import datetime
    from collections.abc import Mapping

    from shoal_operator.model.certificates import KeyPair


class CertificateAuthority(NamedTuple):
    """A certificate authority as its Secret has it: at most one of `next` and `old` is set.

    `began` is when the current phase began, and `handled` the value of the annotation `RENEW` that
    asked for the last renewal. `chain` has the certificates above authorities that an issuer has
    signed.
    """

    current: KeyPair
    next: KeyPair | None = None
    old: bytes = b""
    began: datetime.datetime | None = None
    handled: str = ""
    chain: bytes = b""

    @property
    def trust_bundle(self) -> bytes:
        """All certificates that brokers have to trust, in PEM."""
        return self.current.certificate + (self.next.certificate if self.next else b"") + self.old

    @property
    def client_bundle(self) -> bytes:
        """All certificates that clients have to trust, in PEM. Some clients, such as librdkafka,
        trust an authority only together with its root. Brokers do not, so they trust no other
        authority of that root."""
        return self.trust_bundle + self.chain

    @property
    def phase(self) -> str:
        """The phase as the status names it; empty if no renewal is under way."""
        if self.next:
            return "TrustNext"
        return "DropPrevious" if self.old else ""


class LoadedCertificates(NamedTuple):
    """The SHA-256 fingerprints that one broker reports: of its own certificates, and of the
    authorities that its listeners for this authority's clients trust."""

    own: frozenset[str]
    trusted: frozenset[str]


class RenewalAction(Enum):
    """What to do next."""

    KEEP = "keep"
    TRUST_NEXT = "trust the next authority too"
    SIGN = "sign with the next authority"
    DROP = "drop the previous authority"


class RenewalStep(NamedTuple):
    """The next action. `why` says what a renewal waits for; empty if none is under way."""

    action: RenewalAction
    why: str = ""


def choose_next_step(
    have: CertificateAuthority,
    *,
    now: datetime.datetime,
    renewal: datetime.timedelta,
    overlap: datetime.timedelta,
    requested: str,
    loaded: Mapping[int, LoadedCertificates] | None,
    leaf: str,
    unfetched: str = "",
    successor: str | None = None,
) -> RenewalStep:
    """Return the next step of a renewal.

    It begins `renewal` before the authority ends, or when `requested` is a new value. If an issuer
    signs the authority, it begins when the newest one, whose fingerprint is `successor`, is another
    one; `successor` is empty if there is none. `loaded` is
    by broker, None if some broker has not reported. `leaf` is the fingerprint of the certificate
    that the brokers must show in the end; empty if the authority signs none for them. `unfetched`
    says which users' Secrets are behind; empty if none are.
    """
    if have.next is None and not have.old:
        due = certificates.get_expiry(have.current.certificate) - now <= renewal
        begins = due or bool(requested and requested != have.handled)
        if successor is not None:
            begins = successor not in (
                "",
                certificates.compute_fingerprint(have.current.certificate),
            )
        return RenewalStep(RenewalAction.TRUST_NEXT if begins else RenewalAction.KEEP)
    if have.began is not None and now < have.began + overlap:
        overlap_end = have.began + overlap
        return RenewalStep(
            RenewalAction.KEEP,
            f"clients get until {overlap_end:%H:%M:%S} UTC to fetch the authorities",
        )
    if unfetched:
        return RenewalStep(RenewalAction.KEEP, unfetched)
    if loaded is None:
        return RenewalStep(RenewalAction.KEEP, "not all brokers report their certificates")
    if have.next is not None:
        new_fingerprint = certificates.compute_fingerprint(have.next.certificate)
        late = sorted(
            b for b, reported in loaded.items() if new_fingerprint not in reported.trusted
        )
        if late:
            return RenewalStep(
                RenewalAction.KEEP, f"brokers {late} do not trust the next authority yet"
            )
        return RenewalStep(RenewalAction.SIGN)
    late = sorted(b for b, reported in loaded.items() if leaf and leaf not in reported.own)
    if late:
        return RenewalStep(
            RenewalAction.KEEP, f"brokers {late} do not use their new certificate yet"
        )
    return RenewalStep(RenewalAction.DROP)


def apply_action(
    have: CertificateAuthority,
    action: RenewalAction,
    *,
    now: datetime.datetime,
    requested: str,
    new_pair: KeyPair | None = None,
    chain: bytes = b"",
) -> CertificateAuthority:
    """Return the authority after an action. `new_pair` is the new pair for `TRUST_NEXT`, and
    `chain` what is above the newest authority."""
    match action:
        case RenewalAction.TRUST_NEXT:
            assert new_pair is not None
            merged_chain = certificates.merge(have.chain, chain)
            return CertificateAuthority(
                have.current, new_pair, b"", now, requested or have.handled, merged_chain
            )
        case RenewalAction.SIGN:
            assert have.next is not None
            old = have.current.certificate
            return CertificateAuthority(have.next, None, old, now, have.handled, have.chain)
        case RenewalAction.DROP:
            return CertificateAuthority(have.current, None, b"", None, have.handled, chain)
        case RenewalAction.KEEP:
            return have
