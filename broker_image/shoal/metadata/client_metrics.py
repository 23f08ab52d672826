"""Client metrics subscriptions (KIP-714): which clients push which metrics, and how often.

A subscription is a type of config resource. A client gets the union of all matching subscriptions
and the shortest of their intervals. `*` requests all metrics.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any, NamedTuple

from shoal.metadata.config_keys import ConfigError, UnknownConfig, parse_table
from shoal.metadata.patterns import InvalidPattern, compile_pattern

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

#: The configs of a subscription.
SUBSCRIPTION = parse_table(
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
    """The metrics that one client pushes; without `metrics` none."""

    subscription_id: int
    interval_ms: int
    metrics: tuple[str, ...]


def parse(texts: Mapping[str, str]) -> dict[str, Any]:
    """Parse the configs of a subscription. Raises `ConfigError`."""
    values = {}
    for name in sorted(texts):
        if name not in SUBSCRIPTION:
            raise UnknownConfig("client metrics", name)
        values[name] = SUBSCRIPTION[name].parse(texts[name])
    return values


def compile_patterns(match: Iterable[str]) -> dict[str, Any]:
    """Return the compiled patterns of a `match` by selector. Raises `ConfigError`."""
    compiled = {}
    for item in match:
        selector, sign, pattern = item.partition("=")
        if not sign or selector not in SELECTORS:
            raise ConfigError("match", item, f"selectors are {', '.join(SELECTORS)}")
        try:
            compiled[selector] = compile_pattern(pattern)
        except InvalidPattern as error:
            raise ConfigError("match", item, f"Illegal client matching pattern: {error}") from None
    return compiled


def _has_match(match: Iterable[str], client: Mapping[str, str]) -> bool:
    try:
        compiled = compile_patterns(match)
    except ConfigError:  # Written by a release that accepted other patterns.
        return False
    return all(p.fullmatch(client[selector]) is not None for selector, p in compiled.items())


def subscribe(
    subscriptions: Mapping[str, Mapping[str, str]], client: Mapping[str, str]
) -> Subscription:
    """Return the subscription of a client, given the values of its selectors."""
    default_ms: int = SUBSCRIPTION["interval.ms"].default
    intervals = []
    metrics: dict[str, None] = {}
    for name in sorted(subscriptions):
        values = parse(subscriptions[name])
        if _has_match(values.get("match", ()), client):
            metrics.update(dict.fromkeys(values.get("metrics", ())))
            intervals.append(values.get("interval.ms", default_ms))
    chosen = ("*",) if "*" in metrics else tuple(metrics)
    interval_ms = min(intervals, default=default_ms)
    checksum = zlib.crc32(f"{interval_ms} {chosen}".encode())
    return Subscription(checksum - (1 << 31), interval_ms, chosen)
