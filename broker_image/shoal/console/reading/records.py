"""Browse a topic: records from its end, an offset or a time, that a filter matches.

One request reads what a `PageReadBudget` admits, and ends after `SCAN_S`. Its result states where
it ended, so that the next request can continue there.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from shoal.client.errors import ClientError, expect
from shoal.client.net.cluster import TopicPartition
from shoal.console.reading.read_budget import BATCH_BYTES_MAX, RECORDS_MAX, PageReadBudget
from shoal.dead_letters.dead_letter_topics import find_bounds

if TYPE_CHECKING:
    from shoal.client.client import Client
    from shoal.console.reading.views import RecordView
    from shoal.record.records import Record

SHOWN_MAX = 50
SCAN_S = 5.0
#: Bytes of one fetch. A larger batch is fetched alone.
CHUNK_BYTES = 1 << 20
END, OFFSET, TIME = "end", "offset", "time"


@dataclass(frozen=True, slots=True)
class BrowseQuery:
    """Which records to show.

    `start` is `END` (the newest records), `OFFSET` or `TIME`, with `position` the offset or the
    epoch milliseconds. `partition` is None for all. Key, value and header match if they contain the
    text; a header is `NAME` or `NAME=TEXT`. An empty text matches everything.
    """

    start: str = END
    position: int = 0
    partition: int | None = None
    key: str = ""
    value: str = ""
    header: str = ""

    @property
    def has_filter(self) -> bool:
        return bool(self.key or self.value or self.header)

    def matches(self, record: Record) -> bool:
        """Whether a record contains the texts."""
        if self.key and self.key.encode() not in (record.key or b""):
            return False
        if self.value and self.value.encode() not in (record.value or b""):
            return False
        if not self.header:
            return True
        name, sign, text = self.header.partition("=")
        return any(
            header == name and (not sign or text.encode() in (value or b""))
            for header, value in record.headers
        )


class BatchTooLarge(ClientError):
    """A record in a batch that expands to more than the console reads."""


class BrowsedRecord(NamedTuple):
    partition: TopicPartition
    record: Record


@dataclass(slots=True)
class BrowseResult:
    """Records that match. `next_offsets` are where a scan ended before the end of a partition.

    `reading` has what was not read because batches expand to too much.
    """

    bounds: dict[TopicPartition, tuple[int, int]]
    records: list[BrowsedRecord] = field(default_factory=list)
    scanned: int = 0
    scanned_bytes: int = 0
    next_offsets: dict[TopicPartition, int] = field(default_factory=dict)
    reading: PageReadBudget = field(default_factory=PageReadBudget)


async def browse(client: Client, view: RecordView, topic: str, query: BrowseQuery) -> BrowseResult:
    """Return records, the newest first if they are the newest ones, else the oldest first.

    Raises `KafkaError` if the topic or the partition does not exist or may not be read.
    """
    limits = await find_bounds(client.admin, topic)
    if query.partition is not None:
        (await client.cluster.get_topic(topic)).get_partition(query.partition)
        partition = TopicPartition(topic, query.partition)
        limits = {partition: limits[partition]}
    firsts = await _find_starts(client, query, limits)
    result = BrowseResult(limits)
    result.reading.ends_at_s = time.monotonic() + SCAN_S
    for partition, first in firsts.items():
        if first < limits[partition][1]:
            records_max = RECORDS_MAX // len(firsts)
            await _scan(client, view, query, result, partition, first, records_max)
    newest = query.start == END
    result.records.sort(
        key=lambda entry: (entry.record.timestamp_ms, entry.record.offset), reverse=newest
    )
    if not newest and query.partition is not None and len(result.records) > SHOWN_MAX:
        result.next_offsets[partition] = result.records[SHOWN_MAX].record.offset
    del result.records[SHOWN_MAX:]
    result.records = [
        BrowsedRecord(entry.partition, await view.prepare_record(topic, entry.record))
        for entry in result.records
    ]
    return result


async def _find_starts(
    client: Client, query: BrowseQuery, limits: dict[TopicPartition, tuple[int, int]]
) -> dict[TopicPartition, int]:
    """Return the offset from which to read each partition."""
    if query.start == OFFSET:
        return {
            partition: min(max(query.position, start), end)
            for partition, (start, end) in limits.items()
        }
    if query.start == TIME:
        listed = expect(await client.admin.topics.offsets(dict.fromkeys(limits, query.position)))
        return {w: o.offset if o.offset >= 0 else limits[w][1] for w, o in listed.items()}
    last = RECORDS_MAX // max(1, len(limits)) if query.has_filter else SHOWN_MAX
    return {partition: max(start, end - last) for partition, (start, end) in limits.items()}


async def _scan(
    client: Client,
    view: RecordView,
    query: BrowseQuery,
    result: BrowseResult,
    partition: TopicPartition,
    first: int,
    records_max: int,
) -> None:
    end, reading = result.bounds[partition][1], result.reading
    if reading.is_over:
        result.next_offsets[partition] = first
        return
    scanned, mine = 0, []
    async for fetched in client.fetcher.fetch_range(
        *partition, first, end - 1, chunk_bytes=CHUNK_BYTES
    ):
        async for record in reading.iterate_records(fetched):
            scanned += 1
            if not query.matches(record):
                continue
            # A filter must not find out what is masked.
            if query.has_filter and not query.matches(
                view.masks.mask_record(partition.topic, record)
            ):
                continue
            mine.append(BrowsedRecord(partition, record))
        result.scanned_bytes += len(fetched.data)
        if query.start == END:
            del mine[:-SHOWN_MAX]
        enough = query.start != END and len(mine) > SHOWN_MAX
        over = scanned >= records_max or reading.is_over
        ended_at = fetched.next_offset if reading.stopped_at is None else reading.stopped_at
        if (enough or over) and ended_at < end:
            result.next_offsets[partition] = ended_at
            break
    result.scanned += scanned
    result.records += mine


async def read_record(
    client: Client, view: RecordView, partition: TopicPartition, offset: int
) -> Record | None:
    """Return what may be shown of one record; None if the log has no record at this offset.

    Raises `KafkaError`, for example if the offset is before or after the log, and `BatchTooLarge`.
    """
    # The fetcher waits for a topic or partition that may soon be created. A reader does not.
    topic = expect(await client.admin.topics.describe([partition.topic]))[partition.topic]
    topic.get_partition(partition.partition)
    reading = PageReadBudget()
    async for fetched in client.fetcher.fetch_range(*partition, offset, offset, chunk_bytes=1):
        async for record in reading.iterate_records(fetched):
            return await view.prepare_record(partition.topic, record)
    if reading.left_out:
        raise BatchTooLarge(
            f"The batch of record {offset} expands to more than {BATCH_BYTES_MAX >> 20} MiB, which"
            f" is more than this console reads. Read it with: shoal consume {partition.topic}"
            f" --partition {partition.partition} --offset {offset} --max-messages 1"
        )
    return None
