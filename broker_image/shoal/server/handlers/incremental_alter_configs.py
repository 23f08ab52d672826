"""IncrementalAlterConfigs: set, delete, append to and subtract from single configs (KIP-339)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.server.handlers.alter_configs import alter, check_tls

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from shoal.server.broker import Broker
    from shoal.server.network.api import Answer, Body, Remainder, Request


def handle(broker: Broker, request: Request) -> Answer:
    return alter(broker, request, incremental=True)


def check(broker: Broker, request: Request) -> Awaitable[Body | Remainder | None] | None:
    return check_tls(broker, request, incremental=True)
