"""TLS, client certificates and bearer tokens of the operator's HTTP server.

SHOAL_HTTP_TLS_DIR names a folder with `tls.crt`, `tls.key` and, if the certificate does not sign
itself, `ca.crt`: a mounted Secret of type kubernetes.io/tls. SHOAL_HTTP_TOKEN_FILE names a file
with one token a line, and SHOAL_HTTP_CLIENT_CA_FILE one with the authorities of readers'
certificates. A reader needs a token or a certificate if one of them is set. Files are read again
when they change. Certificates that cannot be used leave the previous ones in force.

Each ShareConsumer has a token of its own, which opens only its scale signal. It follows from a
token of the file, or without one from the server's key, so the operator stores none.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import ssl
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import structlog

from shoal_operator.model import certificates
from shoal_operator.model.certificates import BadCertificate, KeyPair

if TYPE_CHECKING:
    from collections.abc import Mapping

log = structlog.get_logger()
TLS_DIR, TOKEN_FILE = "SHOAL_HTTP_TLS_DIR", "SHOAL_HTTP_TOKEN_FILE"
CLIENT_CA_FILE = "SHOAL_HTTP_CLIENT_CA_FILE"
#: Seconds between two looks at the certificate.
RELOAD_SECONDS = 5.0
_BEARER = "bearer "


class BadAccess(Exception):
    """The server cannot be protected as the environment says; the message is a sentence with the
    remedy."""


class AccessFiles(NamedTuple):
    """The server's certificate and key, and the authorities of readers, empty without any."""

    pair: KeyPair
    readers: bytes


