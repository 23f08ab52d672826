"""Configs: the tables, the parser, and the effective values of topics, groups and brokers.

A config's value comes from layers, the strongest first (`ConfigSource`): the topic or group, the
broker with this id, all brokers, the broker's file and flags, the default. Topics and groups get
the lower layers from broker configs with other names (`retention.ms` from `log.retention.hours`). A
group's value is then limited by the brokers' bounds (KIP-1240).

Values are mappings from Kafka's names to typed values: `config["retention.ms"]` is an int, and
lists are tuples. Other modules read them through `MetadataImage.resolve_topic_config`,
`.group_config` and `.broker_config`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import Any, NamedTuple

from shoal.metadata.config_keys import (
    ConfigEffect,
    ConfigError,
    ConfigKey,
    ConfigScope,
    ConfigType,
    UnknownConfig,
    format_value,
)
from shoal.metadata.config_tables.broker_configs import BROKER
from shoal.metadata.config_tables.group_configs import GROUP
from shoal.metadata.config_tables.topic_configs import TOPIC

__all__ = [
    "BROKER",
    "GROUP",
    "TOPIC",
    "ConfigEffect",
    "ConfigError",
    "ConfigKey",
    "ConfigScope",
    "ConfigSource",
    "ConfigType",
    "UnknownConfig",
    "find_without_effect",
    "format_value",
    "parse",
]

Table = Mapping[str, ConfigKey]
Values = Mapping[str, Any]
Texts = Mapping[str, str]
NONE: Texts = {}
TABLE_NAMES = {id(BROKER): "broker", id(TOPIC): "topic", id(GROUP): "group"}


class ConfigSource(IntEnum):
    """The source of a value; the numbers are DescribeConfigs' `config_source` (KIP-226)."""

    TOPIC = 1
    BROKER = 2
    BROKER_DEFAULT = 3
    STATIC_BROKER = 4
    DEFAULT = 5
    GROUP = 8


class ConfigLayers(NamedTuple):
    """The layers of a broker's configs, the strongest first: texts by name."""

    broker: Texts = NONE
    broker_default: Texts = NONE
    static: Texts = NONE


class ConfigOrigin(NamedTuple):
    """One source of a value: the config's name there, its text, and the kind of source."""

    name: str
    text: str
    source: ConfigSource


_LAYER_SOURCES = (ConfigSource.BROKER, ConfigSource.BROKER_DEFAULT, ConfigSource.STATIC_BROKER)


#: Broker configs with the configs in larger units that apply if they are unset.
_UNITS = {
    key.synonyms[0].name: tuple(synonym.name for synonym in key.synonyms)
    for key in TOPIC.values()
    if key.synonyms
}


def parse(table: Table, texts: Mapping[str, str | None]) -> dict[str, Any]:
    """Return the typed values of the given configs.

    Raises `ConfigError` (or `UnknownConfig`) for the first invalid one by name.
    """
    values = {}
    for name in sorted(texts):
        key = table.get(name)
        if key is None:
            raise UnknownConfig(TABLE_NAMES[id(table)], name)
        values[name] = key.parse(texts[name])
    return values


def find_without_effect(table: Table, names: Iterable[str]) -> list[str]:
    """Return the names among `names` that have no effect on this broker, sorted."""
    keys = (table[name] for name in names if name in table)
    return sorted({key.name for key in keys if key.effect is ConfigEffect.ACCEPTED})


def resolve_broker_values(layers: ConfigLayers) -> dict[str, Any]:
    """Return the effective value of every broker config."""
    values = {name: key.default for name, key in BROKER.items()}
    for layer in reversed(layers):
        for name, text in layer.items():
            if name in BROKER:
                values[name] = BROKER[name].read(text)
    return values


def resolve_inherited(table: Table, broker: Values) -> dict[str, Any]:
    """Return the values of topics or groups without configs of their own."""
    return {name: _resolve_inherited(key, broker) for name, key in table.items()}


def _resolve_inherited(key: ConfigKey, broker: Values) -> Any:
    for name, factor in key.synonyms:
        value = broker[name]
        if value is not None:
            return value if factor == 1 or value < 0 else value * factor
    return key.default


def override(table: Table, base: Values, own: Texts) -> dict[str, Any]:
    """Return `base` with a topic's or group's own configs applied."""
    values = dict(base)
    for name, text in own.items():
        if name in table:
            values[name] = table[name].read(text)
    return values


def clamp_to_bounds(values: dict[str, Any], broker: Values) -> dict[str, Any]:
    """Limit a group's values to the brokers' bounds (KIP-1240). Changes `values`."""
    for name, key in GROUP.items():
        low, high = key.bounds
        if low is not None:
            values[name] = max(values[name], broker[low])
        if high is not None:
            values[name] = min(values[name], broker[high])
    return values


def find_bounds_violation(values: Values, broker: Values) -> str | None:
    """Return why a group's values violate the brokers' bounds, or None."""
    for name in values:
        low, high = GROUP[name].bounds
        if low is not None and values[name] < broker[low]:
            return f"{name} must be greater than or equal to {low} ({broker[low]})"
        if high is not None and values[name] > broker[high]:
            return f"{name} must be less than or equal to {high} ({broker[high]})"
    return None


def find_config_origins(
    key: ConfigKey,
    layers: ConfigLayers,
    own: ConfigOrigin | None = None,
    names: tuple[str, ...] = (),
) -> list[ConfigOrigin]:
    """Return the sources of a config's value, the effective one first.

    `own` is the topic's or group's own config. `names` are overrides of a broker config, which have
    no default.
    """
    origins = [] if own is None else [own]
    if names:
        return [
            ConfigOrigin(name, layer[name], source)
            for source, layer in zip(_LAYER_SOURCES, layers, strict=True)
            for name in names
            if name in layer
        ]
    if BROKER.get(key.name) is key:
        names = _UNITS.get(key.name, (key.name,))
    else:
        names = tuple(synonym.name for synonym in key.synonyms)
    for source, layer in zip(_LAYER_SOURCES, layers, strict=True):
        origins += [ConfigOrigin(name, layer[name], source) for name in names if name in layer]
    for name in names:
        text = format_value(BROKER[name].default)
        if text is not None:
            origins.append(ConfigOrigin(name, text, ConfigSource.DEFAULT))
    if not names and GROUP.get(key.name) is key:
        origins.append(
            ConfigOrigin(key.name, format_value(key.default) or "", ConfigSource.DEFAULT)
        )
    return origins
