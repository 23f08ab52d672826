"""The reconcile loop: when it reconciles which names, and when it ends."""

from __future__ import annotations

import asyncio

import pytest
from shoal_operator.kube.reconcile_loop import ReconcileLoop


@pytest.mark.parametrize("turns", range(8))
def test_it_ends_when_it_is_cancelled(turns: int) -> None:
    """Also if a name arrives at the same moment: it used to continue until its pod was killed."""

    async def reconcile(_: list[str]) -> None:
        await asyncio.sleep(0)

    async def main() -> None:
        loop = ReconcileLoop("kind", reconcile, list, 60.0)
        running = asyncio.create_task(loop.run())
        await asyncio.sleep(0)
        loop.enqueue("name")
        for _ in range(turns):
            await asyncio.sleep(0)
        running.cancel()
        await asyncio.wait((running,), timeout=5)
        assert running.cancelled()

    asyncio.run(main())


def test_it_looks_at_everything_in_time_though_names_keep_coming() -> None:
    """Only this finds changes inside the brokers."""
    seen: list[str] = []

    async def main() -> None:
        async def reconcile(names: list[str]) -> None:
            seen.extend(names)
            loop.enqueue("busy")
            await asyncio.sleep(0)

        loop = ReconcileLoop("kind", reconcile, lambda: ["quiet"], 0.05)
        loop.enqueue("busy")
        running = asyncio.create_task(loop.run())
        async with asyncio.timeout(20):
            while seen.count("quiet") < 3:
                await asyncio.sleep(0)
        running.cancel()

    asyncio.run(main())
    assert seen.count("busy") > seen.count("quiet")
