"""What TLS of one listener consists of: contexts of OpenSSL, made from configs and files.

`build` is blocking and changes nothing, so it runs in a worker thread. It reports everything that
is wrong with keys, certificates and configs as `BadStore`. A listener uses either all of what was
built together, or none of it.
"""

from __future__ import annotations

import contextlib
import os
import ssl
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm

from shoal.security.principal_mapping import PrincipalMapper
from shoal.server.listener_security import PREFIX, ListenerSecurity, SecurityProtocol
from shoal.server.network import cipher_suites, keystores
from shoal.server.network.keystores import BadStore, KeyStore, TrustStore

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from datetime import datetime

_VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
#: Tickets for the resumption of sessions of TLS 1.3. Clients of Kafka use one connection a broker.
_TICKETS = 1
_VERIFY_MODES = {
    "none": ssl.CERT_NONE,
    "requested": ssl.CERT_OPTIONAL,
    "required": ssl.CERT_REQUIRED,
}
_NAMES = x509.SubjectAlternativeName
#: It comes into force without files, so that a bad file cannot delay it.
REVOKED_SUBJECTS = "shoal.ssl.revoked.subjects"


class CertificateSources(NamedTuple):
    """A listener's configs, and the contents of the files that they name."""

    security: ListenerSecurity
    files: Mapping[str, bytes]

    @property
    def fingerprint(self) -> tuple[object, ...]:
        """What TLS depends on: equal for sources that build the same."""
        values = tuple(
            (name, self.security.get_value(name))
            for name in sorted(self.security.values)
            if is_tls(name) and name != REVOKED_SUBJECTS
        )
        return values, tuple(sorted(self.files.items()))


class Certificates(NamedTuple):
    """TLS of a listener. `context` is None if this node only connects to such listeners.

    `revoked` has issuer (DER) and serial number of each certificate on a list of the file
    shoal.ssl.crl.location that a trusted authority has signed.
    """

    context: ssl.SSLContext | None
    keys: KeyStore | None
    trusted: TrustStore | None
    mapper: PrincipalMapper
    #: Properties of a client for connections to such listeners of other nodes.
    client: Mapping[str, str]
    revoked: frozenset[tuple[bytes, int]] = frozenset()

    @property
    def expires_at(self) -> datetime | None:
        """When the first certificate of the chain expires."""
        if self.keys is None:
            return None
        return min(certificate.not_valid_after_utc for certificate in self.keys.chain)


def is_tls(name: str) -> bool:
    """Whether a config is about TLS."""
    return name.removeprefix("shoal.").startswith("ssl.")


def read(security: ListenerSecurity) -> CertificateSources:
    """Read the files of a listener. Blocking. Raises `BadStore`."""
    files = {}
    for path in keystores.list_locations(security):
        try:
            files[path] = Path(path).read_bytes()
        except OSError as error:
            raise BadStore(
                f"Cannot read {path}: {error.strerror}. Check ssl.keystore.location and"
                " ssl.truststore.location, and the rights of this user."
            ) from None
    return CertificateSources(security, files)


def build(sources: CertificateSources, *, serves: bool, linked: bool) -> Certificates:
    """Return TLS for a listener. Blocking. Raises `BadStore`.

    `serves` is whether this node opens the listener, and `linked` whether nodes of the cluster
    connect to each other's.
    """
    security, files = sources
    keys = keystores.load_keystore(security, files)
    trusted = keystores.load_truststore(security, files)
    client_auth = _get_client_auth(security)
    if serves and keys is None:
        prefix = f"{PREFIX}{security.name.lower()}."
        raise BadStore(
            f"it has no certificate. Set {prefix}ssl.keystore.location and"
            f" {prefix}ssl.keystore.type=PEM, or both without {prefix[:-1]}."
        )
    if serves and trusted is None and client_auth != "none":
        raise BadStore(
            f"ssl.client.auth is {client_auth}, and no truststore has the authority of clients. Set"
            " ssl.truststore.location."
        )
    try:
        mapper = PrincipalMapper(security.get_value("ssl.principal.mapping.rules"))
        context = (
            None if keys is None else _build_server_context(sources, keys, trusted, client_auth)
        )
    except ssl.SSLError as error:
        raise BadStore(f"OpenSSL refuses its stores: {error.reason or error}.") from None
    except ValueError as error:
        raise BadStore(f"{error}.") from None
    if linked and context is not None and keys is not None and trusted is not None:
        _check_trusts_itself(context, keys, trusted)
    client = _build_client_properties(security, keys, trusted)
    revoked = _find_revoked(sources, trusted)
    return Certificates(context if serves else None, keys, trusted, mapper, client, revoked)


