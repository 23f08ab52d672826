"""A proxy before a broker that loses answers, or changes their error code.

To lose an answer, it closes the connection. The broker has processed the request then, and the
client cannot see whether it has. The broker must advertise the proxy's address.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

_SIZE, _REQUEST, _RESPONSE = struct.Struct(">i"), struct.Struct(">hhi"), struct.Struct(">i")
#: The error code after the size, the header of a flexible response, and the throttle time.
_ERROR, _ERROR_AT = struct.Struct(">h"), 4 + 5 + 4


class LossyProxy:
    """`lose` has the number of answers to lose, by API; `lost` counts them.

    `refuse` has error codes for the next answers of EndTxn and InitProducerId.
    """

    def __init__(self, port: int, broker: str) -> None:
        host, _, broker_port = broker.rpartition(":")
        self._port = port
        self._broker = (host, int(broker_port))
        self.lose: Counter[int] = Counter()
        self.lost: Counter[int] = Counter()
        self.refuse: dict[int, list[int]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[LossyProxy]:
        server = await asyncio.start_server(self._accepted, "127.0.0.1", self._port)
        try:
            yield self
        finally:
            server.close()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            await self._serve(reader, writer)
        writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from_broker, to_broker = await asyncio.open_connection(*self._broker)
        apis: dict[int, int] = {}

        async def requests() -> None:
            while True:
                frame = await _frame(reader)
                api, _, correlation_id = _REQUEST.unpack_from(frame, _SIZE.size)
                apis[correlation_id] = api
                to_broker.write(frame)

        async def responses() -> None:
            while True:
                frame = await _frame(from_broker)
                (correlation_id,) = _RESPONSE.unpack_from(frame, _SIZE.size)
                api = apis.pop(correlation_id)
                if self.lose[api] > 0:
                    self.lose[api] -= 1
                    self.lost[api] += 1
                    return
                if codes := self.refuse.get(api):
                    frame = _with_error(frame, codes.pop(0))
                writer.write(frame)

        both = [asyncio.ensure_future(requests()), asyncio.ensure_future(responses())]
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in both:
                one.cancel()
            await asyncio.gather(*both, return_exceptions=True)
            to_broker.close()


def _with_error(frame: bytes, code: int) -> bytes:
    return frame[:_ERROR_AT] + _ERROR.pack(code) + frame[_ERROR_AT + _ERROR.size :]


async def _frame(reader: asyncio.StreamReader) -> bytes:
    """Read a request or a response, with its size."""
    head = await reader.readexactly(_SIZE.size)
    return head + await reader.readexactly(_SIZE.unpack(head)[0])
