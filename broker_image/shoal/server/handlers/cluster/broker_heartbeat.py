"""BrokerHeartbeat: a broker renews its lease at the controller (KIP-631)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio

    from shoal.protocol.responses import quorum as responses
    from shoal.server.broker import Broker
    from shoal.server.network.api import Request


def handle(broker: Broker, request: Request) -> asyncio.Future[responses.BrokerHeartbeatResponse]:
    return broker.controller.handle_heartbeat(request.body, request.peer)
