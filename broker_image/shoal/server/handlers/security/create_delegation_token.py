"""CreateDelegationToken: create a token for oneself, or for another user (KIP-48, KIP-373)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.log.uuids import format_uuid
from shoal.metadata.delegation_tokens import create as decide
from shoal.metadata.delegation_tokens import split_principal
from shoal.protocol.errors import ApiError, ErrorCode
from shoal.security import delegation_tokens as tokens
from shoal.security.acls import ANONYMOUS, ResourceType
from shoal.server.handlers import audited, authorization
from shoal.server.handlers.security import token_requests

if TYPE_CHECKING:
    from shoal.protocol.responses import security as responses
    from shoal.security.delegation_tokens import DelegationToken
    from shoal.server.broker import Broker
    from shoal.server.network.api import Answer, Request

_ERROR_MS = -1


def admit(broker: Broker, request: Request) -> None:
    """Check a client's request. Raises `ApiError`."""
    token_requests.check_connection(request.peer)
    if _get_owner(request) is None:
        # Kafka fails to make such a principal.
        raise ApiError(ErrorCode.unknown_server_error)
    _authorize(broker, request)


def _authorize(broker: Broker, request: Request) -> None:
    """Raise `ApiError` unless the sender may create a token for its owner: itself, or a user for
    whom it has CREATE_TOKENS. Kafka checks the type of renewers only: there, who may create tokens
    for others may become a principal of any type."""
    owner = _get_owner(request)
    if owner is not None and owner != request.peer.principal:
        if not authorization.make_checker(broker, request, ResourceType.USER)(owner):
            raise ApiError(ErrorCode.delegation_token_authorization_failed)
    principals = [owner or ANONYMOUS, *_list_renewers(request)]
    if not all(map(tokens.is_user, principals)):
        raise ApiError(ErrorCode.invalid_principal_type)


def _list_renewers(request: Request) -> list[str]:
    return [f"{r.principal_type}:{r.principal_name}" for r in request.body.renewers]


def handle(broker: Broker, request: Request) -> Answer:
    _authorize(broker, request)  # The controller does not rely on the node that forwards.
    owner, requester = _get_owner(request), request.peer.principal
    assert owner is not None
    secret = token_requests.get_secret(broker.config)
    if not secret:
        code = ErrorCode.delegation_token_auth_disabled
        return {"error_code": code, **_split_principals(owner, requester)}
    token = tokens.issue(
        format_uuid(broker.node.make_random_id()),
        owner=owner,
        requester=requester,
        renewers=_list_renewers(request),
        max_lifetime_ms=request.body.max_lifetime_ms,
        lifetimes=token_requests.get_lifetimes(broker.config),
        now_ms=broker.clock.now_ms(),
    )

    def respond(token: DelegationToken) -> responses.CreateDelegationTokenResponse:
        audited.log_changes(broker, request, [f"created token {token.token_id} of {token.owner}"])
        return _build_response(token, secret)

    return broker.security_records.submit(lambda _image: decide(token), respond)


def _build_response(
    token: DelegationToken, secret: bytes
) -> responses.CreateDelegationTokenResponse:
    return {
        "error_code": ErrorCode.none,
        **_split_principals(token.owner, token.requester),
        "issue_timestamp_ms": token.issue_timestamp_ms,
        "expiry_timestamp_ms": token.expiry_timestamp_ms,
        "max_timestamp_ms": token.max_timestamp_ms,
        "token_id": token.token_id,
        "hmac": tokens.compute_token_hmac(secret, token.token_id),
    }


def _get_owner(request: Request) -> str | None:
    """Return the principal that will own the token; None for a name without a type."""
    name = getattr(request.body, "owner_principal_name", None)
    if not name:
        return request.peer.principal
    kind = request.body.owner_principal_type
    return None if kind is None else f"{kind}:{name}"


def _split_principals(owner: str, requester: str) -> responses.CreateDelegationTokenResponse:
    (owner_type, owner_name), (requester_type, requester_name) = (
        split_principal(owner),
        split_principal(requester),
    )
    return {
        "principal_type": owner_type,
        "principal_name": owner_name,
        "token_requester_principal_type": requester_type,
        "token_requester_principal_name": requester_name,
    }


def refuse(
    request: Request, code: int, _message: str | None
) -> responses.CreateDelegationTokenResponse:
    is_unknown = code == ErrorCode.unknown_server_error
    owner = ANONYMOUS if is_unknown else _get_owner(request) or ANONYMOUS
    return {
        "error_code": code,
        **_split_principals(owner, ANONYMOUS if is_unknown else request.peer.principal),
        "issue_timestamp_ms": _ERROR_MS,
        "expiry_timestamp_ms": _ERROR_MS,
        "max_timestamp_ms": _ERROR_MS,
    }
