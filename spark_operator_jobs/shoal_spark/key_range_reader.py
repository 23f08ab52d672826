"""The stream reader of consumer groups: plans offsets on the driver, reads key ranges on executors.

The query is no member of the group. Its positions are in Spark's checkpoint, and `positions` makes
them deterministic. The group gets the position of each batch that is complete, for lag, for tools,
and for queries with a new checkpoint. `latestOffset(start)` proves that the batch that ended at
`start` is complete (`reader`).
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from shoal.client.admin.topics import OffsetSpec
from shoal.client.errors import KafkaError, expect
from shoal.client.net.batches import Isolation
from shoal.client.net.cluster import TopicPartition
from shoal.protocol.errors import ErrorCode
from shoal.record.key_ranges import KeyRanges

from shoal_spark import key_range_tasks
from shoal_spark.key_range_tasks import KeyRangeTask
from shoal_spark.options import InvalidOption, KeyRangeOptions, check_columns
from shoal_spark.positions import KeyRangeOffset, Positions, from_json, limit_ends, to_json
from shoal_spark.range_reader import DataLoss, get_client

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow

log = logging.getLogger("shoal_spark")


class KeyRangeReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """The stream reader; see the module. It connects on the first call, because Spark makes copies
    to pickle."""

    def __init__(self, options: KeyRangeOptions, columns: Sequence[str] = ()) -> None:
        self.options = options
        self._columns = list(columns)
        self._driver: KeyRangeDriver | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"options": self.options, "_columns": [], "_driver": None}

    @property
    def driver(self) -> KeyRangeDriver:
        if self._driver is None:
            own = key_range_tasks.list_names(self.options.include_headers)
            check_columns(self._columns, own)
            self._driver = KeyRangeDriver(self.options)
        return self._driver

    def getDefaultReadLimit(self) -> ReadLimit:
        most = self.options.max_offsets
        return ReadMaxRows(most) if most else ReadAllAvailable()

    def initialOffset(self) -> dict:
        return to_json(KeyRangeOffset(0, self.options.group_id, self.options.topics))

    def latestOffset(self, start: dict, limit: ReadLimit) -> dict:
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else 0
        end = self.driver.prepare_next_batch(self._parse_offset(start), most)
        return start if end is None else to_json(end)

    def reportLatestOffset(self) -> dict | None:
        return None if self._driver is None else self._driver.report_progress()

    def prepareForTriggerAvailableNow(self) -> None:
        self.driver.drain()

    def partitions(self, _start: dict, end: dict) -> Sequence[InputPartition]:
        batch = self._parse_offset(end)
        ranges = self.options.key_ranges
        return [
            KeyRangeTask(*partition, batch.starts[partition], last - 1, number, ranges)
            for partition, last in sorted(batch.ends.items())
            if batch.starts[partition] < last
            for number in range(1, ranges + 1)
        ]

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        assert isinstance(partition, KeyRangeTask)
        return key_range_tasks.read(self.options, partition)

    def commit(self, end: dict) -> None:
        self.driver.complete(self._parse_offset(end))

    def _parse_offset(self, stored: Mapping[str, Any]) -> KeyRangeOffset:
        return from_json(stored, self.options.group_id, self.options.topics)


class KeyRangeDriver:
    """The reader on the driver: what the log has, and what the group has committed."""

    def __init__(self, options: KeyRangeOptions) -> None:
        self.options = options
        self._client = get_client(options.connection)
        self._isolation = (
            Isolation.READ_COMMITTED if options.read_committed else Isolation.READ_UNCOMMITTED
        )
        self._committed: dict[TopicPartition, int] = {}
        self._checked = False
        #: The log ends at which a query with Trigger.AvailableNow ends.
        self._last: Positions | None = None
        self._lag = 0

    def prepare_next_batch(self, start: KeyRangeOffset, offsets_max: int) -> KeyRangeOffset | None:
        """Commit what is complete, and return the next batch; None if there is nothing new."""
        self.complete(start)
        ends = self._find_ends()
        starts = self._find_starts(start, ends)
        self._check_key_ranges(starts)
        if not start.seq:  # A group that cannot be committed fails the query at once.
            self.complete(
                KeyRangeOffset(0, self.options.group_id, self.options.topics, ends=starts)
            )
        if ends == starts and self._last is None:
            self._wait(starts)
            ends = self._find_ends()
            starts = self._find_starts(start, ends, starts)
        self._check_not_truncated(starts, ends)
        new = limit_ends(starts, ends, offsets_max)
        self._lag = sum(max(0, ends[partition] - offset) for partition, offset in new.items())
        if new == starts and start.seq:
            return None
        return KeyRangeOffset(
            start.seq + 1, self.options.group_id, self.options.topics, starts, new
        )

    def drain(self) -> None:
        """Deliver only records that are in the log now (Trigger.AvailableNow)."""
        self._last = self._find_ends()

    def report_progress(self) -> dict[str, Any]:
        """Return the group, and its lag behind what is planned."""
        return {"group": self.options.group_id, "lag": self._lag}

    def complete(self, batch: KeyRangeOffset) -> None:
        """Commit the positions after a batch that has been processed."""
        ends = {TopicPartition(*partition): offset for partition, offset in batch.ends.items()}
        moved = {w: offset for w, offset in ends.items() if self._committed.get(w) != offset}
        if not moved:
            return
        group = self.options.group_id
        results = self._client.run(self._client.admin.groups.alter_offsets(group, moved))
        for error in results.values():
            if error is not None and error.code == ErrorCode.unknown_member_id:
                raise InvalidOption(
                    f"option 'groupId' is {group!r}: consumers are members of that group, and the "
                    "query commits its positions there; stop them, or choose another groupId"
                )
            if error is not None:
                raise error
        self._committed.update(moved)

    # Positions

    def _find_ends(self) -> Positions:
        """Return the ends of all partitions, or those at which the query ends."""
        if self._last is not None:
            return dict(self._last)
        places = []
        for name in self.options.topics:
            try:
                topic = self._client.run(self._client.cluster.get_topic(name))
            except KafkaError as error:
                raise InvalidOption(f"option 'subscribe': {name!r}: {error}") from None
            places += [TopicPartition(name, index) for index in range(len(topic.partitions))]
        return self._list_offsets(places, OffsetSpec.LATEST)

    def _list_offsets(self, places: Sequence[TopicPartition], spec: OffsetSpec) -> Positions:
        specs = dict.fromkeys(places, int(spec))
        call = self._client.admin.topics.offsets(specs, isolation=self._isolation)
        listed = expect(self._client.run(call))
        return {
            (partition.topic, partition.partition): result.offset
            for partition, result in listed.items()
        }

    def _find_starts(
        self, start: KeyRangeOffset, ends: Positions, known_positions: Positions | None = None
    ) -> Positions:
        """Return where the next batch starts: at the end of the last one, or where the group is.

        A partition that is new since the last batch starts at its beginning, as in Spark's Kafka
        source.
        """
        starts = {
            partition: offset
            for partition, offset in (known_positions or start.ends).items()
            if partition in ends
        }
        new = [TopicPartition(*partition) for partition in ends if partition not in starts]
        if new and not start.seq:
            starts |= self._fetch_group_positions(new)
            new = [partition for partition in new if tuple(partition) not in starts]
        if new:
            earliest = bool(start.seq) or self.options.from_earliest
            spec = OffsetSpec.EARLIEST if earliest else OffsetSpec.LATEST
            # The log may have grown since a query with Trigger.AvailableNow looked at its end.
            starts |= {
                w: min(offset, ends[w]) for w, offset in self._list_offsets(new, spec).items()
            }
        return starts

    def _fetch_group_positions(self, places: Sequence[TopicPartition]) -> Positions:
        """Return the committed positions of the group, which need not exist."""
        group = self.options.group_id
        committed = self._client.run(self._client.admin.groups.offsets([group]))[group]
        if isinstance(committed, KafkaError):
            if committed.code == ErrorCode.group_id_not_found:
                return {}
            raise committed
        return {
            (partition.topic, partition.partition): committed[partition].offset
            for partition in places
            if partition in committed and committed[partition].offset >= 0
        }

    def _check_key_ranges(self, starts: Positions) -> None:
        """Fetch once by a key range, so that a topic that refuses it fails the query at once."""
        if self._checked or self.options.key_ranges == 1:
            return
        ranges = KeyRanges.from_part(1, self.options.key_ranges)
        places = {TopicPartition(*partition): offset for partition, offset in starts.items()}
        try:
            results = self._client.run(
                self._client.fetcher.poll(
                    places,
                    max_wait_ms=0,
                    partition_bytes=1,
                    key_ranges=dict.fromkeys(places, ranges),
                )
            )
        except KafkaError as error:
            raise self._make_refusal(error) from None
        for result in results.values():
            if isinstance(result, KafkaError) and result.code == ErrorCode.policy_violation:
                raise self._make_refusal(result)
        self._checked = True

    def _make_refusal(self, error: KafkaError) -> InvalidOption:
        return InvalidOption(f"option 'keyRanges' is {self.options.key_ranges}: {error}")

    def _check_not_truncated(self, starts: Positions, ends: Positions) -> None:
        for partition, position in starts.items():
            if ends[partition] >= position:
                continue
            if self.options.fail_on_data_loss:
                raise DataLoss(
                    f"topic {partition[0]!r} partition {partition[1]} ends at offset "
                    f"{ends[partition]}, before "
                    f"the query's position {position}: it was deleted and created again, or lost "
                    "records. Set failOnDataLoss to false to continue at its end"
                )
            log.warning("%s-%d: the log ends before the position %d", *partition, position)

    def _wait(self, starts: Positions) -> None:
        """Wait for a new record, for as long as the options allow."""
        places = {TopicPartition(*partition): position for partition, position in starts.items()}
        poll = self._client.fetcher.poll(
            places,
            max_wait_ms=self.options.max_wait_ms,
            partition_bytes=1,
            isolation=self._isolation,
        )
        self._client.run(poll)
