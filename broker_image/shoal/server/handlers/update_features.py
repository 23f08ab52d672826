"""UpdateFeatures: change feature levels of the cluster, all or none (KIP-584, KIP-1022)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shoal.metadata.controller import UPGRADE, update_features
from shoal.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from shoal.server.broker import Broker
    from shoal.server.network.api import Answer, Request


def handle(broker: Broker, request: Request) -> Answer:
    body = request.body
    # Version 0 has a flag instead of the type, which Kafka ignores.
    updates = [
        (u.feature, u.max_version_level, getattr(u, "upgrade_type", UPGRADE))
        for u in body.feature_updates
    ]
    return broker.metadata.submit(
        lambda image: update_features(
            image, updates, validate_only=getattr(body, "validate_only", False)
        ),
        lambda errors: _answer([name for name, _, _ in updates], errors),
    )


def _answer(features: list[str], errors: dict[str, tuple[ErrorCode, str]]) -> dict[str, Any]:
    if errors:
        code, message = next(iter(errors.values()))
        return {"error_code": code, "error_message": f"No feature was updated. {message}"}
    return {
        "error_code": ErrorCode.none,
        "results": [{"feature": name, "error_code": ErrorCode.none} for name in features],
    }
