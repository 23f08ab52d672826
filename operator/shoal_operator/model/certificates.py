"""Certificate authorities, and the certificates that they sign.

Keys are ECDSA P-256. A certificate is valid from an hour before it is made, because clocks differ.
Keys and serial numbers are random; the time is an argument. All texts are PEM.
"""

from __future__ import annotations

import datetime
import os
from ipaddress import ip_address
from typing import TYPE_CHECKING, NamedTuple

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import pkcs12
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from cryptography.hazmat.primitives.asymmetric.types import (
        CertificateIssuerPrivateKeyTypes,
        CertificateIssuerPublicKeyTypes,
        PrivateKeyTypes,
    )

#: How much earlier than now a certificate becomes valid.
EARLIER = datetime.timedelta(hours=1)
#: The unit of `validity_days`, and of the fields of a QueueCluster in days. End-to-end tests set a
#: shorter one, so that they see renewals.
DAY = datetime.timedelta(seconds=float(os.environ.get("SHOAL_DAY_SECONDS", "86400")))
#: The organization in the names of the operator's own certificates.
ORGANIZATION = "shoal.dev"


class BadCertificate(Exception):
    """A certificate or key cannot be used; the message says why."""


class KeyPair(NamedTuple):
    """A certificate and its private key."""

    certificate: bytes
    key: bytes


