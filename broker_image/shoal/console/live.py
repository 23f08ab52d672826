"""Server-sent events: the changing part of a page, sent after each sample that changes it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from aiohttp import web

from shoal.client.errors import ClientError
from shoal.console.security import HEADERS

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from shoal.console.sampler import Sampler

#: Open pages that are updated at the same time. Each renders its page after each sample.
STREAMS_MAX = 200
#: Seconds after which a browser connects again, and those between signs of life.
RETRY_S, KEEPALIVE_S = 3, 15


class Streams:
    """The open event streams of one console."""

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler
        self._open = 0

    async def serve(
        self, request: web.Request, render: Callable[[], Awaitable[str]]
    ) -> web.StreamResponse:
        """Send what `render` returns, now and after each change, until the browser leaves."""
        if self._open >= STREAMS_MAX:
            raise web.HTTPServiceUnavailable(
                text=f"{STREAMS_MAX} pages are open. Close some, or reload this page instead."
            )
        response = web.StreamResponse(
            headers={
                **HEADERS,
                "Content-Type": "text/event-stream",
                "Cache-Control": "no-store",
                "X-Accel-Buffering": "no",
            }
        )
        self._open += 1
        try:
            await response.prepare(request)
            await response.write(f"retry: {RETRY_S * 1000}\n\n".encode())
            await self._send(response, render)
        except ConnectionError:
            pass  # The browser has left.
        finally:
            self._open -= 1
        return response

    async def _send(
        self, response: web.StreamResponse, render: Callable[[], Awaitable[str]]
    ) -> None:
        last = ""
        while True:
            change = self._sampler.change
            try:
                html = await render()
            except ClientError as error:
                await response.write(event("problem", str(error)))
            except web.HTTPException as error:
                await response.write(event("problem", error.text or error.reason))
            else:
                if html != last:
                    await response.write(event("state", html))
                    last = html
                else:
                    await response.write(event("same", self._sampler.time))
            while not change.is_set():
                try:
                    async with asyncio.timeout(KEEPALIVE_S):
                        await change.wait()
                except TimeoutError:
                    await response.write(b": alive\n\n")


def event(name: str, data: str) -> bytes:
    """Encode an event. Line breaks of any kind separate its data lines."""
    lines = data.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    return (f"event: {name}\n" + "".join(f"data: {line}\n" for line in lines) + "\n").encode()
