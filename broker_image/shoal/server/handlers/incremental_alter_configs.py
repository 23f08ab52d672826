"""IncrementalAlterConfigs: set, delete, append to and subtract from single configs (KIP-339)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.server.handlers.alter_configs import alter

if TYPE_CHECKING:
    from shoal.server.broker import Broker
    from shoal.server.network.api import Answer, Request


def handle(broker: Broker, request: Request) -> Answer:
    return alter(broker, request, incremental=True)