def _get_client_auth(security: ListenerSecurity) -> str:
    """Return ssl.client.auth. As in Kafka, a listener with SASL has it only from its own config
    (KIP-684)."""
    name = "ssl.client.auth"
    own = f"{PREFIX}{security.name.lower()}.{name}"
    if security.protocol is SecurityProtocol.SASL_SSL and own not in security.overrides:
        return "none"
    return str(security.get_value(name))


def _build_server_context(
    sources: CertificateSources, keys: KeyStore, trusted: TrustStore | None, client_auth: str
) -> ssl.SSLContext:
    security = sources.security
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.num_tickets = _TICKETS
    _limit_versions(context, security)
    suites = security.get_value("ssl.cipher.suites")
    if suites:
        try:
            cipher_suites.restrict(context, suites)
        except cipher_suites.UnknownCipherSuite as error:
            raise BadStore(f"ssl.cipher.suites has {error}, which is not supported.") from None
    _load_keys(context, keys)
    context.verify_mode = _VERIFY_MODES[client_auth]
    if trusted is not None:
        _trust(context, trusted)
    path = security.get_value("shoal.ssl.crl.location")
    if path is not None:
        keystores.load_revocations(path, sources.files[path])
        with _provide_file(sources.files[path]) as copy:
            context.load_verify_locations(copy)
        context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
    return context


def _find_revoked(
    sources: CertificateSources, trusted: TrustStore | None
) -> frozenset[tuple[bytes, int]]:
    """Return issuer and serial number of the revoked certificates. Raises `BadStore`."""
    path = sources.security.get_value("shoal.ssl.crl.location")
    if path is None or trusted is None:
        return frozenset()
    return frozenset(
        (crl.issuer.public_bytes(), entry.serial_number)
        for crl in keystores.load_revocations(path, sources.files[path])
        if any(_has_signed(authority, crl) for authority in trusted.certificates)
        for entry in crl
    )


def _has_signed(authority: x509.Certificate, crl: x509.CertificateRevocationList) -> bool:
    if authority.subject != crl.issuer:
        return False
    try:
        return crl.is_signature_valid(authority.public_key())  # type: ignore[arg-type]
    except (TypeError, UnsupportedAlgorithm):
        return False  # A key of a kind that signs no lists.


def _limit_versions(context: ssl.SSLContext, security: ListenerSecurity) -> None:
    # As in Kafka, ssl.protocol does not limit what a server accepts.
    versions = sorted(_VERSIONS[name] for name in security.get_value("ssl.enabled.protocols"))
    if not versions:
        raise BadStore("ssl.enabled.protocols is empty. Set it to TLSv1.2,TLSv1.3.")
    context.minimum_version, context.maximum_version = versions[0], versions[-1]


def _load_keys(context: ssl.SSLContext, keys: KeyStore) -> None:
    with _provide_file((keys.key_pem + keys.chain_pem).encode()) as path:
        try:
            context.load_cert_chain(path)
        except ssl.SSLError as error:
            raise BadStore(f"OpenSSL refuses the certificate or its key: {error.reason}.") from None


def _trust(context: ssl.SSLContext, trusted: TrustStore) -> None:
    context.load_verify_locations(cadata=trusted.pem)
    # As in Java, each certificate of the truststore is trusted, not only roots.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN


