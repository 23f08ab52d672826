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
from shoal.client.batches import Isolation
from shoal.client.cluster import TopicPartition
from shoal.client.errors import KafkaError, expect
from shoal.client.topics import OffsetSpec
from shoal.protocol.errors import ErrorCode
from shoal.record.key_ranges import KeyRanges

from shoal_spark import key_range_tasks
from shoal_spark.key_range_tasks import KeyRangeTask
from shoal_spark.options import InvalidOption, KeyRangeOptions, check_columns
from shoal_spark.positions import Batch, Positions, from_json, limited, to_json
from shoal_spark.range_reader import DataLoss, client

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
        self._driver: Driver | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"options": self.options, "_columns": [], "_driver": None}

    @property
    def driver(self) -> Driver:
        if self._driver is None:
            own = key_range_tasks.names(self.options.include_headers)
            check_columns(self._columns, own)
            self._driver = Driver(self.options)
        return self._driver

    def getDefaultReadLimit(self) -> ReadLimit:
        most = self.options.max_offsets
        return ReadMaxRows(most) if most else ReadAllAvailable()

    def initialOffset(self) -> dict:
        return to_json(Batch(0, self.options.group_id, self.options.topics))

    def latestOffset(self, start: dict, limit: ReadLimit) -> dict:
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else 0
        end = self.driver.next_batch(self._typed(start), most)
        return start if end is None else to_json(end)

    def reportLatestOffset(self) -> dict | None:
        return None if self._driver is None else self._driver.progress()

    def prepareForTriggerAvailableNow(self) -> None:
        self.driver.drain()

    def partitions(self, _start: dict, end: dict) -> Sequence[InputPartition]:
        batch = self._typed(end)
        ranges = self.options.key_ranges
        return [
            KeyRangeTask(*where, batch.starts[where], last - 1, number, ranges)
            for where, last in sorted(batch.ends.items())
            if batch.starts[where] < last
            for number in range(1, ranges + 1)
        ]

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        assert isinstance(partition, KeyRangeTask)
        return key_range_tasks.read(self.options, partition)

    def commit(self, end: dict) -> None:
        self.driver.complete(self._typed(end))

    def _typed(self, stored: Mapping[str, Any]) -> Batch:
        return from_json(stored, self.options.group_id, self.options.topics)


