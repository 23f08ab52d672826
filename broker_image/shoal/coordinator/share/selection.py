"""Which records of a share partition a fetch gets where the order of the log is not all there is:
with key order, delay and priority. A policy beside the state machine, for groups that ask for it;
the others have `acquisition`, and none of this.

Records are looked at once, in the order of the log and a bounded number at a time (`look_at`). From
then on each record that is not complete is in one place:

* `_delayed`, until its time has come;
* behind others of its key in `_queues`, where its key is held;
* in `_ready`, a heap of what may be acquired: records without a key, and the first of each key that
  is free. A fetch takes from its top and never searches past what is held, however much that is;
* in `_held`, while a member has it.

A key is held while any of its records is acquired, and while its first record that is not complete
is not available: it is in retry back-off, or delayed, or, where the group wants that, its dead
letter is yet to be written, or is written and neither redriven nor skipped (HELD). So a release, a
lock that ends and a member that dies hold the key, and what comes next of it is always the
earliest. What is HELD and turns out to have no key, or to be gone from the log, is freed.

In the window all of these are AVAILABLE, WAITING or ACQUIRED as without this. Nothing is persisted
beyond that: after a restart the log tells it anew, of what is not complete alone. The same goes for
a group whose configs change. Entries of the heaps may be outdated: who takes one checks it.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

from shoal.coordinator.share.batches import Batches
from shoal.coordinator.share.bulk import lock_new
from shoal.coordinator.share.fate import Cause
from shoal.coordinator.share.locks import Lock
from shoal.coordinator.share.portion import Portion
from shoal.coordinator.share.record_facts import (
    PRIORITY_MAX,
    Fact,
    HeaderReader,
    facts,
    key_hashes,
)
from shoal.coordinator.share.settings import SelectionPolicy, ShareSettings
from shoal.coordinator.share.share_partition import SharePartition, StateBatch
from shoal.coordinator.share.states import ACQUIRED, ARCHIVING, AVAILABLE, HELD, is_terminal
from shoal.record.batch import CorruptBatch

_OFFSET_BITS = 64
_OFFSET_MASK = (1 << _OFFSET_BITS) - 1
#: So many times what a fetch wants are rather sorted than taken from the heap one by one.
_SORTED_MAX = 4


class Selection:
    """What is known of one share partition's records that are not complete."""

    __slots__ = (
        "_blind_until",
        "_busy",
        "_delayed",
        "_delayed_heap",
        "_held",
        "_key_of",
        "_keyless",
        "_open",
        "_open_last",
        "_priority_of",
        "_queues",
        "_ready",
        "_share",
        "_taken",
        "_waiting",
        "cursor",
        "headers",
        "policy",
        "portion",
    )

    def __init__(self, share: SharePartition, policy: SelectionPolicy) -> None:
        self.policy = policy
        #: Bounds what one fetch gets, where keys collide.
        self.portion = Portion()
        self._share = share
        #: What lies below has been looked at.
        self.cursor = share.start_offset
        #: Members hold records whose keys are not known yet: nothing is acquired before this.
        self._blind_until = share.end_offset if share.locks.live else 0
        self._ready: list[int] = []
        #: Entries of `_ready` that were chosen last, by offset: they hold since when each waits.
        self._taken: dict[int, int] = {}
        self._queues: dict[int, list[int]] = {}
        self._key_of: dict[int, int] = {}
        #: Keys of which there is more than one in `_queues`.
        self._waiting = 0
        #: Acquired, or about to be; of a key, how many.
        self._held: set[int] = set()
        self._busy: dict[int, int] = {}
        self._delayed: set[int] = set()
        #: Those that have one above 0.
        self._priority_of: dict[int, int] = {}
        self._delayed_heap: list[int] = []
        #: The rest of a batch that one look did not get through, and its last offset.
        self._open: Iterator[Fact] | None = None
        self._open_last = -1
        #: HELD records that were found to have no key.
        self._keyless: list[int] = []
        wanted = policy.delay_max_ms or policy.priority_header
        self.headers = HeaderReader(policy.delay_max_ms, policy.priority_header) if wanted else None

    # Facts for the shell.

    @property
    def delayed(self) -> int:
        """Records whose time has not come."""
        return len(self._delayed)

    @property
    def ready(self) -> int:
        """About how many records may be acquired."""
        return len(self._ready)

    @property
    def held_by_key(self) -> int:
        """Records that wait for another of their key: one before them or, where several of a key
        were acquired at once, for the rest of those."""
        behind = len(self._key_of) - len(self._queues)
        return behind - (len(self._held & self._key_of.keys()) - len(self._busy))

    @property
    def keys_held(self) -> int:
        """Keys that dead-lettered records hold; each of those counts that was not looked at."""
        return len({self._key_of.get(at, ("offset", at)) for at in self._dead_letters()})

    @property
    def behind_dead_letters(self) -> int:
        """Records that wait for one with their key that is HELD, as far as they were looked at."""
        known = [self._key_of[at] for at in self._dead_letters() if at in self._key_of]
        waiting = (len(self._queues[key]) - self._busy.get(key, 0) for key in set(known))
        return sum(waiting) - len(known)

    def _dead_letters(self) -> Iterator[int]:
        """The offsets that are HELD."""
        for first, last, _ in self._share.held_ranges():
            yield from range(first, last + 1)

    @property
    def held_to_the_full(self) -> bool:
        """Whether so many dead-lettered records hold their keys that nothing is delivered."""
        return self._share.held >= self.policy.dead_letters_held_max

    def is_keyless(self, offset: int) -> bool:
        """Whether a record is known to have no key."""
        return self.policy.key_order and offset < self.cursor and offset not in self._key_of

    @property
    def next_due_ms(self) -> int | None:
        """When the next delay ends."""
        heap, delayed = self._delayed_heap, self._delayed
        while heap and heap[0] & _OFFSET_MASK not in delayed:
            heapq.heappop(heap)
        return heap[0] >> _OFFSET_BITS if heap else None

    def in_flight(self) -> int:
        """Records that count against `share.partition.max.record.locks`: acquired, in retry
        back-off, or waiting for their dead letter. What is held back does not."""
        share = self._share
        count = share.backing_off + sum(lock.held for lock in share.locks.live.values())
        if ARCHIVING in share.runs.states:
            count += sum(last - first + 1 for first, last, _ in share.archiving())
        return count

    def full(self) -> str | None:
        """Why no further records are looked at, as the config that says so; None if they are."""
        policy = self.policy
        if policy.delay_max_ms and len(self._delayed) >= policy.delayed_max:
            return "share.delay.max.records"
        if len(self._key_of) + len(self._ready) >= policy.lookahead:
            return "share.ordering.key.lookahead"
        return None

    def wants_look(self, records: int, limit: int) -> bool:
        """Whether a fetch of so many records has to know more of the log below `limit`."""
        if self.cursor >= limit:
            return False
        if self.cursor < self._blind_until:
            return True
        if self.policy.priority_header:
            records = max(records, self.policy.priority_lookahead)
        return len(self._ready) < records and self.full() is None

    def may_choose(self) -> bool:
        """Whether something can be acquired, as far as is known."""
        return bool(self._ready) and self.cursor >= self._blind_until

    # Looking at records.

    def next_look(self) -> int:
        """The offset to read the log from: behind the cursor, past what is complete."""
        share, runs = self._share, self._share.runs
        self.cursor = max(self.cursor, share.start_offset)
        if self._open is None and self.cursor < runs.end:
            row = runs.row_of(self.cursor)
            while row < len(runs) and is_terminal(runs.states[row]):
                row += 1
            if row == len(runs):
                self.cursor = runs.end
            else:
                self.cursor = max(self.cursor, runs.firsts[row])
        return self.cursor

    @property
    def is_open(self) -> bool:
        """Whether a batch is half read: `look_on` goes on with it, and no read is needed."""
        return self._open is not None

    def look(
        self, now_ms: int, budget: int, settings: ShareSettings, batches: Batches | None
    ) -> tuple[int, list[StateBatch]]:
        """Take in what the log holds from `next_look` on, up to about `budget` records: how many
        those were, and what was passed by, to be persisted. `batches` is None while one is open."""
        changes: list[StateBatch] = []
        if batches is None:
            taken = self._look_on(now_ms, budget, settings, changes)
        else:
            taken = self._look_at(batches, now_ms, budget, settings, changes)
        for offset in self._keyless:
            changes += self._share.free(offset, offset)
        self._keyless.clear()
        if changes:
            self._share.advance()
        return taken, changes

    def _look_at(
        self,
        batches: Batches,
        now_ms: int,
        budget: int,
        settings: ShareSettings,
        changes: list[StateBatch],
    ) -> int:
        share = self._share
        whole, taken = self._look_at_keys(batches, budget)
        passed = iter(batches.passed_by)
        gap = next(passed, None)
        for at in range(whole, len(batches) if taken < budget else whole):
            base, last = batches.bases[at], batches.lasts[at]
            while gap is not None and gap[0] <= max(base, self.cursor):
                # A hole before this batch, or control batches: this one, or more.
                share.archive(max(gap[0], self.cursor), gap[1], changes)
                changes += share.free(max(gap[0], self.cursor), gap[1])
                self.cursor = max(self.cursor, gap[1] + 1)
                gap = next(passed, None)
            if last < self.cursor:
                continue
            if last >= share.end_offset:
                share.extend(last)
            begin = batches.ends[at - 1] if at else 0
            keys = self.policy.key_order
            self._open = facts(batches.data, begin, keys=keys, headers=self.headers)
            self._open_last = last
            taken += self._look_on(now_ms, budget - taken, settings, changes)
            if taken >= budget:
                break
        return taken

    def _look_at_keys(self, batches: Batches, budget: int) -> tuple[int, int]:
        """Look at the batches that come first, as far as the keys alone are wanted of them and the
        window has them as new and without holes: how many batches and records that was."""
        share, runs, cursor = self._share, self._share.runs, self.cursor
        if not self.policy.key_order or self.headers is not None or batches.passed_by:
            return 0, 0
        if cursor < runs.end and (cursor < runs.firsts[-1] or runs.states[-1] != AVAILABLE):
            return 0, 0
        data, begin, whole = bytes(batches.data), 0, 0
        keys: list[int] = []
        for base, last, end in zip(batches.bases, batches.lasts, batches.ends, strict=True):
            found = key_hashes(data, begin, end) if last - cursor < budget else None
            if found is None:
                break
            keys += found[cursor - base :] if base < cursor else found
            begin, whole = end, whole + 1
        if not whole:
            return 0, 0
        last = batches.lasts[whole - 1]
        if last >= share.end_offset:
            share.extend(last)
        self._take_in_new(cursor, keys)
        self.cursor = last + 1
        return whole, len(keys)

    def _take_in_new(self, first: int, keys: Sequence[int]) -> None:
        """Put records that were never delivered into their places, from `first` on, of which the
        keys are known and nothing else is to be."""
        ready, queues, waiting = self._ready, self._queues, 0
        pairs = zip(range(first, first + len(keys)), keys, strict=True)
        self._key_of.update(x for x in pairs if x[1]) if 0 in keys else self._key_of.update(pairs)
        for offset, key in enumerate(keys, first):
            if key:
                queue = queues.get(key)
                if queue is not None:
                    waiting += len(queue) == 1
                    queue.append(offset)
                    continue
                queues[key] = [offset]
            ready.append(offset)  # Behind all others, so that the heap is still one.
        self._waiting += waiting

    def _look_on(
        self, now_ms: int, budget: int, settings: ShareSettings, changes: list[StateBatch]
    ) -> int:
        """Go on with the batch that is open: how many of its records were looked at."""
        assert self._open is not None
        share, looked, cause = self._share, 0, None
        if self.headers is not None:
            self.headers.now_ms = now_ms
        try:
            for fact in islice(self._open, budget):
                looked += 1
                offset = fact[0]
                if self.cursor <= offset <= self._open_last:
                    if offset > self.cursor:  # Compaction took what was between.
                        share.archive(self.cursor, offset - 1, changes)
                        changes += share.free(self.cursor, offset - 1)
                    self.cursor = offset + 1
                    self._take_in(fact, now_ms)
            if looked == budget:
                return looked
        except CorruptBatch:
            cause = Cause.CORRUPT if settings.dead_letters else None
        self._open = None
        if self.cursor <= self._open_last:
            share.archive(self.cursor, self._open_last, changes, cause)
            changes += share.free(self.cursor, self._open_last)
            self.cursor = self._open_last + 1
        return max(looked, 1)

    def _take_in(self, fact: Fact, now_ms: int) -> None:
        """Put a record, which the window holds, into its place."""
        offset, key, due_ms, priority = fact
        runs = self._share.runs
        firsts = runs.firsts
        if not firsts or offset < firsts[0]:
            return
        # Most of what is looked at is new, and in the last row.
        state = runs.states[-1 if offset >= firsts[-1] else runs.row_of(offset)]
        if state != AVAILABLE:
            if not key and state == HELD:
                self._keyless.append(offset)
            if not self._holds_key(state):
                return
            due_ms = 0
        if priority:
            self._priority_of[offset] = priority
        if due_ms:
            self._delayed.add(offset)
            heapq.heappush(self._delayed_heap, due_ms << _OFFSET_BITS | offset)
        if state == ACQUIRED:
            self._held.add(offset)
        if key:
            self._key_of[offset] = key
            if state == ACQUIRED:
                self._busy[key] = self._busy.get(key, 0) + 1
            queue = self._queues.get(key)
            if queue is not None:
                self._waiting += len(queue) == 1
                queue.append(offset)
                return
            self._queues[key] = [offset]
        if state == AVAILABLE and not due_ms:
            self._push(offset, now_ms)

    def _holds_key(self, state: int) -> bool:
        """Whether a record in `state`, which is not acquired, keeps its key from going on."""
        if state in (ARCHIVING, HELD):
            return self.policy.key_held_by_dead_letter
        return not is_terminal(state)

    # What becomes of records.

    def changed(self, changes: Iterable[StateBatch], now_ms: int) -> None:
        """Members gave records back, or dead letters were written: what became of them."""
        touched: set[int] = set()
        for first, last, state, _ in changes:
            if state == AVAILABLE and not self._share.start_offset <= first:
                continue
            done = not self._holds_key(state)
            if not done and state == AVAILABLE:
                row = self._share.runs.row_of(first)
                available = self._share.runs.states[row] == AVAILABLE
            else:
                available = False
            if done:
                self._end(range(first, min(last, self.cursor - 1) + 1), touched)
                continue
            for offset in range(first, min(last, self.cursor - 1) + 1):
                self._give_back(offset, False, available, touched, now_ms)
        for key in touched:
            self._offer(key, now_ms)

    def _end(self, offsets: range, touched: set[int]) -> None:
        """Forget records that are complete; the keys that others wait for are `touched`."""
        held, key_of, queues, busy = self._held, self._key_of, self._queues, self._busy
        if self._priority_of or self._delayed:
            for offset in offsets:
                self._priority_of.pop(offset, None)
                self._delayed.discard(offset)
        for offset in offsets:
            key = key_of.pop(offset, None)
            if offset in held:
                held.discard(offset)
                if key is None:
                    continue
                if busy[key] == 1:
                    del busy[key]
                else:
                    busy[key] -= 1
            elif key is None:
                continue
            queue = queues[key]
            if len(queue) == 1:
                del queues[key]
            else:
                queue.remove(offset)
                self._waiting -= len(queue) == 1
                touched.add(key)

    def _give_back(
        self, offset: int, done: bool, available: bool, touched: set[int], now_ms: int
    ) -> None:
        held = offset in self._held
        if held:
            self._held.discard(offset)
        if done:
            self._priority_of.pop(offset, None)
            self._delayed.discard(offset)
        key = self._key_of.get(offset)
        if key is None:
            if available:
                self._push(offset, now_ms)
            return
        touched.add(key)
        if held:
            left = self._busy[key] - 1
            if left:
                self._busy[key] = left
            else:
                del self._busy[key]
        if done:
            del self._key_of[offset]
            queue = self._queues[key]
            if len(queue) == 1:
                del self._queues[key]
            else:
                queue.remove(offset)
                self._waiting -= len(queue) == 1

    def available_again(self, ranges: Iterable[tuple[int, int]], now_ms: int) -> None:
        """Waits in retry back-off have ended."""
        for first, last in ranges:
            for offset in range(first, min(last, self.cursor - 1) + 1):
                key = self._key_of.get(offset)
                if key is None:
                    self._push(offset, now_ms)
                else:
                    self._offer(key, now_ms)

    def end_delays(self, now_ms: int) -> bool:
        """Make ready what has been delayed long enough: whether there was any."""
        heap, found = self._delayed_heap, False
        while heap and heap[0] >> _OFFSET_BITS <= now_ms:
            offset = heapq.heappop(heap) & _OFFSET_MASK
            if offset in self._delayed:
                self._delayed.discard(offset)
                key = self._key_of.get(offset)
                if key is None:
                    self._push(offset, now_ms)
                else:
                    self._offer(key, now_ms)
                found = True
        return found

    def log_start_moved(self, now_ms: int) -> None:
        """What lay below the window's start is gone from the log."""
        start = self._share.start_offset
        gone = [offset for offset in self._key_of if offset < start]
        self._delayed = {offset for offset in self._delayed if offset >= start}
        self._priority_of = {o: p for o, p in self._priority_of.items() if o >= start}
        self._held = {o for o in self._held if o >= start or o in self._key_of}
        touched: set[int] = set()
        for offset in gone:
            self._give_back(offset, True, False, touched, now_ms)
        for key in touched:
            self._offer(key, now_ms)
        if self._open is not None and self._open_last < start:
            self._open = None
        self.cursor = max(self.cursor, start)

    def _offer(self, key: int, now_ms: int) -> None:
        """Make the first record of a key ready, if the key is free."""
        queue = self._queues.get(key)
        if queue is not None and key not in self._busy and queue[0] not in self._delayed:
            runs = self._share.runs
            if runs.states[runs.row_of(queue[0])] == AVAILABLE:
                self._push(queue[0], now_ms)

    def _push(self, offset: int, now_ms: int) -> None:
        policy = self.policy
        if policy.priority_header:
            steps = PRIORITY_MAX - self._priority_of.get(offset, 0)
            rank = now_ms + steps * policy.priority_ageing_ms
            heapq.heappush(self._ready, rank << _OFFSET_BITS | offset)
        else:
            heapq.heappush(self._ready, offset)

    # Acquiring.

    def choose(
        self, records: int, settings: ShareSettings, now_ms: int
    ) -> tuple[list[int], list[StateBatch]]:
        """Take up to so many offsets that may be acquired, the most urgent ones, in the order of
        the log; and what was given up because the delivery limit was lowered, to be persisted.

        Near the limit a record is delivered alone, as `acquisition` has it, but without halves.
        """
        chosen: list[int] = []
        changes: list[StateBatch] = []
        runs, ready, share = self._share.runs, self._ready, self._share
        limit, splitting = settings.delivery_count_limit, settings.splitting_count
        self._taken = taken = {}
        plain = self.policy.key_order and self.policy.key_batch == 1
        plain = plain and not self._delayed and not self.policy.priority_header
        fresh = runs.firsts[-1] if len(runs) and runs.states[-1] == AVAILABLE else runs.end
        if fresh < runs.end and runs.counts[-1]:
            fresh = runs.end
        while ready and len(chosen) < records:
            if plain and ready[0] >= fresh:
                plain = False
                if self._take_new(chosen, records - len(chosen)):
                    break
            entry = heapq.heappop(ready)
            offset = entry & _OFFSET_MASK
            row = self._row_to_take(offset)
            if row is None:
                continue
            count = runs.counts[row]
            if count >= limit:
                cause = Cause.LIMIT if settings.dead_letters else None
                share.archive(offset, offset, changes, cause)
                self.changed([changes[-1]], now_ms)
                continue
            alone = count >= splitting
            if alone and chosen:
                heapq.heappush(ready, entry)
                break
            self._hold(offset)
            chosen.append(offset)
            taken[offset] = entry
            if alone:
                break
            if self.policy.key_batch > 1:
                self._take_key(offset, chosen, records, splitting)
        chosen.sort()
        self.portion.delivered(len(chosen), len(self._queues), self._waiting)
        return chosen, changes

    def _take_new(self, chosen: list[int], records: int) -> bool:
        """Take so many of those that may be acquired, none of which was ever delivered, at once:
        a third of the time. False where that is not simple; then nothing has happened."""
        ready, busy, held = self._ready, self._busy, self._held
        if len(ready) > _SORTED_MAX * records:
            return False
        ready.sort()
        offsets = ready[:records]
        keys: list[Any] = list(map(self._key_of.get, offsets))
        taken, firsts = dict.fromkeys(keys, 1), offsets
        if taken.pop(None, 0):
            firsts = [o for o, key in zip(offsets, keys, strict=True) if key is not None]
        if not held.isdisjoint(offsets) or not busy.keys().isdisjoint(taken):
            return False
        if [self._queues[key][0] for key in taken] != firsts:
            return False
        del ready[:records]
        busy.update(taken)
        held.update(offsets)
        chosen += offsets
        return True

    def _row_to_take(self, offset: int) -> int | None:
        """Where the window has the offset of an entry of the heap; None if that is outdated."""
        runs = self._share.runs
        if offset < runs.start or offset in self._held or offset in self._delayed:
            return None
        row = runs.row_of(offset)
        if runs.states[row] != AVAILABLE:
            return None
        key = self._key_of.get(offset)
        if key is not None and (key in self._busy or self._queues[key][0] != offset):
            return None
        return row

    def _take_key(self, first: int, chosen: list[int], records: int, splitting: int) -> None:
        """Take what follows with the same key, as far as it goes to one member at once."""
        key = self._key_of.get(first)
        if key is None:
            return
        runs = self._share.runs
        for offset in self._queues[key][1 : self.policy.key_batch]:
            row = runs.row_of(offset)
            if (
                len(chosen) >= records
                or offset in self._delayed
                or runs.states[row] != AVAILABLE
                or runs.counts[row] >= splitting
            ):
                break
            self._hold(offset)
            chosen.append(offset)

    def _hold(self, offset: int) -> None:
        self._held.add(offset)
        key = self._key_of.get(offset)
        if key is not None:
            self._busy[key] = self._busy.get(key, 0) + 1

    def put_back(self, offsets: Iterable[int], now_ms: int) -> None:
        """What was chosen last is not acquired after all, and has waited all the same."""
        back = list(offsets)
        self.changed([(o, o, int(AVAILABLE), 0) for o in back], now_ms)
        for offset in back:
            if (entry := self._taken.pop(offset, None)) is not None:
                heapq.heappush(self._ready, entry)

    def lock(
        self,
        chosen: Sequence[int],
        number: int,
        batches: Batches,
        settings: ShareSettings,
        now_ms: int,
    ) -> tuple[list[tuple[int, int, int]], list[StateBatch]]:
        """Lock chosen offsets, whose `batches` have been read, under `number`: first offset, last,
        and delivery count of each range, and what was passed by, to be persisted.

        What the log no longer has is passed by, and a batch that comes back corrupt.
        """
        share, runs = self._share, self._share.runs
        changes: list[StateBatch] = []
        records: list[tuple[int, int, int]] = []
        for first, last in batches.passed_by:
            share.archive(first, min(last, share.end_offset - 1), changes)
        ranges = list(_ranges(chosen))
        if not changes and lock_new(runs, ranges, number):
            return [(first, last, 1) for first, last in ranges], changes
        for first, last in ranges:
            while first <= last:
                row = runs.row_of(first)
                high, count = min(last, runs.last(row)), runs.counts[row]
                if runs.states[row] == AVAILABLE:
                    bad = batches.first_corrupt(first, high) if count else None
                    if bad is not None and bad[0] <= first:
                        high = min(high, bad[1])
                        cause = Cause.CORRUPT if settings.dead_letters else None
                        share.archive(first, high, changes, cause)
                    else:
                        high = high if bad is None else bad[0] - 1
                        share.lock(first, high, number)
                        records.append((first, high, count + 1))
                first = high + 1
        self.changed(changes, now_ms)
        return records, changes


def open_lock(
    share: SharePartition,
    number: int,
    member_id: str,
    deadline_ms: int,
    records: Sequence[tuple[int, int, int]],
) -> int:
    """Let the lock of acquired ranges run: how many records it holds."""
    held = sum(last - first + 1 for first, last, _ in records)
    lock = Lock(member_id, deadline_ms, first=records[0][0], last=records[-1][1], held=held)
    share.locks.open(number, lock)
    return held


def _ranges(offsets: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Rising offsets as ranges without holes."""
    first = last = offsets[0]
    for offset in islice(offsets, 1, None):
        if offset != last + 1:
            yield first, last
            first = offset
        last = offset
    yield first, last
