"""The records of a share partition by their keys, for key order (`selection`): of each key those
that are not complete, in the order of the log, and how many of them members have.

A key is free while none of its records is acquired. The loops over many records at once are
compiled where there is a compiler (`compiled`), with the same outcome.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from shoal.coordinator.share import compiled
from shoal.coordinator.share.runs import Runs
from shoal.coordinator.share.share_partition import StateBatch
from shoal.coordinator.share.states import AVAILABLE

#: So many times what a fetch wants are rather sorted than taken from the heap one by one.
SORTED_MAX = 4


class KeyQueues:
    """Of one share partition. Keys are hashes, never 0."""

    __slots__ = ("busy", "held", "key_of", "queues", "waiting")

    def __init__(self) -> None:
        #: By offset; records without a key are not here.
        self.key_of: dict[int, int] = {}
        self.queues: dict[int, list[int]] = {}
        #: Keys of which there is more than one in `queues`.
        self.waiting = 0
        #: Offsets that are acquired, or about to be; of a key, how many.
        self.held: set[int] = set()
        self.busy: dict[int, int] = {}

    @property
    def waiting_records(self) -> int:
        """Records that wait for another of their key: one before them or, where several of a key
        were acquired at once, for the rest of those."""
        behind = len(self.key_of) - len(self.queues)
        return behind - (len(self.held & self.key_of.keys()) - len(self.busy))

    def waiting_behind(self, offsets: Iterable[int]) -> int:
        """Records that wait for one of these with their key."""
        known = [self.key_of[at] for at in offsets if at in self.key_of]
        waiting = (len(self.queues[key]) - self.busy.get(key, 0) for key in set(known))
        return sum(waiting) - len(known)

    def put(self, offset: int, key: int, *, acquired: bool) -> bool:
        """Take in a record that lies behind all others: whether it is the first of its key."""
        self.key_of[offset] = key
        if acquired:
            self.busy[key] = self.busy.get(key, 0) + 1
        queue = self.queues.get(key)
        if queue is None:
            self.queues[key] = [offset]
            return True
        self.waiting += len(queue) == 1
        queue.append(offset)
        return False

    def put_new(self, first: int, keys: list[int], ready: list[int]) -> None:
        """Take in records from `first` on that were never delivered, with their keys, 0 for none;
        those that may be acquired go to `ready`, behind all others, so that it is still a heap."""
        if compiled.native is not None:
            self.waiting += compiled.native.put_new(ready, self.key_of, self.queues, first, keys)
            return
        queues, waiting = self.queues, 0
        pairs = zip(range(first, first + len(keys)), keys, strict=True)
        self.key_of.update(x for x in pairs if x[1]) if 0 in keys else self.key_of.update(pairs)
        for offset, key in enumerate(keys, first):
            if key:
                queue = queues.get(key)
                if queue is not None:
                    waiting += len(queue) == 1
                    queue.append(offset)
                    continue
                queues[key] = [offset]
            ready.append(offset)
        self.waiting += waiting

    def first_of(self, key: int) -> int | None:
        """The first record of a key that is free; None of another."""
        queue = self.queues.get(key)
        return None if queue is None or key in self.busy else queue[0]

    def is_free(self, offset: int) -> bool:
        """Whether its key lets a record be acquired."""
        key = self.key_of.get(offset)
        return key is None or (key not in self.busy and self.queues[key][0] == offset)

    def hold(self, offset: int) -> None:
        """A record is about to be acquired."""
        self.held.add(offset)
        key = self.key_of.get(offset)
        if key is not None:
            self.busy[key] = self.busy.get(key, 0) + 1

    def choose(
        self, ready: list[int], runs: Runs, records: int, splitting: int, chosen: list[int]
    ) -> None:
        """Move up to so many offsets from `ready`, which holds nothing else, to `chosen`, in the
        order of the log, and hold them; what is outdated is dropped. Stops early at a record that
        was delivered `splitting` times, or anywhere else: there may be more to choose."""
        if len(ready) > SORTED_MAX * records:
            return
        if compiled.native is None:
            self._choose_new(ready, runs, records, chosen)
            return
        ready.sort()
        done = compiled.native.choose(
            ready, self.key_of, self.queues, self.busy, self.held,
            runs.firsts, runs.states, runs.counts, records, splitting, chosen,
        )  # fmt: skip
        del ready[:done]

    def _choose_new(self, ready: list[int], runs: Runs, records: int, chosen: list[int]) -> None:
        """`choose` of what was never delivered, where nothing is outdated: a third of the time of
        one by one."""
        fresh = len(runs) and runs.states[-1] == AVAILABLE and runs.counts[-1] == 0
        if not fresh or ready[0] < runs.firsts[-1]:
            return
        ready.sort()
        offsets = ready[:records]
        keys: list[Any] = list(map(self.key_of.get, offsets))
        taken, firsts = dict.fromkeys(keys, 1), offsets
        if taken.pop(None, 0):
            firsts = [o for o, key in zip(offsets, keys, strict=True) if key is not None]
        if not self.held.isdisjoint(offsets) or not self.busy.keys().isdisjoint(taken):
            return
        if [self.queues[key][0] for key in taken] != firsts:
            return
        del ready[:records]
        self.busy.update(taken)
        self.held.update(offsets)
        chosen += offsets

    def followers(self, offset: int, count: int) -> Sequence[int]:
        """Up to so many records behind the first one of a key, which `offset` is."""
        key = self.key_of.get(offset)
        return () if key is None else self.queues[key][1 : 1 + count]

    def release(self, offset: int) -> int | None:
        """A record is not acquired, or no longer, and not complete: its key, if it has one."""
        key = self.key_of.get(offset)
        if offset in self.held:
            self.held.discard(offset)
            if key is not None:
                self._less_busy(key)
        return key

    def end(self, offsets: Iterable[int], touched: dict[int, None]) -> None:
        """Forget records that are complete; the keys that others wait for are `touched`."""
        held, key_of, queues = self.held, self.key_of, self.queues
        for offset in offsets:
            key = key_of.pop(offset, None)
            if offset in held:
                held.discard(offset)
                if key is None:
                    continue
                self._less_busy(key)
            elif key is None:
                continue
            queue = queues[key]
            if len(queue) == 1:
                del queues[key]
            else:
                queue.remove(offset)
                self.waiting -= len(queue) == 1
                touched[key] = None

    def end_all(
        self, changes: Sequence[StateBatch], below: int, ready: list[int], runs: Runs
    ) -> bool:
        """`end` of all that was acknowledged below an offset, with what may be acquired then put
        into `ready`. False, and nothing has happened, without the compiled part or where other
        things have become of some."""
        if compiled.native is None or type(changes) is not list:
            return False
        fewer = compiled.native.end(
            changes, below, ready, self.key_of, self.queues, self.busy, self.held,
            runs.firsts, runs.states,
        )  # fmt: skip
        self.waiting -= fewer or 0
        return fewer is not None

    def start_moved(self, start: int, touched: dict[int, None]) -> None:
        """What lay below an offset is gone."""
        self.end([offset for offset in self.key_of if offset < start], touched)
        self.held = {offset for offset in self.held if offset >= start}

    def _less_busy(self, key: int) -> None:
        left = self.busy[key] - 1
        if left:
            self.busy[key] = left
        else:
            del self.busy[key]