class HttpAccess:
    """TLS of the server, and who may read: those with a token, if `tokens` is set, and those with a
    certificate of an authority in `readers`, if that is set."""

    def __init__(self, folder: Path, tokens: Path | None, readers: Path | None = None) -> None:
        """Raises `BadAccess`."""
        self._folder, self._tokens, self._readers = folder, tokens, readers
        #: What was read last.
        self._files = self._read()
        #: The certificate and key in force.
        self.pair = self._files.pair
        #: Keys from which tokens of ShareConsumers follow: the one in force and the one before.
        self._keys = [self.pair.key]
        self._newest = self._make_contexts(self._files)
        #: The contexts of the HTTP server, and of the gRPC server, whose clients ask for HTTP/2.
        #: Each handshake uses the newest ones instead.
        self.context, self.grpc_context = self._newest
        self.context.sni_callback = lambda connection, *_: self._choose_context(connection, 0)
        self.grpc_context.sni_callback = lambda connection, *_: self._choose_context(connection, 1)
        if tokens is not None and not self._read_tokens():
            raise BadAccess(f"{TOKEN_FILE}: {tokens} has no token. Write one a line.")

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> HttpAccess | None:
        """Return what the environment says, None without TLS. Raises `BadAccess`."""
        folder, tokens = environment.get(TLS_DIR, ""), environment.get(TOKEN_FILE, "")
        readers = environment.get(CLIENT_CA_FILE, "")
        if folder:
            optional = (Path(name) if name else None for name in (tokens, readers))
            return cls(Path(folder), *optional)
        if tokens:
            raise BadAccess(
                f"{TOKEN_FILE} is set, and {TLS_DIR} is not: tokens would travel in clear text. Set"
                f" {TLS_DIR} to a folder with tls.crt and tls.key."
            )
        if readers:
            raise BadAccess(
                f"{CLIENT_CA_FILE} is set, and {TLS_DIR} is not: certificates need TLS. Set"
                f" {TLS_DIR} to a folder with tls.crt and tls.key."
            )
        return None

    # Certificates.

    def _read(self) -> AccessFiles:
        def read_content(path: Path, setting: str) -> bytes:
            try:
                return path.read_bytes()
            except OSError as error:
                reason = f"cannot read {error.filename}: {error.strerror}"
                raise BadAccess(f"{setting}: {reason}.") from None

        pair = KeyPair(
            *(read_content(self._folder / name, TLS_DIR) for name in ("tls.crt", "tls.key"))
        )
        readers = read_content(self._readers, CLIENT_CA_FILE) if self._readers is not None else b""
        return AccessFiles(pair, readers)

    def _make_contexts(self, files: AccessFiles) -> tuple[ssl.SSLContext, ssl.SSLContext]:
        grpc = self._make_context(files)
        grpc.set_alpn_protocols(["h2"])
        return self._make_context(files), grpc

    def _make_context(self, files: AccessFiles) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            certificates.check_pair(files.pair)
            context.load_cert_chain(self._folder / "tls.crt", self._folder / "tls.key")
        except (BadCertificate, ssl.SSLError, OSError) as error:
            raise BadAccess(
                f"{TLS_DIR}: the certificate in {self._folder} cannot be used: {error}."
            ) from None
        if self._readers is None:
            return context
        try:
            context.load_verify_locations(cadata=files.readers.decode())
        except (ssl.SSLError, ValueError) as error:
            raise BadAccess(
                f"{CLIENT_CA_FILE}: the authorities in {self._readers} cannot be used: {error}."
            ) from None
        context.verify_mode = ssl.CERT_OPTIONAL
        # A resumed session would skip the check of a certificate whose authority is gone.
        context.options |= ssl.OP_NO_TICKET
        context.num_tickets = 0
        return context

    def _choose_context(self, connection: ssl.SSLObject, index: int) -> None:
        connection.context = self._newest[index]

    def reload(self) -> None:
        """Load the certificates if they have changed. Does not raise."""
        try:
            files = self._read()
            if files == self._files:
                return
            self._files = files
            self._newest = self._make_contexts(files)
        except BadAccess as error:
            log.error("the certificates are not loaded, the previous ones stay", reason=str(error))
            return
        if files.pair.key != self.pair.key:
            self._keys = [files.pair.key, self.pair.key]
        self.pair = files.pair
        fingerprint = certificates.compute_fingerprint(files.pair.certificate)
        log.info("certificates loaded", fingerprint=fingerprint)

    async def follow(self) -> None:
        """Reload the certificates whenever they change, until cancelled."""
        while True:
            await asyncio.sleep(RELOAD_SECONDS)
            self.reload()

    def get_authority(self) -> bytes:
        """Return the certificates in PEM that clients have to trust."""
        path = self._folder / "ca.crt"
        try:
            return path.read_bytes() or self.pair.certificate
        except OSError:
            return self.pair.certificate

    # Readers.

    @property
    def is_open(self) -> bool:
        """Whether everyone may read."""
        return self._tokens is None and self._readers is None

    @property
    def remedy(self) -> str:
        """What a reader needs."""
        ways = {"a bearer token": self._tokens, "a client certificate": self._readers}
        return " or ".join(way for way, path in ways.items() if path is not None)

    def _read_tokens(self) -> list[bytes]:
        """Return the tokens of the file; none, if it cannot be read or there is none."""
        if self._tokens is None:
            return []
        try:
            lines = self._tokens.read_bytes().splitlines()
        except OSError:
            return []
        return [line.strip() for line in lines if line.strip()]

    def _get_roots(self) -> list[bytes]:
        """Return what the tokens of ShareConsumers follow from."""
        return self._keys if self._tokens is None else self._read_tokens()

    def derive_token(self, namespace: str, consumer: str) -> bytes:
        """Return the token of a ShareConsumer; empty if readers need none."""
        roots = [] if self.is_open else self._get_roots()
        return _derive(roots[0], namespace, consumer) if roots else b""

    def may_read(
        self,
        authorization: str,
        consumer: tuple[str, str] | None = None,
        *,
        certified: bool = False,
    ) -> bool:
        """Return whether a request with this header may read the metrics, or the scale signal of a
        ShareConsumer (namespace, name). `certified` is whether TLS has verified a certificate of
        the client."""
        if self.is_open or certified:
            return True
        is_bearer = authorization[: len(_BEARER)].lower() == _BEARER
        presented = authorization[len(_BEARER) :].strip().encode() if is_bearer else b""
        valid = self._read_tokens()
        if consumer is not None:
            valid += [_derive(root, *consumer) for root in self._get_roots()]
        # All are compared, so that the time does not show which one is close.
        return True in [hmac.compare_digest(presented, token) for token in valid]


def _derive(root: bytes, namespace: str, consumer: str) -> bytes:
    text = f"shoal scale {namespace}/{consumer}"
    return hmac.digest(root, text.encode(), hashlib.sha256).hex().encode()
