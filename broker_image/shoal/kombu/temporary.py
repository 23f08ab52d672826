"""Temporary queues: those of remote control, replies and events.

A queue that is exclusive, deletes itself or expires needs no topic of its own. It is a position in
the logs of the exchanges that it is bound to: its consumer reads all messages of these exchanges
and keeps those whose routing key matches. Nothing is left behind when its process dies. The
positions belong to the process, because Celery declares a queue of replies on one connection and
consumes it on another.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from typing import TYPE_CHECKING

from shoal.client.admin.topics import OffsetSpec
from shoal.client.errors import ClientError, KafkaError, expect, is_transient
from shoal.client.net.cluster import TopicPartition
from shoal.client.share.acquired import AcknowledgeType
from shoal.kombu.bindings import is_match
from shoal.kombu.intake import ChannelDelivery
from shoal.kombu.messages import decode, is_expired
from shoal.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from shoal.client.client import Client
    from shoal.kombu.intake import Intake
    from shoal.record.records import Record

log = logging.getLogger("shoal.kombu")

#: The headers of a record in an exchange's log.
ROUTING_KEY = "kombu.routing.key"
WAIT_MS = 500
PAUSE_S = 0.5


class TemporaryQueue:
    """The bindings of a queue, and its position in each exchange's log."""

    def __init__(self, name: str) -> None:
        self.name = name
        #: The keys and exchange types of the bindings, by the topic of the exchange.
        self.bindings: dict[str, set[tuple[str, str]]] = {}
        self.positions: dict[TopicPartition, int] = {}
        #: Messages behind which the positions are, without an outcome: the topics of their
        #: exchanges and their records. The next reader begins with them.
        self.waiting: deque[tuple[str, Record]] = deque()

    async def bind(self, client: Client, topic: str, kind: str, routing_key: str) -> None:
        """Read an exchange from its end on, if this is its first binding."""
        place = TopicPartition(topic, 0)
        self.bindings.setdefault(topic, set()).add((kind, routing_key))
        if place not in self.positions:
            ends = expect(await client.admin.topics.offsets({place: int(OffsetSpec.LATEST)}))
            self.positions[place] = ends[place].offset

    def unbind(self, topic: str, kind: str, routing_key: str) -> None:
        """Forget a binding, and the exchange with its last one."""
        bound = self.bindings.get(topic, set())
        bound.discard((kind, routing_key))
        if not bound:
            self.bindings.pop(topic, None)
            self.positions.pop(TopicPartition(topic, 0), None)

    def take(self) -> tuple[str, Record] | None:
        """Take a waiting message, if there is one. The threads of several connections may ask."""
        try:
            return self.waiting.popleft()
        except IndexError:
            return None

    def has(self, topic: str, record: Record) -> bool:
        """Whether a record of an exchange's log is a message of this queue."""
        routing_key = (dict(record.headers).get(ROUTING_KEY) or b"").decode()
        bound = self.bindings.get(topic, ())
        return any(is_match(kind, pattern, routing_key) for kind, pattern in bound)


class TemporaryReader:
    """The consumer of a temporary queue on one channel."""

    def __init__(
        self,
        client: Client,
        intake: Intake,
        queue: TemporaryQueue,
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self._client = client
        self._intake = intake
        self._queue = queue
        self._on_failure = on_failure
        self._task: asyncio.Task[None] | None = None
        #: The messages that the channel holds, by tag, in the order of their delivery.
        self._unsettled: dict[str, tuple[str, Record]] = {}

    def start(self) -> None:
        """Deliver messages to the channel until `close`."""
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        while True:
            try:
                await self._fetch(WAIT_MS)
                self._intake.deliver(self._admit(len(self._queue.waiting)))
            except ClientError as error:
                if not is_transient(error):
                    self._on_failure(error)
                    return
                log.warning("queue %s: %s. Trying again.", self._queue.name, error)
                await asyncio.sleep(PAUSE_S)

    async def get(self) -> ChannelDelivery | None:
        """Return the next message, if there is one; the others wait in the queue."""
        await self._fetch(0)
        for delivery in self._admit(1):
            self._intake.held[delivery.tag] = delivery
            return delivery
        return None

    async def _fetch(self, wait_ms: int) -> None:
        """Read the logs once, unless messages wait already."""
        if self._queue.waiting:
            return
        if not self._queue.positions:
            await asyncio.sleep(wait_ms / 1000)
            return
        fetched = await self._client.fetcher.poll(self._queue.positions, max_wait_ms=wait_ms)
        for place, batches in fetched.items():
            if isinstance(batches, KafkaError):
                await self._skip(place, batches)
                continue
            self._queue.waiting += (
                (place.topic, record)
                for record in batches.records()
                if self._queue.has(place.topic, record)
            )
            if place in self._queue.positions:
                self._queue.positions[place] = batches.next_offset

    async def _skip(self, place: TopicPartition, error: KafkaError) -> None:
        """Continue at the end of a log that no longer has this position."""
        if error.code is not ErrorCode.offset_out_of_range:
            raise error
        ends = expect(await self._client.admin.topics.offsets({place: int(OffsetSpec.LATEST)}))
        log.warning("queue %s has missed messages of %s", self._queue.name, place.topic)
        self._queue.positions[place] = ends[place].offset

    def _admit(self, messages_max: int) -> list[ChannelDelivery]:
        """Take up to this number of messages out of the queue, without those that expired."""
        now_ms = self._client.cluster.environment.now_ms()
        deliveries: list[ChannelDelivery] = []
        while len(deliveries) < messages_max and (message := self._queue.take()) is not None:
            _, record = message
            tag = self._intake.make_tag()
            payload = decode(record, self._queue.name, tag)
            if not is_expired(record, payload, now_ms):
                self._unsettled[tag] = message
                deliveries.append(
                    ChannelDelivery(tag, self._queue.name, payload, self, record.offset)
                )
        return deliveries

    def settle(self, delivery: ChannelDelivery, kind: AcknowledgeType) -> None:
        """Put a released message back; the others are done."""
        message = self._unsettled.pop(delivery.tag, None)
        if kind is AcknowledgeType.RELEASE and message is not None:
            self._queue.waiting.appendleft(message)

    async def stop(self) -> bool:
        """Stop reading. Return True: the next consumer continues behind what was delivered."""
        await self._end()
        self._return(delivery.tag for delivery in self._intake.inbox.remove(self))
        self._intake.drop(self)
        return True

    async def close(self) -> None:
        """Stop reading, and return what has no outcome."""
        await self._end()
        self._intake.inbox.remove(self)
        self._return(list(self._unsettled))
        self._intake.drop(self)

    async def _end(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    def _return(self, tags: Iterable[str]) -> None:
        """Put messages back, in the order in which they were delivered."""
        messages = [self._unsettled.pop(tag) for tag in tags]
        self._queue.waiting.extendleft(reversed(messages))
