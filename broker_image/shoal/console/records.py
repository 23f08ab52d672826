"""Browse a topic: records from its end, an offset or a time, that a filter matches.

One request reads what a `Reading` admits, and ends after `SCAN_S`. Its result states where it
ended, so that the next request can continue there.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from shoal.client.cluster import TopicPartition
from shoal.client.dead_letter_topics import bounds
from shoal.client.errors import ClientError, expect
from shoal.console.reading import BATCH_BYTES_MAX, RECORDS_MAX, Reading

if TYPE_CHECKING:
    from shoal.client.client import Client
    from shoal.console.views import View
    from shoal.record.records import Record

SHOWN_MAX = 50
SCAN_S = 5.0
#: Bytes of one fetch. A larger batch is fetched alone.
CHUNK_BYTES = 1 << 20
END, OFFSET, TIME = "end", "offset", "time"


@dataclass(frozen=True, slots=True)
class Query:
    """Which records to show.

    `start` is `END` (the newest records), `OFFSET` or `TIME`, with `at` the offset or the epoch
    milliseconds. `partition` is None for all. Key, value and header match if they contain the text;
    a header is `NAME` or `NAME=TEXT`. An empty text matches everything.
    """

    start: str = END
    at: int = 0
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


class TooLarge(ClientError):
    """A record in a batch that expands to more than the console reads."""


class Found(NamedTuple):
    where: TopicPartition
    record: Record


@dataclass(slots=True)
class Browsed:
    """Records that match. `next_offsets` are where a scan ended before the end of a partition.

    `reading` has what was not read because batches expand to too much.
    """

    bounds: dict[TopicPartition, tuple[int, int]]
    records: list[Found] = field(default_factory=list)
    scanned: int = 0
    scanned_bytes: int = 0
    next_offsets: dict[TopicPartition, int] = field(default_factory=dict)
    reading: Reading = field(default_factory=Reading)


async def browse(client: Client, view: View, topic: str, query: Query) -> Browsed:
    """Return records, the newest first if they are the newest ones, else the oldest first.

    Raises `KafkaError` if the topic or the partition does not exist or may not be read.
    """
    limits = await bounds(client.admin, topic)
    if query.partition is not None:
        (await client.cluster.topic(topic)).partition(query.partition)
        where = TopicPartition(topic, query.partition)
        limits = {where: limits[where]}
    firsts = await _starts(client, query, limits)
    found = Browsed(limits)
    loop = asyncio.get_running_loop()
    deadline = loop.time() + SCAN_S
    for where, first in firsts.items():
        if first < limits[where][1]:
            records_max = RECORDS_MAX // len(firsts)
            await _scan(client, view, query, found, where, first, deadline, records_max)
    newest = query.start == END
    found.records.sort(key=lambda one: (one.record.timestamp_ms, one.record.offset), reverse=newest)
    if not newest and query.partition is not None and len(found.records) > SHOWN_MAX:
        found.next_offsets[where] = found.records[SHOWN_MAX].record.offset
    del found.records[SHOWN_MAX:]
    found.records = [Found(one.where, await view.shown(topic, one.record)) for one in found.records]
    return found


async def _starts(
    client: Client, query: Query, limits: dict[TopicPartition, tuple[int, int]]
) -> dict[TopicPartition, int]:
    """Return the offset from which to read each partition."""
    if query.start == OFFSET:
        return {where: min(max(query.at, start), end) for where, (start, end) in limits.items()}
    if query.start == TIME:
        listed = expect(await client.admin.topics.offsets(dict.fromkeys(limits, query.at)))
        return {w: o.offset if o.offset >= 0 else limits[w][1] for w, o in listed.items()}
    last = RECORDS_MAX // max(1, len(limits)) if query.has_filter else SHOWN_MAX
    return {where: max(start, end - last) for where, (start, end) in limits.items()}


async def _scan(
    client: Client,
    view: View,
    query: Query,
    found: Browsed,
    where: TopicPartition,
    first: int,
    deadline: float,
    records_max: int,
) -> None:
    loop = asyncio.get_running_loop()
    end, reading = found.bounds[where][1], found.reading
    if reading.is_over:
        found.next_offsets[where] = first
        return
    scanned, mine = 0, []
    async for fetched in client.fetcher.range(*where, first, end - 1, chunk_bytes=CHUNK_BYTES):
        async for record in reading.records(fetched):
            scanned += 1
            if not query.matches(record):
                continue
            # A filter must not find out what is masked.
            if query.has_filter and not query.matches(view.masks.shown(where.topic, record)):
                continue
            mine.append(Found(where, record))
        found.scanned_bytes += len(fetched.data)
        if query.start == END:
            del mine[:-SHOWN_MAX]
        enough = query.start != END and len(mine) > SHOWN_MAX
        over = scanned >= records_max or reading.is_over
        ended_at = fetched.next_offset if reading.stopped_at is None else reading.stopped_at
        if (enough or over or loop.time() > deadline) and ended_at < end:
            found.next_offsets[where] = ended_at
            break
    found.scanned += scanned
    found.records += mine


async def read(client: Client, view: View, where: TopicPartition, offset: int) -> Record | None:
    """Return what may be shown of one record; None if the log has no record at this offset.

    Raises `KafkaError`, for example if the offset is before or after the log, and `TooLarge`.
    """
    # The fetcher waits for a topic or partition that may soon be created. A reader does not.
    topic = expect(await client.admin.topics.describe([where.topic]))[where.topic]
    topic.partition(where.partition)
    reading = Reading()
    async for fetched in client.fetcher.range(*where, offset, offset, chunk_bytes=1):
        async for record in reading.records(fetched):
            return await view.shown(where.topic, record)
    if reading.left_out:
        raise TooLarge(
            f"The batch of record {offset} expands to more than {BATCH_BYTES_MAX >> 20} MiB, which"
            f" is more than this console reads. Read it with: shoal consume {where.topic}"
            f" --partition {where.partition} --offset {offset} --max-messages 1"
        )
    return None
