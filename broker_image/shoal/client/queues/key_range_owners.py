"""What the members of consumer groups have finished of their partitions and key ranges.

A partition that members share by key ranges has a position for each range, and finished offsets
above it. The committed offset of the partition is the lowest position, the *stable offset*: a range
holds it there while other ranges continue. A partition that is not shared has one range.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from shoal.client.admin.groups import CONSUMER, CommittedOffset, CommittedRange, GroupDescription
from shoal.client.errors import KafkaError
from shoal.protocol.features import KEY_HASH_MAX
from shoal.record import key_range_map
from shoal.record.key_ranges import KeyRanges

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from shoal.client.admin.admin import Admin
    from shoal.client.net.cluster import TopicPartition
    from shoal.client.queues.lag import Position
    from shoal.record.finished_offsets import FinishedOffsets

NONE = CommittedOffset(-1)
_ALL = (0, KEY_HASH_MAX)
WHOLE = KeyRanges([_ALL])
#: First hash, last hash, and the member that owns them; None without an owner.
_Span = tuple[int, int, str | None]


@dataclass(frozen=True, slots=True)
class RangeOwner:
    """Key ranges of one partition that have the same owner and the same progress.

    `member` is None for ranges without an owner. All records below `position` (-1 for none) are
    finished, and those at `finished` offsets above it, whose lowest gap appeared at
    `gap_timestamp_ms`. `stable_offset` is that of the partition. It stays where it is until the
    ranges with `holds_stable` advance, while something above it is finished.
    """

    partition: TopicPartition
    member: str | None
    ranges: KeyRanges
    position: int
    finished: FinishedOffsets
    gap_timestamp_ms: int
    stable_offset: int
    log_end_offset: int | None
    holds_stable: bool

    def to_row(self) -> dict[str, object]:
        """Return the row for the output. Numbers of offsets include those of other ranges."""
        width = sum(key_range.last - key_range.first + 1 for key_range in self.ranges)
        position = None if self.position < 0 else self.position
        lag = above = None
        if position is not None and self.log_end_offset is not None:
            lag = max(0, self.log_end_offset - position)
        if self.stable_offset >= 0:
            above = self.position - self.stable_offset + len(self.finished)
        return {
            "topic": self.partition.topic,
            "partition": self.partition.partition,
            "member": self.member,
            "share": f"{100 * width / (KEY_HASH_MAX + 1):.1f} %",
            "position": position,
            "lag": lag,
            "finished_above_stable": above,
            "holds_stable": self.holds_stable,
            "key_ranges": str(self.ranges),
        }


async def find_group_owners(
    admin: Admin, groups: Iterable[GroupDescription], positions: Mapping[str, Iterable[Position]]
) -> dict[str, list[RangeOwner]]:
    """Return the owners by group. `positions` has the log ends. Only consumer groups have some."""
    consumers = {group.group_id: group for group in groups if group.type == CONSUMER}
    if not consumers:
        return {}
    offsets = await admin.groups.offsets(consumers, finished=True)
    return {
        group: find_owners(
            consumers[group],
            {} if isinstance(committed, KafkaError) else committed,
            {p.partition: p.log_end_offset for p in positions.get(group, ())},
        )
        for group, committed in offsets.items()
    }


def find_owners(
    group: GroupDescription,
    committed: Mapping[TopicPartition, CommittedOffset],
    log_ends: Mapping[TopicPartition, int | None],
) -> list[RangeOwner]:
    """Return the owners of all ranges of partitions that have a committed offset or are shared, the
    lowest position of a partition first."""
    assigned = {p: m.member_id for m in group.members for p in m.assignment}
    shared: dict[TopicPartition, list[_Span]] = {}
    for member in group.members:
        for partition, ranges in member.key_ranges.items():
            shared.setdefault(partition, []).extend(
                (*key_range, member.member_id) for key_range in ranges
            )
    range_owners: list[RangeOwner] = []
    for partition in sorted({*committed, *shared}):
        offset = committed.get(partition, NONE)
        spans = (
            _tile_spans(shared[partition])
            if partition in shared
            else [(*_ALL, assigned.get(partition))]
        )
        range_owners += _make_owners(partition, offset, spans, log_ends.get(partition))
    return range_owners


def select_sharing(range_owners: Iterable[RangeOwner]) -> list[RangeOwner]:
    """Return those of partitions with several key ranges."""
    return [owner for owner in range_owners if owner.ranges != WHOLE]


def _make_owners(
    partition: TopicPartition, offset: CommittedOffset, spans: Sequence[_Span], end: int | None
) -> list[RangeOwner]:
    pieces = offset.key_ranges or (
        CommittedRange(*_ALL, offset.offset, offset.finished, offset.gap_timestamp_ms),
    )
    stable = min(piece.position for piece in pieces)
    is_ahead = any(piece.position > stable or piece.finished.count for piece in pieces)
    equal: dict[tuple[str | None, int, FinishedOffsets, int], list[tuple[int, int]]] = {}
    for first, last, piece, member in _find_overlaps(pieces, spans):
        same = (member, piece.position, piece.finished, piece.gap_timestamp_ms)
        equal.setdefault(same, []).append((first, last))
    range_owners = [
        RangeOwner(
            partition,
            member,
            _join_ranges(ranges),
            position,
            finished,
            gap_timestamp_ms,
            stable,
            end,
            is_ahead and position == stable,
        )
        for (member, position, finished, gap_timestamp_ms), ranges in equal.items()
    ]
    return sorted(range_owners, key=lambda owner: (owner.position, next(iter(owner.ranges))))


def _join_ranges(ranges: Iterable[tuple[int, int]]) -> KeyRanges:
    """Return ranges, those that touch as one."""
    pieces = key_range_map.join_ranges((first, last, None) for first, last in ranges)
    return KeyRanges((first, last) for first, last, _ in pieces)


def _tile_spans(spans: Sequence[_Span]) -> list[_Span]:
    """Return the spans with those between them, which have no owner, in rising order."""
    owned = [(first, last) for first, last, _ in spans]
    free = [(first, last, None) for first, last in key_range_map.subtract([_ALL], owned)]
    return sorted([*spans, *free], key=lambda span: span[0])


def _find_overlaps(
    pieces: Sequence[CommittedRange], spans: Sequence[_Span]
) -> Iterator[tuple[int, int, CommittedRange, str | None]]:
    """Yield the ranges in which two tilings of the hashes overlap, with the values of both."""
    left = right = 0
    while left < len(pieces) and right < len(spans):
        piece, (low, high, member) = pieces[left], spans[right]
        first, last = max(piece.first_hash, low), min(piece.last_hash, high)
        if first <= last:
            yield first, last, piece, member
        if piece.last_hash <= high:
            left += 1
        if high <= piece.last_hash:
            right += 1
