"""DescribeClientQuotas: the quotas of users, clients and addresses (KIP-546)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.metadata.client_quotas import QuotaFilterComponent, describe

if TYPE_CHECKING:
    from collections.abc import Iterable

    from shoal.protocol.responses import security as responses
    from shoal.server.broker import Broker
    from shoal.server.network.api import Request


def handle(broker: Broker, request: Request) -> responses.DescribeClientQuotasResponse:
    components = [
        QuotaFilterComponent(c.entity_type, c.match_type, c.match) for c in request.body.components
    ]
    entries = describe(broker.image.client_quotas, components, strict=request.body.strict)
    return {
        "entries": [
            {
                "entity": build_entity_fields(entity),
                "values": [{"key": key, "value": value} for key, value in sorted(values.items())],
            }
            for entity, values in entries
        ]
    }


def refuse(
    _request: Request, code: int, message: str | None
) -> responses.DescribeClientQuotasResponse:
    return {"error_code": code, "error_message": message, "entries": None}


def build_entity_fields(
    entity: Iterable[tuple[str, str | None]],
) -> list[responses.DescribeClientQuotasEntityData]:
    """An entity, as the requests and responses of both APIs name it."""
    return [{"entity_type": kind, "entity_name": name} for kind, name in entity]
