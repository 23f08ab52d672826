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
from shoal.client.share import AcknowledgeType

from shoal_spark import ranges as sets
from shoal_spark.batch_size import BatchSize
from shoal_spark.drain import Drain, NotAssigned, patience_s
from shoal_spark.offsets import Offset, from_json, to_json
from shoal_spark.options import SourceOptions, TokenLogin, check_columns
from shoal_spark.outcome_files import DELAY_MS_MAX, Inbox, Kind
from shoal_spark.reader_state import ReaderState

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import pyarrow

    from shoal_spark.member import Member
    from shoal_spark.ranges import Range

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
    Kind.ACCEPT: AcknowledgeType.ACCEPT,
    Kind.RELEASE: AcknowledgeType.RELEASE,
    Kind.REJECT: AcknowledgeType.REJECT,
}


@dataclass(frozen=True)
class Task(InputPartition):  # type: ignore[misc]
    """The ranges that one task fetches."""

    ranges: tuple[Range, ...]
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
        self._driver: Driver | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Return what executors get: without the query's login if they have tokens for sure."""
        options = self.options
        if options.tokens:
            options = replace(options, connection=options.connection.without_login())
        return {"options": options, "_columns": [], "_driver": None}

    @property
    def driver(self) -> Driver:
        if self._driver is None:
            self._check_columns()
            self._driver = Driver(self.options)
            # Spark ends this process with SIGTERM. Without a handler the locks would have to
            # expire.
            signal.signal(signal.SIGTERM, _exit)
        return self._driver

    def _check_columns(self) -> None:
        from shoal_spark import columns

        check_columns(self._columns, columns.names(self.options.include_headers))

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self.options.max_records)

    def initialOffset(self) -> dict:
        return to_json(Offset(0, self.options.group_id, self.options.topics))

    def latestOffset(self, start: dict, limit: ReadLimit) -> dict:
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else self.options.max_records
        end = self.driver.next_batch(self._typed(start), most)
        return start if end is None else to_json(end)

    def reportLatestOffset(self) -> dict | None:
        return None if self._driver is None else self._driver.progress()

    def prepareForTriggerAvailableNow(self) -> None:
        self.driver.drain()

    def partitions(self, _start: dict, end: dict) -> Sequence[InputPartition]:
        batch = self._typed(end)
        self.driver.run(batch)
        places = len({r[:2] for r in batch.ranges})
        wanted = max(self.options.min_partitions, places)
        login = self.driver.login.current()
        return [Task(some, login) for some in sets.tasks(batch.ranges, wanted)]

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        from shoal_spark import range_reader

        assert isinstance(partition, Task)
        options = self.options
        if partition.login is not None:
            connection = options.connection.with_token(partition.login)
            options = replace(options, connection=connection)
        return range_reader.read(options, partition.ranges)

    def commit(self, end: dict) -> None:
        self.driver.complete(self._typed(end).seq)

    def stop(self) -> None:
        if self._driver is not None:
            self._driver.stop()
            self._driver = None

    def _typed(self, stored: Mapping[str, Any]) -> Offset:
        return from_json(stored, self.options.group_id, self.options.topics)


def _exit(*_: object) -> None:
    """Exit normally, so that `stop` is called. Spark sends the signal twice; the second must not
    interrupt the exit, whose duration is bounded.
    """
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(0)


