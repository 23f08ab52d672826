"""DescribeUserScramCredentials: mechanisms and iterations of users, without secrets (KIP-554)."""

from __future__ import annotations

from typing import TYPE_CHECKING

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
