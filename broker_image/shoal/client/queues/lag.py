"""Positions of groups of any type: offset, log end offset and lag in each partition.

Brokers report the lag of share groups (KIP-1226). For consumer and classic groups it is the log end
offset minus the committed offset. All groups together need only a few batched calls.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shoal.client.admin.groups import SHARE, GroupListing
from shoal.client.admin.topics import OffsetSpec
from shoal.client.errors import KafkaError

if TYPE_CHECKING:
    from shoal.client.admin.admin import Admin
    from shoal.client.net.cluster import TopicPartition

Ranges = tuple[tuple[int, int], ...]
#: Position, lag, and offset ranges of key holders.
_Offsets = tuple[int | None, int | None, Ranges]


@dataclass(frozen=True, slots=True)
class Position:
    """A group's position in one partition; None for unknown.

    `key_holder_offsets` are ranges of dead-lettered records that hold their keys.
    """

    partition: TopicPartition
    offset: int | None
    log_end_offset: int | None
    lag: int | None
    key_holder_offsets: Ranges = ()


async def find_positions(
    admin: Admin, groups: Mapping[str, str] | Iterable[GroupListing]
) -> dict[str, list[Position]]:
    """Return positions by group. `groups` maps ids to types, or lists groups."""
    types = dict(groups) if isinstance(groups, Mapping) else {g.group_id: g.type for g in groups}
    share = [g for g, kind in types.items() if kind == SHARE]
    other_groups = [g for g, kind in types.items() if kind != SHARE]
    offsets: dict[str, dict[TopicPartition, _Offsets]] = {}
    if share:
        for group, share_offsets in (await admin.share_groups.offsets(share)).items():
            offsets[group] = (
                {}
                if isinstance(share_offsets, KafkaError)
                else {
                    p: (_to_optional(o.start_offset), _to_optional(o.lag), o.key_holder_offsets)
                    for p, o in share_offsets.items()
                    if not isinstance(o, KafkaError)
                }
            )
    if other_groups:
        for group, committed in (await admin.groups.offsets(other_groups)).items():
            offsets[group] = (
                {}
                if isinstance(committed, KafkaError)
                else {p: (_to_optional(o.offset), None, ()) for p, o in committed.items()}
            )
    ends = await find_log_ends(
        admin, {p for group_offsets in offsets.values() for p in group_offsets}
    )
    return {
        group: _make_positions(group_offsets, ends, types[group])
        for group, group_offsets in offsets.items()
    }


def _make_positions(
    offsets: dict[TopicPartition, _Offsets],
    ends: Mapping[TopicPartition, int | None],
    kind: str,
) -> list[Position]:
    group_positions = []
    for partition, (offset, lag, key_holders) in sorted(offsets.items()):
        end = ends.get(partition)
        if kind != SHARE and offset is not None and end is not None:
            lag = max(0, end - offset)
        group_positions.append(Position(partition, offset, end, lag, key_holders))
    return group_positions


async def find_log_ends(
    admin: Admin, partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, int | None]:
    """Return log end offsets; None for deleted partitions and those without a leader."""
    specs = dict.fromkeys(sorted(partitions), int(OffsetSpec.LATEST))
    listed = await admin.topics.offsets(specs, timeout_ms=2_000) if specs else {}
    return {p: None if isinstance(o, KafkaError) else o.offset for p, o in listed.items()}


def sum_lags(group_positions: Iterable[Position]) -> int | None:
    """Return the sum of the known lags; None if none is known."""
    lags = [p.lag for p in group_positions if p.lag is not None]
    return sum(lags) if lags else None


def _to_optional(number: int) -> int | None:
    return None if number < 0 else number
