"""TLS contexts from certificates and keys in PEM, in PKCS12 stores, or in files of either.

Files are read again for each new connection. The context is made again only if they have changed:
it costs milliseconds. If changed files cannot be used, for example because only one of two files
has been written yet, the previous context stays in use, and a warning is logged.

A configured truststore replaces the CAs of the system. As in Java, each certificate in it is
trusted, whether it signed itself or not.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import ssl
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from shoal.client.errors import SecurityError
from shoal.client.security.secret import NO_SECRET, Secret, SecretBytes

if TYPE_CHECKING:
    from collections.abc import Iterator

STORE_TYPES = ("PEM", "PKCS12", "JKS")
_log = logging.getLogger(__name__)
_BEGIN = "-----BEGIN"
_BLOCK = re.compile(r"-----BEGIN ([A-Z0-9 ]+)-----(.*?)-----END \1-----", re.DOTALL)
_JKS = (b"\xfe\xed\xfe\xed", b"\xce\xce\xce\xce")


class TlsStore(NamedTuple):
    """Certificates or a key: PEM text, or the path of a file. Without a type the content shows it.

    `name` is the property that set it, for messages.
    """

    name: str
    value: Secret
    type: str = ""
    password: Secret = NO_SECRET

    @property
    def inline(self) -> bool:
        return _BEGIN in self.value.reveal()

    def read(self) -> bytes:
        """Return the content. Raises `SecurityError`."""
        if self.inline:
            return SecretBytes(self.value.encode())
        try:
            return SecretBytes(Path(self.value.reveal()).read_bytes())
        except OSError as error:
            reason = error.strerror
        raise SecurityError(f"{self} cannot be read: {reason}")

    def __str__(self) -> str:
        return self.name if self.inline else f"{self.name} {self.value.reveal()}"


class TlsSettings(NamedTuple):
    """What a context is made of. `key` is None if `certificate` holds the key too."""

    truststore: TlsStore | None = None
    certificate: TlsStore | None = None
    key: TlsStore | None = None
    key_password: Secret = NO_SECRET
    check_hostname: bool = True


class TlsContextCache:
    """Owns the newest context of one client."""

    def __init__(self) -> None:
        self._settings: TlsSettings | None = None
        self._digest = b""
        self._context: ssl.SSLContext | None = None
        self._failure = ""

    def get(self, settings: TlsSettings) -> ssl.SSLContext:
        """Return a context of what the files contain now. It blocks. Raises `SecurityError`."""
        previous = self._context if settings == self._settings else None
        try:
            contents = [(s, s.read()) for s in settings[:3] if s is not None]
            digest = _compute_digest(settings, [data for _, data in contents])
            if previous is None or digest != self._digest:
                previous = _make_context(settings, {s.name: data for s, data in contents})
        except SecurityError as error:
            if previous is None:
                raise
            if str(error) != self._failure:
                _log.warning("the previous certificates stay in use: %s", error)
            self._failure = str(error)
            return previous
        self._settings, self._digest, self._context, self._failure = settings, digest, previous, ""
        return previous


def _compute_digest(settings: TlsSettings, contents: list[bytes]) -> bytes:
    """Return a digest of everything that a context depends on."""
    hasher = hashlib.sha256(repr((settings.check_hostname, len(contents))).encode())
    for data in (*contents, settings.key_password.encode()):
        hasher.update(hashlib.sha256(data).digest())
    return hasher.digest()


def _make_context(settings: TlsSettings, contents: dict[str, bytes]) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = settings.check_hostname
    if settings.truststore is None:
        context.load_default_certs()
    else:
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        _trust(context, settings.truststore, contents[settings.truststore.name])
    if settings.certificate is not None:
        _load_own(context, settings, contents)
    return context


def _trust(context: ssl.SSLContext, store: TlsStore, data: bytes) -> None:
    if _detect_type(store, data) == "PEM":
        text = _extract_certificates(_normalize_pem(store, data))
    else:
        text = _extract_certificates(_convert_pkcs12(store, data))
    if not text:
        raise SecurityError(f"{store} contains no certificate")
    try:
        context.load_verify_locations(cadata=text)
    except ssl.SSLError as error:
        reason = _get_reason(error)
    else:
        return
    raise SecurityError(f"{store} contains a certificate that cannot be loaded: {reason}")


def _load_own(context: ssl.SSLContext, settings: TlsSettings, contents: dict[str, bytes]) -> None:
    """Load this client's key and certificate chain."""
    certificate, key = settings.certificate, settings.key
    assert certificate is not None
    parts = []
    for store in (key, certificate):
        if store is None:
            continue
        data = contents[store.name]
        if _detect_type(store, data) == "PEM":
            parts.append(_normalize_pem(store, data))
        else:
            parts.append(_convert_pkcs12(store, data))
    password_requests: list[None] = []

    def give_password() -> str:
        password_requests.append(None)
        return settings.key_password.reveal()

    try:
        with _private_file(SecretBytes("\n".join(t.reveal() for t in parts).encode())) as path:
            context.load_cert_chain(path, None, give_password)
    except (OSError, ValueError) as error:
        reason = _get_reason(error)
    else:
        return
    if password_requests:
        reason = "it is encrypted, and ssl.key.password does not decrypt it"
    elif reason == "KEY_VALUES_MISMATCH":
        reason = "the key does not belong to the certificate"
    raise SecurityError(f"the key pair of {key or certificate} cannot be loaded: {reason}")


