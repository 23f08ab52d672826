"""BrokerHeartbeat: a broker renews its lease at the controller (KIP-631)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shoal.server.broker import Broker
    from shoal.server.network.api import Answer, Request


def handle(broker: Broker, request: Request) -> Answer:
    return broker.controller.heartbeat(request.body, request.peer)
