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


class TransactionCommit(NamedTuple):
    """What a transaction commits in a partition: key ranges `[first, last]` with a position. Its
    first record there has the offset `first_offset`, or `NO_RECORD`."""

    group_partition: Any
    first_offset: int
    range_positions: tuple[tuple[int, int, int], ...]

    def find_finished_ranges(self, offset: int) -> Iterator[Range]:
        """Yield the key ranges in which nothing below `offset` is left to process: the transaction
        has no record below its first one."""
        for first, last, position in self.range_positions:
            if self.first_offset != NO_RECORD:
                position = min(position, self.first_offset)
            if position >= offset:
                yield first, last

    def find_processed_ranges(self, offset: int) -> Iterator[Range]:
        """Yield the key ranges that the transaction has processed up to `offset`."""
        for first, last, position in self.range_positions:
            if position >= offset:
                yield first, last


class WaitingTransaction(NamedTuple):
    """A transaction that waits for its turn. `id` is that of its producer."""

    id: int
    member_id: str
    commits: tuple[TransactionCommit, ...]


class PartitionKeyRanges(NamedTuple):
    """The key ranges of a partition with their committed positions, and those with their owners.
    All records below a position are finished. A key range without a position has -1."""

    positions: Sequence[tuple[int, int, int]]
    owners: Sequence[tuple[int, int, str]]


class BlockedCommit(NamedTuple):
    """Where a transaction waits, and for the key ranges of which members."""

    group_partition: Any
    first_offset: int
    owners: frozenset[str]


class OrderDecision(NamedTuple):
    """The transactions that may commit, and those that are refused with what they waited for."""

    ready: list[int]
    refused: dict[int, BlockedCommit]
    blocked: dict[int, BlockedCommit]


def decide(
    waiting: Sequence[WaitingTransaction], partition_of: Callable[[Any], PartitionKeyRanges]
) -> OrderDecision:
    """Decide about all transactions that wait, in the order in which they began to wait."""
    decision = OrderDecision([], {}, {})
    partitions = {
        commit.group_partition: partition_of(commit.group_partition)
        for transaction in waiting
        for commit in transaction.commits
        if commit.first_offset != NO_RECORD
    }
    waits_for: dict[str, set[str]] = {}
    for transaction in waiting:
        blocks = list(find_blocked_commits(transaction, waiting, partitions))
        if not blocks:
            decision.ready.append(transaction.id)
            continue
        owners = frozenset[str]().union(*(b.owners for b in blocks))
        if transaction.member_id in find_reachable(owners, waits_for):
            cycle = (
                b for b in blocks if transaction.member_id in find_reachable(b.owners, waits_for)
            )
            decision.refused[transaction.id] = next(cycle)
        else:
            waits_for.setdefault(transaction.member_id, set()).update(owners)
            decision.blocked[transaction.id] = blocks[0]
    return decision


def find_blocked_commits(
    transaction: WaitingTransaction,
    waiting: Sequence[WaitingTransaction],
    partitions: Mapping[Any, PartitionKeyRanges],
) -> Iterator[BlockedCommit]:
    """Yield the partitions in which a transaction waits."""
    for commit in transaction.commits:
        offset = commit.first_offset
        if offset == NO_RECORD:
            continue
        positions, owners = partitions[commit.group_partition]
        unfinished = [
            (first, last) for first, last, position in positions if max(position, 0) < offset
        ]
        unfinished = key_range_map.subtract(unfinished, commit.find_processed_ranges(offset))
        for other_transaction in waiting:
            for other_commit in (
                other_transaction.commits if other_transaction.id != transaction.id else ()
            ):
                if other_commit.group_partition == commit.group_partition:
                    unfinished = key_range_map.subtract(
                        unfinished, other_commit.find_finished_ranges(offset)
                    )
        if not unfinished:
            continue
        blocking_owners = {
            owner
            for first, last, owner in owners
            if key_range_map.intersect(unfinished, [(first, last)])
        }
        if key_range_map.subtract(unfinished, [(first, last) for first, last, _ in owners]):
            blocking_owners.add(NO_OWNER)
        yield BlockedCommit(commit.group_partition, offset, frozenset(blocking_owners))


def find_reachable(members: Iterable[str], waits_for: Mapping[str, set[str]]) -> set[str]:
    """Return the members, and all for which they wait, directly or not."""
    reachable: set[str] = set()
    pending = list(members)
    while pending:
        member = pending.pop()
        if member not in reachable:
            reachable.add(member)
            pending.extend(waits_for.get(member, ()))
    return reachable
