"""Dead letters (KIP-1191): records whose delivery failed, with headers that explain why.

The headers are Kafka's `__dlq.errors.*` and three of our own: member, client.id, and the time of
the dead letter. All values are text. If the group copies records, the dead letter has key, value,
original headers and timestamp of the record; Kafka uses the dead letter's time as timestamp. No I/O
here: the shell (`server.share.dead_letters`) reads records and writes dead letters.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from shoal.coordinator.share.delivery_failure import Cause, DeadLetterRange

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from shoal.record.records import NewRecord, Record

PREFIX = "__dlq.errors."
#: The assumed size of a header beside its content, and the headers of a record that a dead letter
#: copies: writing them takes some milliseconds.
HEADER_BYTES, HEADERS_MAX = 16, 10_000


class DeadLetterFailure(NamedTuple):
    """Why dead letters cannot be written now: a word for metrics, and a sentence."""

    reason: str
    message: str


class Source(NamedTuple):
    """The source of records."""

    group_id: str
    topic: str
    partition: int


def cause_of(delivery_count: int, limit: int) -> Cause:
    """Return the cause for a record that a former leader left ARCHIVING, as Kafka infers it."""
    return Cause.LIMIT if delivery_count >= limit else Cause.REJECTED


def split_after(
    ranges: Iterable[DeadLetterRange], offsets_max: int
) -> tuple[list[DeadLetterRange], list[DeadLetterRange]]:
    """Split ranges after `offsets_max` offsets."""
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
    """Split ranges into those below `end` and those from there on."""
    below: list[DeadLetterRange] = []
    above: list[DeadLetterRange] = []
    for one in ranges:
        if one.first < end:
            below.append(one._replace(last=min(one.last, end - 1)))
        if one.last >= end:
            above.append(one._replace(first=max(one.first, end)))
    return below, above


def readable(ranges: Iterable[DeadLetterRange]) -> list[int]:
    """Return the offsets, in order, whose records may be read for their dead letters."""
    return sorted(
        offset
        for one in ranges
        if one.cause is not Cause.CORRUPT
        for offset in range(one.first, one.last + 1)
    )


def size_bytes(record: Record) -> int:
    """Return about the size of a record in its dead letter. A header without content counts as the
    work that it is."""
    size = len(record.key or b"") + len(record.value or b"")
    size += HEADER_BYTES * len(record.headers)
    return size + sum(len(name) + len(value or b"") for name, value in record.headers)


def dead_letter_records(
    source: Source, ranges: Iterable[DeadLetterRange], found: Mapping[int, Record], *, now_ms: int
) -> Iterator[NewRecord]:
    """Yield the dead letters of some offsets. Without a `found` record, a dead letter has headers
    only.

    The record's own headers of these names are left out: its producer could name another topic or
    group in them.
    """
    for one in ranges:
        for offset in range(one.first, one.last + 1):
            headers = _headers(source, one, offset, now_ms)
            record = found.get(offset)
            if record is None:
                yield now_ms, None, None, headers
            else:
                kept = [(name, v) for name, v in record.headers if not name.startswith(PREFIX)]
                yield record.timestamp_ms, record.key, record.value, [*kept, *headers]


def _headers(
    source: Source, dead_letter: DeadLetterRange, offset: int, now_ms: int
) -> list[tuple[str, bytes | None]]:
    values = {
        "topic": source.topic,
        "partition": source.partition,
        "offset": offset,
        "group": source.group_id,
        "delivery.count": dead_letter.delivery_count,
        "message": dead_letter.cause.value,
        "timestamp": now_ms,
    }
    if dead_letter.member_id:
        values["member"] = dead_letter.member_id
    if dead_letter.client_id:
        values["client.id"] = dead_letter.client_id
    return [(PREFIX + name, str(value).encode()) for name, value in values.items()]
