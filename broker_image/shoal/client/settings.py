"""Client settings: addresses, security and timeouts.

`Settings.from_bootstrap` reads client properties of the Java client and of librdkafka; see
`security` for those of TLS and SASL. It refuses an unknown property by name.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from shoal.client import config_providers
from shoal.client.properties import CLIENT_PREFIX, parse_properties
from shoal.client.security import security
from shoal.client.security.secret import Secret
from shoal.client.security.security import Security

Address = tuple[str, int]
#: Client properties, or the call that reads them.
Properties = Mapping[str, str] | Callable[[], Mapping[str, str]]
DEFAULT_PORT = 9092
DEFAULT_BOOTSTRAP = f"127.0.0.1:{DEFAULT_PORT}"
_BOOTSTRAP = "bootstrap.servers"


def parse_addresses(bootstrap: str) -> tuple[Address, ...]:
    """Parse `host:port,host:port`. The default port is 9092. IPv6 addresses need brackets."""
    parsed = []
    for part in filter(None, (p.strip() for p in bootstrap.split(","))):
        match = re.fullmatch(r"(?:\[(?P<v6>[^\]]+)\]|(?P<host>[^:\[\]]+))(?::(?P<port>\d+))?", part)
        port = int(match["port"] or DEFAULT_PORT) if match else 0
        if match is None or not 0 < port < 65536:
            raise ValueError(f"bootstrap.servers: {part!r} is not HOST:PORT")
        parsed.append((match["v6"] or match["host"], port))
    if not parsed:
        raise ValueError("bootstrap.servers is empty. Set at least one host:port")
    return tuple(parsed)


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
    def from_bootstrap(cls, bootstrap: str, properties: Properties | None = None) -> Settings:
        """Parse Kafka's client properties, or those that a call returns.

        Values may be in files and in the environment; see `config_providers`. Such properties, and
        the call, are read again for each new connection. Raises `ValueError` for an unknown
        property, and `SecurityError`.
        """
        source = _PropertySource(properties or {})
        properties = None  # Tracebacks may show arguments, but not what a source contains.
        settings = cls(parse_addresses(bootstrap))
        values = source.read()
        for name in values:
            if name in _PLAIN:
                settings = _with_property(settings, name, values[name].reveal())
            elif name not in NAMES:
                raise ValueError(
                    f"this client does not support property {name!r}; it supports "
                    + ", ".join(sorted(NAMES))
                )
        if values.keys() <= _PLAIN.keys() and not source.changing:
            return settings
        return replace(
            settings, security=Security.from_properties(source.read, changing=source.changing)
        )

    @classmethod
    def from_file(
        cls, bootstrap: str | None, file: Path | None, fixed: Mapping[str, str] | None = None
    ) -> Settings:
        """Parse a properties file; `fixed` has priority over it.

        Without `bootstrap`, the properties name the brokers. The file is read again for each new
        connection. Raises `ValueError`, `OSError` or `SecurityError`.
        """

        def load() -> dict[str, str]:
            values = dict(parse_properties(file.read_text())) if file is not None else {}
            return values | dict(fixed or {})

        return cls.from_properties(bootstrap, load if file is not None else load())

    @classmethod
    def from_properties(cls, bootstrap: str | None, source: Properties) -> Settings:
        """Parse properties that name the brokers themselves, unless `bootstrap` does. Raises as
        `from_bootstrap` does.
        """

        def load_without_bootstrap() -> dict[str, str]:
            values = source() if callable(source) else source
            return {name: text for name, text in values.items() if name != _BOOTSTRAP}

        all_values = source() if callable(source) else source
        servers = bootstrap or all_values.get(_BOOTSTRAP) or DEFAULT_BOOTSTRAP
        return cls.from_bootstrap(
            servers, load_without_bootstrap if callable(source) else load_without_bootstrap()
        )

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Settings:
        """Parse what the operator gives to the pods of a ShareConsumer, as `shoal` does.

        These are SHOAL_BOOTSTRAP_SERVERS, the file that SHOAL_COMMAND_CONFIG names, and variables
        such as SHOAL_CLIENT_SASL_PASSWORD. Raises as `from_file` does.
        """
        variables = os.environ if environment is None else environment
        file = variables.get("SHOAL_COMMAND_CONFIG")
        fixed = {
            name: variables[get_variable_name(name)]
            for name in NAMES
            if get_variable_name(name) in variables
        }
        return cls.from_file(
            variables.get("SHOAL_BOOTSTRAP_SERVERS"), Path(file) if file else None, fixed
        )


class _PropertySource:
    """Properties as they were given, or the call that returns them."""

    def __init__(self, source: Properties) -> None:
        self._properties = source
        self.changing = callable(source) or config_providers.has_references(source)

    def read(self) -> dict[str, Secret]:
        """Return the properties, with all references replaced. Raises `SecurityError`."""
        return config_providers.resolve(self._hide())

    def _hide(self) -> dict[str, Secret]:
        values = self._properties() if callable(self._properties) else self._properties
        return {name: Secret(text) for name, text in values.items()}


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


def get_variable_name(name: str) -> str:
    """Return the environment variable of a client property."""
    return CLIENT_PREFIX + name.replace(".", "_").upper()


def _with_property(settings: Settings, name: str, value: str) -> Settings:
    if name in _WORDS:
        text: dict[str, Any] = {_PLAIN[name]: value}
        return replace(settings, **text)
    if not value.isdigit() or int(value) == 0:
        raise ValueError(f"{name} must be a positive number of milliseconds, not {value!r}")
    changes: dict[str, Any] = {_PLAIN[name]: int(value)}
    return replace(settings, **changes)
