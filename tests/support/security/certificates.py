"""Certificate authorities, certificates and stores for tests."""

from __future__ import annotations

import hashlib
import ipaddress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import pkcs12
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

PrivateKey = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey

#: Names at which tests reach their servers.
SERVER_NAMES = ("localhost", "127.0.0.1")
PASSWORD = "store-password"


def named(text: str) -> x509.Name:
    """A subject with one common name."""
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def new_key(kind: str = "ec") -> PrivateKey:
    if kind == "rsa":
        return rsa.generate_private_key(public_exponent=65537, key_size=2048)
    return ec.generate_private_key(ec.SECP256R1())


class Identity:
    """A private key and its certificate, with the certificates of its issuers below the root."""

    def __init__(
        self, key: PrivateKey, certificate: x509.Certificate, issuers: Sequence[x509.Certificate]
    ) -> None:
        self.key, self.certificate, self.issuers = key, certificate, list(issuers)

    @property
    def chain_pem(self) -> str:
        return pem(self.certificate, *self.issuers)

    def key_pem(self, password: str | None = None) -> str:
        encryption: serialization.KeySerializationEncryption = serialization.NoEncryption()
        if password is not None:
            encryption = serialization.BestAvailableEncryption(password.encode())
        return self.key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption
        ).decode()

    @property
    def pem(self) -> str:
        """A keystore in the format PEM."""
        return self.key_pem() + self.chain_pem

    def pkcs12(self, password: str = PASSWORD) -> bytes:
        encryption = serialization.BestAvailableEncryption(password.encode())
        return pkcs12.serialize_key_and_certificates(
            b"own", self.key, self.certificate, self.issuers, encryption
        )

    @property
    def fingerprint(self) -> str:
        return self.certificate.fingerprint(hashes.SHA256()).hex()


class Authority:
    """A certificate authority: a root, or an intermediate one of `parent`."""

    def __init__(self, name: str = "Test CA", parent: Authority | None = None) -> None:
        self.key = new_key()
        self.parent = parent
        self._revoked: list[int] = []
        issuer = named(name) if parent is None else parent.certificate.subject
        signer = self.key if parent is None else parent.key
        builder = _builder(named(name), issuer, self.key, days=(-1, 3650))
        if parent is not None:
            builder = builder.add_extension(parent.key_identifier, critical=False)
        self.certificate: x509.Certificate = (
            builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(x509.SubjectKeyIdentifier(key_digest(self.key)), critical=False)
            .add_extension(_usage(authority=True), critical=True)
            .sign(signer, hashes.SHA256())
        )

    @property
    def pem(self) -> str:
        return pem(self.certificate)

    @property
    def fingerprint(self) -> str:
        return self.certificate.fingerprint(hashes.SHA256()).hex()

    @property
    def key_identifier(self) -> x509.AuthorityKeyIdentifier:
        """The extension of what it issues. Since Python 3.13 a client demands it."""
        return x509.AuthorityKeyIdentifier(key_digest(self.key), None, None)

    def issue(
        self,
        subject: x509.Name | str = "client",
        *,
        names: Sequence[str] = SERVER_NAMES,
        days: tuple[float, float] = (-1, 90),
        usages: Sequence[x509.ObjectIdentifier] = (
            ExtendedKeyUsageOID.SERVER_AUTH,
            ExtendedKeyUsageOID.CLIENT_AUTH,
        ),
        key: PrivateKey | None = None,
        identified: bool = True,
    ) -> Identity:
        """A certificate for server and client, unless `usages` says otherwise. It is valid between
        two days from now. Without `identified` it has no Authority Key Identifier."""
        key = new_key() if key is None else key
        name = named(subject) if isinstance(subject, str) else subject
        builder = _builder(name, self.certificate.subject, key, days=days)
        builder = builder.add_extension(_usage(authority=False), critical=True)
        if identified:
            builder = builder.add_extension(self.key_identifier, critical=False)
        if names:
            builder = builder.add_extension(
                x509.SubjectAlternativeName([_general_name(one) for one in names]), critical=False
            )
        if usages:
            builder = builder.add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        certificate = builder.sign(self.key, hashes.SHA256())
        issuers = [] if self.parent is None else [self.certificate]
        return Identity(key, certificate, issuers)

    def revoke(self, *identities: Identity, days: tuple[float, float] = (-1, 30)) -> str:
        """The list of revoked certificates, in PEM, with these added."""
        self._revoked += [one.certificate.serial_number for one in identities]
        now = datetime.now(UTC)
        builder = (
            x509.CertificateRevocationListBuilder()
            .issuer_name(self.certificate.subject)
            .last_update(now + timedelta(days=days[0]))
            .next_update(now + timedelta(days=days[1]))
        )
        for number in self._revoked:
            revoked = x509.RevokedCertificateBuilder().serial_number(number)
            builder = builder.add_revoked_certificate(revoked.revocation_date(now).build())
        return (
            builder.sign(self.key, hashes.SHA256())
            .public_bytes(serialization.Encoding.PEM)
            .decode()
        )


def key_digest(key: PrivateKey) -> bytes:
    """Return the identifier of a key as Go makes it, and with it cert-manager: by SHA-256. Others
    take SHA-1."""
    named = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    raw = key.public_key().public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    digest = hashlib.sha256(raw).digest()[: len(named.digest)]
    assert digest != named.digest
    return digest


def pem(*certificates: x509.Certificate) -> str:
    return "".join(one.public_bytes(serialization.Encoding.PEM).decode() for one in certificates)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: PrivateKey, *, days: tuple[float, float]
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + timedelta(days=days[0]))
        .not_valid_after(now + timedelta(days=days[1]))
    )


def _usage(*, authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_encipherment=not authority,
        key_cert_sign=authority,
        crl_sign=authority,
        content_commitment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _general_name(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        return x509.DNSName(text)


class Stores:
    """Key stores and trust stores in a folder, and the configs that name them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def write(self, name: str, content: str | bytes) -> Path:
        """Replace a file as a whole, as Kubernetes and cert-manager do."""
        path = self.folder / name
        aside = self.folder / f".{name}.new"
        aside.write_bytes(content if isinstance(content, bytes) else content.encode())
        aside.chmod(0o600)
        aside.replace(path)
        return path

    def configs(
        self, identity: Identity | None, trusted: Authority | None, name: str = "server"
    ) -> dict[str, str]:
        """Configs of Kafka with PEM stores, for brokers and Java clients alike."""
        found: dict[str, str] = {}
        if identity is not None:
            path = self.write(f"{name}.pem", identity.pem)
            found |= {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(path)}
        if trusted is not None:
            path = self.write(f"{name}-ca.pem", trusted.pem)
            found |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(path)}
        return found
