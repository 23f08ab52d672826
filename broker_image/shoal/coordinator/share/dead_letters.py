"""Dead letters (KIP-1191): records whose delivery failed, with headers that explain why.

The headers are Kafka's `__dlq.errors.*`, and our own: member, client.id, the time of the dead
letter, and the last reason that a member gave. The header `disposition` is that of KIP-1317, a
draft, whose page writes it with one underscore. All values are text. If the group copies records,
the dead letter has key, value, original headers and timestamp of the record; Kafka uses the dead
letter's time as timestamp. No I/O here: the shell (`server.share.dead_letters`) reads records and
writes dead letters.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from shoal.coordinator.share.delivery_failure import DeadLetterRange, FailureCause
from shoal.protocol.reasons import REASON_HEADERS, decode_reason

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from shoal.record.records import NewRecord, Record

PREFIX = "__dlq.errors."
#: Values of the header `disposition`. The draft has no words for the last two.
_DISPOSITIONS = {
    FailureCause.REJECTED: "CLIENT_REJECTED",
    FailureCause.LIMIT: "MAX_DELIVERY_ATTEMPTS_REACHED",
    FailureCause.CORRUPT: "CORRUPT_RECORD_BATCH",
    FailureCause.CANCELLED: "CANCELLED",
}
#: Bytes of reasons in one batch of dead letters.
BATCH_REASON_BYTES_MAX = 512 << 10
#: The assumed size of a header beside its content, and the headers of a record that a dead letter
#: copies: writing them takes some milliseconds.
HEADER_BYTES, HEADERS_MAX = 16, 10_000


class DeadLetterFailure(NamedTuple):
    """Why dead letters cannot be written now: a word for metrics, and a sentence."""

    reason: str
    message: str


class RecordSource(NamedTuple):
    """The source of records."""

    group_id: str
    topic: str
    partition: int


def infer_cause(delivery_count: int, limit: int) -> FailureCause:
    """Return the cause for a record that a former leader left ARCHIVING, as Kafka infers it."""
    return FailureCause.LIMIT if delivery_count >= limit else FailureCause.REJECTED


def split_after(
    ranges: Iterable[DeadLetterRange], offsets_max: int
) -> tuple[list[DeadLetterRange], list[DeadLetterRange]]:
    """Split ranges after `offsets_max` offsets."""
    head: list[DeadLetterRange] = []
    remaining: list[DeadLetterRange] = []
    for dead_letter_range in ranges:
        last = min(dead_letter_range.last, dead_letter_range.first + offsets_max - 1)
        if last >= dead_letter_range.first:
            head.append(dead_letter_range._replace(last=last))
            offsets_max -= last - dead_letter_range.first + 1
        if last < dead_letter_range.last:
            remaining.append(
                dead_letter_range._replace(first=max(dead_letter_range.first, last + 1))
            )
    return head, remaining


def split_at(
    ranges: Iterable[DeadLetterRange], end: int
) -> tuple[list[DeadLetterRange], list[DeadLetterRange]]:
    """Split ranges into those below `end` and those from there on."""
    below: list[DeadLetterRange] = []
    above: list[DeadLetterRange] = []
    for dead_letter_range in ranges:
        if dead_letter_range.first < end:
            below.append(dead_letter_range._replace(last=min(dead_letter_range.last, end - 1)))
        if dead_letter_range.last >= end:
            above.append(dead_letter_range._replace(first=max(dead_letter_range.first, end)))
    return below, above


def find_readable(ranges: Iterable[DeadLetterRange]) -> list[int]:
    """Return the offsets, in order, whose records may be read for their dead letters."""
    return sorted(
        offset
        for dead_letter_range in ranges
        if dead_letter_range.cause is not FailureCause.CORRUPT
        for offset in range(dead_letter_range.first, dead_letter_range.last + 1)
    )


def estimate_size_bytes(record: Record) -> int:
    """Return about the size of a record in its dead letter. A header without content counts as the
    work that it is."""
    size = len(record.key or b"") + len(record.value or b"")
    size += HEADER_BYTES * len(record.headers)
    return size + sum(len(name) + len(value or b"") for name, value in record.headers)


def count_within_reasons(
    ranges: Iterable[DeadLetterRange],
    get_reason: Callable[[int], bytes | None],
    offsets_max: int,
) -> int:
    """Return how many of the first `offsets_max` offsets fit in a batch with their reasons, at
    least one."""
    count = size = 0
    for dead_letter_range in ranges:
        for offset in range(dead_letter_range.first, dead_letter_range.last + 1):
            size += len(get_reason(offset) or b"")
            if count >= offsets_max or (count and size > BATCH_REASON_BYTES_MAX):
                return count
            count += 1
    return count


def build_dead_letters(
    source: RecordSource,
    ranges: Iterable[DeadLetterRange],
    records: Mapping[int, Record],
    *,
    now_ms: int,
    get_reason: Callable[[int], bytes | None] = lambda _: None,
) -> Iterator[NewRecord]:
    """Yield the dead letters of some offsets. Without a `records` record, a dead letter has headers
    only. `get_reason` returns the encoded reason of an offset.

    The record's own headers of these names are left out: its producer could name another topic or
    group in them.
    """
    for dead_letter_range in ranges:
        for offset in range(dead_letter_range.first, dead_letter_range.last + 1):
            headers = _build_headers(source, dead_letter_range, offset, now_ms)
            headers += _build_reason_headers(get_reason(offset))
            record = records.get(offset)
            if record is None:
                yield now_ms, None, None, headers
            else:
                own_headers = [
                    (name, v) for name, v in record.headers if not name.startswith(PREFIX)
                ]
                yield record.timestamp_ms, record.key, record.value, [*own_headers, *headers]


def _build_headers(
    source: RecordSource, dead_letter: DeadLetterRange, offset: int, now_ms: int
) -> list[tuple[str, bytes | None]]:
    values = {
        "topic": source.topic,
        "partition": source.partition,
        "offset": offset,
        "group": source.group_id,
        "delivery.count": dead_letter.delivery_count,
        "message": dead_letter.cause.value,
        "disposition": _DISPOSITIONS[dead_letter.cause],
        "timestamp": now_ms,
    }
    if dead_letter.member_id:
        values["member"] = dead_letter.member_id
    if dead_letter.client_id:
        values["client.id"] = dead_letter.client_id
    return [(PREFIX + name, str(value).encode()) for name, value in values.items()]


def _build_reason_headers(reason: bytes | None) -> list[tuple[str, bytes | None]]:
    if reason is None:
        return []
    texts = zip(REASON_HEADERS, decode_reason(reason), strict=True)
    return [(PREFIX + name, text.encode()) for name, text in texts if text]
