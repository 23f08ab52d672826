"""Leaders whose connection has just broken, and clients that ask who leads.

When a broker's process ends, its followers and its clients see it in the same millisecond. Until
the controller has fenced it, the image names a leader that nobody reaches; a client that is told so
has asked for nothing, and librdkafka asks again only after a second. So Metadata waits for the
image, briefly: not for a leader that is frozen or cut off, whose connections do not break.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shoal.server.broker import Broker

#: How long an answer waits at most: a dead leader is replaced within 50 ms, one that was the
#: controller too within 250. What stands behind the answer on its connection waits along.
PATIENCE_S = 0.3


class Suspects:
    """Owns when each suspect was lost."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._until: dict[int, float] = {}

    def __bool__(self) -> bool:
        return bool(self._until)

    def lost(self, broker_id: int) -> None:
        """The connection to that broker broke, and this one did not close it."""
        if broker_id in self._broker.image.active:
            self._until[broker_id] = self._broker.loop.time() + PATIENCE_S

    def reached(self, broker_id: int) -> None:
        """It answers again."""
        self._until.pop(broker_id, None)

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
        await self._broker.metadata.until(
            lambda image: broker_id not in image.active or broker_id not in self._until
        )
