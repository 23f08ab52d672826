"""The tenants of a share group: the busiest, as the brokers' metrics have them, and the paused."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Iterable, Mapping

    from shoal.console.reading.masks import Masks

FAIRNESS_BY, PAUSED = "share.fairness.by", "share.tenant.paused"
#: Tenants that a page lists besides the paused ones; each broker reports as many.
SHOWN_MAX = 20
#: The metrics cut longer names, and those are no longer the names of tenants.
_CHARACTERS_MAX = 64
#: What the metrics have instead of bytes that are no UTF-8.
_REPLACED = "\ufffd"


class TenantRow(NamedTuple):
    """A tenant and its records; None if the brokers do not report them. The name is empty for
    records without a tenant."""

    name: str
    in_flight: int | None
    available: int | None
    is_paused: bool

    @property
    def may_be_paused(self) -> bool:
        """Whether this is the name of a tenant, and a config can list it."""
        return len(self.name) < _CHARACTERS_MAX and is_nameable(self.name)


def is_nameable(name: str) -> bool:
    """Return whether a config, which is a list with commas, can name a tenant."""
    return bool(name) and name == name.strip() and "," not in name and _REPLACED not in name


def split_paused(config: str) -> list[str]:
    """Return the tenants in the value of `share.tenant.paused`."""
    return [name for name in config.split(",") if name]


def list_tenants(
    records: Mapping[str, Counter[str]] | None, paused: Iterable[str]
) -> list[TenantRow]:
    """Return the tenants with the most records, and the paused ones.

    `records` are by tenant and state, as the metrics have them; None if no broker reports any.
    """
    counts, paused_names = records or {}, frozenset(paused)
    names = sorted(counts, key=lambda name: (-counts[name].total(), name))[:SHOWN_MAX]
    return [
        TenantRow(name, counts[name]["in-flight"], counts[name]["available"], name in paused_names)
        for name in names
    ] + [TenantRow(name, None, None, True) for name in sorted(paused_names.difference(names))]


def are_masked(masks: Masks, topics: Iterable[str], fairness_by: str) -> bool:
    """Return whether the names of tenants are what rules mask in records of these topics."""
    rule = masks.find_rule(topics)
    if rule is None:
        return False
    header = fairness_by.removeprefix("header:").lower()
    if fairness_by == "key":
        return rule.key or bool(rule.fields)
    return any(fnmatchcase(header, pattern) for pattern in rule.headers)
