"""TLS of a listener: the certificates in force, and when others take their place.

Files are read again at an interval, and when configs of a listener are altered. A worker thread
builds everything from the new files and configs. If all of it can be used, new connections get it,
and open ones stay as they are. Otherwise the certificates in force stay, and log and metrics report
the failure once for each state of the files.

Certificates can be revoked, by a list of their authority or by their subject. Open connections of a
revoked certificate are closed.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from cryptography import x509

from shoal.metadata.config_keys import ConfigError
from shoal.security import audit, distinguished_names, revocations
from shoal.security.principal_mapping import NoMatchingRule
from shoal.server.config import InvalidConfig
from shoal.server.listener_security import SecurityProtocol, with_layers
from shoal.server.network import certificates, keystores
from shoal.server.network.authentication import LoginCounts
from shoal.server.network.certificates import Certificates
from shoal.server.network.keystores import BadStore

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

    from shoal.metadata.configs import ConfigLayers
    from shoal.security.revocations import Revocation
    from shoal.server.audit import AuditLogger
    from shoal.server.listener_security import ListenerSecurity
    from shoal.server.network.api import Peer
    from shoal.server.network.tls import AppProtocol, TlsEngine
    from shoal.server.node import Node

_MECHANISM = "SSL"


class ListenerTls:
    """Owns the certificates of one listener. It is the `TlsPort` of its connections."""

    def __init__(
        self,
        node: Node,
        security: ListenerSecurity,
        engine: TlsEngine,
        audit_log: AuditLogger,
        *,
        serves: bool,
        linked: bool,
    ) -> None:
        """For `serves` and `linked` see `certificates.build`. Raises `InvalidConfig`."""
        self.name = security.name
        self.engine = engine
        self.handshake_timeout_ms: int = security.get_value("shoal.ssl.handshake.timeout.ms")
        self.logins = LoginCounts()
        self.load_failures_total = self.loads_total = 0
        self._node = node
        self._audit = audit_log
        self._security = security
        self._serves, self._linked = serves, linked
        #: What was tried last, so that a failure is reported once.
        self._tried_fingerprint: object = None
        self._is_checking = self._check_again = False
        #: Called after other certificates came into force.
        self.on_loaded: list[Callable[[], None]] = []
        self._revoked_calls: list[Callable[[], None]] = []
        self._revoked_subjects = self._parse_revoked_subjects()
        try:
            sources = certificates.read(security)
            self.certificates = self._build(sources)
        except BadStore as error:
            raise InvalidConfig(f"The listener {self.name} has no TLS: {error}") from None
        self._tried_fingerprint = sources.fingerprint
        problem = certificates.find_invalidity(self.certificates, self.get_now())
        if problem is not None:
            node.log.error("a certificate is not valid now", listener=self.name, reason=problem)

    def get_now(self) -> datetime:
        return datetime.fromtimestamp(self._node.system.wall_ns() / 1e9, UTC)

    def _build(self, sources: certificates.CertificateSources) -> Certificates:
        return certificates.build(sources, serves=self._serves, linked=self._linked)

    # What a connection needs.

    @property
    def context(self) -> ssl.SSLContext:
        """The context of new connections."""
        assert self.certificates.context is not None
        return self.certificates.context

    def authenticate(self, peer: Peer, tls: ssl.SSLObject) -> str | None:
        """Set the principal of a client whose handshake is complete. Return why it is refused, or
        None."""
        certificate = tls.getpeercert(binary_form=True)
        if certificate is not None and (why := self.find_revocation(certificate)) is not None:
            return why
        if peer.security_protocol is not SecurityProtocol.SSL:
            return None  # It logs in by SASL.
        if certificate is not None:
            if tls.session_reused:
                problem = self._check_expiry(certificate)
                if problem is not None:
                    return problem
            try:
                subject = distinguished_names.read_subject(certificate)
                peer.principal = f"User:{self.certificates.mapper.map_subject(subject)}"
            except (distinguished_names.MalformedCertificate, NoMatchingRule, ValueError) as error:
                return f"the client's certificate names no user: {error}"
        self.logins.succeeded += 1
        if self._audit.logs_successes:
            self._audit.note(
                audit.build_login(
                    listener=self.name,
                    mechanism=_MECHANISM,
                    principal=peer.principal,
                    host=peer.host,
                )
            )
        return None

    def find_revocation(self, certificate: bytes) -> str | None:
        """Return why a client's certificate (DER) is revoked, or None."""
        if not self.certificates.revoked and not self._revoked_subjects:
            return None
        parsed = x509.load_der_x509_certificate(certificate)
        if (parsed.issuer.public_bytes(), parsed.serial_number) in self.certificates.revoked:
            return "the client's certificate is on a list of shoal.ssl.crl.location"
        try:
            subject = distinguished_names.read_subject(certificate)
        except distinguished_names.MalformedCertificate:
            return None  # It names no user either.
        revocation = self._revoked_subjects.get(subject)
        if revocation is not None and revocation.is_revoked(parsed.not_valid_before_utc):
            return "the subject of the client's certificate is in shoal.ssl.revoked.subjects"
        return None

    def _parse_revoked_subjects(self) -> dict[str, Revocation]:
        return revocations.parse_by_subject(self._security.get_value(certificates.REVOKED_SUBJECTS))

    def _check_expiry(self, certificate: bytes) -> str | None:
        """Return why the certificate of a resumed session is not valid, or None. OpenSSL has
        checked it when the session began."""
        return certificates.check_validity(
            x509.load_der_x509_certificate(certificate), self.get_now()
        )

    def log_sessions_ended(self, principal: str, reason: str, connections: int) -> None:
        """Log connections that are closed because of a revocation."""
        entry = audit.build_sessions_ended(
            principal=principal, reason=reason, connections=connections
        )
        self._audit.note(entry)

    def on_handshake_failed(self, connection: AppProtocol, reason: str) -> None:
        """Count and log a handshake that failed."""
        self.logins.failed += 1
        host = "" if connection.peer is None else connection.peer.host
        entry = audit.build_login_failure(
            listener=self.name, mechanism=_MECHANISM, user="", host=host, reason=reason
        )
        self._audit.note(entry)

    def on_send_failed(self, connection: AppProtocol, reason: str) -> None:
        """Log a response that could not be sent."""
        name = "" if connection.peer is None else connection.peer.connection_id
        self._node.log.warning("connection closed", reason=reason, connection=name)

    # For metrics.

    def compute_expires_in_s(self) -> list[float]:
        """Return the seconds until the first certificate in the chain expires."""
        expires_at = self.certificates.expires_at
        return [] if expires_at is None else [(expires_at - self.get_now()).total_seconds()]

    def list_own_fingerprints(self) -> list[str]:
        """Return the fingerprint of the certificate that new clients see."""
        keys = self.certificates.keys
        return [] if keys is None else [keystores.compute_fingerprint(keys.chain[0])]

    def list_trusted_fingerprints(self) -> list[str]:
        """Return the fingerprints of the authorities that are trusted."""
        trusted = self.certificates.trusted
        authorities = () if trusted is None else trusted.certificates
        return list(dict.fromkeys(map(keystores.compute_fingerprint, authorities)))

    # Other certificates.

    async def check(self, layers: ConfigLayers) -> None:
        """Load the certificates if files or configs have changed. Does not raise."""
        self._security = with_layers(self._security, layers)
        subjects = self._parse_revoked_subjects()
        if subjects != self._revoked_subjects:
            self._revoked_subjects = subjects
            self._notify_revoked()
        if self._is_checking:
            self._check_again = True
            return
        self._is_checking = self._check_again = True
        try:
            while self._check_again:
                self._check_again = False
                await self._check()
        finally:
            self._is_checking = False

    async def _check(self) -> None:
        tried, security = self._tried_fingerprint, self._security

        def work() -> tuple[object, Certificates | str | None]:
            """Return what was tried, and the result; None if it was tried before."""
            state: object = None
            try:
                sources = certificates.read(security)
                state = sources.fingerprint
                if state == tried:
                    return state, None
                built = self._build(sources)
                return state, certificates.find_invalidity(built, self.get_now()) or built
            except (BadStore, ConfigError) as error:
                return state or str(error), str(error)

        self._tried_fingerprint, result = await self._node.loop.run_in_executor(None, work)
        if isinstance(result, Certificates):
            self._load(result)
        elif result is not None and self._tried_fingerprint != tried:
            self.load_failures_total += 1
            self._node.log.error(
                "certificates cannot be loaded, and the previous ones stay in use",
                listener=self.name,
                reason=result,
            )

    def _load(self, loaded: Certificates) -> None:
        self.certificates = loaded
        self.loads_total += 1
        self._node.log.info(
            "certificates loaded",
            listener=self.name,
            fingerprint=""
            if loaded.keys is None
            else keystores.compute_fingerprint(loaded.keys.chain[0]),
            expires=str(loaded.expires_at),
        )
        for call in self.on_loaded:
            call()
        if loaded.revoked:
            self._notify_revoked()

    def on_revoked(self, call: Callable[[], None]) -> None:
        """Call `call` after other certificates were revoked."""
        self._revoked_calls.append(call)

    def _notify_revoked(self) -> None:
        for call in self._revoked_calls:
            call()

    async def find_refusal(self, layers: ConfigLayers) -> str | None:
        """Return why the configs in `layers` cannot take the place of the present ones, or None."""
        security = with_layers(self._security, layers)

        def work() -> str | None:
            try:
                built = self._build(certificates.read(security))
            except BadStore as error:
                return str(error)
            except ConfigError:
                return None  # The controller refuses it.
            return certificates.find_invalidity(
                built, self.get_now()
            ) or certificates.find_incompatibility(self.certificates, built, security)

        return await self._node.loop.run_in_executor(None, work)
