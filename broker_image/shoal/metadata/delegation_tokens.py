"""Delegation tokens: creation, renewal, expiry (KIP-48, KIP-900, KIP-373).

Kafka's DelegationTokenControlManager is the source of the checks. A refusal is an error code in the
response, without a message. Time, secret and token ids are arguments.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from shoal.metadata.controller import Decision
from shoal.metadata.records import RECORDS_PER_DECISION_MAX, MetadataRecord
from shoal.protocol.errors import ErrorCode
from shoal.security import delegation_tokens as tokens

if TYPE_CHECKING:
    from shoal.metadata.image import MetadataImage
    from shoal.security.delegation_tokens import DelegationToken, TokenLifetimes


class Request(NamedTuple):
    """What a request for a token has in common with the next one: who sends it, when, and the
    secret of the cluster, which is empty if tokens are disabled."""

    principal: str
    secret: bytes
    lifetimes: TokenLifetimes
    now_ms: int


def token_record(token: DelegationToken) -> MetadataRecord:
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


def _removal(token: DelegationToken) -> MetadataRecord:
    return MetadataRecord("RemoveDelegationTokenRecord", {"token_id": token.token_id})


def create(token: DelegationToken) -> Decision:
    """Store a new token, which is the response."""
    return Decision([token_record(token)], token)


def renew(image: MetadataImage, request: Request, mac: bytes, period_ms: int) -> Decision:
    """Extend the life of a token. The response is (error code, new expiry in milliseconds)."""
    found = _find(image, request, mac)
    if not isinstance(found, tokens.DelegationToken):
        return _refused(found)
    if found.is_expired(request.now_ms):
        return _refused(ErrorCode.delegation_token_expired)
    if not found.is_changed_by(request.principal):
        return _refused(ErrorCode.delegation_token_owner_mismatch)
    return _stored(found.renewed(period_ms, request.lifetimes, request.now_ms))


def expire(image: MetadataImage, request: Request, mac: bytes, period_ms: int) -> Decision:
    """Let a token expire after `period_ms`, or at once if that is negative.

    The response is (error code, new expiry in milliseconds).
    """
    found = _find(image, request, mac)
    if not isinstance(found, tokens.DelegationToken):
        return _refused(found)
    if not found.is_changed_by(request.principal):
        return _refused(ErrorCode.delegation_token_owner_mismatch)
    if period_ms < 0:
        return Decision([_removal(found)], (ErrorCode.none, request.now_ms))
    if found.is_expired(request.now_ms):
        return _refused(ErrorCode.delegation_token_expired)
    return _stored(found.expiring(period_ms, request.now_ms))


def _find(image: MetadataImage, request: Request, mac: bytes) -> DelegationToken | ErrorCode:
    if not request.secret:
        return ErrorCode.delegation_token_auth_disabled
    found = tokens.find(image.delegation_tokens.values(), request.secret, mac)
    return ErrorCode.delegation_token_not_found if found is None else found


def _refused(code: ErrorCode) -> Decision:
    return Decision([], (code, 0))


def _stored(token: DelegationToken) -> Decision:
    return Decision([token_record(token)], (ErrorCode.none, token.expiry_timestamp_ms))


def remove_expired(image: MetadataImage, now_ms: int) -> Decision:
    """Remove tokens that have expired. The response has them."""
    expired = (t for t in image.delegation_tokens.values() if t.is_expired(now_ms))
    found = list(islice(expired, RECORDS_PER_DECISION_MAX))
    return Decision([_removal(token) for token in found], found)


def described(token: DelegationToken, secret: bytes) -> dict[str, Any]:
    """Return the fields of a token in the response of DescribeDelegationToken."""
    owner_type, owner = split(token.owner)
    requester_type, requester = split(token.requester)
    renewers = [split(renewer) for renewer in token.renewers]
    return {
        "principal_type": owner_type,
        "principal_name": owner,
        "token_requester_principal_type": requester_type,
        "token_requester_principal_name": requester,
        "issue_timestamp": token.issue_timestamp_ms,
        "expiry_timestamp": token.expiry_timestamp_ms,
        "max_timestamp": token.max_timestamp_ms,
        "token_id": token.token_id,
        "hmac": tokens.token_hmac(secret, token.token_id),
        "renewers": [{"principal_type": t, "principal_name": n} for t, n in renewers],
    }


def split(principal: str) -> tuple[str, str]:
    """Return the type and the name of a principal."""
    kind, _, name = principal.partition(":")
    return kind, name
