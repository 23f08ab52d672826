"""Server-sent events: the changing part of a page, sent after each sample that changes it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from aiohttp import web

from shoal.client.errors import ClientError
from shoal.console.access.security import HEADERS, USER

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from shoal.console.sampling.sampler import Sampler

#: Open pages that are updated at the same time. Each renders its page after each sample.
STREAMS_MAX = 200
#: Those that are rendered at the same time.
RENDERED_MAX = 2
#: Seconds after which a browser connects again, and those between signs of life.
RETRY_S, KEEPALIVE_S = 3, 15


class EventStreams:
    """The open event streams of one console. Rendering a page for one needs `rendering`."""

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler
        #: The streams of each user, or of each address without logins, the oldest first.
        self._open: dict[str, dict[asyncio.Task[None], None]] = {}
        #: After a sample all pages change at once. Others have a turn between these.
        self.rendering = asyncio.Semaphore(RENDERED_MAX)

    async def serve(
        self, request: web.Request, render: Callable[[], Awaitable[str]]
    ) -> web.StreamResponse:
        """Send what `render` returns, now and after each change, until the browser leaves."""
        reader = request.get(USER, "") or request.remote or ""
        self._make_room(reader)
        response = web.StreamResponse(
            headers={
                **HEADERS,
                "Content-Type": "text/event-stream",
                "Cache-Control": "no-store",
                "X-Accel-Buffering": "no",
            }
        )
        sending = asyncio.create_task(self._send(request, response, render))
        streams = self._open.setdefault(reader, {})
        streams[sending] = None
        try:
            await asyncio.wait((sending,))
            if not sending.cancelled() and (error := sending.exception()) is not None:
                raise error
        except ConnectionError:
            pass  # The browser has left.
        finally:
            sending.cancel()
            del streams[sending]
            if not streams:
                self._open.pop(reader, None)
        return response

    def _make_room(self, reader: str) -> None:
        """If all streams are open, end the oldest of the reader with the most.

        Raises HTTP 503 if the new stream would give its own reader as many.
        """
        if sum(map(len, self._open.values())) < STREAMS_MAX:
            return
        most = max(self._open.values(), key=len)
        if len(self._open.get(reader, ())) + 1 >= len(most):
            raise web.HTTPServiceUnavailable(
                text=f"{STREAMS_MAX} pages are open. Close some, or reload this page instead."
            )
        next(stream for stream in most if not stream.cancelling()).cancel()

    async def _send(
        self,
        request: web.Request,
        response: web.StreamResponse,
        render: Callable[[], Awaitable[str]],
    ) -> None:
        await response.prepare(request)
        await response.write(f"retry: {RETRY_S * 1000}\n\n".encode())
        last = ""
        while True:
            change = self._sampler.change
            try:
                html = await render()
            except ClientError as error:
                await response.write(encode_event("problem", str(error)))
            except web.HTTPException as error:
                await response.write(encode_event("problem", error.text or error.reason))
            else:
                if html != last:
                    await response.write(encode_event("state", html))
                    last = html
                else:
                    await response.write(encode_event("same", self._sampler.time))
            while not change.is_set():
                try:
                    async with asyncio.timeout(KEEPALIVE_S):
                        await change.wait()
                except TimeoutError:
                    await response.write(b": alive\n\n")


def encode_event(name: str, data: str) -> bytes:
    """Encode an event. Line breaks of any kind separate its data lines."""
    lines = data.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    return (f"event: {name}\n" + "".join(f"data: {line}\n" for line in lines) + "\n").encode()
