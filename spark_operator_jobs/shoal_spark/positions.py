"""The streaming offset of the source of consumer groups, and the plan of the next batch.

Pure. Spark keeps a flat dict of primitive values, so positions are JSON text:

    {"seq": 7, "group": "g", "topics": "t,u",
     "starts": "[["t",0,10],["u",0,0]]", "ends": "[["t",0,20],["u",0,5]]"}

The rows of the batch that ends here have the offsets from `starts` up to those before `ends`. So a
batch has the same rows when it runs again, also the first one, whose start Spark does not keep.
"""

from __future__ import annotations

import json
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from shoal_spark.offsets import check_group, check_topics, format_rows, make_format_error

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Offsets by topic and partition.
Positions = dict[tuple[str, int], int]
_NONE: Mapping[tuple[str, int], int] = MappingProxyType({})


class KeyRangeOffset(NamedTuple):
    """A streaming offset, typed. Batches count from 1; 0 is the start of a new query."""

    seq: int
    group: str
    topics: tuple[str, ...]
    starts: Mapping[tuple[str, int], int] = _NONE
    ends: Mapping[tuple[str, int], int] = _NONE


def to_json(batch: KeyRangeOffset) -> dict[str, Any]:
    """Return the dict that Spark stores."""
    return {
        "seq": batch.seq,
        "group": batch.group,
        "topics": ",".join(batch.topics),
        "starts": _format_positions(batch.starts),
        "ends": _format_positions(batch.ends),
    }


def from_json(stored: Mapping[str, Any], group: str, topics: tuple[str, ...]) -> KeyRangeOffset:
    """Parse the offset in a checkpoint. Raises `BadOffset` with the reason."""
    try:
        starts, ends = (
            {
                (topic, partition): position
                for topic, partition, position in json.loads(stored[name])
            }
            for name in ("starts", "ends")
        )
        offset = KeyRangeOffset(
            int(stored["seq"]),
            str(stored["group"]),
            tuple(str(stored["topics"]).split(",")),
            starts,
            ends,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise make_format_error(error) from None
    check_group(offset.group, group, "consumer group", "groupId")
    check_topics(offset.topics, topics)
    return offset


def limit_ends(
    starts: Mapping[tuple[str, int], int], ends: Mapping[tuple[str, int], int], offsets_max: int
) -> Positions:
    """Return where a batch of at most `offsets_max` offsets ends; 0 is no limit.

    Each partition gets its part of the limit in proportion to what it has, and at least one offset
    if the limit allows. So no partition waits for the others to be empty.
    """
    lags = {partition: max(0, end - starts.get(partition, end)) for partition, end in ends.items()}
    total = sum(lags.values())
    if not offsets_max or total <= offsets_max:
        return dict(ends)
    limited = {partition: starts.get(partition, end) for partition, end in ends.items()}
    remaining = offsets_max
    # The shortest first: what rounding leaves goes to the longest ones.
    for partition, count in sorted(lags.items(), key=lambda item: (item[1], item[0])):
        if not count:
            limited[partition] = ends[partition]
            continue
        share = min(remaining, max(1, remaining * count // total))
        limited[partition] += share
        remaining -= share
        total -= count
    return limited


def _format_positions(positions: Mapping[tuple[str, int], int]) -> str:
    return format_rows((*partition, offset) for partition, offset in sorted(positions.items()))
