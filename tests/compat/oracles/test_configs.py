"""Each config of Kafka exists here, with Kafka's type, default, bounds and scope."""

from __future__ import annotations

import re
import subprocess
from typing import NamedTuple

import pytest
from shoal.metadata.config_keys import ConfigKey, ConfigType, OneOf, Range, format_value
from support.kafka.java_classes import SOURCES, java
from support.pages.config_effects import TABLES

pytestmark = pytest.mark.java

SOURCE = SOURCES / "ConfigDefinitions.java"
_RANGE = re.compile(r"\[(-?[\d.E]+),\.\.\.(?:,(-?[\d.E]+))?\]")
_WORDS = re.compile(r"(?:\(case insensitive\) )?\[([A-Za-z_, \d]+)\]")
#: Kafka has no default for these, but a broker of Shoal starts without settings.
NO_DEFAULT = {"node.id", "process.roles", "controller.listener.names"}
#: Other defaults, with the reason.
DEFAULTS = {
    "listeners": "without TLS and a login, only this host may connect",
    "log.dir": "a directory that outlasts a reboot",
    "group.share.assignors": "a member has partitions of few leaders (ADR 192)",
    "socket.connection.setup.timeout.ms": "brokers find out sooner that another one is gone",
}
#: Wider bounds, with the reason.
WIDER = {"group.share.max.size": "members of a share group are cheaper than in Kafka"}
#: Bounds that only Shoal has: Kafka checks these values later, or fails with them.
BOUNDED = {
    "socket.connection.setup.timeout.ms",
    "socket.connection.setup.timeout.max.ms",
    "offsets.topic.compression.codec",
    "share.coordinator.state.topic.compression.codec",
    "log.cleaner.io.max.bytes.per.second",
    "sasl.oauthbearer.jwks.endpoint.refresh.ms",
    "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms",
    "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms",
    "sasl.oauthbearer.clock.skew.seconds",
    "interval.ms",
}


class Definition(NamedTuple):
    """A config as Kafka defines it. `validator` is its text."""

    kind: str
    name: str
    type: ConfigType
    default: str
    validator: str
    internal: bool
    scope: str


@pytest.fixture(scope="module")
def kafkas() -> list[Definition]:
    ran = subprocess.run(
        java(str(SOURCE)), capture_output=True, text=True, timeout=180, check=False
    )
    assert ran.returncode == 0, ran.stderr
    found = []
    for line in ran.stdout.splitlines():
        kind, name, type_name, default, validator, internal, scope = line.split("\t")
        row = (kind, name, ConfigType[type_name], default, validator, internal == "true", scope)
        found.append(Definition(*row))
    return found


def test_each_config_has_kafkas_definition(kafkas: list[Definition]) -> None:
    differing: list[tuple[str, object, object]] = []
    for theirs in kafkas:
        ours = TABLES[theirs.kind].get(theirs.name)
        if ours is None:
            differing.append((theirs.name, "missing", None))
            continue
        differing += [(theirs.name, found, wanted) for found, wanted in compare(ours, theirs)]
    assert not differing
    assert len(kafkas) > 400


def compare(ours: ConfigKey, theirs: Definition) -> list[tuple[object, object]]:
    """Return what differs, with Kafka's value."""
    pairs: list[tuple[object, object]] = [
        (ours.type, theirs.type),
        (ours.internal, theirs.internal),
    ]
    if theirs.name not in WIDER:
        pairs.append((find_bounds(ours), parse_bounds(theirs)))
    if theirs.name not in DEFAULTS.keys() | NO_DEFAULT:
        default = format_value(ours.default)
        pairs.append(("null" if default is None else default, theirs.default))
    if theirs.kind == "broker":
        pairs.append((ours.scope.value, theirs.scope))
    if isinstance(ours.check, OneOf) and (words := _WORDS.fullmatch(theirs.validator)):
        allowed = {word.lower() for word in ours.check.values}
        pairs.append((allowed, {word.lower() for word in words[1].split(", ")}))
    return [(found, wanted) for found, wanted in pairs if found != wanted]


def find_bounds(ours: ConfigKey) -> tuple[float, float | None] | None:
    if not isinstance(ours.check, Range) or ours.name in BOUNDED:
        return None
    return float(ours.check.low), None if ours.check.high is None else float(ours.check.high)


def parse_bounds(theirs: Definition) -> tuple[float, float | None] | None:
    match = _RANGE.fullmatch(theirs.validator)
    if match is None:
        return None
    return float(match[1]), float(match[2]) if match[2] else None