def make_ca(common_name: str, *, now: datetime.datetime, validity_days: int) -> KeyPair:
    """Return a new authority, which signs itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = _build_name(common_name, ORGANIZATION)
    builder = (
        _make_builder(name, key.public_key(), now)
        .issuer_name(name)
        .not_valid_after(now + validity_days * DAY)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_build_key_usage(key_cert_sign=True, crl_sign=True), critical=True)
    )
    return KeyPair(_encode_pem(builder.sign(key, hashes.SHA256())), _encode_key_pem(key))


def issue(
    ca: KeyPair,
    common_name: str,
    *,
    now: datetime.datetime,
    validity_days: int,
    organization: str = "",
    dns: Sequence[str] = (),
    ips: Sequence[str] = (),
    server: bool = False,
) -> KeyPair:
    """Return a new key with a certificate for clients, and for servers too if `server`.

    It ends with the authority's at the latest. Raises `BadCertificate` if the authority cannot
    sign.
    """
    authority, ca_key = _load_ca(ca)
    key = ec.generate_private_key(ec.SECP256R1())
    usages = [ExtendedKeyUsageOID.CLIENT_AUTH]
    if server:
        usages.append(ExtendedKeyUsageOID.SERVER_AUTH)
    names: list[x509.GeneralName] = [x509.DNSName(name) for name in dns]
    names += [x509.IPAddress(ip_address(ip)) for ip in ips]
    builder = (
        _make_builder(_build_name(common_name, organization), key.public_key(), now)
        .issuer_name(authority.subject)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_build_key_usage(digital_signature=True), critical=True)
        .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        .add_extension(_get_issuer_identifier(authority, ca_key.public_key()), critical=False)
    )
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    ends = now + validity_days * DAY
    builder = builder.not_valid_after(min(ends, authority.not_valid_after_utc))
    return KeyPair(_encode_pem(builder.sign(ca_key, hashes.SHA256())), _encode_key_pem(key))


def _make_builder(
    name: x509.Name, key: ec.EllipticCurvePublicKey, now: datetime.datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - EARLIER)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _build_name(common_name: str, organization: str) -> x509.Name:
    parts = [x509.NameAttribute(NameOID.COMMON_NAME, common_name)]
    if organization:
        # Java prints the parts of a name in reverse: `CN=…,O=…`.
        parts.insert(0, x509.NameAttribute(NameOID.ORGANIZATION_NAME, organization))
    return x509.Name(parts)


def _build_key_usage(**granted: bool) -> x509.KeyUsage:
    usages = (
        "digital_signature",
        "content_commitment",
        "key_encipherment",
        "data_encipherment",
        "key_agreement",
        "key_cert_sign",
        "crl_sign",
        "encipher_only",
        "decipher_only",
    )
    return x509.KeyUsage(**{usage: granted.get(usage, False) for usage in usages})


def _get_issuer_identifier(
    authority: x509.Certificate, key: CertificateIssuerPublicKeyTypes
) -> x509.AuthorityKeyIdentifier:
    """Return the identifier of the authority's key as the authority has it: its issuer chose the
    hash, and OpenSSL compares both."""
    try:
        extension = authority.extensions.get_extension_for_class(x509.SubjectKeyIdentifier)
    except x509.ExtensionNotFound:
        return x509.AuthorityKeyIdentifier.from_issuer_public_key(key)
    return x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(extension.value)


def check_ca(ca: KeyPair, now: datetime.datetime) -> None:
    """Raise `BadCertificate` unless this authority can sign certificates now."""
    authority, _ = _load_ca(ca)
    if authority.not_valid_after_utc <= now:
        raise BadCertificate(f"it expired at {authority.not_valid_after_utc:%Y-%m-%d %H:%M} UTC")
    if authority.not_valid_before_utc > now:
        starts = authority.not_valid_before_utc
        raise BadCertificate(f"it is not valid before {starts:%Y-%m-%d %H:%M} UTC")


def check_pair(pair: KeyPair) -> PrivateKeyTypes:
    """Return the key of a certificate. Raises `BadCertificate` unless both belong together."""
    try:
        key = serialization.load_pem_private_key(pair.key, None)
    except (TypeError, ValueError) as error:
        raise BadCertificate(f"its key cannot be read: {error}") from None
    if key.public_key() != load(pair.certificate).public_key():
        raise BadCertificate("its key belongs to another certificate")
    return key


def _load_ca(ca: KeyPair) -> tuple[x509.Certificate, CertificateIssuerPrivateKeyTypes]:
    authority = load(ca.certificate)
    try:
        constraints = authority.extensions.get_extension_for_class(x509.BasicConstraints)
    except x509.ExtensionNotFound:
        constraints = None
    if constraints is None or not constraints.value.ca:
        raise BadCertificate(f"{format_subject(ca.certificate)} is no certificate authority")
    return authority, check_pair(ca)  # type: ignore[return-value]


def load(pem: bytes) -> x509.Certificate:
    """Return the first certificate. Raises `BadCertificate`."""
    try:
        return x509.load_pem_x509_certificates(pem)[0]
    except ValueError:
        raise BadCertificate("there is no certificate in PEM format") from None


def is_signed_by(pem: bytes, authority: bytes) -> bool:
    """Return whether this authority signed a certificate, which may be any text, and the
    certificate names the key as the authority does."""
    try:
        signed, issuer = load(pem), load(authority)
        signed.verify_directly_issued_by(issuer)
    except (BadCertificate, ValueError, TypeError, InvalidSignature):
        return False
    try:
        issuer_identifier = signed.extensions.get_extension_for_class(
            x509.AuthorityKeyIdentifier
        ).value
        own = issuer.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    except x509.ExtensionNotFound:
        return True
    return issuer_identifier.key_identifier in (None, own.digest)


def may_stay(
    pair: KeyPair, authority: bytes, now: datetime.datetime, renewal: datetime.timedelta
) -> bool:
    """Return whether a certificate that this authority signed need not be renewed yet.

    It is renewed `renewal` before it ends. One that ends with the authority stays, because a new
    one would end then, too. One that cannot be read may not stay. Raises `BadCertificate` for the
    authority.
    """
    try:
        check_pair(pair)
    except BadCertificate:
        return False
    if not is_signed_by(pair.certificate, authority):
        return False
    ends = get_expiry(pair.certificate)
    return ends - now > renewal or ends >= get_expiry(authority)


def format_not_after(pem: bytes) -> str:
    """Return when the first certificate ends as Kubernetes writes times (RFC 3339)."""
    return f"{get_expiry(pem):%Y-%m-%dT%H:%M:%SZ}"


def get_alternative_names(pem: bytes) -> tuple[set[str], set[str]]:
    """Return the DNS names and the IP addresses that a certificate is for."""
    try:
        alternative_names = (
            load(pem).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        )
    except x509.ExtensionNotFound:
        return set(), set()
    ips = {str(ip) for ip in alternative_names.get_values_for_type(x509.IPAddress)}
    return set(alternative_names.get_values_for_type(x509.DNSName)), ips


def get_expiry(pem: bytes) -> datetime.datetime:
    """Return when the first certificate ends."""
    return load(pem).not_valid_after_utc


def get_validity_start(pem: bytes) -> datetime.datetime:
    """Return when the first certificate becomes valid."""
    return load(pem).not_valid_before_utc


def split(pem: bytes) -> list[bytes]:
    """Return each of several certificates. Raises `BadCertificate`."""
    try:
        return (
            [_encode_pem(certificate) for certificate in x509.load_pem_x509_certificates(pem)]
            if pem
            else []
        )
    except ValueError:
        raise BadCertificate("there is no certificate in PEM format") from None


def merge(*pems: bytes) -> bytes:
    """Return the certificates of several texts, each once. Raises `BadCertificate`."""
    return b"".join(dict.fromkeys(certificate for pem in pems for certificate in split(pem)))


def without_roots(chain: bytes) -> bytes:
    """Return the certificates that do not sign themselves. Raises `BadCertificate`."""
    return b"".join(
        certificate for certificate in split(chain) if not is_signed_by(certificate, certificate)
    )


def find_root(chain: bytes) -> bytes:
    """Return the last certificate of a chain if it signs itself, else nothing: clients have the
    authority already. Raises `BadCertificate`."""
    if not chain:
        raise BadCertificate("has no tls.crt")
    last = split(chain)[-1]
    return last if is_signed_by(last, last) else b""


def get_issue_time(pem: bytes) -> datetime.datetime:
    """Return when the first certificate was made."""
    return load(pem).not_valid_before_utc + EARLIER


def compute_fingerprint(pem: bytes) -> str:
    """Return the SHA-256 fingerprint of the first certificate, as brokers report it."""
    return load(pem).fingerprint(hashes.SHA256()).hex()


def format_subject(pem: bytes) -> str:
    """Return the subject of the first certificate as Java prints it (RFC 2253)."""
    return load(pem).subject.rfc4514_string()


def format_principal(common_name: str) -> str:
    """Return the principal of one of the operator's own certificates."""
    return f"User:CN={common_name},O={ORGANIZATION}"


def build_pkcs12_store(
    pair: KeyPair, authorities: Iterable[bytes], password: str, name: str
) -> bytes:
    """Return a PKCS12 store with a key, its certificate and trusted authorities."""
    trusted = [x for pem in authorities for x in x509.load_pem_x509_certificates(pem)]
    key = serialization.load_pem_private_key(pair.key, None)
    return pkcs12.serialize_key_and_certificates(
        name.encode(),
        key,  # type: ignore[arg-type]
        load(pair.certificate),
        trusted,
        serialization.BestAvailableEncryption(password.encode()),
    )


def _encode_pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _encode_key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
