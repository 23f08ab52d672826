"""TLS and bearer tokens of the operator's HTTP server.

SHOAL_HTTP_TLS_DIR names a folder with `tls.crt`, `tls.key` and, if the certificate does not sign
itself, `ca.crt`: a mounted Secret of type kubernetes.io/tls. SHOAL_HTTP_TOKEN_FILE names a file
with one token a line. Files are read again when they change. A certificate that cannot be used
leaves the previous one in force.

Each ShareConsumer has a token of its own, which opens only its scale signal. It follows from a
token of the file, so the operator stores none.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import ssl
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from shoal_operator import certificates
from shoal_operator.certificates import BadCertificate, KeyPair

if TYPE_CHECKING:
    from collections.abc import Mapping

log = structlog.get_logger()
TLS_DIR, TOKEN_FILE = "SHOAL_HTTP_TLS_DIR", "SHOAL_HTTP_TOKEN_FILE"
#: Seconds between two looks at the certificate.
RELOAD_SECONDS = 5.0
_BEARER = "bearer "


class BadAccess(Exception):
    """The server cannot be protected as the environment says; the message is a sentence with the
    remedy."""


class HttpAccess:
    """TLS of the server, and who may read. `tokens` is None if everyone may."""

    def __init__(self, folder: Path, tokens: Path | None) -> None:
        """Raises `BadAccess`."""
        self._folder, self._tokens = folder, tokens
        #: Of the HTTP server, and of the gRPC server, whose clients ask for HTTP/2.
        self.context, self.grpc_context = (ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER) for _ in "12")
        for context in (self.context, self.grpc_context):
            context.minimum_version = ssl.TLSVersion.TLSv1_2
        self.grpc_context.set_alpn_protocols(["h2"])
        #: The certificate and key in force, and what was read last.
        self.pair = self._seen = self._read()
        self._load(self.pair)
        if tokens is not None and not self._current():
            raise BadAccess(f"{TOKEN_FILE}: {tokens} has no token. Write one a line.")

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> HttpAccess | None:
        """Return what the environment says, None without TLS. Raises `BadAccess`."""
        folder, tokens = environment.get(TLS_DIR, ""), environment.get(TOKEN_FILE, "")
        if tokens and not folder:
            raise BadAccess(
                f"{TOKEN_FILE} is set, and {TLS_DIR} is not: tokens would travel in clear text. Set"
                f" {TLS_DIR} to a folder with tls.crt and tls.key."
            )
        return cls(Path(folder), Path(tokens) if tokens else None) if folder else None

    # The certificate.

    def _read(self) -> KeyPair:
        try:
            return KeyPair(*((self._folder / name).read_bytes() for name in ("tls.crt", "tls.key")))
        except OSError as error:
            raise BadAccess(f"{TLS_DIR}: cannot read {error.filename}: {error.strerror}.") from None

    def _load(self, found: KeyPair) -> None:
        try:
            certificates.check_pair(found)
            for context in (self.context, self.grpc_context):
                context.load_cert_chain(self._folder / "tls.crt", self._folder / "tls.key")
        except (BadCertificate, ssl.SSLError, OSError) as error:
            raise BadAccess(
                f"{TLS_DIR}: the certificate in {self._folder} cannot be used: {error}."
            ) from None
        self.pair = found

    def reload(self) -> None:
        """Load the certificate if it has changed. Does not raise."""
        try:
            found = self._read()
            if found == self._seen:
                return
            self._seen = found
            self._load(found)
        except BadAccess as error:
            log.error("the certificate is not loaded, the previous one stays", reason=str(error))
        else:
            fingerprint = certificates.fingerprint(found.certificate)
            log.info("certificate loaded", fingerprint=fingerprint)

    async def follow(self) -> None:
        """Reload the certificate whenever it changes, until cancelled."""
        while True:
            await asyncio.sleep(RELOAD_SECONDS)
            self.reload()

    def authority(self) -> bytes:
        """Return the certificates in PEM that clients have to trust."""
        path = self._folder / "ca.crt"
        try:
            return path.read_bytes() or self.pair.certificate
        except OSError:
            return self.pair.certificate

    # Tokens.

    def _current(self) -> list[bytes]:
        """Return the tokens of the file; none, if it cannot be read."""
        assert self._tokens is not None
        try:
            lines = self._tokens.read_bytes().splitlines()
        except OSError:
            return []
        return [line.strip() for line in lines if line.strip()]

    def token_of(self, namespace: str, consumer: str) -> bytes:
        """Return the token of a ShareConsumer; empty if readers need none."""
        found = self._current() if self._tokens is not None else []
        return _derived(found[0], namespace, consumer) if found else b""

    def allows(self, authorization: str, consumer: tuple[str, str] | None = None) -> bool:
        """Return whether a request with this header may read the metrics, or the scale signal of a
        ShareConsumer (namespace, name)."""
        if self._tokens is None:
            return True
        is_bearer = authorization[: len(_BEARER)].lower() == _BEARER
        given = authorization[len(_BEARER) :].strip().encode() if is_bearer else b""
        valid = self._current()
        if consumer is not None:
            valid += [_derived(token, *consumer) for token in valid]
        # All are compared, so that the time does not show which one is close.
        return True in [hmac.compare_digest(given, token) for token in valid]


def _derived(token: bytes, namespace: str, consumer: str) -> bytes:
    text = f"shoal scale {namespace}/{consumer}"
    return hmac.digest(token, text.encode(), hashlib.sha256).hex().encode()
