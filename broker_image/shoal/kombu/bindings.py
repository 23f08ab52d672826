"""The bindings of queues to exchanges, which all processes share by a compacted topic.

Each record is one binding: its key has the exchange, the routing key and the queue, its value the
type of the exchange. A binding of the default exchange to a queue's own name says that the queue
exists. A process reads the topic when it first publishes, again when no binding matches, and at
least every `AGE_MAX_S`. Only queues that outlive their connection are here.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, NamedTuple

from shoal.client.admin.topics import OffsetSpec
from shoal.client.errors import KafkaError
from shoal.client.net.cluster import TopicPartition
from shoal.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Iterable

    from shoal.client.client import Client
    from shoal.client.produce.producer import Producer

#: Seconds after which the bindings are read again, though some match.
AGE_MAX_S = 1.0
_MISSING = (ErrorCode.unknown_topic_or_partition, ErrorCode.unknown_topic_id)


class Binding(NamedTuple):
    """An exchange delivers to a queue what matches the routing key."""

    exchange: str
    routing_key: str
    queue: str


class Bindings:
    """This process's copy of the table."""

    def __init__(self, client: Client, producer: Producer, topic: str) -> None:
        self._client = client
        self._producer = producer
        self._place = TopicPartition(topic, 0)
        self._kinds: dict[Binding, str] = {}
        self._next_offset = 0
        self._read_s = float("-inf")
        self._one_at_a_time = asyncio.Lock()

    @property
    def topic(self) -> str:
        """The topic of the table."""
        return self._place.topic

    async def find_queues(self, exchange: str, kind: str, routing_key: str) -> list[str]:
        """Return the queues that get a message of an exchange of this type."""
        queues = self._match(exchange, kind, routing_key)
        is_old = asyncio.get_running_loop().time() - self._read_s > AGE_MAX_S
        if not queues or (exchange and is_old):
            await self.refresh()
            queues = self._match(exchange, kind, routing_key)
        return queues

    def _match(self, exchange: str, kind: str, routing_key: str) -> list[str]:
        if not exchange:
            own = Binding("", routing_key, routing_key)
            return [routing_key] if own in self._kinds else []
        bound = [b for b in self._kinds if b.exchange == exchange]
        return sorted({b.queue for b in bound if is_match(kind, b.routing_key, routing_key)})

    async def has(self, binding: Binding) -> bool:
        """Whether a binding exists."""
        if binding not in self._kinds:
            await self.refresh()
        return binding in self._kinds

    async def add(self, binding: Binding, kind: str) -> None:
        """Store a binding that is not there yet."""
        if not await self.has(binding):
            await self._write({binding: kind})

    async def remove(self, *, queue: str | None = None, exchange: str | None = None) -> None:
        """Delete the bindings of a queue, of an exchange, or of both together."""
        await self.refresh()
        await self.remove_all(
            b
            for b in self._kinds
            if (queue is None or b.queue == queue) and (exchange is None or b.exchange == exchange)
        )

    async def remove_all(self, bindings: Iterable[Binding]) -> None:
        """Delete these bindings."""
        await self._write(dict.fromkeys(bindings))

    async def _write(self, changes: dict[Binding, str | None]) -> None:
        stored = [
            await self._producer.send(
                self._place.topic,
                None if kind is None else json.dumps({"type": kind}).encode(),
                key=json.dumps(binding).encode(),
                partition=0,
            )
            for binding, kind in changes.items()
        ]
        await asyncio.gather(*stored)
        for binding, kind in changes.items():
            self._apply(binding, kind)

    def _apply(self, binding: Binding, kind: str | None) -> None:
        if kind is None:
            self._kinds.pop(binding, None)
        else:
            self._kinds[binding] = kind

    async def refresh(self) -> None:
        """Read what others have written since the last call."""
        async with self._one_at_a_time:
            offsets = await self._client.admin.topics.offsets({self._place: int(OffsetSpec.LATEST)})
            end = offsets[self._place]
            if isinstance(end, KafkaError):
                if end.code not in _MISSING:
                    raise end
                return
            if end.offset < self._next_offset:  # Somebody has created the topic again.
                self._kinds.clear()
                self._next_offset = 0
            async for fetched in self._client.fetcher.fetch_range(
                *self._place, self._next_offset, end.offset - 1
            ):
                for record in fetched.records():
                    binding = Binding(*json.loads(record.key or b"[]"))
                    kind = json.loads(record.value)["type"] if record.value else None
                    self._apply(binding, kind)
            self._next_offset = end.offset
            self._read_s = asyncio.get_running_loop().time()


def is_match(kind: str, pattern: str, routing_key: str) -> bool:
    """Whether a binding's key matches a routing key, by the type of the exchange (AMQP 0-9-1)."""
    if kind == "fanout":
        return True
    if kind == "topic":
        return _match_words(pattern, routing_key)
    return pattern == routing_key


def _match_words(pattern: str, routing_key: str) -> bool:
    """`*` stands for one word, `#` for any number of words. The time grows with the product of the
    numbers of words."""
    words = routing_key.split(".") if routing_key else []
    matched = {0}  # How many words the pattern so far may match.
    for part in pattern.split(".") if pattern else []:
        if part == "#":
            matched = set(range(min(matched), len(words) + 1)) if matched else matched
        else:
            matched = {n + 1 for n in matched if n < len(words) and part in ("*", words[n])}
    return len(words) in matched
