"""Delegation tokens: creation, renewal, expiry (KIP-48, KIP-900, KIP-373).

Kafka's DelegationTokenControlManager is the source of the checks. A refusal is an error code in the
response, without a message. Time, secret and token ids are arguments.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from shoal.metadata.controller import ControllerResult
from shoal.metadata.records import RECORDS_PER_DECISION_MAX, MetadataRecord
from shoal.protocol.errors import ErrorCode
from shoal.security import delegation_tokens as tokens

if TYPE_CHECKING:
    from shoal.metadata.image import MetadataImage
    from shoal.protocol.responses import security as responses
    from shoal.security.delegation_tokens import DelegationToken, TokenLifetimes


class TokenRequest(NamedTuple):
    """What a request for a token has in common with the next one: who sends it, when, and the
    secret of the cluster, which is empty if tokens are disabled."""

    principal: str
    secret: bytes
    lifetimes: TokenLifetimes
    now_ms: int


def build_token_record(token: DelegationToken) -> MetadataRecord:
    """Return the record that stores the token."""
    return MetadataRecord(
        "DelegationTokenRecord",
        {
            "owner": token.owner,
            "requester": token.requester,
            "renewers": token.renewers,
            "issue_timestamp": token.issue_timestamp_ms,
            "max_timestamp": token.max_timestamp_ms,
            "expiration_timestamp": token.expiry_timestamp_ms,
            "token_id": token.token_id,
        },
    )


def _build_removal_record(token: DelegationToken) -> MetadataRecord:
    return MetadataRecord("RemoveDelegationTokenRecord", {"token_id": token.token_id})


def create(token: DelegationToken) -> ControllerResult:
    """Store a new token, which is the response."""
    return ControllerResult([build_token_record(token)], token)


def renew(
    image: MetadataImage, request: TokenRequest, mac: bytes, period_ms: int
) -> ControllerResult:
    """Extend the life of a token. The response is (error code, new expiry in milliseconds)."""
    token_or_error = _find(image, request, mac)
    if not isinstance(token_or_error, tokens.DelegationToken):
        return _refuse(token_or_error)
    if token_or_error.is_expired(request.now_ms):
        return _refuse(ErrorCode.delegation_token_expired)
    if not token_or_error.is_changed_by(request.principal):
        return _refuse(ErrorCode.delegation_token_owner_mismatch)
    return _store(token_or_error.with_renewal(period_ms, request.lifetimes, request.now_ms))


def expire(
    image: MetadataImage, request: TokenRequest, mac: bytes, period_ms: int
) -> ControllerResult:
    """Let a token expire after `period_ms`, or at once if that is negative.

    The response is (error code, new expiry in milliseconds).
    """
    token_or_error = _find(image, request, mac)
    if not isinstance(token_or_error, tokens.DelegationToken):
        return _refuse(token_or_error)
    if not token_or_error.is_changed_by(request.principal):
        return _refuse(ErrorCode.delegation_token_owner_mismatch)
    if period_ms < 0:
        return ControllerResult(
            [_build_removal_record(token_or_error)], (ErrorCode.none, request.now_ms)
        )
    if token_or_error.is_expired(request.now_ms):
        return _refuse(ErrorCode.delegation_token_expired)
    return _store(token_or_error.with_expiry_after(period_ms, request.now_ms))


def _find(image: MetadataImage, request: TokenRequest, mac: bytes) -> DelegationToken | ErrorCode:
    if not request.secret:
        return ErrorCode.delegation_token_auth_disabled
    token = tokens.find(image.delegation_tokens.values(), request.secret, mac)
    return ErrorCode.delegation_token_not_found if token is None else token


def _refuse(code: ErrorCode) -> ControllerResult:
    return ControllerResult([], (code, 0))


def _store(token: DelegationToken) -> ControllerResult:
    return ControllerResult(
        [build_token_record(token)], (ErrorCode.none, token.expiry_timestamp_ms)
    )


def remove_expired(image: MetadataImage, now_ms: int) -> ControllerResult:
    """Remove tokens that have expired. The response has them."""
    expired = (t for t in image.delegation_tokens.values() if t.is_expired(now_ms))
    removed = list(islice(expired, RECORDS_PER_DECISION_MAX))
    return ControllerResult([_build_removal_record(token) for token in removed], removed)


def describe_token(
    token: DelegationToken, secret: bytes
) -> responses.DescribeDelegationTokenDescribedDelegationToken:
    """Return the fields of a token in the response of DescribeDelegationToken."""
    owner_type, owner = split_principal(token.owner)
    requester_type, requester = split_principal(token.requester)
    renewers = [split_principal(renewer) for renewer in token.renewers]
    return {
        "principal_type": owner_type,
        "principal_name": owner,
        "token_requester_principal_type": requester_type,
        "token_requester_principal_name": requester,
        "issue_timestamp": token.issue_timestamp_ms,
        "expiry_timestamp": token.expiry_timestamp_ms,
        "max_timestamp": token.max_timestamp_ms,
        "token_id": token.token_id,
        "hmac": tokens.compute_token_hmac(secret, token.token_id),
        "renewers": [{"principal_type": t, "principal_name": n} for t, n in renewers],
    }


def split_principal(principal: str) -> tuple[str, str]:
    """Return the type and the name of a principal."""
    kind, _, name = principal.partition(":")
    return kind, name
