"""Which transactions that commit in the order of their partitions may commit now (ADR 138).

A transaction names its first record in each partition. It may commit once all records below that
one are finished, in key ranges that are committed and in its own. So it waits for the owners of the
key ranges that are behind.

An owner may wait itself. Its transaction names its first record, too, so nothing below that record
is left in its key ranges. Within a partition, transactions therefore wait in the order of their
first records, without a cycle. Members that read several partitions may wait for each other in
different ones. Such a cycle never ends, so one of its transactions is refused: the one that began
to wait last. A transaction that also waits for other key ranges of its own member, which it does
not commit, is a cycle of one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from shoal.record import key_range_map

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

#: The first record of a transaction that has no record of a partition.
NO_RECORD = -1
#: The owner of key ranges that no member has, as while they move.
NO_OWNER = ""
Range = tuple[int, int]


class Claim(NamedTuple):
    """What a transaction commits in a partition: key ranges `[first, last]` with a position. Its
    first record there has the offset `first_offset`, or `NO_RECORD`."""

    place: Any
    first_offset: int
    pieces: tuple[tuple[int, int, int], ...]

    def clean(self, offset: int) -> Iterator[Range]:
        """Yield the key ranges in which nothing below `offset` is left to process: the transaction
        has no record below its first one."""
        for first, last, position in self.pieces:
            if self.first_offset != NO_RECORD:
                position = min(position, self.first_offset)
            if position >= offset:
                yield first, last

    def covered(self, offset: int) -> Iterator[Range]:
        """Yield the key ranges that the transaction has processed up to `offset`."""
        for first, last, position in self.pieces:
            if position >= offset:
                yield first, last


class Waiting(NamedTuple):
    """A transaction that waits for its turn. `id` is that of its producer."""

    id: int
    member_id: str
    claims: tuple[Claim, ...]


class Partition(NamedTuple):
    """The key ranges of a partition with their committed positions, and those with their owners.
    All records below a position are finished. A key range without a position has -1."""

    positions: Sequence[tuple[int, int, int]]
    owners: Sequence[tuple[int, int, str]]


class Behind(NamedTuple):
    """Where a transaction waits, and for the key ranges of which members."""

    place: Any
    first_offset: int
    owners: frozenset[str]


class Verdict(NamedTuple):
    """The transactions that may commit, and those that are refused with what they waited for."""

    ready: list[int]
    refused: dict[int, Behind]
    blocked: dict[int, Behind]


def decide(waiting: Sequence[Waiting], partition_of: Callable[[Any], Partition]) -> Verdict:
    """Decide about all transactions that wait, in the order in which they began to wait."""
    verdict = Verdict([], {}, {})
    partitions = {
        claim.place: partition_of(claim.place)
        for one in waiting
        for claim in one.claims
        if claim.first_offset != NO_RECORD
    }
    waits_for: dict[str, set[str]] = {}
    for one in waiting:
        found = list(behind(one, waiting, partitions))
        if not found:
            verdict.ready.append(one.id)
            continue
        owners = frozenset[str]().union(*(b.owners for b in found))
        if one.member_id in reached(owners, waits_for):
            cycle = (b for b in found if one.member_id in reached(b.owners, waits_for))
            verdict.refused[one.id] = next(cycle)
        else:
            waits_for.setdefault(one.member_id, set()).update(owners)
            verdict.blocked[one.id] = found[0]
    return verdict


def behind(
    one: Waiting, waiting: Sequence[Waiting], partitions: Mapping[Any, Partition]
) -> Iterator[Behind]:
    """Yield the partitions in which a transaction waits."""
    for claim in one.claims:
        offset = claim.first_offset
        if offset == NO_RECORD:
            continue
        positions, owners = partitions[claim.place]
        left = [(first, last) for first, last, position in positions if max(position, 0) < offset]
        left = key_range_map.minus(left, claim.covered(offset))
        for other in waiting:
            for theirs in other.claims if other.id != one.id else ():
                if theirs.place == claim.place:
                    left = key_range_map.minus(left, theirs.clean(offset))
        if not left:
            continue
        found = {
            owner for first, last, owner in owners if key_range_map.common(left, [(first, last)])
        }
        if key_range_map.minus(left, [(first, last) for first, last, _ in owners]):
            found.add(NO_OWNER)
        yield Behind(claim.place, offset, frozenset(found))


def reached(members: Iterable[str], waits_for: Mapping[str, set[str]]) -> set[str]:
    """Return the members, and all for which they wait, directly or not."""
    found: set[str] = set()
    left = list(members)
    while left:
        member = left.pop()
        if member not in found:
            found.add(member)
            left.extend(waits_for.get(member, ()))
    return found
