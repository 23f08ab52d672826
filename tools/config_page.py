"""Generate `docs/configs.md` from the tables of configs: `python tools/config_page.py`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.metadata.client_metrics import SUBSCRIPTION
from shoal.metadata.config_keys import ConfigEffect, ConfigKey, Scope, Type, text_of
from shoal.metadata.configs import BROKER, GROUP, TOPIC

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_INTRODUCTION = """\
# Configs

This page lists every config of Apache Kafka 4.3.1 for brokers, topics, groups and client metrics
under Kafka's name, and Shoal's own, which begin with `shoal.`. It is generated from the tables in
`broker_image/shoal/metadata`.

Each entry has the type, the unit, the default and the allowed values. A config has an effect unless
its entry says *no effect*. If an entry says *default only*, other values are refused.
For each config with an effect a test observes it (`tests/config_effects.py`). `shoal server` names
the settings without effect that it was given.

Broker configs come from flags, environment and file. Those marked *cluster-wide* or *per-broker*
can be altered while the broker runs. A topic or group that does not set a config gets the value of
the broker config named as *broker default*.
"""
_SENSES = {
    ConfigEffect.APPLIED: "",
    ConfigEffect.ACCEPTED: " (no effect)",
    ConfigEffect.REFUSED: " (default only)",
}
_EFFECTS = {ConfigEffect.ACCEPTED: "no effect", ConfigEffect.REFUSED: "default only"}
_NUMBERS = {Type.INT, Type.SHORT, Type.LONG, Type.DOUBLE}
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


def page() -> str:
    """Return the whole page."""
    lines = [_INTRODUCTION]
    for title, table in (
        ("Broker", BROKER),
        ("Topic", TOPIC),
        ("Group", GROUP),
        ("Client metrics subscription", SUBSCRIPTION),
    ):
        lines.append(f"## {title} configs\n")
        lines += _sections(table)
    return "\n".join(lines)


def _sections(table: Mapping[str, ConfigKey]) -> Iterator[str]:
    found: dict[tuple[ConfigEffect, str], list[ConfigKey]] = {}
    for key in table.values():
        found.setdefault((key.effect, key.section), []).append(key)
    for effect in ConfigEffect:
        for (kind, title), keys in found.items():
            if kind is effect:
                yield f"### {title}{_SENSES[effect]}\n"
                yield from map(_entry, keys)
                yield ""


def _entry(key: ConfigKey) -> str:
    default = text_of(key.default)
    facts = [key.type.name.lower()]
    unit = _unit(key)
    if unit:
        facts.append(unit)
    facts.append(
        "no default" if default is None else f"default `{default}`" if default else "empty"
    )
    if key.check is not None:
        facts.append(_check(key))
    if key.scope is not Scope.READ_ONLY:
        facts.append(key.scope.value)
    if key.synonyms:
        facts.append("broker default " + ", ".join(f"`{s.name}`" for s in key.synonyms))
    bounds = [f"`{name}`" for name in key.bounds if name]
    if bounds:
        facts.append("bounded by " + ", ".join(bounds))
    if key.effect in _EFFECTS:
        facts.append(_EFFECTS[key.effect])
    return f"* `{key.name}`: {key.doc} ({'; '.join(facts)})"


def _unit(key: ConfigKey) -> str:
    """Return the unit of a number from its name or the first word of its description, else ""."""
    if key.type not in _NUMBERS:
        return ""
    found = next((unit for end, unit in _UNITS.items() if key.name.endswith(end)), "")
    first = key.doc.split(" ", 1)[0].lower()
    return found or (first if first in _UNITS.values() else "")


def _check(key: ConfigKey) -> str:
    text = key.check.__doc__ if hasattr(key.check, "__name__") else str(key.check)
    return (text or "").strip()


if __name__ == "__main__":
    print(page(), end="")