@contextlib.contextmanager
def _provide_file(data: bytes) -> Iterator[str]:
    """Provide a file with `data` for OpenSSL. Where possible it is in memory only."""
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("shoal-keys")
        try:
            os.write(fd, data)
            yield f"/proc/self/fd/{fd}"
        finally:
            os.close(fd)
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "keys.pem")
        path.touch(mode=0o600)
        path.write_bytes(data)
        yield str(path)


def _build_client_properties(
    security: ListenerSecurity, keys: KeyStore | None, trusted: TrustStore | None
) -> dict[str, str]:
    algorithm = "ssl.endpoint.identification.algorithm"
    properties = {algorithm: security.get_value(algorithm) or ""}
    if trusted is not None:
        properties |= {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": trusted.pem}
    if keys is not None:
        properties |= {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.key": keys.key_pem,
            "ssl.keystore.certificate.chain": keys.chain_pem,
        }
    return properties


# Checks of what is built.


def _check_trusts_itself(context: ssl.SSLContext, keys: KeyStore, trusted: TrustStore) -> None:
    """Check that nodes with these stores can connect to each other, by a handshake in memory.

    Kafka makes the same check of the listener between brokers. Raises `BadStore`.
    """
    client_context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client_context.check_hostname = False
    _load_keys(client_context, keys)
    _trust(client_context, trusted)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = client_context.wrap_bio(to_client, to_server)
    server = context.wrap_bio(to_server, to_client, server_side=True)
    try:
        for _ in range(4):
            for side in (client, server):
                with contextlib.suppress(ssl.SSLWantReadError):
                    side.do_handshake()
    except ssl.SSLError as error:
        why = getattr(error, "verify_message", "") or error.reason
        raise BadStore(
            "nodes with these stores could not connect to each other, because the truststore or the"
            f" usage of the certificate does not allow it: {why}."
        ) from None


def find_invalidity(certificates: Certificates, now: datetime) -> str | None:
    """Return why the certificates are not valid at a time, or None."""
    chain = () if certificates.keys is None else certificates.keys.chain
    return next((why for certificate in chain if (why := check_validity(certificate, now))), None)


def check_validity(certificate: x509.Certificate, now: datetime) -> str | None:
    """Return why a certificate is not valid at a time, or None."""
    subject = certificate.subject.rfc4514_string()
    if certificate.not_valid_after_utc < now:
        return f"the certificate of {subject} has expired at {certificate.not_valid_after_utc}"
    if certificate.not_valid_before_utc > now:
        return (
            f"the certificate of {subject} is not valid before {certificate.not_valid_before_utc}"
        )
    return None


def find_incompatibility(
    before: Certificates, after: Certificates, security: ListenerSecurity
) -> str | None:
    """Return why a keystore may not take the place of another one at run time (KIP-978), or
    None."""
    if before.keys is None or after.keys is None:
        return None
    old, new = before.keys.chain[0], after.keys.chain[0]
    if not security.get_value("ssl.allow.dn.changes") and old.subject != new.subject:
        return (
            f"Keystore DistinguishedName does not match: existing={old.subject.rfc4514_string()},"
            f" new={new.subject.rfc4514_string()}. ssl.allow.dn.changes=true would allow it"
        )
    lost = _list_alternative_names(old) - _list_alternative_names(new)
    if not security.get_value("ssl.allow.san.changes") and lost:
        return (
            f"Keystore SubjectAltNames do not match: {', '.join(sorted(lost))} would be lost."
            " ssl.allow.san.changes=true would allow it"
        )
    return None


def _list_alternative_names(certificate: x509.Certificate) -> set[str]:
    try:
        names = certificate.extensions.get_extension_for_class(_NAMES).value
    except x509.ExtensionNotFound:
        return set()
    return {f"{type(name).__name__}:{name.value}" for name in names}