class Driver:
    """The reader on the driver: the member, its state, and the batch that Spark runs."""

    def __init__(self, options: SourceOptions) -> None:
        # Imported here: executors unpickle this module and need no member.
        from shoal_spark.delegation import ExecutorLogin
        from shoal_spark.member import Member

        self.options = options
        self.state = ReaderState()
        self.inbox = Inbox(options.outcomes_dir)
        least = max(options.min_partitions, 1) * RECORDS_PER_TASK_MIN
        self.pace = BatchSize(options.target_ms / 1000, least)
        self.member: Member = Member(options, lambda: self.state.locked)
        self.login = ExecutorLogin(self.member.client, options.connection, options.tokens)
        self._end: Offset | None = None
        self._due: list[tuple[float, list[Range]]] = []
        self._drain: Drain | None = None
        self._reclaim: Future[list[Range]] | None = None
        self._complete = threading.Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="shoal-reclaim")

    # Calls from Spark

    def next_batch(self, start: Offset, max_records: int) -> Offset | None:
        """Settle completed batches and lock the rows of the next one; None if there are none."""
        self.member.join(start.member)
        self.state.resume(start)
        self.complete(start.seq)
        if self._end is not None and self._end.seq == start.seq + 1:
            return self._end
        self._prune(start)
        self._release_due()
        fresh = self._collect(self.pace.limit(max_records))
        if not fresh:
            return None
        batch = self.state.give(start.seq + 1, fresh)
        self.pace.given(start.seq + 1, sets.count(batch), time.monotonic())
        self._end = Offset(
            start.seq + 1,
            self.options.group_id,
            self.options.topics,
            batch,
            tuple(self.state.owed),
            dict(self.member.starts),
            self.member.id,
        )
        return self._end

    def run(self, batch: Offset) -> None:
        """Note that Spark runs this batch, which an earlier driver may have acquired."""
        self.member.join(batch.member)
        if self.state.replay(batch):
            log.info("share group %s: batch %d runs again", self.options.group_id, batch.seq)
            self._reclaim = self._thread.submit(self._reclaimed, sets.count(batch.ranges))

    def _reclaimed(self, count: int) -> list[Range]:
        """Acquire while an earlier driver's batch runs again; that batch's ranges come first."""
        found: list[Range] = []
        while not found and not self._complete.is_set():
            found = self.member.acquire(count, self.options.max_bytes, POLL_MS)
        return found

    def complete(self, seq: int) -> None:
        """Settle the locked ranges of all batches up to `seq`, which have been processed."""
        self.pace.completed(seq, time.monotonic())
        if self._reclaim is not None:
            self._complete.set()
            found, self._reclaim = self._reclaim.result(), None
            self.state.acquired(found)
        self.state.lost(self.member.take_lost())
        done = self.state.completed(seq)
        if done:
            self.inbox.look()
            self._settle(done)

    def drain(self) -> None:
        """Deliver only records that are in the log now (Trigger.AvailableNow)."""
        self._drain = Drain(self.member.ends())

    def stop(self) -> None:
        self._complete.set()
        self._thread.shutdown(wait=False, cancel_futures=True)
        self.login.close()
        self.member.close()

    def progress(self) -> dict[str, Any]:
        """Return counts since the start of this driver, and the state of the group."""
        self.member.positions()
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

    def _collect(self, max_records: int) -> list[Range]:
        """Acquire rows for the next batch; wait for the first as long as the options allow."""
        deadline = time.monotonic() + self.options.max_wait_ms / 1000
        rounds = 0
        while rounds < ROUNDS_MAX:
            fresh = self.state.fresh()
            left = max_records - sets.count(fresh)
            left_bytes = self.options.max_bytes - sets.size(fresh)
            if left <= 0 or left_bytes <= 0 or (not fresh and self._drained()):
                return fresh
            began = time.monotonic()
            # Another member's acceptance may end a drain while nothing arrives here.
            wait_ms = POLL_MS if self._drain else max(0, int((deadline - began) * 1000))
            found = self.member.acquire(left, left_bytes, 0 if fresh else wait_ms)
            if found:
                rounds += 1
                self._settle(self.state.acquired(found))
                self._divert(found)
            if found and self._drain:
                self._drain.found()
            if not found and (fresh or self._is_over(began, deadline)):
                return fresh
        return self.state.fresh()

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
        self._drain.nothing(time.monotonic() - began, assigned=self.member.is_assigned)
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
            ", ".join(f"{t}-{p}" for t, p in self._drain.open(self.member.starts)),
            patience_s(self.member.lock_ms),
        )
        return True

    def _divert(self, found: Iterable[Range]) -> None:
        """Reject acquired records with too many deliveries; keep those that a drain excludes."""
        limit = self.options.max_delivery_count
        often = [r for r in found if limit and r.delivery_count > limit]
        self._acknowledge(sets.both(often, self.state.fresh()), Kind.REJECT)
        if self._drain is not None:
            later = [
                r.cut(max(r.first, end), r.last)
                for r in self.state.fresh()
                if r.last >= (end := self._drain.target.get((r.topic, r.partition), 0))
            ]
            self.state.keep(later)

    def _drained(self) -> bool:
        """Whether all records from before the start of a drain are done."""
        if self._drain is None:
            return False
        starts = self.member.positions(fresh=True)
        soon = time.monotonic() + patience_s(self.member.lock_ms)
        due = any(at <= soon for at, _ in self._due)
        kept = Counter[tuple[str, int]]()
        for r in () if due else self.state.kept:
            kept[r.topic, r.partition] += r.length
        return self._drain.done(starts, self.member.lags, kept)

    def _prune(self, start: Offset) -> None:
        if self.state.owed:
            before = self.member.starts or start.starts
            now = self.member.positions(fresh=not self.member.starts)
            if now:
                self.state.prune(before, now)

    # Settling

    def _settle(self, ranges: Sequence[Range]) -> None:
        """Settle processed rows with their outcomes; rows without one are accepted."""
        if not ranges:
            return
        for kind, delay_ms, some in list(self.inbox.of(ranges)):
            if kind == Kind.RELEASE and delay_ms:
                at = time.monotonic() + min(delay_ms, DELAY_MS_MAX) / 1000
                self.state.keep(some)
                self._due.append((at, some))
                self.inbox.settled(some)
            else:
                self._acknowledge(some, kind)

    def _release_due(self) -> None:
        now = time.monotonic()
        ripe = [r for at, some in self._due if at <= now for r in some]
        self._due = [(at, some) for at, some in self._due if at > now]
        self._acknowledge(sets.both(ripe, self.state.kept), Kind.RELEASE)

    def _acknowledge(self, ranges: Sequence[Range], kind: Kind) -> None:
        if not ranges:
            return
        taken, refused = self.member.settle(ranges, _TYPES[kind])
        self.state.settled(taken)
        self.state.lost(refused)
        self.inbox.settled(taken)
        if refused:
            log.warning(
                "share group %s: %d records had lost their locks before they could be settled; "
                "they will be delivered again, here or elsewhere",
                self.options.group_id,
                sets.count(refused),
            )
