"""`docs/configs.md`, made of the tables: `python -m shoal.metadata.config_page`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from shoal.metadata.client_metrics import SUBSCRIPTION
from shoal.metadata.config_keys import ConfigKey, Scope, Standing, text_of
from shoal.metadata.configs import BROKER, GROUP, TOPIC

_INTRODUCTION = """\
# Configs

Every config of Apache Kafka 4.3.1 for brokers, topics, groups and client metrics, under its name
there, and Shoal's own, which begin with `shoal.`. This page is made of the tables in
`broker_image/shoal/metadata`.

Broker configs come from flags, environment and file; those marked *cluster-wide* or *per-broker*
can be altered while the broker runs. Topics and groups take what they do not set from the broker
config named as *broker default*. A config that a section calls *accepted* is taken and shown and
changes nothing here; one that it calls *refused* can be set to its default only.
"""
_SENSES = {
    Standing.APPLIED: "",
    Standing.ACCEPTED: " (accepted, without effect)",
    Standing.REFUSED: " (refused, unless default)",
}


def page() -> str:
    """The whole page."""
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
    found: dict[tuple[Standing, str], list[ConfigKey]] = {}
    for key in table.values():
        found.setdefault((key.standing, key.section), []).append(key)
    for standing in Standing:
        for (kind, title), keys in found.items():
            if kind is standing:
                yield f"### {title}{_SENSES[standing]}\n"
                yield from map(_entry, keys)
                yield ""


def _entry(key: ConfigKey) -> str:
    default = text_of(key.default)
    facts = [key.type.name.lower()]
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
    return f"* `{key.name}`: {key.doc} ({'; '.join(facts)})"


def _check(key: ConfigKey) -> str:
    text = key.check.__doc__ if hasattr(key.check, "__name__") else str(key.check)
    return (text or "").strip()


if __name__ == "__main__":
    print(page(), end="")
