"""TLS of the client: what it trusts, which stores it reads, and when it reads them again."""

from __future__ import annotations

import logging
import ssl
from typing import TYPE_CHECKING, NamedTuple

import pytest
import trustme
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
    pkcs12,
)
from cryptography.x509 import load_pem_x509_certificate
from shoal.client.errors import SecurityError
from shoal.client.settings import Settings

if TYPE_CHECKING:
    from pathlib import Path

    from shoal.client.security.security import Security

HOST = "broker.example"


class Pair(NamedTuple):
    """A certificate and its key as PEM text."""

    certificate: str
    key: str


def issue(ca: trustme.CA, name: str = HOST) -> Pair:
    issued = ca.issue_cert(name)
    certificate = issued.cert_chain_pems[0].bytes().decode()
    return Pair(certificate, issued.private_key_pem.bytes().decode())


def certificate_of(ca: trustme.CA) -> str:
    return ca.cert_pem.bytes().decode()


def server_of(ca: trustme.CA, clients: trustme.CA | None = None) -> ssl.SSLContext:
    """Return a server's context. With `clients` it requires certificates of that CA."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ca.issue_cert(HOST).configure_cert(context)
    if clients is not None:
        clients.configure_trust(context)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def settings(properties: dict[str, str]) -> Security:
    return Settings.from_bootstrap("a", {"security.protocol": "SSL"} | properties).security


def handshake(server: ssl.SSLContext, client: Security, host: str = HOST) -> None:
    """Connect in memory, and pass a byte from server to client. Raises what either end raises."""
    context = client.make_tls_context()
    assert context is not None
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = context.wrap_bio(to_client, to_server, server_hostname=host)
    theirs = server.wrap_bio(to_server, to_client, server_side=True)
    done: set[ssl.SSLObject] = set()
    while len(done) < 2:
        for end in (ours, theirs):
            try:
                end.do_handshake()
                done.add(end)
            except ssl.SSLWantReadError:
                continue
    theirs.write(b"x")
    assert ours.read(1) == b"x"


def test_a_configured_ca_is_the_only_one_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    system, ours = trustme.CA(), trustme.CA()
    (tmp_path / "system.pem").write_text(certificate_of(system))
    (tmp_path / "ours.pem").write_text(certificate_of(ours))
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "system.pem"))
    handshake(server_of(system), settings({}))
    configured = settings({"ssl.ca.location": str(tmp_path / "ours.pem")})
    handshake(server_of(ours), configured)
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(server_of(system), configured)


def test_a_trusted_certificate_needs_not_to_have_signed_itself() -> None:
    """Java trusts each certificate of a truststore; OpenSSL needs a flag for it."""
    root = trustme.CA()
    intermediate = root.create_child_ca()
    trust = settings({"ssl.ca.pem": certificate_of(intermediate)})
    handshake(server_of(intermediate), trust)
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(server_of(root), trust)


def test_the_host_name_is_checked_unless_that_is_switched_off() -> None:
    ca = trustme.CA()
    trust = {"ssl.ca.pem": certificate_of(ca)}
    with pytest.raises(ssl.SSLCertVerificationError, match="other"):
        handshake(server_of(ca), settings(trust), "other.example")
    unchecked = {"ssl.endpoint.identification.algorithm": ""}
    handshake(server_of(ca), settings(trust | unchecked), "other.example")


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion.TLSv1_1 is deprecated")
def test_old_versions_are_refused() -> None:
    ca = trustme.CA()
    server = server_of(ca)
    server.set_ciphers("ALL:@SECLEVEL=0")
    server.minimum_version = server.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises(ssl.SSLError):
        handshake(server, settings({"ssl.ca.pem": certificate_of(ca)}))


def test_renewed_files_are_used_without_a_restart(tmp_path: Path) -> None:
    old, new = trustme.CA(), trustme.CA()
    trust, certificate, key = (tmp_path / name for name in ("ca.crt", "user.crt", "user.key"))

    def write(ca: trustme.CA) -> None:
        pair = issue(ca, "client")
        trust.write_text(certificate_of(ca))
        certificate.write_text(pair.certificate)
        key.write_text(pair.key)

    write(old)
    client = settings(
        {
            "ssl.ca.location": str(trust),
            "ssl.certificate.location": str(certificate),
            "ssl.key.location": str(key),
        }
    )
    handshake(server_of(old, old), client)
    assert client.make_tls_context() is client.make_tls_context(), (
        "unchanged files make no new context"
    )
    write(new)
    handshake(server_of(new, new), client)
    with pytest.raises(ssl.SSLError):
        handshake(server_of(old, old), client)


def test_files_in_the_midst_of_a_renewal_do_not_break_connections(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ca = trustme.CA()
    first, second = issue(ca, "client"), issue(ca, "client")
    certificate, key = tmp_path / "user.crt", tmp_path / "user.key"
    certificate.write_text(first.certificate)
    key.write_text(first.key)
    client = settings(
        {
            "ssl.ca.pem": certificate_of(ca),
            "ssl.certificate.location": str(certificate),
            "ssl.key.location": str(key),
        }
    )
    handshake(server_of(ca, ca), client)
    used = client.make_tls_context()
    for half in (second.certificate, second.certificate[:500], ""):
        certificate.write_text(half)
        with caplog.at_level(logging.WARNING):
            assert client.make_tls_context() is used
            assert client.make_tls_context() is used
    warnings = [r.getMessage() for r in caplog.records]
    assert "the key does not belong to the certificate" in warnings[0]
    assert len(warnings) == 3, "each failure is logged once"
    certificate.write_text(second.certificate)
    key.write_text(second.key)
    assert client.make_tls_context() is not used
    handshake(server_of(ca, ca), client)


def pkcs12_of(pair: Pair, ca: trustme.CA, password: str) -> bytes:
    return pkcs12.serialize_key_and_certificates(
        b"user",
        load_pem_private_key(pair.key.encode(), None),  # type: ignore[arg-type]
        load_pem_x509_certificate(pair.certificate.encode()),
        [load_pem_x509_certificate(certificate_of(ca).encode())],
        BestAvailableEncryption(password.encode()),
    )


@pytest.mark.parametrize("type", ["PKCS12", "", "JKS"])
def test_pkcs12_stores(tmp_path: Path, type: str) -> None:
    """Java opens PKCS12 as JKS, its default type, too."""
    ca = trustme.CA()
    store = tmp_path / "user.p12"
    store.write_bytes(pkcs12_of(issue(ca, "client"), ca, "s3cret"))
    own = {
        "ssl.keystore.location": str(store),
        "ssl.keystore.password": "s3cret",
        "ssl.keystore.type": type,
    }
    trust = {
        "ssl.truststore.location": str(store),
        "ssl.truststore.password": "s3cret",
        "ssl.truststore.type": type,
    }
    handshake(server_of(ca, ca), settings(own | trust))
    with pytest.raises(SecurityError, match=r"user\.p12 cannot be opened: its password is wrong"):
        settings(own | trust | {"ssl.keystore.password": "other"}).make_tls_context()


def test_a_keystore_of_pem_with_an_encrypted_key(tmp_path: Path) -> None:
    ca = trustme.CA()
    pair = issue(ca, "client")
    encrypted = load_pem_private_key(pair.key.encode(), None).private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"s3cret")
    )
    store = tmp_path / "pair.pem"
    store.write_text(encrypted.decode() + pair.certificate)
    own = {
        "ssl.ca.pem": certificate_of(ca),
        "ssl.keystore.location": str(store),
        "ssl.keystore.type": "PEM",
    }
    handshake(server_of(ca, ca), settings(own | {"ssl.key.password": "s3cret"}))
    for wrong in ({}, {"ssl.key.password": "other"}):
        with pytest.raises(SecurityError, match=r"ssl\.key\.password does not decrypt it"):
            settings(own | wrong).make_tls_context()


def test_pem_text_on_one_line() -> None:
    ca = trustme.CA()
    pair = issue(ca, "client")
    properties = {
        "ssl.truststore.certificates": certificate_of(ca) * 2,
        "ssl.keystore.certificate.chain": pair.certificate,
        "ssl.keystore.key": pair.key,
    }
    flat = {name: text.replace("\n", " ") for name, text in properties.items()}
    handshake(server_of(ca, ca), settings(flat))


def test_stores_that_cannot_be_used(tmp_path: Path) -> None:
    ca = trustme.CA()
    key_only = tmp_path / "key.pem"
    key_only.write_text(issue(ca).key)
    jks, garbage = tmp_path / "clients.keystore", tmp_path / "garbage.pem"
    jks.write_bytes(b"\xfe\xed\xfe\xed\0\0\0\2")
    garbage.write_text("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
    other = tmp_path / "other"
    other.write_text("nothing")
    store = tmp_path / "store.p12"
    store.write_bytes(b"\x30\x82")
    convert = f"keytool -importkeystore -srckeystore {jks} -destkeystore {tmp_path}/clients.p12"
    for properties, said in (
        ({"ssl.ca.location": "/none"}, "ssl.ca.location /none cannot be read: No such file"),
        ({"ssl.ca.location": str(key_only)}, "key.pem contains no certificate"),
        ({"ssl.ca.location": str(garbage)}, "a certificate that cannot be loaded"),
        ({"ssl.ca.location": str(other)}, "is neither PEM nor PKCS12"),
        ({"ssl.truststore.location": str(jks)}, convert),
        ({"ssl.truststore.location": str(store)}, "is not a valid PKCS12 store"),
        (
            {"ssl.truststore.location": str(garbage), "ssl.truststore.type": "JKS"},
            "is PEM, but its type is set to JKS",
        ),
    ):
        with pytest.raises(SecurityError) as caught:
            settings(properties).make_tls_context()
        assert said in str(caught.value)


def test_a_private_key_is_never_taken_for_a_path() -> None:
    """Base 64 without its header, as in some Secrets, must not appear in a message."""
    with pytest.raises(SecurityError, match=r"ssl\.keystore\.key must be PEM text") as caught:
        settings({"ssl.keystore.key": "c2VjcmV0", "ssl.certificate.location": "/x"})
    assert "c2VjcmV0" not in str(caught.value)


def test_keys_without_encryption_are_never_written_to_a_disk(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ca = trustme.CA()
    pair = issue(ca)
    monkeypatch.setattr("tempfile.TemporaryDirectory", None)
    key = load_pem_private_key(pair.key.encode(), None).private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()
    )
    own = {"ssl.key.pem": key.decode(), "ssl.certificate.pem": pair.certificate}
    assert settings(own).make_tls_context()
