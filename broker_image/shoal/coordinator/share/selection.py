"""Chooses the records of a fetch in groups with key order, delay, priority or fairness.

It is a policy beside the state machine. Other groups use `acquisition` and none of this.

Records are scanned once, in log order and in bounded steps (`record_scanner`). From then on, each
incomplete record is in one place:

* `_delayed`, until it is due;
* behind other records of its key (`key_queues`), while the key is held;
* available (`available_queue`), in a heap of records without a key and of the first record of each
  free key. A fetch takes from the top, and never searches behind held records. Groups that are fair
  have such a heap for each tenant (`fair_queue`);
* held, while a member has it.

A key is held while any of its records is acquired, and while its first incomplete record is not
available: the record is in retry back-off or delayed. An accept frees the key at once. Any other
end of a delivery frees it once that is committed: if the write fails, the record is delivered
again, and must not come after later ones. If the group asks for it, a record also holds
its key while its dead letter is not yet written, or is neither redriven nor skipped (HOLDS_KEY). So
the key stays held after a release, an expired lock or a dead member, and its earliest record always
comes next. A HOLDS_KEY record without a key, or gone from the log, is freed.

In the window, all these records are AVAILABLE, WAITING or ACQUIRED. Nothing else is persisted.
After a restart, or if the group's configs change, incomplete records are scanned again. Entries of
the heaps may be outdated, so each is checked when it is taken.
"""

from __future__ import annotations

import heapq
from collections import Counter
from typing import TYPE_CHECKING

from shoal.coordinator.share import compiled
from shoal.coordinator.share.available_queue import OFFSET_BITS, OFFSET_MASK, AvailableQueue
from shoal.coordinator.share.bulk import lock_new
from shoal.coordinator.share.compiled_fair_queue import make_fair_queue
from shoal.coordinator.share.delivery_failure import FailureCause
from shoal.coordinator.share.fetch_limit import FetchLimit
from shoal.coordinator.share.key_queues import make_key_queues
from shoal.coordinator.share.locks import Lock
from shoal.coordinator.share.read_cache import ReadCache, compute_cache_bytes
from shoal.coordinator.share.record_facts import Fact, HeaderReader
from shoal.coordinator.share.record_scanner import LargeRead, RecordScanner
from shoal.coordinator.share.states import ACQUIRED, ARCHIVING, AVAILABLE, HOLDS_KEY, is_terminal
from shoal.coordinator.share.tenant_limits import TenantLedger
from shoal.coordinator.share.tenants import ALL_EQUAL, TenantPolicy
from shoal.record.offset_set import to_ranges

if TYPE_CHECKING:
    from array import array
    from collections.abc import Iterable, Iterator, Sequence

    from shoal.coordinator.share.batches import Batches
    from shoal.coordinator.share.fair_queue import FairQueue
    from shoal.coordinator.share.reach import Reach
    from shoal.coordinator.share.settings import SelectionPolicy, ShareSettings
    from shoal.coordinator.share.share_partition import SharePartition
    from shoal.coordinator.share.states import StateBatch
    from shoal.record.batch import Buffer

#: First offset, last offset, delivery count. A plain tuple, which the C code builds too.
Range = tuple[int, int, int]
#: Up to this many entries of the heap are checked one by one for an exact count.
QUEUED_CHECKED_MAX = 100
#: Delayed records whose due times one scrape or admin request reads: a few milliseconds of work.
DUE_COUNTED_MAX = 20_000
#: Up to this many delayed records, those behind them with the same key are counted too.
NOT_DUE_FOLLOWED_MAX = 1000


