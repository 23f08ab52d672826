"""AlterClientQuotas: set and remove quotas of users, clients and addresses (KIP-546)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.metadata.client_quotas import QuotaChange
from shoal.metadata.client_quotas import alter as decide
from shoal.server.handlers import audited
from shoal.server.handlers.configs.describe_client_quotas import build_entity_fields

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from shoal.protocol.responses import security as responses
    from shoal.server.broker import Broker
    from shoal.server.network.api import Answer, Request


def handle(broker: Broker, request: Request) -> Answer:
    changes = [
        QuotaChange(
            [(e.entity_type, e.entity_name) for e in entry.entity],
            [(op.key, None if op.remove else op.value) for op in entry.ops],
        )
        for entry in request.body.entries
    ]
    validate_only = request.body.validate_only

    def respond(
        outcomes: Sequence[tuple[int, str | None]],
    ) -> responses.AlterClientQuotasResponse:
        ended = list(zip(changes, outcomes, strict=True))
        if not validate_only:
            applied = [change for change, (code, _) in ended if not code]
            audited.log_changes(broker, request, map(_format_change, applied))
        return {"entries": [_build_result(change.entity, *outcome) for change, outcome in ended]}

    return broker.metadata.submit(
        lambda image: decide(image, changes, validate_only=validate_only), respond
    )


def _format_change(change: QuotaChange) -> str:
    """Return a change for the audit log."""
    entity = ", ".join(f"{kind} {name or '<default>'}" for kind, name in change.entity)
    values = ", ".join(f"{key} {'removed' if v is None else v}" for key, v in change.values)
    return f"quotas of {entity}: {values}"


def refuse(request: Request, code: int, message: str | None) -> responses.AlterClientQuotasResponse:
    return {
        "entries": [
            _build_result([(e.entity_type, e.entity_name) for e in entry.entity], code, message)
            for entry in request.body.entries
        ]
    }


def _build_result(
    entity: Iterable[tuple[str, str | None]], code: int, message: str | None
) -> responses.AlterClientQuotasEntryData:
    return {"entity": build_entity_fields(entity), "error_code": code, "error_message": message}
