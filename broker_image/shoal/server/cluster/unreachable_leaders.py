"""Leaders whose connection has just broken, and clients that ask who leads.

When a broker's process ends, its followers and its clients see it in the same millisecond. Until
the controller has fenced it, the image names a leader that nobody reaches; a client that is told so
has asked for nothing, and librdkafka asks again only after a second. So Metadata waits for the
image, briefly: not for a leader that is frozen or cut off, whose connections do not break.
FindCoordinator waits in the same way.

Metadata names a fenced broker for some seconds more among the brokers, not among the leaders.
librdkafka ends its thread of a broker that a Metadata answer leaves out. Partitions that it reads
from there move to no other broker in that answer, but in the next one, a second later.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shoal.metadata.image import MetadataImage
    from shoal.server.broker import Broker

#: How long an answer waits at most: a dead leader is replaced within 50 ms, one that was the
#: controller too within 250, and later on a busy machine. librdkafka asks again after a second.
#: What stands behind the answer on its connection waits along.
PATIENCE_S = 1.0
#: How long Metadata names a broker after it was fenced: clients ask for new leaders within this.
NAMED_S = 3.0


class Suspects:
    """Owns when each suspect was lost, and which brokers were fenced lately."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._until: dict[int, float] = {}
        self._running: frozenset[int] = frozenset()
        #: Brokers that were fenced lately, and until when Metadata names them.
        self._named: dict[int, float] = {}

    def __bool__(self) -> bool:
        return bool(self._until)

    def lost(self, broker_id: int) -> None:
        """The connection to that broker broke, and this one did not close it."""
        if broker_id in self._broker.image.active:
            self._until[broker_id] = self._broker.loop.time() + PATIENCE_S

    def reached(self, broker_id: int) -> None:
        """It answers again."""
        self._until.pop(broker_id, None)

    def changed(self, image: MetadataImage) -> None:
        """Brokers were registered, fenced or let in."""
        running = frozenset(image.running)
        until = self._broker.loop.time() + NAMED_S
        for broker_id in self._running - running:
            self._named[broker_id] = until
        self._running = running

    def named(self) -> tuple[int, ...]:
        """Ids of fenced brokers that Metadata still names, in ascending order."""
        if not self._named:
            return ()
        now, image = self._broker.loop.time(), self._broker.image
        for broker_id, until in list(self._named.items()):
            known = image.brokers.get(broker_id)
            if now >= until or known is None or not known.fenced:
                del self._named[broker_id]
        return tuple(sorted(self._named))

    async def settled(self) -> None:
        """Wait until the image has no suspect as a leader, or until that has lasted too long."""
        for broker_id, until in list(self._until.items()):
            try:
                async with asyncio.timeout_at(until):
                    await self._gone(broker_id)
            except TimeoutError:
                pass
            self._until.pop(broker_id, None)

    async def _gone(self, broker_id: int) -> None:
        await self._broker.metadata_cache.until(
            lambda image: broker_id not in image.active or broker_id not in self._until
        )
