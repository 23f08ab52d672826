"""Generate `docs/configs.md` from the tables of configs: `python tools/config_page.py`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from shoal.metadata.client_metrics import SUBSCRIPTION
from shoal.metadata.config_keys import (
    ConfigEffect,
    ConfigKey,
    ConfigScope,
    ConfigType,
    OneOf,
    format_value,
)
from shoal.metadata.configs import BROKER, GROUP, TOPIC
from shoal_operator.model import broker_config

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

#: Examples that no default gives, by kind of config and name.
FURTHER: dict[str, dict[str, Any]] = yaml.safe_load(
    (Path(__file__).parent / "config_examples.yaml").read_text()
)
_INTRODUCTION = """\
# Configs

This page lists every config of Apache Kafka 4.4.0 for brokers, topics, groups and client metrics
under Kafka's name, and Shoal's own, which begin with `shoal.`. It is generated from the tables in
`broker_image/shoal/metadata`.

Each entry gives the type, the unit, the default and the allowed values. A config takes effect
unless its entry says *no effect*, and a test observes each effect
(`tests/support/pages/config_effects.py`).
If an entry says *default only*, other values are refused. If you give `shoal server` settings
without effect, it names them when it starts.

You can set broker configs by flags, environment variables or a file, for example `--set
num.partitions=6`. If a config is marked *cluster-wide* or *per-broker*, you can alter it while the
broker runs. If a topic or group does not set a config, it gets the value of the broker config named
as *broker default*.

Each name is a link to its entry, so that you can point others to it. If a custom resource can set
a config, its entry ends with the `spec` that does. The number in it is mostly the default: copy the
line, and change it.
"""
#: How one sets a config of each table, below its heading.
_EXAMPLES = {
    "Broker": """\
```yaml
kind: QueueCluster
spec:
  config: {log.retention.ms: "604800000"}
```

Without Kubernetes: `shoal server --set log.retention.ms=604800000`, or for a running broker
`shoal configs set broker 1 log.retention.ms=604800000`.
""",
    "Topic": """\
```yaml
kind: QueueTopic
spec:
  config: {max.message.bytes: "1048576"}
```

Without Kubernetes: `shoal configs set topic jobs max.message.bytes=1048576`.
""",
    "Group": """\
```yaml
kind: ShareGroup
spec:
  lockDuration: 2m
  deliveryLimit: 10
```

An entry names the field of a [ShareGroup](reference/sharegroup.md) that sets it, and otherwise the
command. Without Kubernetes: `shoal configs set group workers share.delivery.count.limit=10`.
""",
    "Client metrics subscription": """\
