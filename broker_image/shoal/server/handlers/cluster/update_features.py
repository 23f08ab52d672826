"""UpdateFeatures: change feature levels of the cluster, all or none (KIP-584, KIP-1022)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.metadata.controller import UPGRADE, update_features
from shoal.protocol.errors import ErrorCode

if TYPE_CHECKING:
    import asyncio

    from shoal.protocol.responses import quorum as responses
    from shoal.server.broker import Broker
    from shoal.server.network.api import Request

_FAILED = "The update failed for all features since the following feature had an error: "


def handle(broker: Broker, request: Request) -> asyncio.Future[responses.UpdateFeaturesResponse]:
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
        lambda errors: _build_response([name for name, _, _ in updates], errors),
    )


def _build_response(
    features: list[str], errors: dict[str, tuple[ErrorCode, str]]
) -> responses.UpdateFeaturesResponse:
    if errors:
        code, message = next(iter(errors.values()))
        return {"error_code": code, "error_message": f"{_FAILED}{message}"}
    return {
        "error_code": ErrorCode.none,
        # In these results of versions 0 and 1, Kafka has the name of the code for a message.
        "results": [
            {"feature": name, "error_code": ErrorCode.none, "error_message": "NONE"}
            for name in features
        ],
    }
