"""Dead letters (KIP-1191): a record whose delivery has failed for good, with headers that tell why.

The headers are Kafka's `__dlq.errors.*`; values are text. Where the group copies records, key,
value, timestamp and the original headers are kept before them, which Kafka drops. Pure; the shell
(`server.dead_letters`) reads the records and writes the letters.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from shoal.coordinator.share.fate import Cause, Doomed
from shoal.record.records import NewRecord, Record

PREFIX = "__dlq.errors."


class Source(NamedTuple):
    """Where records come from."""

    group_id: str
    topic: str
    partition: int


def cause_of(delivery_count: int, limit: int) -> Cause:
    """Why a record was given up that a former leader left ARCHIVING; as Kafka infers it."""
    return Cause.LIMIT if delivery_count >= limit else Cause.REJECTED


def take(doomed: Iterable[Doomed], offsets_max: int) -> list[Doomed]:
    """The first so many offsets of some."""
    taken = []
    for one in doomed:
        last = min(one.last, one.first + offsets_max - 1)
        taken.append(one._replace(last=last))
        offsets_max -= last - one.first + 1
        if offsets_max == 0:
            break
    return taken


def letters(
    source: Source, doomed: Iterable[Doomed], found: Mapping[int, Record], *, now_ms: int
) -> Iterator[NewRecord]:
    """The letters of some offsets. What is not `found` gets one that has headers alone."""
    for one in doomed:
        for offset in range(one.first, one.last + 1):
            headers = _headers(source, one, offset)
            record = found.get(offset)
            if record is None:
                yield now_ms, None, None, headers
            else:
                yield record.timestamp_ms, record.key, record.value, [*record.headers, *headers]


def _headers(source: Source, doomed: Doomed, offset: int) -> list[tuple[str, bytes | None]]:
    told = {
        "topic": source.topic,
        "partition": source.partition,
        "offset": offset,
        "group": source.group_id,
        "delivery.count": doomed.delivery_count,
        "message": doomed.cause.value,
    }
    if doomed.member_id:
        told["member"] = doomed.member_id
    return [(PREFIX + name, str(value).encode()) for name, value in told.items()]