class Driver:
    """The reader on the driver: what the log has, and what the group has committed."""

    def __init__(self, options: KeyRangeOptions) -> None:
        self.options = options
        self._client = client(options.connection)
        self._isolation = (
            Isolation.READ_COMMITTED if options.read_committed else Isolation.READ_UNCOMMITTED
        )
        self._committed: dict[TopicPartition, int] = {}
        self._checked = False
        #: The log ends at which a query with Trigger.AvailableNow ends.
        self._last: Positions | None = None
        self._lag = 0

    def next_batch(self, start: Batch, offsets_max: int) -> Batch | None:
        """Commit what is complete, and return the next batch; None if there is nothing new."""
        self.complete(start)
        ends = self._ends()
        starts = self._starts(start, ends)
        self._check_key_ranges(starts)
        if not start.seq:  # A group that cannot be committed fails the query at once.
            self.complete(Batch(0, self.options.group_id, self.options.topics, ends=starts))
        if ends == starts and self._last is None:
            self._wait(starts)
            ends = self._ends()
            starts = self._starts(start, ends, starts)
        self._check_not_truncated(starts, ends)
        new = limited(starts, ends, offsets_max)
        self._lag = sum(max(0, ends[where] - at) for where, at in new.items())
        if new == starts and start.seq:
            return None
        return Batch(start.seq + 1, self.options.group_id, self.options.topics, starts, new)

    def drain(self) -> None:
        """Deliver only records that are in the log now (Trigger.AvailableNow)."""
        self._last = self._ends()

    def progress(self) -> dict[str, Any]:
        """Return the group, and its lag behind what is planned."""
        return {"group": self.options.group_id, "lag": self._lag}

    def complete(self, batch: Batch) -> None:
        """Commit the positions after a batch that has been processed."""
        ends = {TopicPartition(*where): at for where, at in batch.ends.items()}
        moved = {w: at for w, at in ends.items() if self._committed.get(w) != at}
        if not moved:
            return
        group = self.options.group_id
        done = self._client.run(self._client.admin.groups.alter_offsets(group, moved))
        for error in done.values():
            if error is not None and error.code == ErrorCode.unknown_member_id:
                raise InvalidOption(
                    f"option 'groupId' is {group!r}: consumers are members of that group, and the "
                    "query commits its positions there; stop them, or choose another groupId"
                )
            if error is not None:
                raise error
        self._committed.update(moved)

    # Positions

    def _ends(self) -> Positions:
        """Return the ends of all partitions, or those at which the query ends."""
        if self._last is not None:
            return dict(self._last)
        places = []
        for name in self.options.topics:
            try:
                topic = self._client.run(self._client.cluster.topic(name))
            except KafkaError as error:
                raise InvalidOption(f"option 'subscribe': {name!r}: {error}") from None
            places += [TopicPartition(name, index) for index in range(len(topic.partitions))]
        return self._listed(places, OffsetSpec.LATEST)

    def _listed(self, places: Sequence[TopicPartition], spec: OffsetSpec) -> Positions:
        wanted = dict.fromkeys(places, int(spec))
        call = self._client.admin.topics.offsets(wanted, isolation=self._isolation)
        listed = expect(self._client.run(call))
        return {(where.topic, where.partition): one.offset for where, one in listed.items()}

    def _starts(self, start: Batch, ends: Positions, known: Positions | None = None) -> Positions:
        """Return where the next batch starts: at the end of the last one, or where the group is.

        A partition that is new since the last batch starts at its beginning, as in Spark's Kafka
        source.
        """
        found = {where: at for where, at in (known or start.ends).items() if where in ends}
        new = [TopicPartition(*where) for where in ends if where not in found]
        if new and not start.seq:
            found |= self._group_positions(new)
            new = [where for where in new if tuple(where) not in found]
        if new:
            earliest = bool(start.seq) or self.options.from_earliest
            spec = OffsetSpec.EARLIEST if earliest else OffsetSpec.LATEST
            # The log may have grown since a query with Trigger.AvailableNow looked at its end.
            found |= {w: min(at, ends[w]) for w, at in self._listed(new, spec).items()}
        return found

    def _group_positions(self, places: Sequence[TopicPartition]) -> Positions:
        """Return the committed positions of the group, which need not exist."""
        group = self.options.group_id
        found = self._client.run(self._client.admin.groups.offsets([group]))[group]
        if isinstance(found, KafkaError):
            if found.code == ErrorCode.group_id_not_found:
                return {}
            raise found
        return {
            (where.topic, where.partition): found[where].offset
            for where in places
            if where in found and found[where].offset >= 0
        }

    def _check_key_ranges(self, starts: Positions) -> None:
        """Fetch once by a key range, so that a topic that refuses it fails the query at once."""
        if self._checked or self.options.key_ranges == 1:
            return
        ranges = KeyRanges.part(1, self.options.key_ranges)
        places = {TopicPartition(*where): at for where, at in starts.items()}
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
            raise self._refused(error) from None
        for result in results.values():
            if isinstance(result, KafkaError) and result.code == ErrorCode.policy_violation:
                raise self._refused(result)
        self._checked = True

    def _refused(self, error: KafkaError) -> InvalidOption:
        return InvalidOption(f"option 'keyRanges' is {self.options.key_ranges}: {error}")

    def _check_not_truncated(self, starts: Positions, ends: Positions) -> None:
        for where, at in starts.items():
            if ends[where] >= at:
                continue
            if self.options.fail_on_data_loss:
                raise DataLoss(
                    f"topic {where[0]!r} partition {where[1]} ends at offset {ends[where]}, before "
                    f"the query's position {at}: it was deleted and created again, or lost "
                    "records. Set failOnDataLoss to false to continue at its end"
                )
            log.warning("%s-%d: the log ends before the position %d", *where, at)

    def _wait(self, starts: Positions) -> None:
        """Wait for a new record, for as long as the options allow."""
        places = {TopicPartition(*where): at for where, at in starts.items()}
        poll = self._client.fetcher.poll(
            places,
            max_wait_ms=self.options.max_wait_ms,
            partition_bytes=1,
            isolation=self._isolation,
        )
        self._client.run(poll)
