"""DescribeClientQuotas: the quotas of users, clients and addresses (KIP-546)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shoal.metadata.client_quotas import Component, describe

if TYPE_CHECKING:
    from collections.abc import Iterable

    from shoal.server.broker import Broker
    from shoal.server.network.api import Answer, Request


def handle(broker: Broker, request: Request) -> Answer:
    components = [Component(c.entity_type, c.match_type, c.match) for c in request.body.components]
    found = describe(broker.image.client_quotas, components, strict=request.body.strict)
    return {
        "entries": [
            {
                "entity": entity_fields(entity),
                "values": [{"key": key, "value": value} for key, value in sorted(values.items())],
            }
            for entity, values in found
        ]
    }


def refuse(_request: Request, code: int, message: str | None) -> dict[str, Any]:
    return {"error_code": code, "error_message": message, "entries": None}


def entity_fields(entity: Iterable[tuple[str, str | None]]) -> list[dict[str, Any]]:
    """An entity, as the requests and responses of both APIs name it."""
    return [{"entity_type": kind, "entity_name": name} for kind, name in entity]
