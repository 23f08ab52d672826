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
from shoal_spark.ranges import Range

#: Start offsets by topic and partition.
Starts = Mapping[tuple[str, int], int]


class BadOffset(ValueError):
    """A checkpoint with an offset of another source or another query."""


class Offset(NamedTuple):
    """A streaming offset, typed. Batches count from 1; 0 is the start of a new query."""

    seq: int
    group: str
    topics: tuple[str, ...]
    ranges: tuple[Range, ...] = ()
    owed: tuple[Range, ...] = ()
    starts: Starts = MappingProxyType({})
    member: str = ""


def to_json(offset: Offset) -> dict[str, Any]:
    """Return the dict that Spark stores."""
    return {
        "seq": offset.seq,
        "group": offset.group,
        "topics": ",".join(offset.topics),
        "ranges": text_of(offset.ranges),
        "owed": text_of(r[:4] for r in offset.owed),
        "starts": text_of((*where, at) for where, at in sorted(offset.starts.items())),
        "member": offset.member,
    }


def from_json(stored: Mapping[str, Any], group: str, topics: tuple[str, ...]) -> Offset:
    """Parse the offset in a checkpoint. Raises `BadOffset` with the reason."""
    try:
        found = Offset(
            int(stored["seq"]),
            str(stored["group"]),
            tuple(str(stored["topics"]).split(",")),
            tuple(Range(*row) for row in json.loads(stored["ranges"])),
            tuple(Range(*row) for row in json.loads(stored["owed"])),
            {(topic, index): at for topic, index, at in json.loads(stored["starts"])},
            str(stored["member"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise not_written(error) from None
    check_group(found.group, group, "share group", "group.id")
    check_topics(found.topics, topics)
    return found


def not_written(error: Exception) -> BadOffset:
    """Return the error for an offset that is not in the format of the source."""
    return BadOffset(
        f"the checkpoint holds an offset that this source did not write ({error!r}); "
        "use a separate checkpointLocation for the query"
    )


def check_group(found: str, group: str, kind: str, option: str) -> None:
    """Raise `BadOffset` if the checkpoint is of another group than the query's `option`."""
    if found != group:
        raise BadOffset(
            f"the checkpoint is of {kind} {found!r}, and the query's {option} is {group!r}; "
            "use a separate checkpointLocation for each group"
        )


def check_topics(found: Sequence[str], topics: Sequence[str]) -> None:
    """Raise `BadOffset` if the checkpoint is of other topics than the query."""
    if found != topics:
        raise BadOffset(
            f"the checkpoint is of topics {', '.join(found)}, and the query subscribes to "
            f"{', '.join(topics)}; give the query a new checkpointLocation to change its topics"
        )


def still_owed(owed: Iterable[Range], before: Starts, now: Starts) -> list[Range]:
    """Return the ranges that are still to be accepted, by the group's start offsets then and now.

    Offsets before a start offset are settled. If a start offset moved back, the group was reset,
    and its offsets are to be delivered again.
    """
    left = []
    for r in owed:
        where = (r.topic, r.partition)
        start = now.get(where, -1)
        if 0 <= start < before.get(where, -1) or r.last < start:
            continue
        left.append(r.cut(max(r.first, start), r.last))
    return sets.normal(left)


def text_of(rows: Iterable[tuple]) -> str:
    """Return rows as JSON text."""
    return json.dumps([list(row) for row in rows], separators=(",", ":"))
