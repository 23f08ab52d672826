"""The HTTP listener: metrics and probes."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
import uvloop
from shoal.server import logs
from shoal.server.config import resolve
from shoal.server.process import compose
from support.brokers.ports import free_ports

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("path", ["/metrics", "/healthz", "/readyz"])
def test_a_controller_without_a_broker_answers(tmp_path: Path, path: str) -> None:
    """Found by hand: /metrics read the share fetches of a broker and closed the connection."""
    (port,) = free_ports(1)

    async def main() -> tuple[int, str, str]:
        given = {
            "log.dirs": str(tmp_path),
            "process.roles": "controller",
            "node.id": "1",
            "listeners": f"CONTROLLER://127.0.0.1:{port}",
            "controller.listener.names": "CONTROLLER",
            "controller.quorum.voters": f"1@127.0.0.1:{port}",
            "shoal.cluster.id": "AAAAAAAAAAAAAAAAAAAAAQ",
            "shoal.metrics.listener": "127.0.0.1:0",
        }
        broker = compose(resolve(given, {}), asyncio.get_running_loop())
        await broker.start()
        try:
            assert broker.health is not None
            return await broker.health.answer(path)
        finally:
            await broker.stop()

    logs.configure(json=True, level="critical")
    status, _, text = uvloop.run(main())
    assert status == 200
    assert text
