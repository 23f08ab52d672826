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
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from shoal.metadata.delta import MetadataDelta
    from shoal.metadata.image import MetadataImage
    from shoal.server.metadata_cache import MetadataCache
    from shoal.server.node import Node

#: How long an answer waits at most. The controller replaces a dead leader within 50 ms, or within
#: 250 ms if that leader was also the controller; a busy machine takes longer. librdkafka asks again
#: after a second. Later answers of the same connection wait too.
PATIENCE_S = 1.0
#: How long Metadata lists a fenced broker: clients ask for the new leaders within this time.
FENCED_S = 3.0

A = TypeVar("A")


class UnreachableLeaders:
    """Owns when each leader was disconnected, and which brokers were fenced a short time ago."""

    def __init__(self, node: Node, cache: MetadataCache) -> None:
        self._loop = node.loop
        self._cache = cache
        #: By broker, how long answers wait for its successors.
        self._deadlines: dict[int, float] = {}
        self._running: frozenset[int] = frozenset()
        #: Brokers that were fenced, and until when Metadata lists them.
        self._fenced_until: dict[int, float] = {}

    def __bool__(self) -> bool:
        return bool(self._deadlines)

    def on_disconnected(self, broker_id: int) -> None:
        """Note that the connection to that broker closed, and that this node did not close it."""
        if broker_id in self._cache.image.active:
            self._deadlines[broker_id] = self._loop.time() + PATIENCE_S

    def on_connected(self, broker_id: int) -> None:
        """Note that the broker answers again."""
        self._deadlines.pop(broker_id, None)

    def start(self) -> None:
        """Follow the metadata, which has been read."""
        self._note_fenced(self._cache.image)
        self._cache.subscribe(self._on_metadata_changed)

    def _on_metadata_changed(self, image: MetadataImage, delta: MetadataDelta) -> None:
        if delta.brokers:
            self._note_fenced(image)

    def _note_fenced(self, image: MetadataImage) -> None:
        running = frozenset(image.running)
        deadline = self._loop.time() + FENCED_S
        for broker_id in self._running - running:
            self._fenced_until[broker_id] = deadline
        self._running = running

    def get_recently_fenced(self) -> tuple[int, ...]:
        """Return the ids of fenced brokers that Metadata still lists, in ascending order."""
        if not self._fenced_until:
            return ()
        now, image = self._loop.time(), self._cache.image
        for broker_id, deadline in list(self._fenced_until.items()):
            broker = image.brokers.get(broker_id)
            if now >= deadline or broker is None or not broker.fenced:
                del self._fenced_until[broker_id]
        return tuple(sorted(self._fenced_until))

    def answer(self, decide: Callable[..., A], *arguments: Any) -> A | asyncio.Future[Any]:
        """Return `decide(*arguments)`, or a future of it while a leader is unreachable.

        The future ends once other brokers lead, or after `PATIENCE_S`.
        """
        if self._deadlines:
            return asyncio.ensure_future(self._answer_later(decide, *arguments))
        return decide(*arguments)

    async def _answer_later(self, decide: Callable[..., Any], *arguments: Any) -> Any:
        await self._wait_for_successors()
        answer = decide(*arguments)
        if isinstance(answer, asyncio.Future):
            return await answer
        assert isinstance(answer, (list, Mapping))
        return answer

    async def _wait_for_successors(self) -> None:
        """Wait until no unreachable broker leads in the image, each for its own time at most."""
        for broker_id, deadline in list(self._deadlines.items()):
            try:
                async with asyncio.timeout_at(deadline):
                    await self._await_replacement(broker_id)
            except TimeoutError:
                pass
            self._deadlines.pop(broker_id, None)

    async def _await_replacement(self, broker_id: int) -> None:
        """Wait until the broker leads no more, or is connected again."""
        await self._cache.wait_until(
            lambda image: broker_id not in image.active or broker_id not in self._deadlines
        )
