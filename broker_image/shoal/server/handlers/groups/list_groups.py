"""ListGroups: the groups of this coordinator, by state (KIP-518) and type (KIP-848)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.security.acls import ResourceType
from shoal.server.handlers import authorization

if TYPE_CHECKING:
    from shoal.protocol.responses import groups as responses
    from shoal.server.broker import Broker
    from shoal.server.network.api import Request


def handle(broker: Broker, request: Request) -> responses.ListGroupsResponse:
    states = getattr(request.body, "states_filter", ())
    types = getattr(request.body, "types_filter", ())
    groups = [g for s in broker.groups.get_all_shards() for g in s.list_groups(states, types)]
    permits = authorization.make_checker(broker, request, ResourceType.GROUP)
    return {"groups": [group for group in groups if permits(group["group_id"])]}
