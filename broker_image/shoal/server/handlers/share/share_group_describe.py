"""ShareGroupDescribe: share groups with their members and assignments (KIP-932)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.server.handlers.groups.consumer_group_describe import describe_groups

if TYPE_CHECKING:
    from shoal.protocol.responses import share as responses
    from shoal.server.broker import Broker
    from shoal.server.network.api import BodyOrFuture, Request


def handle(broker: Broker, request: Request) -> BodyOrFuture[responses.ShareGroupDescribeResponse]:
    return describe_groups(broker, request, "share")
