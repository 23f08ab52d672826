"""The stream reader: acquires on the driver, fetches on the executors.

Spark keeps one reader in a Python process on the driver. For each batch it calls
`latestOffset(start, limit)`, `partitions(start, end)` and, late or never, `commit(end)`. `read`
runs in the executors' Python workers on a pickled copy that sends no request about the group.
Invariants:

* `latestOffset` acquires, and its result names every row of the batch. So the checkpoint has the
  rows before the batch runs. `read` fetches these rows by offset: a repeated batch has the same
  rows on any driver.
* `latestOffset(start)` proves that the batch that ended at `start` is complete: Spark calls it only
  then, and calls `commit` only once there is a next batch. So batches are settled there.
* A reader whose first call is `partitions` continues a batch of an earlier driver. It acquires that
  batch's ranges while the batch runs, so that no other member processes them.
"""

from __future__ import annotations

import logging
import signal
import sys
import threading
import time
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from shoal.client.share.member import AcknowledgeType

from shoal_spark import ranges as sets
from shoal_spark.batch_size import BatchSize
from shoal_spark.drain import Drain, NotAssigned, idle_timeout_s
from shoal_spark.offsets import ShareGroupOffset, from_json, to_json
from shoal_spark.options import SourceOptions, TokenLogin, check_columns
from shoal_spark.outcome_files import DELAY_MS_MAX, Inbox, OutcomeKind, parse_reason
from shoal_spark.reader_state import ReaderState

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import pyarrow

    from shoal_spark.member import DriverMember
    from shoal_spark.ranges import OffsetRange

log = logging.getLogger("shoal_spark")
#: Longest single wait if an event may end the wait early, in milliseconds.
POLL_MS = 250
#: An answer that comes sooner was no long poll: pause before the next request.
QUICK_S = 0.02
#: Maximum number of requests with records for one batch. Most return thousands of records.
ROUNDS_MAX = 1000
#: Minimum records per task when a batch is shortened.
RECORDS_PER_TASK_MIN = 10
_TYPES = {
    OutcomeKind.ACCEPT: AcknowledgeType.ACCEPT,
    OutcomeKind.RELEASE: AcknowledgeType.RELEASE,
    OutcomeKind.REJECT: AcknowledgeType.REJECT,
}


@dataclass(frozen=True)
class ShareGroupTask(InputPartition):  # type: ignore[misc]
    """The ranges that one task fetches."""

    ranges: tuple[OffsetRange, ...]
    #: The executors' login, None for the query's own.
    login: TokenLogin | None = field(default=None, repr=False)


class ShareGroupReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """The stream reader; see the module. It connects on the first call, because Spark makes copies
    to pickle.

    `columns` are those of the schema that Spark uses. If they are not the source's, the first call
    raises the error: PySpark 4.3 replaces errors of the constructor by its own.
    """

    def __init__(self, options: SourceOptions, columns: Sequence[str] = ()) -> None:
        self.options = options
        self._columns = list(columns)
        self._driver: ShareGroupDriver | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Return what executors get: without the query's login if they have tokens for sure."""
        options = self.options
        if options.tokens:
            options = replace(options, connection=options.connection.without_login())
        return {"options": options, "_columns": [], "_driver": None}

    @property
    def driver(self) -> ShareGroupDriver:
        if self._driver is None:
            self._check_columns()
            self._driver = ShareGroupDriver(self.options)
            # Spark ends this process with SIGTERM. Without a handler the locks would have to
            # expire.
            signal.signal(signal.SIGTERM, _exit)
        return self._driver

    def _check_columns(self) -> None:
        from shoal_spark import columns

        options = self.options
        own = columns.list_names(options.include_headers, options.include_decode_errors)
        check_columns(self._columns, own)

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self.options.max_records)

    def initialOffset(self) -> dict:
        return to_json(ShareGroupOffset(0, self.options.group_id, self.options.topics))

    def latestOffset(self, start: dict, limit: ReadLimit) -> dict:
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else self.options.max_records
        end = self.driver.prepare_next_batch(self._parse_offset(start), most)
        return start if end is None else to_json(end)

    def reportLatestOffset(self) -> dict | None:
        return None if self._driver is None else self._driver.report_progress()

    def prepareForTriggerAvailableNow(self) -> None:
        self.driver.drain()

    def partitions(self, _start: dict, end: dict) -> Sequence[InputPartition]:
        batch = self._parse_offset(end)
        self.driver.run(batch)
        places = len({r[:2] for r in batch.ranges})
        task_count = max(self.options.min_partitions, places)
        login = self.driver.login.get_current()
        return [
            ShareGroupTask(ranges, login)
            for ranges in sets.split_into_tasks(batch.ranges, task_count)
        ]

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        from shoal_spark import range_reader

        assert isinstance(partition, ShareGroupTask)
        options = self.options
        if partition.login is not None:
            connection = options.connection.with_token(partition.login)
            options = replace(options, connection=connection)
        return range_reader.read(options, partition.ranges)

    def commit(self, end: dict) -> None:
        self.driver.complete(self._parse_offset(end).seq)

    def stop(self) -> None:
        if self._driver is not None:
            self._driver.stop()
            self._driver = None

    def _parse_offset(self, stored: Mapping[str, Any]) -> ShareGroupOffset:
        return from_json(stored, self.options.group_id, self.options.topics)


