"""The members of consumer groups that share partitions by key ranges."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from shoal.client.admin import Admin
from shoal.client.cluster import TopicPartition
from shoal.client.errors import KafkaError
from shoal.client.groups import CommittedOffset, Group
from shoal.protocol.features import KEY_HASH_MAX
from shoal.record import key_range_map
from shoal.record.key_ranges import KeyRanges

NONE = CommittedOffset(-1)


@dataclass(frozen=True, slots=True)
class Owner:
    """A member with the key ranges of one partition. `position` is the lowest one that is committed
    for them; None without one."""

    where: TopicPartition
    member: str
    ranges: KeyRanges
    position: int | None

    def row(self) -> dict[str, object]:
        """Return the row for the output."""
        width = sum(one.last - one.first + 1 for one in self.ranges)
        return {
            "topic": self.where.topic,
            "partition": self.where.partition,
            "member": self.member,
            "share": f"{100 * width / (KEY_HASH_MAX + 1):.1f} %",
            "position": self.position,
            "key_ranges": str(self.ranges),
        }


async def owners(admin: Admin, groups: Iterable[Group]) -> dict[str, list[Owner]]:
    """Return who shares which partition, by group. Only groups that share some are asked."""
    sharing = {g.group_id: g for g in groups if any(m.key_ranges for m in g.members)}
    if not sharing:
        return {}
    found = await admin.groups.offsets(sharing, finished=True)
    return {
        group: sorted(
            _of(sharing[group], {} if isinstance(some, KafkaError) else some),
            key=lambda owner: (owner.where, next(iter(owner.ranges))),
        )
        for group, some in found.items()
    }


def _of(group: Group, committed: dict[TopicPartition, CommittedOffset]) -> Iterator[Owner]:
    for member in group.members:
        for where, ranges in member.key_ranges.items():
            offset = committed.get(where, NONE)
            pieces = offset.key_ranges or ((0, KEY_HASH_MAX, offset.offset),)
            positions = [
                position
                for first, last in ranges
                for _, _, position in key_range_map.within(pieces, first, last)
            ]
            lowest = min(positions, default=-1)
            yield Owner(where, member.member_id, ranges, None if lowest < 0 else lowest)
