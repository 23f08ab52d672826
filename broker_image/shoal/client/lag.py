"""Positions of groups of any type: offset, log end offset and lag in each partition.

Brokers report the lag of share groups (KIP-1226). For consumer and classic groups it is the log end
offset minus the committed offset. All groups together need only a few batched calls.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shoal.client.errors import KafkaError
from shoal.client.groups import SHARE, GroupListing
from shoal.client.topics import OffsetSpec

if TYPE_CHECKING:
    from shoal.client.admin import Admin
    from shoal.client.cluster import TopicPartition

Ranges = tuple[tuple[int, int], ...]
#: Position, lag, and offset ranges of key holders.
_Offsets = tuple[int | None, int | None, Ranges]


@dataclass(frozen=True, slots=True)
class Position:
    """A group's position in one partition; None for unknown.

    `key_holder_offsets` are ranges of dead-lettered records that hold their keys.
    """

    where: TopicPartition
    offset: int | None
    log_end_offset: int | None
    lag: int | None
    key_holder_offsets: Ranges = ()


async def positions(
    admin: Admin, groups: Mapping[str, str] | Iterable[GroupListing]
) -> dict[str, list[Position]]:
    """Return positions by group. `groups` maps ids to types, or lists groups."""
    types = dict(groups) if isinstance(groups, Mapping) else {g.group_id: g.type for g in groups}
    share = [g for g, kind in types.items() if kind == SHARE]
    others = [g for g, kind in types.items() if kind != SHARE]
    offsets: dict[str, dict[TopicPartition, _Offsets]] = {}
    if share:
        for group, found in (await admin.share_groups.offsets(share)).items():
            offsets[group] = (
                {}
                if isinstance(found, KafkaError)
                else {
                    p: (_known(o.start_offset), _known(o.lag), o.key_holder_offsets)
                    for p, o in found.items()
                    if not isinstance(o, KafkaError)
                }
            )
    if others:
        for group, committed in (await admin.groups.offsets(others)).items():
            offsets[group] = (
                {}
                if isinstance(committed, KafkaError)
                else {p: (_known(o.offset), None, ()) for p, o in committed.items()}
            )
    ends = await log_ends(admin, {p for some in offsets.values() for p in some})
    return {group: _positions(some, ends, types[group]) for group, some in offsets.items()}


def _positions(
    offsets: dict[TopicPartition, _Offsets],
    ends: Mapping[TopicPartition, int | None],
    kind: str,
) -> list[Position]:
    found = []
    for where, (offset, lag, key_holders) in sorted(offsets.items()):
        end = ends.get(where)
        if kind != SHARE and offset is not None and end is not None:
            lag = max(0, end - offset)
        found.append(Position(where, offset, end, lag, key_holders))
    return found


async def log_ends(
    admin: Admin, partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, int | None]:
    """Return log end offsets; None for deleted partitions and those without a leader."""
    wanted = dict.fromkeys(sorted(partitions), int(OffsetSpec.LATEST))
    listed = await admin.topics.offsets(wanted, timeout_ms=2_000) if wanted else {}
    return {p: None if isinstance(o, KafkaError) else o.offset for p, o in listed.items()}


def total(found: Iterable[Position]) -> int | None:
    """Return the sum of the known lags; None if none is known."""
    lags = [p.lag for p in found if p.lag is not None]
    return sum(lags) if lags else None


def _known(number: int) -> int | None:
    return None if number < 0 else number
