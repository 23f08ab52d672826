"""Client settings: addresses, security and timeouts.

`Settings.of` reads client properties in the notation of the Java client and of librdkafka
(`sasl.jaas.config`, or `sasl.username` and `sasl.password`; PEM truststores, or `ssl.ca.location`).
It refuses an unknown property by name.
"""

from __future__ import annotations

import re
import ssl
import tempfile
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoal.client.errors import SecurityError
from shoal.client.scram import DIGESTS

if TYPE_CHECKING:
    from collections.abc import Mapping

Address = tuple[str, int]
PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
MECHANISMS = ("PLAIN", *DIGESTS)
DEFAULT_PORT = 9092


def addresses(bootstrap: str) -> tuple[Address, ...]:
    """Parse `host:port,host:port`. The default port is 9092. IPv6 addresses need brackets."""
    found = []
    for part in filter(None, (p.strip() for p in bootstrap.split(","))):
        match = re.fullmatch(r"(?:\[(?P<v6>[^\]]+)\]|(?P<host>[^:\[\]]+))(?::(?P<port>\d+))?", part)
        port = int(match["port"] or DEFAULT_PORT) if match else 0
        if match is None or not 0 < port < 65536:
            raise ValueError(f"bootstrap.servers: {part!r} is not HOST:PORT")
        found.append((match["v6"] or match["host"], port))
    if not found:
        raise ValueError("bootstrap.servers is empty. Set at least one host:port")
    return tuple(found)


@dataclass(frozen=True)
class Security:
    """`security.protocol` and related properties. PEM material is a path or the text."""

    protocol: str = "PLAINTEXT"
    mechanism: str = "PLAIN"
    username: str = ""
    password: str = ""
    ca: str | None = None
    certificate: str | None = None
    key: str | None = None
    key_password: str | None = None
    check_hostname: bool = True

    def __post_init__(self) -> None:
        if self.protocol not in PROTOCOLS:
            raise SecurityError(
                f"security.protocol {self.protocol!r} is not one of {', '.join(PROTOCOLS)}"
            )
        if self.sasl and self.mechanism not in MECHANISMS:
            raise SecurityError(
                f"sasl.mechanism {self.mechanism!r} is not one of {', '.join(MECHANISMS)}"
            )
        if self.sasl and not self.username:
            raise SecurityError(
                f"{self.protocol} needs a user: set sasl.username and sasl.password, "
                "or sasl.jaas.config"
            )

    @property
    def sasl(self) -> bool:
        return self.protocol.startswith("SASL")

    @cached_property
    def tls(self) -> ssl.SSLContext | None:
        """Return the context for new connections, or None without TLS."""
        if not self.protocol.endswith("SSL"):
            return None
        context = ssl.create_default_context()
        context.check_hostname = self.check_hostname
        try:
            if self.ca:
                inline = "-----BEGIN" in self.ca
                context.load_verify_locations(
                    cafile=None if inline else self.ca, cadata=self.ca if inline else None
                )
            if self.certificate:
                _load_pair(context, self.certificate, self.key, self.key_password)
        except (OSError, ssl.SSLError) as error:
            raise SecurityError(f"the TLS material cannot be loaded: {error}") from None
        return context


def _load_pair(
    context: ssl.SSLContext, certificate: str, key: str | None, password: str | None
) -> None:
    """Load a key pair from files, or from inline text by way of a private file."""
    texts = [t for t in (key, certificate) if t and "-----BEGIN" in t]
    if not texts:
        context.load_cert_chain(certificate, key, password)
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "pair.pem")
        path.touch(mode=0o600)
        path.write_text("\n".join(texts))
        context.load_cert_chain(path, None, password)


