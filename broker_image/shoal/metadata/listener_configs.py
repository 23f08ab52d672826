"""Broker configs of single listeners: `listener.name.<listener>.[<mechanism>.]<config>`.

Such a name overrides a config on one listener, whose name it has in lower case (KIP-103). For SASL,
the mechanism in lower case may stand before the config (KIP-86). Only configs that a listener reads
can be overridden.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from shoal.metadata.config_keys import ConfigError, ConfigKey, UnknownConfig
from shoal.metadata.config_tables.broker_configs import BROKER

if TYPE_CHECKING:
    from collections.abc import Mapping

PREFIX = "listener.name."
#: SASL mechanisms in lower case, as they stand in a config's name.
MECHANISMS = frozenset({"gssapi", "oauthbearer", "plain", "scram-sha-256", "scram-sha-512"})
#: Configs that every listener reads, besides those of TLS and SASL.
_OWN = frozenset({"connections.max.reauth.ms", "principal.builder.class"})
#: Configs that can be altered at run time on single listeners only (KIP-226).
SECURITY = frozenset(
    {
        "ssl.key.password",
        "ssl.keystore.certificate.chain",
        "ssl.keystore.key",
        "ssl.keystore.location",
        "ssl.keystore.password",
        "ssl.keystore.type",
        "ssl.truststore.certificates",
        "ssl.truststore.location",
        "ssl.truststore.password",
        "ssl.truststore.type",
    }
)


class Override(NamedTuple):
    """The parts of a name: listener and mechanism in lower case, and the overridden config."""

    listener: str
    mechanism: str
    target: str


def split_name(name: str, mechanisms: frozenset[str] = MECHANISMS) -> Override | None:
    """Return the parts of a `listener.name.…` config, or None for another config."""
    if not name.startswith(PREFIX):
        return None
    listener, _, suffix = name.removeprefix(PREFIX).partition(".")
    first, _, after = suffix.partition(".")
    return (
        Override(listener, first, after) if first in mechanisms else Override(listener, "", suffix)
    )


def find_key(name: str) -> ConfigKey | None:
    """Return the row of a broker config, for an override that of its target; None if unknown."""
    override = split_name(name)
    return BROKER.get(name if override is None else override.target)


def check(name: str, text: str | None, mechanisms: frozenset[str] = MECHANISMS) -> Any:
    """Return the typed value of an override. Raises `UnknownConfig` or `ConfigError`."""
    override = split_name(name, mechanisms)
    key = None if override is None else BROKER.get(override.target)
    if override is None or key is None:
        raise UnknownConfig("listener", name)
    try:
        reason = _find_misplacement(override)
        if reason is not None:
            raise key.make_error(text, reason)
        return key.parse(text)
    except ConfigError as error:
        raise ConfigError(name, error.value, error.reason) from None


def _find_misplacement(override: Override) -> str | None:
    """Return why the target cannot be overridden in this way, or None."""
    listener, mechanism, target = override
    if not listener or listener != listener.lower():
        return f"the listener's name stands in lower case here: {PREFIX}<listener>."
    is_sasl = target.startswith("sasl.")
    is_tls = target.removeprefix("shoal.").startswith("ssl.")
    if not (is_sasl or is_tls or target in _OWN):
        return f"{target} is the same for all listeners"
    if mechanism and not is_sasl and target != "connections.max.reauth.ms":
        return f"{target} is the same for all SASL mechanisms"
    return None


def parse(texts: Mapping[str, str | None]) -> dict[str, Any]:
    """Return the typed values of the given broker configs, overrides included.

    Raises `ConfigError` (or `UnknownConfig`) for the first invalid one by name.
    """
    values = {}
    for name in sorted(texts):
        if name.startswith(PREFIX):
            values[name] = check(name, texts[name])
            continue
        key = BROKER.get(name)
        if key is None:
            raise UnknownConfig("broker", name)
        values[name] = key.parse(texts[name])
    return values
