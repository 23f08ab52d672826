"""Workers in tests: they serve until a condition holds, and then stop as they do at SIGTERM."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from support.runs.conditions import eventually_async

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from shoal.client.client import Client
    from shoal.worker import Worker


@contextlib.asynccontextmanager
async def serving(worker: Worker, client: Client | None = None) -> AsyncIterator[None]:
    """Run a worker beside the block; stop it in the end, and raise what it raised."""
    task = asyncio.create_task(worker.serve(client))
    try:
        await eventually_async(lambda: worker.is_ready or task.done(), what="the worker joined")
        yield
        worker.stop()
        async with asyncio.timeout(60):
            await task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def serve_until(
    worker: Worker, condition: Callable[[], object], client: Client | None = None
) -> None:
    """Run a worker until a condition holds."""
    async with serving(worker, client):
        await eventually_async(condition, what="the condition of the test")


def count(worker: Worker, outcome: str) -> int:
    """Return how many jobs of all handlers ended so."""
    return sum(one["outcomes"][outcome] for one in worker.snapshot())
