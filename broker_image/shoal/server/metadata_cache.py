"""The committed metadata image of this node, and its subscribers.

`cluster.metadata_log` publishes each committed image here. All other parts of the server read the
image from the cache and do not depend on the quorum.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from shoal.metadata.delta import MetadataDelta
from shoal.metadata.image import MetadataImage, Scope

Listener = Callable[[MetadataImage, MetadataDelta], None]


class MetadataCache:
    """Owns the committed image. It is empty until the metadata log is opened."""

    def __init__(self, scope: Scope) -> None:
        self.image = MetadataImage(scope=scope)
        self._listeners: list[Listener] = []
        self._waiting: list[asyncio.Future[None]] = []

    def subscribe(self, listener: Listener) -> None:
        """Call `listener` with each new image, and the delta that led to it."""
        self._listeners.append(listener)

    def serve(self, image: MetadataImage) -> None:
        """Serve `image` without calling the listeners."""
        self.image = image

    def publish(self, image: MetadataImage, delta: MetadataDelta) -> None:
        """Serve `image`: call all listeners, in the order of their subscriptions, then resume
        those that wait."""
        self.image = image
        try:
            for listener in self._listeners:
                listener(image, delta)
        finally:
            waiting, self._waiting = self._waiting, []
            for future in waiting:
                if not future.done():
                    future.set_result(None)

    async def until(self, holds: Callable[[MetadataImage], bool]) -> None:
        """Wait for an image for which `holds` returns true."""
        while not holds(self.image):
            changed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(changed)
            await changed
