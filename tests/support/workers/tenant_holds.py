"""How many records of each tenant members held at once, by the events of `share_worker`.

The value of a record is the name of its tenant. A member holds a record from the moment that it
reports it until it commits, so the broker counts it at least that long.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

    from support.workers.share_worker import Member


class Hold(NamedTuple):
    """A record at a member, in seconds of the monotonic clock."""

    since: float
    until: float
    tenant: str
    place: tuple[int, int]


def list_holds(members: Iterable[Member]) -> list[Hold]:
    """Return what members held, in the order of time."""
    holds: list[Hold] = []
    for member in members:
        held: dict[tuple[int, int], tuple[float, str]] = {}
        for event in list(member.events):
            if event["e"] == "got":
                held[event["where"][0], event["where"][1]] = (event["t"], event["value"])
            elif event["e"] == "begin":
                for partition, offset, *_ in event["acknowledgements"]:
                    since, tenant = held.pop((partition, offset))
                    holds.append(Hold(since, event["t"], tenant, (partition, offset)))
    return sorted(holds)


def count_most(holds: Iterable[Hold]) -> Counter[str]:
    """Return the most records of each tenant that were held at once."""
    steps = [(hold.since, 1, hold.tenant) for hold in holds]
    steps += [(hold.until, -1, hold.tenant) for hold in holds]
    now: Counter[str] = Counter()
    most: Counter[str] = Counter()
    for _, step, tenant in sorted(steps):
        now[tenant] += step
        most[tenant] = max(most[tenant], now[tenant])
    return most
