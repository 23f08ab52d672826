"""Leaders whose connection has just closed, and the answers that wait for their successors.

When a broker's process ends, its followers and clients see the connection close at once. Until the
controller fences the broker, the image still names it as leader. A client that gets its name again
has gained nothing, and librdkafka asks again only after a second. So Metadata and FindCoordinator
wait briefly for a new image. They do not wait for a leader that is frozen or partitioned, because
its connections stay open.

Metadata lists a fenced broker for a few more seconds, as a broker and not as a leader. librdkafka
ends its thread for a broker that an answer leaves out. The partitions that it reads from there
would move in the next answer only, a second later.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shoal.metadata.delta import MetadataDelta
    from shoal.metadata.image import MetadataImage
    from shoal.server.metadata_cache import MetadataCache
    from shoal.server.network.api import Answer, Body
    from shoal.server.node import Node

#: How long an answer waits at most. The controller replaces a dead leader within 50 ms, or within
#: 250 ms if that leader was also the controller; a busy machine takes longer. librdkafka asks again
#: after a second. Later answers of the same connection wait too.
PATIENCE_S = 1.0
#: How long Metadata lists a fenced broker: clients ask for the new leaders within this time.
FENCED_S = 3.0


class UnreachableLeaders:
    """Owns when each leader was disconnected, and which brokers were fenced a short time ago."""

    def __init__(self, node: Node, cache: MetadataCache) -> None:
        self._loop = node.loop
        self._cache = cache
        #: By broker, how long answers wait for its successors.
        self._until: dict[int, float] = {}
        self._running: frozenset[int] = frozenset()
        #: Brokers that were fenced, and until when Metadata lists them.
        self._fenced: dict[int, float] = {}

    def __bool__(self) -> bool:
        return bool(self._until)

    def disconnected(self, broker_id: int) -> None:
        """Note that the connection to that broker closed, and that this node did not close it."""
        if broker_id in self._cache.image.active:
            self._until[broker_id] = self._loop.time() + PATIENCE_S

    def connected(self, broker_id: int) -> None:
        """Note that the broker answers again."""
        self._until.pop(broker_id, None)

    def start(self) -> None:
        """Follow the metadata, which has been read."""
        self._note_fenced(self._cache.image)
        self._cache.subscribe(self._metadata_changed)

    def _metadata_changed(self, image: MetadataImage, delta: MetadataDelta) -> None:
        if delta.brokers:
            self._note_fenced(image)

    def _note_fenced(self, image: MetadataImage) -> None:
        running = frozenset(image.running)
        until = self._loop.time() + FENCED_S
        for broker_id in self._running - running:
            self._fenced[broker_id] = until
        self._running = running

    def recently_fenced(self) -> tuple[int, ...]:
        """Return the ids of fenced brokers that Metadata still lists, in ascending order."""
        if not self._fenced:
            return ()
        now, image = self._loop.time(), self._cache.image
        for broker_id, until in list(self._fenced.items()):
            known = image.brokers.get(broker_id)
            if now >= until or known is None or not known.fenced:
                del self._fenced[broker_id]
        return tuple(sorted(self._fenced))

    def answer(self, decide: Callable[..., Answer], *arguments: Any) -> Answer:
        """Return `decide(*arguments)`, or a future of it while a leader is unreachable.

        The future ends once other brokers lead, or after `PATIENCE_S`.
        """
        if self._until:
            return asyncio.ensure_future(self._answer_later(decide, *arguments))
        return decide(*arguments)

    async def _answer_later(self, decide: Callable[..., Answer], *arguments: Any) -> Body:
        await self._wait_for_successors()
        answer = decide(*arguments)
        if isinstance(answer, asyncio.Future):
            return await answer
        assert isinstance(answer, (list, Mapping))
        return answer

    async def _wait_for_successors(self) -> None:
        """Wait until no unreachable broker leads in the image, each for its own time at most."""
        for broker_id, until in list(self._until.items()):
            try:
                async with asyncio.timeout_at(until):
                    await self._replaced(broker_id)
            except TimeoutError:
                pass
            self._until.pop(broker_id, None)

    async def _replaced(self, broker_id: int) -> None:
        """Wait until the broker leads no more, or is connected again."""
        await self._cache.until(
            lambda image: broker_id not in image.active or broker_id not in self._until
        )