class Selection:
    """The incomplete records of one share partition, in the order in which they may be acquired."""

    __slots__ = (
        "_blind_until",
        "_delayed",
        "_delayed_heap",
        "_keyless",
        "_queue",
        "_scanner",
        "_share",
        "fair",
        "fetch_limit",
        "keys",
        "policy",
        "read_cache",
    )

    def __init__(
        self,
        share: SharePartition,
        policy: SelectionPolicy,
        tenants: TenantPolicy = ALL_EQUAL,
        ledger: TenantLedger | None = None,
    ) -> None:
        self.policy = policy
        #: Limits the records of one fetch if keys collide.
        self.fetch_limit = FetchLimit()
        #: The last reads of the scanner.
        self.read_cache = ReadCache()
        self._share = share
        header = policy.tenant_header
        headers = (
            HeaderReader(policy.delay_max_ms, policy.priority_header, header)
            if policy.delay_max_ms or policy.priority_header or header
            else None
        )
        self._scanner = RecordScanner(
            share, keys=policy.key_order, headers=headers, tenants=policy.fairness_by == "key"
        )
        #: Nothing is acquired below this offset until it is scanned: members hold records there.
        self._blind_until = share.end_offset if share.locks.live else 0
        self.keys = make_key_queues()
        #: The same queue, in groups that are fair.
        self.fair: FairQueue | None = None
        if policy.fairness_by:
            self.fair = make_fair_queue(policy, tenants, ledger or TenantLedger())
            self._scanner.is_fair_alone = self.fair.is_compiled
        self._queue = AvailableQueue(policy) if self.fair is None else self.fair
        self._delayed: set[int] = set()
        self._delayed_heap: list[int] = []
        #: HOLDS_KEY records without a key.
        self._keyless: list[int] = []

    # Facts for the shell.

    @property
    def delayed(self) -> int:
        """The number of records that are not due."""
        return len(self._delayed)

    @property
    def may_have_later(self) -> bool:
        """Whether records may wait for a time or for a limit of their tenant."""
        return bool(self._delayed) or (self.fair is not None and self.fair.has_limits)

    @property
    def queued(self) -> int:
        """The approximate number of records that may be acquired."""
        return len(self._queue)

    @property
    def held_by_key(self) -> int:
        """The number of records that wait for another record of their key: an earlier one, or the
        rest of several that were acquired together."""
        return self.keys.waiting_records

    @property
    def keys_held(self) -> int:
        """The number of keys that dead-lettered records hold. A record that was not scanned counts
        as a key."""
        key_of = self.keys.key_of
        return len(
            {key_of(offset) or ("offset", offset) for offset in self._iterate_dead_letters()}
        )

    @property
    def behind_dead_letters(self) -> int:
        """Scanned records that wait behind a HOLDS_KEY record of the same key."""
        return self.keys.waiting_behind(self._iterate_dead_letters())

    def _iterate_dead_letters(self) -> Iterator[int]:
        """Yield the HOLDS_KEY offsets."""
        for first, last, _ in self._share.get_key_holder_ranges():
            yield from range(first, last + 1)

    @property
    def blocked_by_key_holders(self) -> bool:
        """Whether the dead-lettered records that hold keys have reached their limit."""
        return self._share.key_holders >= self.policy.dead_letters_held_max

    def is_keyless(self, offset: int) -> bool:
        """Whether a record was scanned and has no key."""
        return self.policy.key_order and offset < self.cursor and self.keys.key_of(offset) is None

    def is_behind_limit(self, offset: int) -> bool:
        """Whether an available record waits behind its tenant's limit."""
        return self.fair is not None and self.fair.is_limited(offset)

    def close(self) -> None:
        """End: the share partition is dropped, or the group's configs begin another selection."""
        if self.fair is not None:
            self.fair.close()

    def is_delayed(self, offset: int) -> bool:
        """Whether a record is not due."""
        return offset in self._delayed

    def get_due_times(self) -> dict[int, int]:
        """Return the due times (epoch ms) of the delayed records by offset; none if there are more
        than `DUE_COUNTED_MAX`."""
        heap = self._delayed_heap
        if len(heap) > DUE_COUNTED_MAX:
            return {}
        return {e & OFFSET_MASK: e >> OFFSET_BITS for e in heap if e & OFFSET_MASK in self._delayed}

    @property
    def next_due_ms(self) -> int | None:
        """The time when the next delay ends, or a tenant may go on."""
        heap, delayed = self._delayed_heap, self._delayed
        while heap and heap[0] & OFFSET_MASK not in delayed:
            heapq.heappop(heap)
        due_ms = heap[0] >> OFFSET_BITS if heap else None
        free_ms = None if self.fair is None else self.fair.next_free_ms
        return due_ms if free_ms is None else min(free_ms, due_ms or free_ms)

    def count_available(self, limit: int) -> int:
        """Return the number of records below `limit` that a fetch without a limit could get.

        Records that were not scanned count, unless the scan is stopped. Behind a full window of
        known tenants, as many of them count as of those in it. Beyond `QUEUED_CHECKED_MAX`
        available records the number may be slightly too high.
        """
        offsets = None
        if len(self._queue) <= QUEUED_CHECKED_MAX:
            run_to_take = self._find_run_to_take
            offsets = [o for o in self._queue.get_offsets() if run_to_take(o) is not None]
        count = self._queue.count_deliverable(offsets)
        if self.find_exhausted_config() is not None:
            return count
        unscanned = max(0, limit - self.cursor)
        if self.is_fairness_limited:
            unscanned = unscanned * count // len(self._queue)
        return count + unscanned

    def count_not_due(self, times_ms: Sequence[int], limit: int) -> list[int]:
        """Return for each time (epoch ms, rising, the first is now) the number of records below
        `limit` that are due after it.

        These are delayed records, those in back-off, those behind one of them with its key, and
        those behind their tenant's limit.
        """
        waits = [(lock.deadline_ms, lock.records) for lock in self._share.waits.live.values()]
        counts = [len(self._delayed) - due for due in self._count_delayed_due(times_ms)]
        delayed = len(self._delayed) + self._share.backing_off
        if self.policy.key_order and delayed <= NOT_DUE_FOLLOWED_MAX:
            waits += self._find_followers_not_due()
        for due_ms, records in waits:
            for index, time_ms in enumerate(times_ms):
                counts[index] += records if due_ms > time_ms else 0
        if self.fair is not None and self.fair.has_limits:
            unscanned = max(0, limit - self.cursor) if self.is_fairness_limited else 0
            for index, behind in enumerate(self.fair.count_behind_limits(times_ms)):
                counts[index] += behind + (unscanned and unscanned * behind // len(self.fair))
        return counts

    def _count_delayed_due(self, times_ms: Sequence[int]) -> list[int]:
        """Return for each time the number of delayed records that are due by then.

        Reads the heap down to the last time and no further, and counts `DUE_COUNTED_MAX` at most.
        """
        heap, due, count, places = self._delayed_heap, [], 0, [0]
        for time_ms in times_ms:
            later_places = []
            while places and count < DUE_COUNTED_MAX:
                place = places.pop()
                if place >= len(heap):
                    continue
                if heap[place] >> OFFSET_BITS > time_ms:
                    later_places.append(place)
                    continue
                places += (2 * place + 1, 2 * place + 2)
                count += heap[place] & OFFSET_MASK in self._delayed
            places += later_places
            due.append(count)
        return due

    def _find_followers_not_due(self) -> list[tuple[int, int]]:
        """Return the due times (epoch ms) of records that block their key, and the number of
        records behind each that are neither delayed nor in back-off."""
        due_ms_of = self.get_due_times()
        for lock in self._share.waits.live.values():
            due_ms_of |= dict.fromkeys(range(lock.first, lock.last + 1), lock.deadline_ms)
        keys = self.keys
        not_due = Counter(map(keys.key_of, due_ms_of))
        return [
            (due_ms, max(0, keys.waiting_behind([offset]) + 1 - not_due[key]))
            for offset, due_ms in due_ms_of.items()
            if (key := keys.key_of(offset)) is not None and keys.first_of(key) == offset
        ]

    def count_in_flight(self) -> int:
        """Return the number of records that count against `share.partition.max.record.locks`:
        acquired, in back-off, or waiting for their dead letter. Records that wait for their key
        or their delay do not count.
        """
        share = self._share
        count = share.backing_off + share.locks.records
        if ARCHIVING in share.runs.states:
            count += sum(last - first + 1 for first, last, _ in share.iterate_archiving())
        return count

    def find_exhausted_config(self) -> str | None:
        """Return the config that stops the scan, or None."""
        policy = self.policy
        if policy.delay_max_ms and len(self._delayed) >= policy.delayed_max:
            return "share.delay.max.records"
        if self.fair is None:
            blocked = self.keys.records + len(self._queue)
        else:
            blocked = self.keys.waiting_records if policy.key_order else 0
            if self.is_fairness_limited and not self._queue.has_ready:
                return "share.fairness.lookahead.records"
        if blocked >= policy.lookahead:
            return "share.ordering.key.lookahead"
        return None

    @property
    def is_fairness_limited(self) -> bool:
        """Whether records beyond `share.fairness.lookahead.records` are not known yet, so that
        their tenants may wait for others."""
        return self.fair is not None and len(self.fair) >= self.policy.fairness_lookahead

    def needs_scan(self, records: int, limit: int) -> bool:
        """Whether a fetch of `records` records has to scan more of the log below `limit`."""
        if self.cursor >= limit:
            return False
        if self.cursor < self._blind_until:
            return True
        if self.policy.priority_header:
            records = max(records, self.policy.priority_lookahead)
        if self.fair is not None:
            records = self.policy.fairness_lookahead
        return len(self._queue) < records and self.find_exhausted_config() is None

    def may_choose(self) -> bool:
        """Whether any record can be acquired, as far as it is known."""
        return self._queue.has_ready and self.cursor >= self._blind_until

    # Scanning.

    @property
    def cursor(self) -> int:
        """The offset below which all records were scanned."""
        return self._scanner.cursor

    @property
    def headers(self) -> HeaderReader | None:
        """The reader of headers, in groups with delay or priority."""
        return self._scanner.headers

    @property
    def is_open(self) -> bool:
        """Whether a batch is partly scanned: `scan` resumes it without a read."""
        return self._scanner.is_open

    @property
    def must_pause(self) -> bool:
        """Whether the scan must continue in a later turn of the event loop."""
        return self._scanner.must_pause

    @property
    def large_read(self) -> LargeRead | None:
        """The read of a batch that takes too long for the event loop, until it is scanned."""
        return self._scanner.large_read

    def begin_scan(self) -> None:
        """Begin to scan in another turn of the event loop."""
        self._scanner.begin_step()

    def find_next_scan_offset(self) -> int:
        """Return the offset to read the log from."""
        return self._scanner.find_next_offset()

    def scan(
        self, now_ms: int, budget: int, settings: ShareSettings, batches: Batches | None
    ) -> tuple[int, list[StateBatch]]:
        """Scan about `budget` records from `find_next_scan_offset` on.

        Return their number and the state batches to persist for skipped offsets. `batches` is
        None while a batch is open.
        """
        changes: list[StateBatch] = []
        if batches is None:
            scanned = self._scanner.resume(self, now_ms, budget, settings, changes)
        else:
            scanned = self._scanner.scan(batches, self, now_ms, budget, settings, changes)
        for offset in self._keyless:
            changes += self._share.free(offset, offset)
        self._keyless.clear()
        if changes:
            self._share.advance()
        return scanned, changes

    def keep_read(self, batches: Batches) -> None:
        """Keep a read of the log for the fetches that get its records."""
        queue_bytes = 0 if self.fair is None else self.fair.size_bytes
        self.read_cache.bytes_max = compute_cache_bytes(self.policy, queue_bytes)
        self.read_cache.add(batches)

    def take_in_new(self, first: int, keys: array[int]) -> None:
        """Add new records from `first` on, of which only the keys matter."""
        self.keys.put_new(first, keys, self._queue.entries)

    def take_in_tenants(self, batches: Batches, first: int, budget: int) -> int:
        """Add new records from `first` on, of which only the tenants matter, of the first whole
        batches within the budget. Return the number of batches."""
        return 0 if self.fair is None else self.fair.put_new(batches, first, budget)

    def take_in_body(
        self, body: Buffer, begin: int, end: int, base: int, count: int, first: int
    ) -> bool:
        """Add the records of a batch as `take_in_tenants` does. Return whether that is possible."""
        assert self.fair is not None
        return self.fair.put_body(body, begin, end, base, count, first)

    def take_in(self, fact: Fact, now_ms: int) -> None:
        """Add a record of the window."""
        offset, key, due_ms, priority, tenant = fact
        runs = self._share.runs
        firsts = runs.firsts
        if not firsts or offset < firsts[0]:
            return
        # Most scanned records are new, and in the last run.
        state = runs.states[-1 if offset >= firsts[-1] else runs.find_run(offset)]
        if state != AVAILABLE:
            if not key and state == HOLDS_KEY:
                self._keyless.append(offset)
            if not self._is_holding_key(state):
                return
            due_ms = 0
        self._queue.add(offset, priority, tenant)
        if due_ms:
            self._delayed.add(offset)
            heapq.heappush(self._delayed_heap, due_ms << OFFSET_BITS | offset)
        is_first = not key or self.keys.put(offset, key)
        if state == ACQUIRED:
            self.keys.reserve(offset)
            self._queue.hold(offset, now_ms)
        if not is_first:
            return
        if state == AVAILABLE and not due_ms:
            self._queue.push(offset, now_ms)

    def _is_holding_key(self, state: int) -> bool:
        """Whether a record in `state`, which is not acquired, holds its key."""
        if state in (ARCHIVING, HOLDS_KEY):
            return self.policy.key_held_by_dead_letter
        return not is_terminal(state)

    # Changes of records.

    def apply_changes(self, changes: Sequence[StateBatch], now_ms: int) -> None:
        """Follow state changes: members gave records back, or dead letters were written."""
        self._apply_changes(changes, now_ms)
        if self._share.start_offset >= self.cursor:
            self.read_cache.clear()  # No scanned record is left.

    def _apply_changes(self, changes: Sequence[StateBatch], now_ms: int) -> None:
        keys, queue, runs = self.keys, self._queue, self._share.runs
        if self._end_all(changes, now_ms):
            return
        touched: dict[int, None] = {}
        ended: list[int] = []
        for first, last, state, _ in changes:
            if state == AVAILABLE and not self._share.start_offset <= first:
                continue
            offsets = range(first, min(last, self.cursor - 1) + 1)
            if not self._is_holding_key(state):
                ended += offsets
                continue
            self._delayed.difference_update(offsets if state == ARCHIVING else ())  # Cancelled.
            queue.release(offsets, now_ms)
            available = state == AVAILABLE == runs.states[runs.find_run(first)]
            for offset in offsets:
                key = keys.release(offset)
                if key is not None:
                    touched[key] = None
                elif available:
                    queue.push(offset, now_ms)
        if ended:
            self._end(ended, touched, now_ms)
        for key in touched:
            self._offer_key(key, now_ms)

    def _end_all(self, changes: Sequence[StateBatch], now_ms: int) -> bool:
        """Follow changes by one call, if all complete records and a loop exists for the group."""
        queue, cursor = self._queue, self.cursor
        if self._is_plain:
            return self.keys.end_all(changes, cursor, queue.entries, self._share.runs)
        return queue.end_all(changes, cursor, now_ms)

    @property
    def _is_plain(self) -> bool:
        """Whether the group has key order alone."""
        policy = self.policy
        is_ordered_alone = policy.key_order and not policy.priority_header and self.fair is None
        return is_ordered_alone and not self._delayed

    def _end(self, offsets: Iterable[int], touched: dict[int, None], now_ms: int) -> None:
        """Remove complete records."""
        self._queue.end(offsets, now_ms)
        if self._delayed:
            self._delayed.difference_update(offsets)
        self.keys.end(offsets, touched)

    def make_available(self, ranges: Iterable[tuple[int, int]], now_ms: int) -> None:
        """Add records whose back-off has ended."""
        for first, last in ranges:
            for offset in range(first, min(last, self.cursor - 1) + 1):
                self._offer_record(offset, now_ms)

    def _offer_record(self, offset: int, now_ms: int) -> None:
        """Make a record available if its key is free."""
        key = self.keys.key_of(offset)
        if key is None:
            self._queue.push(offset, now_ms)
        else:
            self._offer_key(key, now_ms)

    def end_delays(self, now_ms: int) -> bool:
        """Make records available whose delay is over, and let tenants go on that waited for a time.
        Return whether there were any."""
        heap, has_ended = self._delayed_heap, False
        if self.fair is not None:
            has_ended = self.fair.unpark(now_ms)
        while heap and heap[0] >> OFFSET_BITS <= now_ms:
            offset = heapq.heappop(heap) & OFFSET_MASK
            if offset in self._delayed:
                self._delayed.discard(offset)
                self._offer_record(offset, now_ms)
                has_ended = True
        return has_ended

    def on_log_start_moved(self, now_ms: int) -> None:
        """Remove records below the window's start."""
        start = self._share.log_start_offset
        self._delayed = {offset for offset in self._delayed if offset >= start}
        self._queue.drop_below(start, now_ms)
        touched: dict[int, None] = {}
        self.keys.start_moved(start, touched)
        for key in touched:
            self._offer_key(key, now_ms)
        self._scanner.skip_below(self._share.start_offset)

    def _offer_key(self, key: int, now_ms: int) -> None:
        """Make the first record of a key available, if the key is free."""
        first = self.keys.first_of(key)
        if first is not None and first not in self._delayed:
            runs = self._share.runs
            if runs.states[runs.find_run(first)] == AVAILABLE:
                self._queue.push(first, now_ms)

    # Acquiring.

    def choose(
        self, records: int, settings: ShareSettings, now_ms: int, reach: Reach | None = None
    ) -> tuple[list[int], list[StateBatch]]:
        """Choose up to `records` available offsets, the most urgent ones, and return them in log
        order.

        Also return the changes to persist of records that reached a lowered delivery limit. Near
        the limit a record is delivered alone, as in `acquisition`, but without halves. With a
        `reach`, the choice ends at a record that is too far from the others.
        """
        chosen: list[int] = []
        changes: list[StateBatch] = []
        runs, queue, share, keys = self._share.runs, self._queue, self._share, self.keys
        limit, splitting = settings.delivery_count_limit, settings.splitting_count
        queue.begin(now_ms, records)
        if self._is_plain and self.policy.key_batch == 1 and queue.entries:
            keys.choose(queue.entries, runs, records, min(limit, splitting), chosen)
        elif queue.choose(runs, records, min(limit, splitting), reach, now_ms, chosen):
            records = len(chosen)
        while len(chosen) < records and (offset := queue.pop()) is not None:
            run = self._find_run_to_take(offset)
            if run is None:
                continue
            count = runs.counts[run]
            if count >= limit:
                cause = FailureCause.LIMIT if settings.dead_letters else None
                share.archive(offset, offset, changes, cause)
                share.failed.append(changes[-1])
                self._reserve(offset)
                continue
            alone = count >= splitting
            if (alone and chosen) or not (reach is None or reach.has(offset)):
                queue.put_back(offset, now_ms)
                break
            self._reserve(offset)
            queue.take(offset, now_ms)
            chosen.append(offset)
            if alone:
                break
            if self.policy.key_batch > 1:
                self._take_followers(offset, chosen, records, splitting, now_ms)
        chosen.sort()
        self.fetch_limit.note_delivery(len(chosen), keys.keys, keys.waiting)
        return chosen, changes

    def _reserve(self, offset: int) -> None:
        """Note that a record is chosen. A compiled queue of tenants knows that by itself."""
        if self.fair is None or not self.fair.is_compiled:
            self.keys.reserve(offset)

    def _find_run_to_take(self, offset: int) -> int | None:
        """Return the run of an entry of the heap, or None if the entry is outdated."""
        runs = self._share.runs
        if offset < runs.start or self.keys.is_reserved(offset) or offset in self._delayed:
            return None
        run = runs.find_run(offset)
        return run if runs.states[run] == AVAILABLE and self.keys.is_free(offset) else None

    def _take_followers(
        self, first: int, chosen: list[int], records: int, splitting: int, now_ms: int
    ) -> None:
        """Choose the next records of the same key, as far as one member may get them at once."""
        runs = self._share.runs
        for offset in self.keys.followers(first, self.policy.key_batch - 1):
            run = runs.find_run(offset)
            if (
                len(chosen) >= records
                or offset in self._delayed
                or runs.states[run] != AVAILABLE
                or runs.counts[run] >= splitting
                or not self._queue.may_take(offset)
            ):
                break
            self.keys.reserve(offset)
            self._queue.forget(offset)
            self._queue.take(offset, now_ms)
            chosen.append(offset)

    def put_back(self, offsets: Iterable[int], now_ms: int) -> None:
        """Return chosen records that are not acquired; they keep the time that they have waited."""
        back = list(offsets)
        for offset in back:
            self._queue.restore(offset)
        self.apply_changes([(o, o, AVAILABLE, 0) for o in back], now_ms)

    def lock_new(self, chosen: list[int], number: int, read: Iterable[Batches]) -> list[Range]:
        """Lock all chosen offsets at once, and return their ranges.

        Return none, and change nothing, if some were delivered before or must be skipped.
        """
        if not chosen or any(batches.skipped for batches in read):
            return []
        ranges = build_acquired_ranges(chosen)
        return ranges if lock_new(self._share.runs, ranges, number) else []

    def lock(
        self,
        chosen: list[int],
        number: int,
        batches: Batches,
        settings: ShareSettings,
        now_ms: int,
    ) -> tuple[list[Range], list[StateBatch]]:
        """Lock chosen offsets under `number`. `batches` are the ones that were read for them.

        Return first offset, last offset and delivery count of each range, and the changes to
        persist. Offsets that the log has lost, and corrupt redelivered batches, are skipped.
        """
        share, runs = self._share, self._share.runs
        changes: list[StateBatch] = []
        records: list[Range] = []
        for first, last in batches.skipped:
            share.archive(first, min(last, share.end_offset - 1), changes)
        for first, last, _ in build_acquired_ranges(chosen):
            while first <= last:
                run = runs.find_run(first)
                high, count = min(last, runs.get_last(run)), runs.counts[run]
                if runs.states[run] == AVAILABLE:
                    bad = batches.find_first_corrupt(first, high) if count else None
                    if bad is not None and bad[0] <= first:
                        high = min(high, bad[1])
                        cause = FailureCause.CORRUPT if settings.dead_letters else None
                        share.archive(first, high, changes, cause)
                    else:
                        high = high if bad is None else bad[0] - 1
                        share.lock(first, high, number)
                        records.append((first, high, count + 1))
                first = high + 1
        self.apply_changes(changes, now_ms)
        return records, changes


def open_lock(
    share: SharePartition,
    number: int,
    member_id: str,
    deadline_ms: int,
    records: Sequence[Range],
    record_count: int,
    *,
    now_ms: int,
) -> None:
    """Start the lock of acquired ranges with `record_count` records."""
    first, last = records[0][0], records[-1][1]
    lock = Lock(
        member_id, deadline_ms, first=first, last=last, records=record_count, since_ms=now_ms
    )
    share.locks.open(number, lock)


def encode_ranges(ranges: Sequence[Range]) -> bytes:
    """Return ranges encoded for the answer to a fetch; empty if the caller encodes them."""
    if compiled.native is None or type(ranges) is not list:
        return b""
    data: bytes = compiled.native.acquired(ranges)
    return data


def build_acquired_ranges(offsets: list[int]) -> list[Range]:
    """Return ascending offsets as ranges without holes, each with delivery count 1."""
    if compiled.native is not None:
        return compiled.native.ranges(offsets)
    return [(first, last, 1) for first, last in to_ranges(offsets)]