@dataclass(frozen=True)
class Settings:
    """The settings of a `Cluster`. Times are milliseconds."""

    bootstrap: tuple[Address, ...]
    client_id: str = "shoal"
    security: Security = Security()
    request_timeout_ms: int = 30_000
    connect_timeout_ms: int = 10_000
    retry_timeout_ms: int = 60_000
    metadata_max_age_ms: int = 300_000
    delivery_timeout_ms: int = 120_000

    @classmethod
    def of(cls, bootstrap: str, properties: Mapping[str, str] | None = None) -> Settings:
        """Parse Kafka's client properties. Raises `ValueError` for an unknown property."""
        settings = cls(addresses(bootstrap))
        security: dict[str, str] = {}
        for name, value in (properties or {}).items():
            if name in _PLAIN:
                settings = _with(settings, name, value)
            elif name in _SECURITY:
                security[name] = value
            else:
                raise ValueError(
                    f"this client does not support property {name!r}; it supports "
                    + ", ".join(sorted({*_PLAIN, *_SECURITY}))
                )
        return replace(settings, security=_security(security)) if security else settings


_PLAIN = {
    "client.id": "client_id",
    "request.timeout.ms": "request_timeout_ms",
    "socket.connection.setup.timeout.ms": "connect_timeout_ms",
    "default.api.timeout.ms": "retry_timeout_ms",
    "metadata.max.age.ms": "metadata_max_age_ms",
    "delivery.timeout.ms": "delivery_timeout_ms",
}
#: Fields of `Security` and the properties that set them. If two are set, they must agree.
_SECURITY_FIELDS = {
    "protocol": ("security.protocol",),
    "mechanism": ("sasl.mechanism", "sasl.mechanisms"),
    "username": ("sasl.username",),
    "password": ("sasl.password",),
    "ca": (
        "ssl.ca.location",
        "ssl.ca.pem",
        "ssl.truststore.location",
        "ssl.truststore.certificates",
    ),
    "certificate": (
        "ssl.certificate.location",
        "ssl.certificate.pem",
        "ssl.keystore.certificate.chain",
        "ssl.keystore.location",
    ),
    "key": ("ssl.key.location", "ssl.key.pem", "ssl.keystore.key", "ssl.keystore.location"),
    "key_password": ("ssl.key.password",),
}
_JAAS_CONFIG = "sasl.jaas.config"
_CHECK_HOSTNAME = "ssl.endpoint.identification.algorithm"
_STORE_TYPES = ("ssl.truststore.type", "ssl.keystore.type")
_SECURITY = frozenset(
    [_JAAS_CONFIG, _CHECK_HOSTNAME, *_STORE_TYPES]
    + [name for names in _SECURITY_FIELDS.values() for name in names]
)
_JAAS = re.compile(r'(username|password)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|\'([^\']*)\'|([^\s;]+))')


def _with(settings: Settings, name: str, value: str) -> Settings:
    if name == "client.id":
        return replace(settings, client_id=value)
    if not value.isdigit() or int(value) == 0:
        raise ValueError(f"{name} must be a positive number of milliseconds, not {value!r}")
    changes: dict[str, Any] = {_PLAIN[name]: int(value)}
    return replace(settings, **changes)


def _security(given: Mapping[str, str]) -> Security:
    for store in ("truststore", "keystore"):
        if f"ssl.{store}.location" in given and given.get(f"ssl.{store}.type") != "PEM":
            raise SecurityError(
                f"ssl.{store}.location: this client reads PEM stores only. Convert it and set "
                f"ssl.{store}.type=PEM"
            )
    fields: dict[str, Any] = {}
    for match in _JAAS.finditer(given.get(_JAAS_CONFIG, "")):
        value = match[2] or match[3] or match[4] or ""
        fields[match[1]] = re.sub(r"\\(.)", r"\1", value)
    for name, sources in _SECURITY_FIELDS.items():
        said = [(_JAAS_CONFIG, fields[name])] if name in fields else []
        said += [(source, given[source]) for source in sources if given.get(source)]
        # A keystore may hold a key or certificate in addition to the named one.
        single = [one for one in said if one[0] != "ssl.keystore.location"]
        for source, value in single[1:]:
            if value != single[0][1]:
                raise SecurityError(f"{single[0][0]} and {source} differ. Set one of them")
        if said:
            value = said[0][1]
            fields[name] = value.upper() if name in ("protocol", "mechanism") else value
    check = given.get(_CHECK_HOSTNAME, "https").lower()
    return Security(check_hostname=check not in ("", "none"), **fields)
