"""DescribeUserScramCredentials: mechanisms and iterations of users, without secrets (KIP-554)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.metadata.scram_credentials import describe
from shoal.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from shoal.protocol.responses import security as responses
    from shoal.server.broker import Broker
    from shoal.server.network.api import Request


def handle(broker: Broker, request: Request) -> responses.DescribeUserScramCredentialsResponse:
    users = request.body.users
    return {
        "error_code": ErrorCode.none,
        "error_message": "",
        "results": describe(
            broker.image.scram_credentials, None if users is None else [u.name for u in users]
        ),
    }


def refuse(
    request: Request, code: int, message: str | None
) -> responses.DescribeUserScramCredentialsResponse:
    """Return the error for the request and, as Kafka, for each user without a name."""
    result: responses.DescribeUserScramCredentialsResult = {
        "user": "",
        "error_code": code,
        "error_message": message,
    }
    return {
        "error_code": code,
        "error_message": message,
        "results": [result for _ in request.body.users or ()],
    }
