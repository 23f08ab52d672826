"""Certificates of the operator: handshakes with what it makes, and what it refuses."""

from __future__ import annotations

import datetime
import ssl
import subprocess
from typing import TYPE_CHECKING

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import pkcs12
from shoal_operator.model import certificates
from shoal_operator.model.certificates import BadCertificate, KeyPair
from support.security.certificates import Authority, Identity

if TYPE_CHECKING:
    from pathlib import Path

NOW = datetime.datetime.now(datetime.UTC)
DAY = datetime.timedelta(days=1)
CA = certificates.make_ca("main-cluster-ca", now=NOW, validity_days=365)
OTHER_CA = certificates.make_ca("main-cluster-ca", now=NOW, validity_days=365)
BROKER = certificates.issue(
    CA,
    "main-broker",
    now=NOW,
    validity_days=30,
    organization=certificates.ORGANIZATION,
    dns=["*.main-brokers.n.svc"],
    ips=["127.0.0.1", "::1"],
    server=True,
)
USER = certificates.issue(CA, "ann", now=NOW, validity_days=30)


def context(folder: Path, own: KeyPair | None, trusted: KeyPair, *, server: bool) -> ssl.SSLContext:
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
    made.load_verify_locations(cadata=trusted.certificate.decode())
    made.verify_mode = ssl.CERT_REQUIRED
    if own is not None:
        path = folder / f"{certificates.compute_fingerprint(own.certificate)}.pem"
        path.write_bytes(own.key + own.certificate)
        made.load_cert_chain(path)
    return made


def shake_hands(client: ssl.SSLContext, server: ssl.SSLContext, name: str) -> str:
    """Return the common name of the client. Raises `ssl.SSLError`."""
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(to_client, to_server, server_hostname=name),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    for _ in range(4):
        for end in ends:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
    shown = ends[1].getpeercert() or {}
    return dict(part[0] for part in shown["subject"])["commonName"]  # type: ignore[misc]


@pytest.mark.parametrize("name", ["main-broker-0.main-brokers.n.svc", "127.0.0.1", "::1"])
def test_handshake(tmp_path: Path, name: str) -> None:
    client = context(tmp_path, USER, CA, server=False)
    assert shake_hands(client, context(tmp_path, BROKER, CA, server=True), name) == "ann"


@pytest.mark.parametrize("minutes", [-10, 10])
def test_a_clock_that_is_ten_minutes_off(tmp_path: Path, minutes: int) -> None:
    """The operator signs by a clock that is behind or ahead. Its certificates are valid at once."""
    now = NOW + datetime.timedelta(minutes=minutes)
    ca = certificates.make_ca("main-cluster-ca", now=now, validity_days=365)
    broker, user = (
        certificates.issue(ca, name, now=now, validity_days=1, ips=["127.0.0.1"], server=serves)
        for name, serves in (("main-broker", True), ("ann", False))
    )
    client = context(tmp_path, user, ca, server=False)
    assert shake_hands(client, context(tmp_path, broker, ca, server=True), "127.0.0.1") == "ann"


@pytest.mark.parametrize(
    ("own", "trusted", "server", "name"),
    [
        (USER, OTHER_CA, BROKER, "127.0.0.1"),
        (certificates.issue(OTHER_CA, "ann", now=NOW, validity_days=9), CA, BROKER, "127.0.0.1"),
        (USER, CA, BROKER, "other.n.svc"),
        (USER, CA, USER, "127.0.0.1"),
        (certificates.issue(CA, "ann", now=NOW - 9 * DAY, validity_days=8), CA, BROKER, "::1"),
    ],
    ids=["the server's authority", "the client's", "a name", "a client as server", "expired"],
)
def test_handshakes_that_fail(
    tmp_path: Path, own: KeyPair, trusted: KeyPair, server: KeyPair, name: str
) -> None:
    client = context(tmp_path, own, trusted, server=False)
    with pytest.raises(ssl.SSLError):
        shake_hands(client, context(tmp_path, server, CA, server=True), name)


