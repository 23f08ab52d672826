"""The order of keys within one member, for groups that let a member have several records of a key
(`share.ordering.key.batch` above 1). The broker keeps the order among members."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from shoal.worker.jobs import WAITING
from shoal.worker.outcomes import Rejected

if TYPE_CHECKING:
    from shoal.worker.jobs import Delivery
    from shoal.worker.lanes import Feed
    from shoal.worker.outcomes import Released

_Key = tuple[str, int, bytes]


class KeyOrder:
    """Records that wait for an earlier one of their key."""

    def __init__(self, feed: Feed, *, holds_keys: bool) -> None:
        """With `holds_keys`, a rejected record stops its key (`...key.dead.letter=hold`)."""
        self._feed = feed
        self._holds_keys = holds_keys
        #: What waits for each key of which a record waits for a lane, or runs.
        self._waiting: dict[_Key, deque[Delivery]] = {}

    def may_run(self, delivery: Delivery) -> bool:
        """Whether a record is the first of its key here. Otherwise it waits."""
        key = _key_of(delivery)
        if key is None:
            return True
        waiting = self._waiting.get(key)
        if waiting is None:
            self._waiting[key] = deque()
            return True
        waiting.append(delivery)
        return False

    def advance(self, delivery: Delivery) -> None:
        """Let the next record of a key run, after one that is done or lost."""
        key = _key_of(delivery)
        # A lost record may itself have waited for another one.
        if key is not None and key in self._waiting and delivery not in self._waiting[key]:
            self._advance(key)

    def end(self, delivery: Delivery, outcome: Released | Rejected) -> list[Delivery]:
        """Return the records behind one that failed: they go back, because it comes first again. A
        rejected one lets the next run, unless dead letters stop their key."""
        key = _key_of(delivery)
        if key is None or key not in self._waiting:
            return []
        if isinstance(outcome, Rejected) and not self._holds_keys:
            self._advance(key)
            return []
        return [d for d in self._waiting.pop(key) if d.state is WAITING]

    def _advance(self, key: _Key) -> None:
        waiting = self._waiting[key]
        while waiting:
            following = waiting.popleft()
            if following.state is WAITING:
                self._feed.ready.append(following)
                self._feed.wake()
                return
        del self._waiting[key]


def _key_of(delivery: Delivery) -> _Key | None:
    key, hold = delivery.raw.key, delivery.hold
    return None if key is None else (hold.topic, hold.partition, key)
