"""The lowest unfinished records of consumer groups with individual commits."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from shoal.client.admin import Admin
from shoal.client.cluster import TopicPartition
from shoal.client.errors import KafkaError
from shoal.client.groups import CONSUMER, CommittedOffset, Group


@dataclass(frozen=True, slots=True)
class Gap:
    """The unfinished offsets between the stable offset of a partition and its finished offsets.

    `member` owns the partition; None without an owner.
    """

    where: TopicPartition
    first: int
    last: int
    finished: int
    ranges: int
    age_s: float
    member: str | None

    def row(self) -> dict[str, object]:
        """Return the row for the output."""
        return {
            "topic": self.where.topic,
            "partition": self.where.partition,
            "gap": str(self.first) if self.first == self.last else f"{self.first}-{self.last}",
            "age_s": self.age_s,
            "finished_above": self.finished,
            "ranges": self.ranges,
            "member": self.member,
        }


async def gaps(admin: Admin, groups: Iterable[Group]) -> dict[str, list[Gap]]:
    """Return the lowest gap of each partition by group, the oldest first."""
    consumers = {group.group_id: group for group in groups if group.type == CONSUMER}
    if not consumers:
        return {}
    found = await admin.groups.offsets(consumers, finished=True)
    return {
        group: [] if isinstance(some, KafkaError) else sorted(_of(consumers[group], some), key=_age)
        for group, some in found.items()
    }


def _age(gap: Gap) -> tuple[float, TopicPartition]:
    return -gap.age_s, gap.where


def _of(group: Group, committed: dict[TopicPartition, CommittedOffset]) -> Iterator[Gap]:
    owners = {p: m.member_id for m in group.members for p in m.assignment}
    now_ms = time.time() * 1000
    for where, offset in committed.items():
        if offset.finished.count:
            yield Gap(
                where,
                offset.offset,
                offset.finished.first - 1,
                len(offset.finished),
                offset.finished.count,
                max(0.0, (now_ms - offset.gap_timestamp_ms) / 1000),
                owners.get(where),
            )