def _get_reason(error: Exception) -> str:
    """Return OpenSSL's reason, or the system's."""
    if isinstance(error, ssl.SSLError):
        return error.reason or "it is not valid PEM"
    return getattr(error, "strerror", None) or type(error).__name__


def _detect_type(store: TlsStore, data: bytes) -> str:
    """Return PEM or PKCS12. Raises `SecurityError` for other content, and for another type."""
    if data[:4] in _JKS:
        path = "STORE.jks" if store.inline else store.value.reveal()
        raise SecurityError(format_jks_refusal(store.name, path))
    if _BEGIN.encode() in data:
        detected = "PEM"
    elif data[:1] == b"\x30":
        detected = "PKCS12"
    else:
        raise SecurityError(f"{store} is neither PEM nor PKCS12")
    # Java opens PKCS12 stores as JKS, its default type, too.
    if store.type not in ("", detected) and (store.type, detected) != ("JKS", "PKCS12"):
        raise SecurityError(f"{store} is {detected}, but its type is set to {store.type}")
    return detected


def format_jks_refusal(name: str, path: str) -> str:
    """Return the message for a JKS store, with the command that converts it."""
    target = re.sub(r"\.(jks|jceks|keystore|truststore)$", "", path) + ".p12"
    return (
        f"{name}: this client reads PEM and PKCS12, not JKS. Convert the store with `keytool"
        f" -importkeystore -srckeystore {path} -destkeystore {target} -deststoretype PKCS12`"
    )


def _normalize_pem(store: TlsStore, data: bytes) -> Secret:
    """Return the blocks of a PEM text. Java accepts them on one line; OpenSSL needs line breaks."""
    text = data.decode("utf-8", "replace")
    blocks = []
    for match in _BLOCK.finditer(text):
        label, body = match[1], match[2].strip()
        if ":" not in body:  # Legacy encryption headers keep their lines.
            flat = "".join(body.split())
            body = "\n".join(flat[start : start + 64] for start in range(0, len(flat), 64))
        blocks.append(f"-----BEGIN {label}-----\n{body}\n-----END {label}-----")
    if not blocks:
        raise SecurityError(f"{store} contains no complete PEM block")
    return Secret("\n".join(blocks))


def _extract_certificates(text: Secret) -> str:
    blocks = (m for m in _BLOCK.finditer(text.reveal()) if m[1].endswith("CERTIFICATE"))
    return "\n".join(match[0] for match in blocks)


def _convert_pkcs12(store: TlsStore, data: bytes) -> Secret:
    """Return the key, its certificate and all further certificates as PEM."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        NoEncryption,
        PrivateFormat,
        pkcs12,
    )

    password = SecretBytes(store.password.encode()) if store.password else None
    try:
        bundle = pkcs12.load_pkcs12(data, password)
        blocks = [c.certificate.public_bytes(Encoding.PEM) for c in bundle.additional_certs]
        if bundle.cert is not None:
            blocks.insert(0, bundle.cert.certificate.public_bytes(Encoding.PEM))
        if bundle.key is not None:
            blocks.insert(
                0, bundle.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
            )
    except ValueError as error:
        wrong = "password" in str(error).lower() or "mac" in str(error).lower()
        reason = "its password is wrong" if wrong else "it is not a valid PKCS12 store"
    except UnsupportedAlgorithm as error:
        reason = f"{error}. Export it again with a newer keytool or openssl"
    else:
        return Secret(b"\n".join(blocks).decode())
    raise SecurityError(f"{store} cannot be opened: {reason}")


@contextmanager
def _private_file(content: bytes) -> Iterator[str]:
    """Yield the path of a file for OpenSSL, which cannot read keys from memory.

    The file is in memory where the system allows it.
    """
    if hasattr(os, "memfd_create") and Path("/proc/self/fd").exists():
        with open(os.memfd_create("tls"), "wb") as file:
            file.write(content)
            file.flush()
            yield f"/proc/self/fd/{file.fileno()}"
        return
    with tempfile.TemporaryDirectory() as folder:
        pair = Path(folder, "pair.pem")
        pair.touch(mode=0o600)
        pair.write_bytes(content)
        yield str(pair)
