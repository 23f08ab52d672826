"""Client metrics subscriptions (KIP-714): which clients push which of their metrics, and how often.

A subscription is a config resource of its own kind. A client is given the union of those that match
it, and the shortest of their intervals; `*` asks for all metrics.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from shoal.metadata.config_keys import ConfigError, UnknownConfig, table

#: What a subscription can set.
SUBSCRIPTION = table(
    """
# applied: Subscription
interval.ms int 300000 100..3600000
    Interval at which a client pushes metrics.
metrics list "" -
    Prefixes of the metric names that clients push, or * for all.
match list "" -
    Patterns that a client must match, as selector=regular expression.
"""
)
SELECTORS = (
    "client_instance_id",
    "client_id",
    "client_software_name",
    "client_software_version",
    "client_source_address",
    "client_source_port",
)


class Subscription(NamedTuple):
    """What one client is to push; without `metrics` nothing."""

    subscription_id: int
    interval_ms: int
    metrics: tuple[str, ...]


def parse(texts: Mapping[str, str]) -> dict[str, Any]:
    """Typed values of a subscription's own configs. Raises `ConfigError`."""
    values = {}
    for name in sorted(texts):
        if name not in SUBSCRIPTION:
            raise UnknownConfig("client metrics", name)
        values[name] = SUBSCRIPTION[name].parse(texts[name])
    return values


def patterns(match: Iterable[str]) -> dict[str, re.Pattern[str]]:
    """The patterns of a `match`, by selector. Raises `ConfigError`."""
    found = {}
    for item in match:
        selector, sign, pattern = item.partition("=")
        if not sign or selector not in SELECTORS:
            raise ConfigError("match", item, f"selectors are {', '.join(SELECTORS)}")
        try:
            found[selector] = re.compile(pattern)
        except re.error as error:
            raise ConfigError("match", item, f"Illegal client matching pattern: {error}") from None
    return found


def subscribe(
    subscriptions: Mapping[str, Mapping[str, str]], client: Mapping[str, str]
) -> Subscription:
    """What the client, known by its selectors' values, is to push."""
    default_ms: int = SUBSCRIPTION["interval.ms"].default
    intervals = []
    metrics: dict[str, None] = {}
    for name in sorted(subscriptions):
        values = parse(subscriptions[name])
        if all(p.fullmatch(client[s]) for s, p in patterns(values.get("match", ())).items()):
            metrics.update(dict.fromkeys(values.get("metrics", ())))
            intervals.append(values.get("interval.ms", default_ms))
    chosen = ("*",) if "*" in metrics else tuple(metrics)
    interval_ms = min(intervals, default=default_ms)
    checksum = zlib.crc32(f"{interval_ms} {chosen}".encode())
    return Subscription(checksum - (1 << 31), interval_ms, chosen)
