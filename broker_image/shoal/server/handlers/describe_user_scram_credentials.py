"""DescribeUserScramCredentials: mechanisms and iterations of users, without secrets (KIP-554)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shoal.metadata.scram_credentials import describe
from shoal.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from shoal.server.broker import Broker
    from shoal.server.network.api import Answer, Request


def handle(broker: Broker, request: Request) -> Answer:
    users = request.body.users
    return {
        "error_code": ErrorCode.none,
        "error_message": "",
        "results": describe(
            broker.image.scram_credentials, None if users is None else [u.name for u in users]
        ),
    }


def refuse(request: Request, code: int, message: str | None) -> dict[str, Any]:
    """Return the error for the request and, as Kafka, for each user without a name."""
    error = {"error_code": code, "error_message": message}
    return {**error, "results": [{"user": "", **error} for _ in request.body.users or ()]}
