"""The security protocol of each listener, and configs that a listener may override.

A config whose name begins with `listener.name.`, the listener's name in lower case and a dot
overrides the config with the rest of the name on that listener (KIP-103). For SASL, the mechanism
in lower case may stand before the rest, for example
`listener.name.external.scram-sha-512.sasl.jaas.config` (KIP-86).
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Any, NamedTuple

from shoal.metadata import configs, listener_configs

if TYPE_CHECKING:
    from collections.abc import Mapping

PREFIX = listener_configs.PREFIX


class SecurityProtocol(IntEnum):
    """Kafka's security protocols, with the ids of broker registrations."""

    PLAINTEXT = 0
    SSL = 1
    SASL_PLAINTEXT = 2
    SASL_SSL = 3

    @property
    def is_tls(self) -> bool:
        return self in (SecurityProtocol.SSL, SecurityProtocol.SASL_SSL)

    @property
    def is_sasl(self) -> bool:
        return self in (SecurityProtocol.SASL_PLAINTEXT, SecurityProtocol.SASL_SSL)


class ListenerSecurity(NamedTuple):
    """One listener's protocol and configs. `overrides` has texts by full config name."""

    name: str
    protocol: SecurityProtocol
    values: Mapping[str, Any]
    overrides: Mapping[str, str]

    def get_value(self, name: str, mechanism: str = "") -> Any:
        """Return the typed value of a config on this listener. Raises `ConfigError`.

        A `mechanism` (`SCRAM-SHA-512`) has its own value if one is set for it.
        """
        prefix = f"{PREFIX}{self.name.lower()}."
        names = [f"{prefix}{mechanism.lower()}.{name}"] if mechanism else []
        for full in (*names, prefix + name):
            text = self.overrides.get(full)
            if text is not None:
                return configs.BROKER[name].parse(text)
        return self.values[name]


def find_override_target(
    name: str, mechanisms: frozenset[str] = listener_configs.MECHANISMS
) -> str | None:
    """Return the config that a `listener.name.…` config overrides, or None if it is none.

    `mechanisms` are SASL mechanisms in lower case.
    """
    override = listener_configs.split_name(name, mechanisms)
    return None if override is None else override.target


def check_override(
    name: str, text: str, mechanisms: frozenset[str] = listener_configs.MECHANISMS
) -> None:
    """Check a `listener.name.…` config. Raises `UnknownConfig` or `ConfigError`."""
    listener_configs.check(name, text, mechanisms)


def with_layers(security: ListenerSecurity, layers: configs.ConfigLayers) -> ListenerSecurity:
    """Return a listener's security with the configs of these layers, which may have been altered
    since the start."""
    texts = {**layers.static, **layers.broker_default, **layers.broker}
    return security._replace(values=configs.resolve_broker_values(layers), overrides=texts)
