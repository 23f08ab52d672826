"""Dead letters (KIP-1191): a record whose delivery has failed for good, with headers that tell why.

The headers are Kafka's `__dlq.errors.*`, with three of our own: member and client.id of who held
the record last, and as timestamp when the letter was written; values are text. Where the group
copies records, key, value and the original headers are kept before them, as Kafka does, and so is
the record's timestamp, which Kafka makes that of the letter. Pure; the shell
(`server.dead_letters`) reads the records and writes the letters.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from shoal.coordinator.share.delivery_failure import Cause, DeadLetterRange
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


def split_after(
    ranges: Iterable[DeadLetterRange], offsets_max: int
) -> tuple[list[DeadLetterRange], list[DeadLetterRange]]:
    """The first so many offsets of some, and the others."""
    taken: list[DeadLetterRange] = []
    left: list[DeadLetterRange] = []
    for one in ranges:
        last = min(one.last, one.first + offsets_max - 1)
        if last >= one.first:
            taken.append(one._replace(last=last))
            offsets_max -= last - one.first + 1
        if last < one.last:
            left.append(one._replace(first=max(one.first, last + 1)))
    return taken, left


def split_at(
    ranges: Iterable[DeadLetterRange], end: int
) -> tuple[list[DeadLetterRange], list[DeadLetterRange]]:
    """Some offsets below `end`, and those from there on."""
    below: list[DeadLetterRange] = []
    above: list[DeadLetterRange] = []
    for one in ranges:
        if one.first < end:
            below.append(one._replace(last=min(one.last, end - 1)))
        if one.last >= end:
            above.append(one._replace(first=max(one.first, end)))
    return below, above


def readable(ranges: Iterable[DeadLetterRange]) -> list[int]:
    """The offsets, in order, whose records may be read for their letters."""
    return sorted(
        offset
        for one in ranges
        if one.cause is not Cause.CORRUPT
        for offset in range(one.first, one.last + 1)
    )


def size_bytes(record: Record) -> int:
    """What a record adds to a letter, about."""
    size = len(record.key or b"") + len(record.value or b"")
    return size + sum(len(name) + len(value or b"") for name, value in record.headers)


def dead_letter_records(
    source: Source, ranges: Iterable[DeadLetterRange], found: Mapping[int, Record], *, now_ms: int
) -> Iterator[NewRecord]:
    """The letters of some offsets. What is not `found` gets one that has headers alone."""
    for one in ranges:
        for offset in range(one.first, one.last + 1):
            headers = _headers(source, one, offset, now_ms)
            record = found.get(offset)
            if record is None:
                yield now_ms, None, None, headers
            else:
                yield record.timestamp_ms, record.key, record.value, [*record.headers, *headers]


def _headers(
    source: Source, dead_letter: DeadLetterRange, offset: int, now_ms: int
) -> list[tuple[str, bytes | None]]:
    told = {
        "topic": source.topic,
        "partition": source.partition,
        "offset": offset,
        "group": source.group_id,
        "delivery.count": dead_letter.delivery_count,
        "message": dead_letter.cause.value,
        "timestamp": now_ms,
    }
    if dead_letter.member_id:
        told["member"] = dead_letter.member_id
    if dead_letter.client_id:
        told["client.id"] = dead_letter.client_id
    return [(PREFIX + name, str(value).encode()) for name, value in told.items()]
