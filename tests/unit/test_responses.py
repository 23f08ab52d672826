"""Answers made of replies: what becomes of a reply whose client is gone."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

from shoal.protocol.errors import ApiError, ErrorCode
from shoal.server.network.responses import mapped


def test_a_refusal_that_nobody_waits_for_is_no_complaint() -> None:
    """Found by the cluster's simulation (seed 77): a commit whose client had hung up, and which was
    refused later, left a traceback in the broker's log."""

    async def main() -> list[dict[str, Any]]:
        complaints: list[dict[str, Any]] = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: complaints.append(context))
        reply: asyncio.Future[Any] = loop.create_future()
        answer = mapped(reply, lambda found: found)
        assert isinstance(answer, asyncio.Future)
        answer.cancel()
        reply.set_exception(ApiError(ErrorCode.not_coordinator))
        await asyncio.sleep(0)
        del reply
        gc.collect()
        return complaints

    assert asyncio.run(main()) == []
