"""The messages that one channel holds, and its room for more (`basic.qos`).

Everything here runs on the event loop of the link, except that the channel's own thread takes
messages out of the `ChannelInbox`. A share group's record takes its room when it is acquired, and
gives it back when it is settled: so a channel never locks more records than its prefetch count,
over all queues together.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import logging
import threading
from collections import deque
from typing import TYPE_CHECKING, Any, Protocol

from shoal.client.share.acquired import AcknowledgeType
from shoal.kombu.messages import get_priority

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from shoal.worker.jobs import Hold

log = logging.getLogger("shoal.kombu")

#: The records that a channel without a prefetch count may hold before the program takes them.
UNLIMITED_MAX = 1_000
#: Seconds that a queue waits for its turn if the room is shared by more queues than fit in it.
TURN_S = 0.2


class QueueReader(Protocol):
    """What reads a queue: a member of its share group, or a reader of exchanges."""

    def settle(self, delivery: ChannelDelivery, kind: AcknowledgeType) -> None:
        """Give a delivery its outcome."""

    async def stop(self) -> bool:
        """Stop reading. Return whether the reader is closed: the program holds nothing of it."""

    async def close(self) -> None:
        """Stop reading and return what has no outcome."""


class ChannelDelivery:
    """A message that this channel holds. Times are seconds of the loop's clock."""

    __slots__ = ("expires_s", "hold", "is_lost", "offset", "payload", "queue", "reader", "tag")

    def __init__(
        self,
        tag: str,
        queue: str,
        payload: dict[str, Any],
        reader: QueueReader,
        offset: int,
        hold: Hold | None = None,
        expires_s: float = float("inf"),
    ) -> None:
        self.tag = tag
        self.queue = queue
        self.payload = payload
        self.reader = reader
        self.offset = offset
        #: The locks that the record belongs to; None for a temporary queue.
        self.hold = hold
        self.expires_s = expires_s
        #: Whether the lock has ended: the broker delivers the record again.
        self.is_lost = False


class ChannelInbox:
    """Messages that the program has not taken yet. The most urgent one comes first. Both threads
    use it."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, ChannelDelivery]] = []
        self._lock = threading.Lock()
        self._numbers = itertools.count()

    def __len__(self) -> int:
        return len(self._heap)

    def put(self, deliveries: Iterable[ChannelDelivery]) -> None:
        """Add messages behind those of the same priority."""
        with self._lock:
            for delivery in deliveries:
                entry = -get_priority(delivery.payload), next(self._numbers), delivery
                heapq.heappush(self._heap, entry)

    def take(self) -> ChannelDelivery | None:
        """Return the next message, or None."""
        with self._lock:
            return heapq.heappop(self._heap)[2] if self._heap else None

    def remove(self, reader: QueueReader) -> list[ChannelDelivery]:
        """Take the messages of one reader."""
        with self._lock:
            removed = [delivery for _, _, delivery in self._heap if delivery.reader is reader]
            self._heap = [entry for entry in self._heap if entry[2].reader is not reader]
            heapq.heapify(self._heap)
        return removed

    def list_tags(self) -> set[str]:
        """Return the tags of all messages."""
        with self._lock:
            return {delivery.tag for _, _, delivery in self._heap}


class Intake:
    """The deliveries of one channel."""

    def __init__(self, channel_id: int, notify: Callable[[], None]) -> None:
        self.inbox = ChannelInbox()
        self.held: dict[str, ChannelDelivery] = {}
        self._channel_id = channel_id
        self._notify = notify
        self._limit = 0
        self._reserved = 0
        self._deliveries = 0
        self._waiting: deque[asyncio.Event] = deque()

    def make_tag(self) -> str:
        """Return the next delivery tag."""
        self._deliveries += 1
        return f"{self._channel_id}.{self._deliveries}"

    def deliver(self, deliveries: list[ChannelDelivery]) -> None:
        """Hold these messages and let the channel's thread take them."""
        self.held.update((delivery.tag, delivery) for delivery in deliveries)
        if deliveries:
            self.inbox.put(deliveries)
            self._notify()

    def settle(self, tag: str, kind: AcknowledgeType) -> None:
        """Give a message its outcome. An unknown tag has one already."""
        delivery = self.held.pop(tag, None)
        if delivery is None:
            return
        if delivery.is_lost:
            log.warning(
                "queue %s: the outcome of message %s came after its lock had ended; it is"
                " delivered again",
                delivery.queue,
                delivery.payload["properties"].get("correlation_id") or tag,
            )
        else:
            delivery.reader.settle(delivery, kind)
        self._wake()

    def recover(self) -> None:
        """Give all messages back that the program holds, to be delivered again."""
        for tag in self.held.keys() - self.inbox.list_tags():
            self.settle(tag, AcknowledgeType.RELEASE)

    def take_back(self, reader: QueueReader) -> None:
        """Release what one reader has put into the inbox and the program has not taken."""
        for delivery in self.inbox.remove(reader):
            self.settle(delivery.tag, AcknowledgeType.RELEASE)

    def has_held_by_program(self, reader: QueueReader) -> bool:
        """Whether the program has taken messages of a reader that have no outcome yet."""
        waiting = self.inbox.list_tags()
        return any(d.reader is reader and d.tag not in waiting for d in self.held.values())

    def drop(self, reader: QueueReader) -> None:
        """Forget all messages of a reader: the broker delivers them again."""
        for delivery in [d for d in self.held.values() if d.reader is reader]:
            delivery.is_lost = True
            del self.held[delivery.tag]
        self._wake()

    # Room

    def set_limit(self, limit: int) -> None:
        """Change the prefetch count; 0 is no limit."""
        self._limit = limit
        self._wake()

    def _count_room(self) -> int:
        if not self._limit:
            return max(0, UNLIMITED_MAX - len(self.inbox) - self._reserved)
        return max(0, self._limit - len(self.held) - self._reserved)

    @property
    def is_contended(self) -> bool:
        """Whether queues wait for their turn."""
        return bool(self._waiting)

    async def reserve(self, readers: int) -> int:
        """Return how many records to acquire, and keep the room for them; 0 if there is none soon.
        `readers` share the room."""
        if not self._waiting and (room := self._count_room()):
            return self._take(max(1, room // max(1, readers)))
        turn = asyncio.Event()
        self._waiting.append(turn)
        try:
            async with asyncio.timeout(TURN_S):
                await turn.wait()
        except TimeoutError:
            pass
        finally:
            if turn in self._waiting:
                self._waiting.remove(turn)
        return self._take(min(self._count_room(), max(1, self._limit // max(1, readers))))

    def _take(self, number: int) -> int:
        self._reserved += number
        return number

    def give_back(self, number: int) -> None:
        """End a reservation: what was acquired is held by now."""
        self._reserved -= number
        self._wake()

    def _wake(self) -> None:
        if self._waiting and self._count_room():
            self._waiting.popleft().set()
