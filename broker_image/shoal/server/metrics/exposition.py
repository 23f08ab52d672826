"""The text of all metrics, made in many turns of the event loop.

A broker with 10,000 partitions has 30,000 samples, which took a turn of 0.1 s, and anybody who
reaches the port may ask for them again and again. So a turn makes some milliseconds of the text,
and all who ask meanwhile get the same one.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shoal.server.metrics.registry import MetricRegistry

#: How long a turn of the loop makes text, in seconds.
STEP_S = 0.005


class Exposition:
    """The text of one registry, for any number of readers."""

    def __init__(self, metrics: MetricRegistry, loop: asyncio.AbstractEventLoop) -> None:
        self._metrics = metrics
        self._loop = loop
        #: The text that is being made now.
        self._rendering: asyncio.Task[str] | None = None

    async def render(self) -> str:
        """Return the text. A reader that leaves does not end it for the others."""
        if self._rendering is None:
            self._rendering = self._loop.create_task(self._render())
        return await asyncio.shield(self._rendering)

    async def _render(self) -> str:
        try:
            parts: list[str] = []
            end_s = self._loop.time() + STEP_S
            for part in self._metrics.render_parts():
                parts.append(part)
                if self._loop.time() >= end_s:
                    await asyncio.sleep(0)
                    end_s = self._loop.time() + STEP_S
            return "".join(parts)
        finally:
            self._rendering = None
