"""Cancel records of a share group: by offset, or by what the records contain.

The client reads the log to find records by their key or headers, because it has a processor of its
own, while a broker serves everybody by one. Requests to cancel them are small. A caller that stops
in between has cancelled some of the records, and continues by cancelling again.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from shoal.client.admin.topics import OffsetSpec
from shoal.client.errors import KafkaError, expect
from shoal.protocol.errors import ErrorCode
from shoal.protocol.features import CANCELLED_MAX
from shoal.protocol.share import CancelOutcome
from shoal.record.dedup_ids import DEDUP_ID
from shoal.record.offset_set import to_ranges

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable

    from shoal.client.client import Client
    from shoal.client.net.cluster import TopicPartition
    from shoal.protocol.share import CancelledRecords
    from shoal.record.records import Record

#: Outcomes of records of which each is shown; of more there are only counts.
ROWS_MAX = 100


class RecordMatch(NamedTuple):
    """Which records to cancel: those with a key, or with a header, and then those that were
    produced before a time (epoch ms)."""

    key: bytes | None = None
    header: tuple[str, bytes] | None = None
    before_ms: int | None = None

    @staticmethod
    def from_id(id: str) -> RecordMatch:
        """Return the records with a deduplication id."""
        return RecordMatch(header=(DEDUP_ID, id.encode()))

    def matches(self, record: Record) -> bool:
        """Whether a record is to be cancelled."""
        if self.before_ms is not None and record.timestamp_ms >= self.before_ms:
            return False
        if self.key is not None and record.key != self.key:
            return False
        return self.header is None or self.header in record.headers


class CancelledRecord(NamedTuple):
    """One record of a request, and what became of it."""

    partition: TopicPartition
    offset: int
    outcome: CancelOutcome


class CancelReport:
    """What became of the records of a cancellation: counts, and the first rows."""

    def __init__(self, rows_max: int = ROWS_MAX) -> None:
        self.counts = dict.fromkeys(CancelOutcome, 0)
        self.rows: list[CancelledRecord] = []
        self._rows_max = rows_max

    @property
    def total(self) -> int:
        """The number of records that were selected."""
        return sum(self.counts.values())

    def add(self, partition: TopicPartition, records: Iterable[CancelledRecords]) -> None:
        """Add the answer of a partition's leader."""
        for first, last, outcome in records:
            self.counts[outcome] += last - first + 1
            shown_last = min(last, first + self._rows_max - len(self.rows) - 1)
            self.rows += [
                CancelledRecord(partition, offset, outcome)
                for offset in range(first, shown_last + 1)
            ]


async def cancel_offsets(
    client: Client,
    group: str,
    partition: TopicPartition,
    offsets: Iterable[int],
    report: CancelReport,
    *,
    dead_letter: bool = False,
) -> None:
    """Cancel the records at rising offsets of a partition, some in each request. Ends behind the
    end of the log. Raises `KafkaError`; `report` has what was done before."""
    rest = iter(offsets)
    while chunk := list(islice(rest, CANCELLED_MAX)):
        ranges = list(to_ranges(chunk))
        answer = expect(
            await client.admin.share_groups.cancel(
                group, {partition: ranges}, dead_letter=dead_letter
            )
        )[partition]
        report.add(partition, answer)
        if all(records.outcome is CancelOutcome.NOT_FOUND for records in answer):
            return


async def cancel_matching(
    client: Client,
    group: str,
    partition: TopicPartition,
    match: RecordMatch,
    report: CancelReport,
    *,
    dead_letter: bool = False,
) -> None:
    """Cancel the records of a partition that match, from the group's start offset to the end that
    the log has now. Raises as `cancel_offsets` does."""
    async for offsets in find_matching(client, group, partition, match.matches):
        await cancel_offsets(client, group, partition, offsets, report, dead_letter=dead_letter)


async def find_matching(
    client: Client,
    group: str,
    partition: TopicPartition,
    match: Callable[[Record], bool],
) -> AsyncIterator[list[int]]:
    """Yield the offsets of the records that match, some at a time, from the group's start offset to
    the end that the log has now. Raises `KafkaError`."""
    positions = expect(await client.admin.share_groups.offsets({group: [partition]}))[group]
    start = expect(positions)[partition].start_offset
    if start < 0:
        raise KafkaError(
            ErrorCode.invalid_request,
            f"group {group} has not begun to read {partition}. Start a member, then cancel.",
        )
    ends = expect(await client.admin.topics.offsets({partition: int(OffsetSpec.LATEST)}))
    end = ends[partition].offset
    if start >= end:
        return
    async for fetched in client.fetcher.fetch_range(
        partition.topic, partition.partition, start, end - 1
    ):
        matching = [record.offset for record in fetched.records() if match(record)]
        if matching:
            yield matching