def _exit(*_: object) -> None:
    """Exit normally, so that `stop` is called. Spark sends the signal twice; the second must not
    interrupt the exit, whose duration is bounded.
    """
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(0)


class ShareGroupDriver:
    """The reader on the driver: the member, its state, and the batch that Spark runs."""

    def __init__(self, options: SourceOptions) -> None:
        # Imported here: executors unpickle this module and need no member.
        from shoal_spark.delegation import ExecutorLogin
        from shoal_spark.member import DriverMember

        self.options = options
        self.state = ReaderState()
        self.inbox = Inbox(options.outcomes_dir)
        least = max(options.min_partitions, 1) * RECORDS_PER_TASK_MIN
        self.pace = BatchSize(options.target_ms / 1000, least)
        self.member: DriverMember = DriverMember(options, lambda: self.state.locked)
        self.login = ExecutorLogin(self.member.client, options.connection, options.tokens)
        self._end: ShareGroupOffset | None = None
        #: Rows that stay locked until a time, and are then released with a reason.
        self._due: list[tuple[float, list[OffsetRange], str]] = []
        self._drain: Drain | None = None
        self._reclaim: Future[list[OffsetRange]] | None = None
        self._complete = threading.Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="shoal-reclaim")

    # Calls from Spark

    def prepare_next_batch(
        self, start: ShareGroupOffset, max_records: int
    ) -> ShareGroupOffset | None:
        """Settle completed batches and lock the rows of the next one; None if there are none."""
        self.member.join(start.member)
        self.state.resume(start)
        self.complete(start.seq)
        if self._end is not None and self._end.seq == start.seq + 1:
            return self._end
        self._prune(start)
        self._release_due()
        fresh = self._collect(self.pace.compute_limit(max_records))
        if not fresh:
            return None
        batch = self.state.give(start.seq + 1, fresh)
        self.pace.note_given(start.seq + 1, sets.count(batch), time.monotonic())
        self._end = ShareGroupOffset(
            start.seq + 1,
            self.options.group_id,
            self.options.topics,
            batch,
            tuple(self.state.owed),
            dict(self.member.starts),
            self.member.id,
        )
        return self._end

    def run(self, batch: ShareGroupOffset) -> None:
        """Note that Spark runs this batch, which an earlier driver may have acquired."""
        self.member.join(batch.member)
        if self.state.replay(batch):
            log.info("share group %s: batch %d runs again", self.options.group_id, batch.seq)
            self._reclaim = self._thread.submit(self._reacquire, sets.count(batch.ranges))

    def _reacquire(self, count: int) -> list[OffsetRange]:
        """Acquire while an earlier driver's batch runs again; that batch's ranges come first."""
        ranges: list[OffsetRange] = []
        while not ranges and not self._complete.is_set():
            ranges = self.member.acquire(count, self.options.max_bytes, POLL_MS)
        return ranges

    def complete(self, seq: int) -> None:
        """Settle the locked ranges of all batches up to `seq`, which have been processed."""
        self.pace.note_completed(seq, time.monotonic())
        if self._reclaim is not None:
            self._complete.set()
            acquired, self._reclaim = self._reclaim.result(), None
            self.state.note_acquired(acquired)
        self.state.note_lost(self.member.take_lost())
        completed = self.state.note_completed(seq)
        if completed:
            self.inbox.poll()
            self._settle(completed)

    def drain(self) -> None:
        """Deliver only records that are in the log now (Trigger.AvailableNow)."""
        self._drain = Drain(self.member.fetch_ends())

    def stop(self) -> None:
        self._complete.set()
        self._thread.shutdown(wait=False, cancel_futures=True)
        self.login.close()
        self.member.close()

    def report_progress(self) -> dict[str, Any]:
        """Return counts since the start of this driver, and the state of the group."""
        self.member.fetch_positions()
        counts = self.member.counts
        names = (
            "acquired",
            "redelivered",
            "accepted",
            "released",
            "rejected",
            "renewed",
            "lost",
        )
        return {
            "group": self.options.group_id,
            "lag": self.member.lag,
            "inFlight": sets.count(self.state.locked),
            "owed": sets.count(self.state.owed),
            **{name: counts[name] for name in names},
        }

    # Locking

    def _collect(self, max_records: int) -> list[OffsetRange]:
        """Acquire rows for the next batch; wait for the first as long as the options allow."""
        deadline = time.monotonic() + self.options.max_wait_ms / 1000
        rounds = 0
        while rounds < ROUNDS_MAX:
            fresh = self.state.list_fresh()
            remaining = max_records - sets.count(fresh)
            left_bytes = self.options.max_bytes - sets.sum_sizes(fresh)
            if remaining <= 0 or left_bytes <= 0 or (not fresh and self._is_drained()):
                return fresh
            began = time.monotonic()
            # Another member's acceptance may end a drain while nothing arrives here.
            wait_ms = POLL_MS if self._drain else max(0, int((deadline - began) * 1000))
            acquired = self.member.acquire(remaining, left_bytes, 0 if fresh else wait_ms)
            if acquired:
                rounds += 1
                self._settle(self.state.note_acquired(acquired))
                self._divert(acquired)
            if acquired and self._drain:
                self._drain.note_found()
            if not acquired and (fresh or self._is_over(began, deadline)):
                return fresh
        return self.state.list_fresh()

    def _is_over(self, began: float, deadline: float) -> bool:
        """Whether to stop waiting after a poll from `began` on found nothing."""
        now = time.monotonic()
        if self._drain is None and now >= deadline:
            return True
        if now - began < QUICK_S:
            time.sleep(QUICK_S)
        if self._drain is None:
            return False
        self._release_due()
        self._drain.note_nothing(time.monotonic() - began, assigned=self.member.is_assigned)
        group, timeout_s = self.options.group_id, self.member.timeout_s
        if self._drain.is_left_out(timeout_s):
            raise NotAssigned(
                f"share group {group!r} assigned this query no partition of "
                f"{', '.join(self.options.topics)} within {timeout_s:.0f} s"
            )
        if not self._drain.is_vain(self.member.lock_ms):
            return False
        log.warning(
            "share group %s: other members hold records of %s, or they wait to be delivered "
            "again; nothing has moved for %.0f s, so the query ends without them",
            group,
            ", ".join(f"{t}-{p}" for t, p in self._drain.list_open(self.member.starts)),
            idle_timeout_s(self.member.lock_ms),
        )
        return True

    def _divert(self, acquired: Iterable[OffsetRange]) -> None:
        """Reject acquired records with too many deliveries; keep those that a drain excludes."""
        limit = self.options.max_delivery_count
        often = [r for r in acquired if limit and r.delivery_count > limit]
        why = f"TooManyDeliveries: option maxDeliveryCount allows {limit}"
        self._acknowledge(sets.intersect(often, self.state.list_fresh()), OutcomeKind.REJECT, why)
        if self._drain is not None:
            postponed = [
                r.cut(max(r.first, end), r.last)
                for r in self.state.list_fresh()
                if r.last >= (end := self._drain.target.get((r.topic, r.partition), 0))
            ]
            self.state.keep(postponed)

    def _is_drained(self) -> bool:
        """Whether all records from before the start of a drain are done."""
        if self._drain is None:
            return False
        starts = self.member.fetch_positions(fresh=True)
        soon = time.monotonic() + idle_timeout_s(self.member.lock_ms)
        due = any(due_s <= soon for due_s, _, _ in self._due)
        kept_counts = Counter[tuple[str, int]]()
        for r in () if due else self.state.kept:
            kept_counts[r.topic, r.partition] += r.length
        return self._drain.is_done(starts, self.member.lags, kept_counts)

    def _prune(self, start: ShareGroupOffset) -> None:
        if self.state.owed:
            before = self.member.starts or start.starts
            now = self.member.fetch_positions(fresh=not self.member.starts)
            if now:
                self.state.prune(before, now)

    # Settling

    def _settle(self, ranges: Sequence[OffsetRange]) -> None:
        """Settle processed rows with their outcomes; rows without one are accepted."""
        if not ranges:
            return
        for kind, delay_ms, reason, matched in list(self.inbox.iterate_outcomes(ranges)):
            if kind == OutcomeKind.RELEASE and delay_ms:
                due_s = time.monotonic() + min(delay_ms, DELAY_MS_MAX) / 1000
                self.state.keep(matched)
                self._due.append((due_s, matched, reason))
                self.inbox.drop_settled(matched)
            else:
                self._acknowledge(matched, kind, reason)

    def _release_due(self) -> None:
        now = time.monotonic()
        ripe_by_reason: dict[str, list[OffsetRange]] = {}
        for due_s, ranges, reason in self._due:
            if due_s <= now:
                ripe_by_reason.setdefault(reason, []).extend(ranges)
        self._due = [entry for entry in self._due if entry[0] > now]
        for reason, ripe in ripe_by_reason.items():
            self._acknowledge(sets.intersect(ripe, self.state.kept), OutcomeKind.RELEASE, reason)

    def _acknowledge(
        self, ranges: Sequence[OffsetRange], kind: OutcomeKind, reason: str = ""
    ) -> None:
        if not ranges:
            return
        why = parse_reason(reason) if reason else None
        settled, refused = self.member.settle(ranges, _TYPES[kind], why)
        self.state.note_settled(settled)
        self.state.note_lost(refused)
        self.inbox.drop_settled(settled)
        if refused:
            log.warning(
                "share group %s: %d records had lost their locks before they could be settled; "
                "they will be delivered again, here or elsewhere",
                self.options.group_id,
                sets.count(refused),
            )
