"""DescribeDelegationToken: tokens, with their HMACs, of those that the client may see (KIP-48)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.metadata.delegation_tokens import describe_token
from shoal.protocol.errors import ApiError, ErrorCode
from shoal.security.acls import Operation, ResourceType
from shoal.server.handlers.security import token_requests

if TYPE_CHECKING:
    from shoal.protocol.responses import security as responses
    from shoal.security.delegation_tokens import DelegationToken
    from shoal.server.broker import Broker
    from shoal.server.network.api import Request


def handle(broker: Broker, request: Request) -> responses.DescribeDelegationTokenResponse:
    secret = token_requests.get_secret(broker.config)
    if not secret:
        raise ApiError(ErrorCode.delegation_token_auth_disabled)
    requested = request.body.owners
    owners = (
        None if requested is None else [f"{o.principal_type}:{o.principal_name}" for o in requested]
    )
    visible = [
        token
        for _, token in sorted(broker.image.delegation_tokens.items())
        if (owners is None or any(token.is_shown_to(owner) for owner in owners))
        and _may_see(broker, request, token)
    ]
    return {
        "error_code": ErrorCode.none,
        "tokens": [describe_token(token, secret) for token in visible],
    }


def _may_see(broker: Broker, request: Request, token: DelegationToken) -> bool:
    """Return whether the sender may see a token, which has its password. What is left out is not
    audited, as in other lists."""
    allows = broker.access.allows
    return (
        token.is_shown_to(request.peer.principal)
        or allows(
            request,
            Operation.DESCRIBE,
            ResourceType.DELEGATION_TOKEN,
            token.token_id,
            audited=False,
        )
        or allows(request, Operation.DESCRIBE_TOKENS, ResourceType.USER, token.owner, audited=False)
    )
