"""Keys and certificates of a listener, from `ssl.keystore.*` and `ssl.truststore.*`.

The formats are PEM, in files or in the configs, and PKCS12. Java's own format JKS is refused with
the command that converts it. `load_keystore` and `load_truststore` take the contents of files as
arguments, so that their caller can find out whether a file has changed. Errors are `BadStore`,
whose text is a sentence without secrets. Rules and wording follow Kafka's DefaultSslEngineFactory.
"""

from __future__ import annotations

import base64
import binascii
import re
from typing import TYPE_CHECKING, NamedTuple

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.serialization import pkcs12

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes

    from shoal.server.listener_security import ListenerSecurity

PEM = "PEM"
#: Store types that are read as PKCS12. A file of Java's default type JKS may be PKCS12 as well:
#: since Java 9 `keytool` writes PKCS12 unless asked for JKS.
_PKCS12_TYPES = ("PKCS12", "JKS")
_JKS_MAGICS = (b"\xfe\xed\xfe\xed", b"\xce\xce\xce\xce")
_BLOCK = re.compile(
    r"-BEGIN\s++(?P<label>[A-Z0-9]++(?: ++[A-Z0-9]++)*+)\s*+-++"
    r"(?P<data>[A-Za-z0-9/+=\s]*+)-++END\s[^-]*+-"
)
_KEY_LABELS = ("PRIVATE KEY", "ENCRYPTED PRIVATE KEY", "RSA PRIVATE KEY", "EC PRIVATE KEY")


class BadStore(Exception):
    """Why a store cannot be used, as a sentence with the remedy."""


class KeyStore(NamedTuple):
    """A private key, and the certificates that prove it, the one of the key first."""

    key: PrivateKeyTypes
    chain: tuple[x509.Certificate, ...]

    @property
    def chain_pem(self) -> str:
        return _encode_pem(self.chain)

    @property
    def key_pem(self) -> str:
        """The key without a password."""
        return self.key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ).decode()


class TrustStore(NamedTuple):
    """The certificates of the authorities whose certificates are accepted."""

    certificates: tuple[x509.Certificate, ...]

    @property
    def pem(self) -> str:
        return _encode_pem(self.certificates)


def compute_fingerprint(certificate: x509.Certificate) -> str:
    """Return the SHA-256 fingerprint in lower-case hex, as `openssl x509 -fingerprint` without
    colons."""
    return certificate.fingerprint(hashes.SHA256()).hex()


def list_locations(security: ListenerSecurity) -> list[str]:
    """Return the files that the stores of a listener are in."""
    names = ("ssl.keystore.location", "ssl.truststore.location", "shoal.ssl.crl.location")
    return [path for name in names if (path := security.get_value(name))]


def load_keystore(security: ListenerSecurity, files: Mapping[str, bytes]) -> KeyStore | None:
    """Return a listener's key and certificates, or None if no config names them.

    Raises `BadStore`.
    """
    type, path = (
        security.get_value("ssl.keystore.type").upper(),
        security.get_value("ssl.keystore.location"),
    )
    password = security.get_value("ssl.keystore.password")
    key_password = security.get_value("ssl.key.password")
    key, chain = (
        security.get_value("ssl.keystore.key"),
        security.get_value("ssl.keystore.certificate.chain"),
    )
    if key is not None or chain is not None:
        _check_inline(type, path, password, key=key, chain=chain)
        return _load_pem_keystore(key + "\n" + chain, "ssl.keystore.key", key_password)
    if path is None:
        if password is not None:
            raise BadStore(
                "SSL key store is not specified, but key store password is specified. Set"
                " ssl.keystore.location."
            )
        return None
    if type == PEM:
        if password is not None:
            raise BadStore(
                "SSL key store password cannot be specified with PEM format, only key password may"
                " be specified. Use ssl.key.password."
            )
        return _load_pem_keystore(_decode_text(files[path], path), path, key_password)
    if password is None:
        raise BadStore(
            "SSL key store is specified, but key store password is not specified. Set"
            " ssl.keystore.password."
        )
    store = _load_pkcs12("ssl.keystore", type, path, files[path], password)
    if store.key is None or store.cert is None:
        raise BadStore(f"{path} has no private key with a certificate.")
    additional = [entry.certificate for entry in store.additional_certs]
    return _make_keystore(store.key, _order_chain(store.cert.certificate, additional), path)


