"""Client settings: addresses, security and timeouts.

`Settings.of` reads client properties of the Java client and of librdkafka; see `security` for those
of TLS and SASL. It refuses an unknown property by name.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from shoal.client import config_providers, security
from shoal.client.properties import CLIENT_PREFIX, properties
from shoal.client.secret import Secret
from shoal.client.security import Security

Address = tuple[str, int]
#: Client properties, or the call that reads them.
Properties = Mapping[str, str] | Callable[[], Mapping[str, str]]
DEFAULT_PORT = 9092
DEFAULT_BOOTSTRAP = f"127.0.0.1:{DEFAULT_PORT}"
_BOOTSTRAP = "bootstrap.servers"


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
class Settings:
    """The settings of a `Cluster`. Times are milliseconds.

    `metrics_token_file` names a file with the bearer token for metrics of brokers. `client_rack` is
    where this client runs: it reads ranges from a replica there (KIP-392).
    """

    bootstrap: tuple[Address, ...]
    client_id: str = "shoal"
    security: Security = field(default_factory=Security)
    request_timeout_ms: int = 30_000
    connect_timeout_ms: int = 10_000
    retry_timeout_ms: int = 60_000
    metadata_max_age_ms: int = 300_000
    delivery_timeout_ms: int = 120_000
    metrics_token_file: str = ""
    client_rack: str = ""

    @classmethod
    def of(cls, bootstrap: str, properties: Properties | None = None) -> Settings:
        """Parse Kafka's client properties, or those that a call returns.

        Values may be in files and in the environment; see `config_providers`. Such properties, and
        the call, are read again for each new connection. Raises `ValueError` for an unknown
        property, and `SecurityError`.
        """
        source = _Source(properties or {})
        properties = None  # Tracebacks may show arguments, but not what a source contains.
        settings = cls(addresses(bootstrap))
        given = source.read()
        for name in given:
            if name in _PLAIN:
                settings = _with(settings, name, given[name].reveal())
            elif name not in NAMES:
                raise ValueError(
                    f"this client does not support property {name!r}; it supports "
                    + ", ".join(sorted(NAMES))
                )
        if given.keys() <= _PLAIN.keys() and not source.changing:
            return settings
        return replace(settings, security=Security.of(source.read, changing=source.changing))

    @classmethod
    def of_file(
        cls, bootstrap: str | None, file: Path | None, fixed: Mapping[str, str] | None = None
    ) -> Settings:
        """Parse a properties file; `fixed` has priority over it.

        Without `bootstrap`, the properties name the brokers. The file is read again for each new
        connection. Raises `ValueError`, `OSError` or `SecurityError`.
        """

        def load() -> dict[str, str]:
            found = dict(properties(file.read_text())) if file is not None else {}
            return found | dict(fixed or {})

        return cls.of_properties(bootstrap, load if file is not None else load())

    @classmethod
    def of_properties(cls, bootstrap: str | None, given: Properties) -> Settings:
        """Parse properties that name the brokers themselves, unless `bootstrap` does. Raises as
        `of` does.
        """

        def without_bootstrap() -> dict[str, str]:
            found = given() if callable(given) else given
            return {name: text for name, text in found.items() if name != _BOOTSTRAP}

        named = given() if callable(given) else given
        where = bootstrap or named.get(_BOOTSTRAP) or DEFAULT_BOOTSTRAP
        return cls.of(where, without_bootstrap if callable(given) else without_bootstrap())

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Settings:
        """Parse what the operator gives to the pods of a ShareConsumer, as `shoal` does.

        These are SHOAL_BOOTSTRAP_SERVERS, the file that SHOAL_COMMAND_CONFIG names, and variables
        such as SHOAL_CLIENT_SASL_PASSWORD. Raises as `of_file` does.
        """
        given = os.environ if environment is None else environment
        file = given.get("SHOAL_COMMAND_CONFIG")
        fixed = {name: given[variable(name)] for name in NAMES if variable(name) in given}
        return cls.of_file(
            given.get("SHOAL_BOOTSTRAP_SERVERS"), Path(file) if file else None, fixed
        )


class _Source:
    """Properties as they were given, or the call that returns them."""

    def __init__(self, given: Properties) -> None:
        self._given = given
        self.changing = callable(given) or config_providers.has_references(given)

    def read(self) -> dict[str, Secret]:
        """Return the properties, with all references replaced. Raises `SecurityError`."""
        return config_providers.resolve(self._hidden())

    def _hidden(self) -> dict[str, Secret]:
        given = self._given() if callable(self._given) else self._given
        return {name: Secret(text) for name, text in given.items()}


_PLAIN = {
    "client.id": "client_id",
    "client.rack": "client_rack",
    "shoal.metrics.token.file": "metrics_token_file",
    "request.timeout.ms": "request_timeout_ms",
    "socket.connection.setup.timeout.ms": "connect_timeout_ms",
    "default.api.timeout.ms": "retry_timeout_ms",
    "metadata.max.age.ms": "metadata_max_age_ms",
    "delivery.timeout.ms": "delivery_timeout_ms",
}
#: Those that are not a number of milliseconds.
_WORDS = frozenset({"client.id", "client.rack", "shoal.metrics.token.file"})
#: All properties of this client.
NAMES = frozenset({*_PLAIN, *security.NAMES})


def variable(name: str) -> str:
    """Return the environment variable of a client property."""
    return CLIENT_PREFIX + name.replace(".", "_").upper()


def _with(settings: Settings, name: str, value: str) -> Settings:
    if name in _WORDS:
        text: dict[str, Any] = {_PLAIN[name]: value}
        return replace(settings, **text)
    if not value.isdigit() or int(value) == 0:
        raise ValueError(f"{name} must be a positive number of milliseconds, not {value!r}")
    changes: dict[str, Any] = {_PLAIN[name]: int(value)}
    return replace(settings, **changes)
