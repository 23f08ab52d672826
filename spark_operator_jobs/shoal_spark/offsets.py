"""The streaming offset that Spark writes to its checkpoint before a batch runs.

Pure. Spark keeps a flat dict of primitive values, so nested values are JSON text:

    {"seq": 7, "group": "g", "topics": "t,u",
     "ranges": "[["t",0,10,19,1,5120]]", "owed": "[["t",0,3,9]]", "starts": "[["t",0,3]]"}

`ranges` are the rows of the batch that ends here: topic, partition, first and last offset (both
inclusive), delivery count, bytes. `owed` are ranges whose rows were processed but whose locks
expired before they were accepted. When the group delivers them again, they are accepted without
processing. `starts` are the group's start offsets as last read. They move back only when an
administrator resets them; the rows are then wanted again, so a reset removes them from `owed`.
`member` is the id of the member that acquired. The next driver joins under it, so that no partition
stays with a dead member until the session timeout.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from shoal_spark import ranges as sets
from shoal_spark.ranges import OffsetRange

#: Start offsets by topic and partition.
Starts = Mapping[tuple[str, int], int]


class BadOffset(ValueError):
    """A checkpoint with an offset of another source or another query."""


class ShareGroupOffset(NamedTuple):
    """A streaming offset, typed. Batches count from 1; 0 is the start of a new query."""

    seq: int
    group: str
    topics: tuple[str, ...]
    ranges: tuple[OffsetRange, ...] = ()
    owed: tuple[OffsetRange, ...] = ()
    starts: Starts = MappingProxyType({})
    member: str = ""


def to_json(offset: ShareGroupOffset) -> dict[str, Any]:
    """Return the dict that Spark stores."""
    return {
        "seq": offset.seq,
        "group": offset.group,
        "topics": ",".join(offset.topics),
        "ranges": format_rows(offset.ranges),
        "owed": format_rows(r[:4] for r in offset.owed),
        "starts": format_rows(
            (*partition, position) for partition, position in sorted(offset.starts.items())
        ),
        "member": offset.member,
    }


def from_json(stored: Mapping[str, Any], group: str, topics: tuple[str, ...]) -> ShareGroupOffset:
    """Parse the offset in a checkpoint. Raises `BadOffset` with the reason."""
    try:
        offset = ShareGroupOffset(
            int(stored["seq"]),
            str(stored["group"]),
            tuple(str(stored["topics"]).split(",")),
            tuple(OffsetRange(*row) for row in json.loads(stored["ranges"])),
            tuple(OffsetRange(*row) for row in json.loads(stored["owed"])),
            {(topic, index): position for topic, index, position in json.loads(stored["starts"])},
            str(stored["member"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise make_format_error(error) from None
    check_group(offset.group, group, "share group", "group.id")
    check_topics(offset.topics, topics)
    return offset


def make_format_error(error: Exception) -> BadOffset:
    """Return the error for an offset that is not in the format of the source."""
    return BadOffset(
        f"the checkpoint holds an offset that this source did not write ({error!r}); "
        "use a separate checkpointLocation for the query"
    )


def check_group(stored: str, group: str, kind: str, option: str) -> None:
    """Raise `BadOffset` if the checkpoint is of another group than the query's `option`."""
    if stored != group:
        raise BadOffset(
            f"the checkpoint is of {kind} {stored!r}, and the query's {option} is {group!r}; "
            "use a separate checkpointLocation for each group"
        )


def check_topics(stored: Sequence[str], topics: Sequence[str]) -> None:
    """Raise `BadOffset` if the checkpoint is of other topics than the query."""
    if stored != topics:
        raise BadOffset(
            f"the checkpoint is of topics {', '.join(stored)}, and the query subscribes to "
            f"{', '.join(topics)}; give the query a new checkpointLocation to change its topics"
        )


def list_still_owed(owed: Iterable[OffsetRange], before: Starts, now: Starts) -> list[OffsetRange]:
    """Return the ranges that are still to be accepted, by the group's start offsets then and now.

    Offsets before a start offset are settled. If a start offset moved back, the group was reset,
    and its offsets are to be delivered again.
    """
    remaining = []
    for r in owed:
        partition = (r.topic, r.partition)
        start = now.get(partition, -1)
        if 0 <= start < before.get(partition, -1) or r.last < start:
            continue
        remaining.append(r.cut(max(r.first, start), r.last))
    return sets.normalize(remaining)


def format_rows(rows: Iterable[tuple]) -> str:
    """Return rows as JSON text."""
    return json.dumps([list(row) for row in rows], separators=(",", ":"))