def _check_inline(
    type: str, path: str | None, password: str | None, *, key: str | None, chain: str | None
) -> None:
    if key is None:
        raise BadStore("SSL certificate chain is specified, but private key is not specified.")
    if type != PEM:
        raise BadStore(
            f"SSL private key can be specified only for PEM, but key store type is {type}. Set"
            " ssl.keystore.type=PEM."
        )
    if chain is None:
        raise BadStore("SSL private key is specified, but certificate chain is not specified.")
    if path is not None:
        raise BadStore("Both SSL key store location and separate private key are specified.")
    if password is not None:
        raise BadStore(
            "SSL key store password cannot be specified with PEM format, only key password may be"
            " specified. Use ssl.key.password."
        )


def load_truststore(security: ListenerSecurity, files: Mapping[str, bytes]) -> TrustStore | None:
    """Return the authorities that a listener trusts, or None if no config names them.

    Raises `BadStore`.
    """
    type = security.get_value("ssl.truststore.type").upper()
    path, password = (
        security.get_value("ssl.truststore.location"),
        security.get_value("ssl.truststore.password"),
    )
    inline = security.get_value("ssl.truststore.certificates")
    is_pem = type == PEM
    if inline is not None and not is_pem:
        raise BadStore(
            f"SSL trust store certs can be specified only for PEM, but trust store type is {type}."
            " Set ssl.truststore.type=PEM."
        )
    if inline is not None and path is not None:
        raise BadStore(
            "Both SSL trust store location and separate trust certificates are specified."
        )
    if password is not None and is_pem and (inline is not None or path is not None):
        raise BadStore("SSL trust store password cannot be specified for PEM format.")
    if inline is not None:
        return TrustStore(_load_pem_certificates(inline, "ssl.truststore.certificates"))
    if path is None:
        if password is not None:
            raise BadStore(
                "SSL trust store is not specified, but trust store password is specified. Set"
                " ssl.truststore.location."
            )
        return None
    if is_pem:
        return TrustStore(_load_pem_certificates(_decode_text(files[path], path), path))
    store = _load_pkcs12("ssl.truststore", type, path, files[path], password)
    certificates = [entry.certificate for entry in store.additional_certs]
    if store.cert is not None:
        certificates.insert(0, store.cert.certificate)
    if not certificates:
        raise BadStore(f"{path} has no certificates.")
    return TrustStore(tuple(certificates))


def load_revocations(path: str, data: bytes) -> list[x509.CertificateRevocationList]:
    """Return the lists of revoked certificates in a PEM file. Raises `BadStore`."""
    crls = []
    try:
        for label, der in _iterate_blocks(_decode_text(data, path)):
            if label == "X509 CRL":
                crls.append(x509.load_der_x509_crl(der))
    except ValueError as error:
        raise BadStore(
            f"{path} has a list of revoked certificates that is damaged: {error}."
        ) from None
    if not crls:
        raise BadStore(f"{path} has no list of revoked certificates (BEGIN X509 CRL).")
    return crls


# PEM.


def _decode_text(data: bytes, path: str) -> str:
    try:
        return data.decode("ascii")
    except UnicodeDecodeError:
        raise BadStore(
            f"{path} is not in the format PEM. If it is a PKCS12 file, set the store's type to"
            " PKCS12."
        ) from None


def _iterate_blocks(text: str) -> Iterator[tuple[str, bytes]]:
    """Yield label and data of each block. As in Kafka, any whitespace may stand for line ends."""
    for match in _BLOCK.finditer(text):
        try:
            yield match["label"], base64.b64decode("".join(match["data"].split()), validate=True)
        except binascii.Error as error:
            raise ValueError(str(error)) from None