def test_an_authority_that_names_its_key_by_another_hash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found with cert-manager: brokers did not start, because OpenSSL did not find the issuer of
    their certificates."""
    company = Authority("company")
    ca = KeyPair(
        company.pem.encode(), Identity(company.key, company.certificate, []).key_pem().encode()
    )
    broker, user = (
        certificates.issue(ca, name, now=NOW, validity_days=30, dns=["broker"], server=True)
        for name in ("broker", "ann")
    )
    server = context(tmp_path, broker, ca, server=True)
    assert shake_hands(context(tmp_path, user, ca, server=False), server, "broker") == "ann"
    assert certificates.is_signed_by(broker.certificate, ca.certificate)
    # What an earlier operator has signed is replaced.
    monkeypatch.setattr(
        certificates,
        "_get_issuer_identifier",
        lambda _, key: x509.AuthorityKeyIdentifier.from_issuer_public_key(key),
    )
    former = certificates.issue(ca, "broker", now=NOW, validity_days=30)
    assert not certificates.is_signed_by(former.certificate, ca.certificate)


def test_openssl_verifies_them(tmp_path: Path) -> None:
    """Under the rules of RFC 5280, which `ssl` does not all check."""
    for name, pem in (("ca", CA.certificate), ("broker", BROKER.certificate)):
        (tmp_path / name).write_bytes(pem)
    words = ["openssl", "verify", "-x509_strict", "-CAfile", str(tmp_path / "ca")]
    words += ["-purpose", "sslserver", str(tmp_path / "broker")]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == f"{tmp_path / 'broker'}: OK", done.stderr


def test_dates() -> None:
    assert certificates.load(USER.certificate).not_valid_before_utc <= NOW - certificates.EARLIER
    assert abs(certificates.get_expiry(USER.certificate) - (NOW + 30 * DAY)) < DAY / 86_400
    long = certificates.issue(CA, "ann", now=NOW, validity_days=4000)
    assert certificates.get_expiry(long.certificate) == certificates.get_expiry(CA.certificate)


def test_principals_are_subjects_as_java_prints_them() -> None:
    assert (
        certificates.format_principal("main-broker")
        == f"User:{certificates.format_subject(BROKER.certificate)}"
    )
    assert certificates.format_subject(USER.certificate) == "CN=ann"


def test_facts_of_a_certificate() -> None:
    assert certificates.get_alternative_names(BROKER.certificate) == (
        {"*.main-brokers.n.svc"},
        {"127.0.0.1", "::1"},
    )
    assert certificates.get_alternative_names(USER.certificate) == (set(), set())
    assert certificates.is_signed_by(BROKER.certificate, CA.certificate)
    assert not certificates.is_signed_by(BROKER.certificate, OTHER_CA.certificate)


BAD = {
    "expired": (
        certificates.make_ca("x", now=NOW - 9 * DAY, validity_days=8),
        "it expired at",
    ),
    "early": (certificates.make_ca("x", now=NOW + DAY, validity_days=8), "it is not valid before"),
    "no authority": (USER, "CN=ann is no certificate authority"),
    "another key": (CA._replace(key=OTHER_CA.key), "its key belongs to another certificate"),
    "no key": (CA._replace(key=b""), "its key cannot be read"),
    "nothing": (KeyPair(b"", b""), "there is no certificate in PEM format"),
}


@pytest.mark.parametrize("name", BAD)
def test_authorities_that_cannot_be_used(name: str) -> None:
    ca, message = BAD[name]
    with pytest.raises(BadCertificate, match=message):
        certificates.check_ca(ca, NOW)
    certificates.check_ca(CA, NOW)


def test_a_store_has_the_key_and_the_authorities() -> None:
    data = certificates.build_pkcs12_store(USER, [CA.certificate], "secret", "ann")
    found = pkcs12.load_pkcs12(data, b"secret")
    assert found.cert is not None
    assert found.cert.certificate == certificates.load(USER.certificate)
    assert [c.certificate for c in found.additional_certs] == [certificates.load(CA.certificate)]
