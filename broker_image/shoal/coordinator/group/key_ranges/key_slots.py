"""Slots: the parts of a partition that are assigned to members, by the hash of the records' keys.

A partition has `SLOTS` slots of equal width. A set of slots is an integer with one bit for each of
them, so unions and differences are single operations. Clients and stored positions have key ranges
`[first, last]` of hashes, and never slots. So another number of slots needs no other format.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.protocol.features import KEY_HASH_MAX

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from uuid import UUID

    from shoal.protocol.responses import groups as responses

#: A partition can have as many owners. With a power of two, slots have equal widths.
SLOTS = 256
_WIDTH = (KEY_HASH_MAX + 1) // SLOTS
#: The slots of a whole partition.
ALL = (1 << SLOTS) - 1
#: Slots of partitions of which a member has a part.
Slices = dict[tuple["UUID", int], int]
NO_SLICES: Slices = {}


def overlapping_slots(first: int, last: int) -> int:
    """Return the slots that have hashes of the range [first, last]."""
    low, high = first // _WIDTH, last // _WIDTH
    return (1 << (high + 1)) - (1 << low)


def from_ranges(ranges: Iterable[tuple[int, int]]) -> int:
    """Return the slots of these key ranges. Raises `ValueError` for a range that cuts a slot."""
    slots = 0
    for first, last in ranges:
        if not 0 <= first <= last <= KEY_HASH_MAX or first % _WIDTH or (last + 1) % _WIDTH:
            raise ValueError(f"key range {first}-{last} was not assigned")
        slots |= overlapping_slots(first, last)
    return slots


def to_ranges(slots: int) -> list[tuple[int, int]]:
    """Return the key ranges of a set of slots, in rising order; ranges that touch are one."""
    ranges = []
    position = 0
    while slots:
        gap = (slots & -slots).bit_length() - 1
        slots >>= gap
        run = ((slots + 1) & ~slots).bit_length() - 1
        ranges.append(((position + gap) * _WIDTH, (position + gap + run) * _WIDTH - 1))
        slots >>= run
        position += gap + run
    return ranges


def iterate_slots(slots: int) -> Iterator[int]:
    """Yield the numbers of the slots of a set, in rising order."""
    while slots:
        lowest_one = slots & -slots
        yield lowest_one.bit_length() - 1
        slots ^= lowest_one


def take_lowest(slots: int, count: int) -> int:
    """Return the `count` lowest slots of a set, or all of fewer."""
    surplus = slots.bit_count() - count
    while surplus > 0:
        slots ^= 1 << (slots.bit_length() - 1)
        surplus -= 1
    return slots


def to_wire(
    slices: Mapping[tuple[UUID, int], int],
) -> list[responses.ConsumerGroupHeartbeatSharedPartition]:
    """The key ranges of partitions in responses and records."""
    return [
        {
            "topic_id": topic,
            "partition": partition,
            "ranges": [
                {"first_hash": first, "last_hash": last}
                for first, last in to_ranges(slices[topic, partition])
            ],
        }
        for topic, partition in sorted(slices)
    ]
