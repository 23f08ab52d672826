"""DescribeClientQuotas and AlterClientQuotas: quotas of users, clients and addresses (KIP-546)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from shoal.metadata.client_quotas import Component, QuotaChange
from shoal.metadata.client_quotas import alter as decide
from shoal.metadata.client_quotas import describe as find
from shoal.server.network.api import Answer, Request

if TYPE_CHECKING:
    from shoal.server.broker import Broker


def describe(broker: Broker, request: Request) -> Answer:
    components = [Component(c.entity_type, c.match_type, c.match) for c in request.body.components]
    found = find(broker.image.client_quotas, components, strict=request.body.strict)
    return {
        "entries": [
            {
                "entity": _entity(entity),
                "values": [{"key": key, "value": value} for key, value in sorted(values.items())],
            }
            for entity, values in found
        ]
    }


def alter(broker: Broker, request: Request) -> Answer:
    changes = [
        QuotaChange(
            [(e.entity_type, e.entity_name) for e in entry.entity],
            [(op.key, None if op.remove else op.value) for op in entry.ops],
        )
        for entry in request.body.entries
    ]
    validate_only = request.body.validate_only
    return broker.metadata.submit(
        lambda image: decide(image, changes, validate_only=validate_only),
        lambda outcomes: {
            "entries": [
                _row(change.entity, code, message)
                for change, (code, message) in zip(changes, outcomes, strict=True)
            ]
        },
    )


def refuse_describe(request: Request, code: int, message: str | None) -> dict[str, Any]:
    return {"error_code": code, "error_message": message, "entries": None}


def refuse(request: Request, code: int, message: str | None) -> dict[str, Any]:
    return {
        "entries": [
            _row([(e.entity_type, e.entity_name) for e in entry.entity], code, message)
            for entry in request.body.entries
        ]
    }


def _row(
    entity: Iterable[tuple[str, str | None]], code: int, message: str | None
) -> dict[str, Any]:
    return {"entity": _entity(entity), "error_code": code, "error_message": message}


def _entity(entity: Iterable[tuple[str, str | None]]) -> list[dict[str, Any]]:
    return [{"entity_type": kind, "entity_name": name} for kind, name in entity]