def _load_pem_certificates(text: str, source: str) -> tuple[x509.Certificate, ...]:
    try:
        certificates = [
            x509.load_der_x509_certificate(der)
            for label, der in _iterate_blocks(text)
            if label.endswith("CERTIFICATE")
        ]
    except ValueError as error:
        raise BadStore(f"{source} has a certificate that is damaged: {error}.") from None
    if not certificates:
        raise BadStore(f"{source} has no certificate (BEGIN CERTIFICATE).")
    return tuple(certificates)


def _load_pem_keystore(text: str, source: str, password: str | None) -> KeyStore:
    keys = [(label, der) for label, der in _read_blocks(text, source) if label in _KEY_LABELS]
    if not keys:
        raise BadStore(f"{source} has no private key (BEGIN PRIVATE KEY).")
    label, der = keys[0]
    is_encrypted = label.startswith("ENCRYPTED")
    if is_encrypted and password is None:
        raise BadStore(f"The private key in {source} is encrypted: set ssl.key.password.")
    try:
        secret = password.encode() if is_encrypted and password is not None else None
        key = serialization.load_der_private_key(der, secret)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        # The text of the error may depend on the password.
        remedy = "Check ssl.key.password." if is_encrypted else "Write it in the format PKCS8."
        raise BadStore(f"The private key in {source} cannot be read. {remedy}") from None
    return _make_keystore(key, _load_pem_certificates(text, source), source)


def _read_blocks(text: str, source: str) -> list[tuple[str, bytes]]:
    try:
        return list(_iterate_blocks(text))
    except ValueError as error:
        raise BadStore(f"{source} is not in the format PEM: {error}.") from None


def _make_keystore(
    key: PrivateKeyTypes, chain: tuple[x509.Certificate, ...], source: str
) -> KeyStore:
    """Return the store if the first certificate is the key's. Raises `BadStore`."""
    encoding = serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    if key.public_key().public_bytes(*encoding) != chain[0].public_key().public_bytes(*encoding):
        raise BadStore(
            f"The private key in {source} does not belong to the first certificate"
            f" ({chain[0].subject.rfc4514_string()}). Write the key's certificate first, and those"
            " of its issuers behind it."
        )
    return KeyStore(key, chain)


def _encode_pem(certificates: tuple[x509.Certificate, ...]) -> str:
    return "".join(
        certificate.public_bytes(serialization.Encoding.PEM).decode()
        for certificate in certificates
    )


# PKCS12.


def _load_pkcs12(
    setting: str, type: str, path: str, data: bytes, password: str | None
) -> pkcs12.PKCS12KeyAndCertificates:
    if type not in _PKCS12_TYPES:
        raise BadStore(f"{setting}.type is {type}. It must be PEM or PKCS12.")
    if data[:4] in _JKS_MAGICS:
        raise BadStore(
            f"{path} is in Java's format JKS, which is not supported. Convert it by `keytool"
            f" -importkeystore -srckeystore {path} -destkeystore {path}.p12 -deststoretype PKCS12`,"
            f" and set {setting}.location to {path}.p12 and {setting}.type to PKCS12."
        )
    if data.lstrip().startswith(b"-----BEGIN"):
        raise BadStore(f"{path} is in the format PEM: set {setting}.type=PEM.")
    try:
        return pkcs12.load_pkcs12(data, None if password is None else password.encode())
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise BadStore(
            f"{path} cannot be read as a PKCS12 store. Check {setting}.password, and whether the"
            " file is whole."
        ) from None


def _order_chain(
    first: x509.Certificate, others: list[x509.Certificate]
) -> tuple[x509.Certificate, ...]:
    """Return the chain from `first` on: each certificate is the issuer of the one before it."""
    chain, remaining = [first], list(others)
    while chain[-1].issuer != chain[-1].subject:
        issuer = next(
            (candidate for candidate in remaining if candidate.subject == chain[-1].issuer), None
        )
        if issuer is None:
            break
        remaining.remove(issuer)
        chain.append(issuer)
    return tuple(chain)