`shoal configs set client-metrics all-clients interval.ms=60000` sets one.
""",
}
#: What all brokers of a cluster never share.
OF_ONE_BROKER = {"cordoned.log.dirs": "shoal configs set broker 3 'cordoned.log.dirs=*'"}
_SENSES = {
    ConfigEffect.APPLIED: "",
    ConfigEffect.ACCEPTED: " (no effect)",
    ConfigEffect.REFUSED: " (default only)",
}
_EFFECTS = {ConfigEffect.ACCEPTED: "no effect", ConfigEffect.REFUSED: "default only"}
_NUMBERS = {ConfigType.INT, ConfigType.SHORT, ConfigType.LONG, ConfigType.DOUBLE}
#: Units by the suffix of a config's name, the longest first.
_UNITS = {
    ".bytes.per.second": "bytes per second",
    ".throttled.rate": "bytes per second",
    ".creation.rate": "per second",
    ".bytes": "bytes",
    ".hours": "hours",
    ".minutes": "minutes",
    ".seconds": "seconds",
    ".secs": "seconds",
    ".millis": "milliseconds",
    ".ms": "milliseconds",
}


def build_page() -> str:
    """Return the whole page."""
    lines = [_INTRODUCTION]
    for title, table in (
        ("Broker", BROKER),
        ("Topic", TOPIC),
        ("Group", GROUP),
        ("Client metrics subscription", SUBSCRIPTION),
    ):
        lines.append(f"## {title} configs\n")
        lines.append(_EXAMPLES[title])
        lines += _build_sections(table, title)
    return "\n".join(lines)


def _build_sections(table: Mapping[str, ConfigKey], title_of_table: str) -> Iterator[str]:
    kind_of_table = title_of_table.split()[-1].lower()
    by_section: dict[tuple[ConfigEffect, str], list[ConfigKey]] = {}
    for key in table.values():
        by_section.setdefault((key.effect, key.section), []).append(key)
    for effect in ConfigEffect:
        for (kind, title), keys in by_section.items():
            if kind is effect:
                yield f"### {title}{_SENSES[effect]}\n"
                yield from (_build_entry(key, kind_of_table) for key in keys)
                yield ""


def _build_entry(key: ConfigKey, kind: str) -> str:
    """Return the line of a config. `kind` tells apart configs of the same name."""
    default = format_value(key.default)
    facts = [key.type.name.lower()]
    unit = _find_unit(key)
    if unit:
        facts.append(unit)
    facts.append(
        "no default" if default is None else f"default `{default}`" if default else "empty"
    )
    if key.check is not None:
        facts.append(_check(key))
    if key.scope is not ConfigScope.READ_ONLY:
        facts.append(key.scope.value)
    if key.synonyms:
        facts.append("broker default " + ", ".join(f"`{s.name}`" for s in key.synonyms))
    bounds = [f"`{name}`" for name in key.bounds if name]
    if bounds:
        facts.append("bounded by " + ", ".join(bounds))
    if key.effect in _EFFECTS:
        facts.append(_EFFECTS[key.effect])
    anchor = f"{kind}.{key.name}"
    entry = f"[`{key.name}`](#{anchor}): {key.doc} ({'; '.join(facts)})"
    return " ".join(filter(None, [f'* <a id="{anchor}"></a>{entry}', _describe_setting(key, kind)]))


def _describe_setting(key: ConfigKey, kind: str) -> str:
    """Return how a custom resource sets a config, as a sentence; "" if setting it has no use."""
    if key.effect is not ConfigEffect.APPLIED:
        return ""
    if kind == "group" and key.name in FURTHER[kind]:
        field, spec = FURTHER[kind][key.name]
        link = f"[`spec.{field}`](reference/sharegroup.md#spec.{field})"
        return f"Example of {link}: `spec: {_format_yaml(spec)}`."
    if kind == "broker" and key.name in OF_ONE_BROKER:
        return f"Set it for one broker: `{OF_ONE_BROKER[key.name]}`."
    text = choose_value(key, kind)
    if kind == "group":
        return f"No field sets it: `shoal configs set group NAME {key.name}={text}`."
    if kind == "broker" and (remedy := broker_config.find_replacement(key.name)):
        return f"In a QueueCluster: {remedy}"
    if kind in ("broker", "topic"):
        return f"Example: `spec: {_format_yaml({'config': {key.name: text}})}`."
    return ""


def choose_value(key: ConfigKey, kind: str) -> str:
    """Return a value of a config that its check admits, as text."""
    further = FURTHER.get(kind, {})
    if key.name in further:
        return str(further[key.name])
    if key.type is ConfigType.BOOLEAN:
        return str(not key.default).lower()
    if isinstance(key.check, OneOf):
        default = key.default if isinstance(key.default, tuple) else (key.default,)
        return next((value for value in key.check.values if value not in default), default[0])
    return format_value(key.default) or ""


def _format_yaml(value: Any) -> str:
    """Return a value as one line of YAML."""
    line = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=10_000)
    return str(line).strip()


def _find_unit(key: ConfigKey) -> str:
    """Return the unit of a number from its name or the first word of its description, else ""."""
    if key.type not in _NUMBERS:
        return ""
    by_name = next((unit for end, unit in _UNITS.items() if key.name.endswith(end)), "")
    first = key.doc.split(" ", 1)[0].lower()
    return by_name or (first if first in _UNITS.values() else "")


def _check(key: ConfigKey) -> str:
    text = key.check.__doc__ if hasattr(key.check, "__name__") else str(key.check)
    return (text or "").strip()


if __name__ == "__main__":
    print(build_page(), end="")
