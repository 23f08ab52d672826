"""Which records each consumer of a share group holds, as Shoal's brokers report it (ADR 71)."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from shoal.client.errors import ClientError, KafkaError
from shoal.console import figures
from shoal.protocol.share import InFlightState

if TYPE_CHECKING:
    from collections.abc import Iterable

    from shoal.client.client import Client
    from shoal.client.net.cluster import TopicPartition
    from shoal.protocol.share import InFlightRecords

#: Requests to each broker for one group. Each returns a page of entries of each partition.
PAGES_MAX = 10
PARTITIONS_MAX = 500
#: Ranges that the page of a group lists for one consumer.
SHOWN_MAX = 10


class HeldRange(NamedTuple):
    """Consecutive records that a consumer holds. `time_left_ms` is the time until the lock ends."""

    partition: TopicPartition
    first: int
    last: int
    delivery_count: int
    time_left_ms: int


@dataclass(slots=True)
class Holding:
    """What one consumer holds: ranges of records, those whose locks end first at the front."""

    records: int = 0
    ranges: list[HeldRange] = field(default_factory=list)

    @property
    def first_end_s(self) -> float:
        return self.ranges[0].time_left_ms / 1000

    def get_partitions(self) -> set[TopicPartition]:
        return {held_range.partition for held_range in self.ranges}


@dataclass(slots=True)
class Holdings:
    """What the consumers of a group hold. `deliveries` counts records in flight by the number of
    their deliveries. `is_whole` is False if there are more records than were read."""

    members: dict[str, Holding] = field(default_factory=dict)
    deliveries: Counter[int] = field(default_factory=Counter)
    is_whole: bool = True


#: States in which a record was delivered and is not settled.
_DELIVERED = (InFlightState.ACQUIRED, InFlightState.BACKING_OFF)


#: What a record in flight waits for, by its state.
_WORDS = {
    InFlightState.AVAILABLE: "available to the next consumer",
    InFlightState.ACQUIRED: "held by {member}, the lock ends in {left}",
    InFlightState.ARCHIVING: "waits until its dead letter is written",
    InFlightState.BACKING_OFF: "released, its retry is in {left}",
    InFlightState.HOLDS_KEY: "dead-lettered, and blocks its key",
    InFlightState.DELAYED: "delayed, it is due in {left}",
    InFlightState.BEHIND_KEY: "waits for an earlier record of its key",
    InFlightState.BEHIND_LIMIT: "waits behind its tenant's limit",
}


async def describe_standing(
    client: Client,
    group: str,
    partition: TopicPartition,
    offset: int,
    *,
    may_show_reason: bool,
) -> str:
    """Return where a record in flight stands in a share group, with the reason of its last failure;
    empty if it is unknown."""
    try:
        pages = await client.admin.share_groups.in_flight(group, {partition: offset})
    except ClientError:
        return ""
    page = pages[partition]
    if isinstance(page, KafkaError):
        return ""
    for entry in page.entries:
        if entry.first_offset <= offset <= entry.last_offset:
            duration = figures.format_duration(entry.time_left_ms / 1000)
            words = _WORDS[entry.state].format(member=entry.member_id, left=duration)
            count = entry.delivery_count
            times = "once" if count == 1 else f"{count:,} times"
            delivered = f"delivered {times}" if count else "not delivered yet"
            if entry.failure:
                reason = entry.failure if may_show_reason else "[masked]"
                delivered += f"; it last failed with {reason}"
            return f"{words}; {delivered}"
    return ""


async def read_holdings(
    client: Client, group: str, places: Iterable[TopicPartition]
) -> Holdings | None:
    """Return the holdings; None if the brokers do not report them."""
    partitions = list(places)
    holdings = Holdings(is_whole=len(partitions) <= PARTITIONS_MAX)
    starts = dict.fromkeys(partitions[:PARTITIONS_MAX], 0)
    for _ in range(PAGES_MAX):
        if not starts:
            break
        try:
            pages = await client.admin.share_groups.in_flight(group, starts)
        except ClientError:
            return None
        starts = {}
        for partition, page in pages.items():
            if isinstance(page, KafkaError):
                if not page.retriable:
                    return None
                holdings.is_whole = False
                continue
            for entry in page.entries:
                _add(holdings, partition, entry)
            if page.next_offset is not None:
                starts[partition] = page.next_offset
    holdings.is_whole = holdings.is_whole and not starts
    for holding in holdings.members.values():
        holding.ranges.sort(key=lambda held: held.time_left_ms)
    return holdings


def _add(holdings: Holdings, partition: TopicPartition, entry: InFlightRecords) -> None:
    count = entry.last_offset - entry.first_offset + 1
    if entry.state in _DELIVERED:
        holdings.deliveries[entry.delivery_count] += count
    if entry.state is InFlightState.ACQUIRED:
        holding = holdings.members.setdefault(entry.member_id, Holding())
        holding.records += count
        place = (partition, entry.first_offset, entry.last_offset)
        holding.ranges.append(HeldRange(*place, entry.delivery_count, entry.time_left_ms))
