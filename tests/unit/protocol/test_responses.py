"""Responses that are derived from replies."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

from shoal.protocol.errors import ApiError, ErrorCode
from shoal.server.network.responses import map_reply


def test_an_error_without_a_client_is_not_logged() -> None:
    """Found by the cluster simulation (seed 77): a commit that failed after its client had
    disconnected left a traceback in the log of the broker."""

    async def main() -> list[dict[str, Any]]:
        complaints: list[dict[str, Any]] = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: complaints.append(context))
        reply: asyncio.Future[Any] = loop.create_future()
        answer = map_reply(reply, lambda found: found)
        assert isinstance(answer, asyncio.Future)
        answer.cancel()
        reply.set_exception(ApiError(ErrorCode.not_coordinator))
        await asyncio.sleep(0)
        del reply
        gc.collect()
        return complaints

    assert asyncio.run(main()) == []
