"""The streaming offset: what Spark writes to its checkpoint before a batch runs.

Pure. Spark keeps a flat dict of primitive values, so nested ones are JSON text:

    {"seq": 7, "group": "g", "topics": "t,u",
     "ranges": "[[\"t\",0,10,19,1,5120]]", "owed": "[[\"t\",0,3,9]]", "starts": "[[\"t\",0,3]]"}

`ranges` are the rows of the batch that ends here: topic, partition, first and last offset (both
inclusive), delivery count, bytes. `owed` are ranges whose rows have been processed and whose locks
were lost before they could be accepted: they are accepted, and not delivered, when the group hands
them out again. `starts` are the group's start offsets as last seen; they never go back but by an
admin's reset, and a reset means that rows are wanted again, so it cancels what was owed. `member`
is the id of the member that acquired: the next driver joins under it, so that no partition stays
with a dead member until the group gives that one up.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from shoal_spark import ranges as sets
from shoal_spark.ranges import Range

#: Start offsets by topic and partition.
Starts = Mapping[tuple[str, int], int]


class BadOffset(ValueError):
    """A checkpoint holds an offset that this source did not write, or that of another query."""


class Offset(NamedTuple):
    """A streaming offset, typed. Batches count from 1; 0 is where a new query starts."""

    seq: int
    group: str
    topics: tuple[str, ...]
    ranges: tuple[Range, ...] = ()
    owed: tuple[Range, ...] = ()
    starts: Starts = MappingProxyType({})
    member: str = ""


def to_json(offset: Offset) -> dict[str, Any]:
    """The dict that Spark stores."""
    return {
        "seq": offset.seq,
        "group": offset.group,
        "topics": ",".join(offset.topics),
        "ranges": _text(offset.ranges),
        "owed": _text(r[:4] for r in offset.owed),
        "starts": _text((*where, at) for where, at in sorted(offset.starts.items())),
        "member": offset.member,
    }


def from_json(stored: Mapping[str, Any], group: str, topics: tuple[str, ...]) -> Offset:
    """The offset in a checkpoint. Raises `BadOffset`, which says what is wrong."""
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
        raise BadOffset(
            f"the checkpoint holds an offset that this source did not write ({error!r}); "
            "give the query a checkpointLocation of its own"
        ) from None
    if found.group != group:
        raise BadOffset(
            f"the checkpoint is of share group {found.group!r}, and the query's group.id is "
            f"{group!r}; give each group a checkpointLocation of its own"
        )
    if found.topics != topics:
        raise BadOffset(
            f"the checkpoint is of topics {', '.join(found.topics)}, and the query subscribes to "
            f"{', '.join(topics)}; give the query a new checkpointLocation to change its topics"
        )
    return found


def still_owed(owed: Iterable[Range], before: Starts, now: Starts) -> list[Range]:
    """What is left to accept, given the group's start offsets when it was written down and now.

    Offsets before a start are done with. Where a start went back the group was reset, and its
    offsets are to be delivered again.
    """
    left = []
    for r in owed:
        where = (r.topic, r.partition)
        start = now.get(where, -1)
        if 0 <= start < before.get(where, -1) or r.last < start:
            continue
        left.append(r.cut(max(r.first, start), r.last))
    return sets.normal(left)


def _text(rows: Iterable[tuple]) -> str:
    return json.dumps([list(row) for row in rows], separators=(",", ":"))
