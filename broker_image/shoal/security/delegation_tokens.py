"""Delegation tokens (KIP-48): a login that its owner creates for others, valid for a while.

The id of a token is public. Its password is the HMAC of the id with `delegation.token.secret.key`,
so nothing secret is stored. A client that has the HMAC may log in as the owner.
"""

from __future__ import annotations

import hmac
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from shoal.security.principals import USER

if TYPE_CHECKING:
    from collections.abc import Iterable

#: The largest timestamp.
_END_MS = (1 << 63) - 1
#: HMACs that are kept, of about 150 bytes each.
_HMACS_KEPT = 65_536


def is_user(principal: str) -> bool:
    """Return whether a principal has the type User, as owners and renewers of tokens must."""
    return principal.startswith(f"{USER}:")


class TokenLifetimes(NamedTuple):
    """delegation.token.max.lifetime.ms and delegation.token.expiry.time.ms."""

    max_ms: int
    renewal_ms: int


class DelegationToken(NamedTuple):
    """What the cluster stores of a token. Owner, requester and renewers are principals.

    A token expires at `expiry_timestamp_ms` unless it is renewed, at the latest at
    `max_timestamp_ms`.
    """

    token_id: str
    owner: str
    requester: str
    renewers: tuple[str, ...]
    issue_timestamp_ms: int
    max_timestamp_ms: int
    expiry_timestamp_ms: int

    def is_expired(self, now_ms: int) -> bool:
        """Return whether nobody may use or renew the token any more.

        No client is of another type than User. Earlier releases made tokens for such owners.
        """
        is_late = now_ms > min(self.max_timestamp_ms, self.expiry_timestamp_ms)
        return is_late or not is_user(self.owner)

    def is_changed_by(self, principal: str) -> bool:
        """Return whether `principal` may renew and expire the token."""
        return principal == self.owner or principal in self.renewers

    def is_shown_to(self, principal: str) -> bool:
        """Return whether `principal` may describe the token without a permission."""
        return principal == self.requester or self.is_changed_by(principal)

    def with_renewal(
        self, period_ms: int, lifetimes: TokenLifetimes, now_ms: int
    ) -> DelegationToken:
        """Return the token renewed for `period_ms`, or for the default if that is not above 0."""
        if period_ms <= 0 or period_ms > lifetimes.renewal_ms:
            period_ms = lifetimes.renewal_ms
        return self.with_expiry_after(period_ms, now_ms)

    def with_expiry_after(self, period_ms: int, now_ms: int) -> DelegationToken:
        """Return the token with its expiry after `period_ms`."""
        expiry_ms = min(self.max_timestamp_ms, now_ms + period_ms)
        return self._replace(expiry_timestamp_ms=expiry_ms)


def issue(
    token_id: str,
    *,
    owner: str,
    requester: str,
    renewers: Iterable[str],
    max_lifetime_ms: int,
    lifetimes: TokenLifetimes,
    now_ms: int,
) -> DelegationToken:
    """Return a new token. A `max_lifetime_ms` of 0 or less stands for the default, which it cannot
    exceed."""
    if max_lifetime_ms <= 0 or max_lifetime_ms > lifetimes.max_ms:
        max_lifetime_ms = lifetimes.max_ms
    max_ms = min(now_ms + max_lifetime_ms, _END_MS)
    expiry_ms = min(max_ms, now_ms + lifetimes.renewal_ms)
    return DelegationToken(token_id, owner, requester, tuple(renewers), now_ms, max_ms, expiry_ms)


@lru_cache(maxsize=_HMACS_KEPT)
def compute_token_hmac(secret: bytes, token_id: str) -> bytes:
    """Return the HMAC of a token, its password."""
    return hmac.digest(secret, token_id.encode(), "sha512")


def find(tokens: Iterable[DelegationToken], secret: bytes, mac: bytes) -> DelegationToken | None:
    """Return the token with that HMAC, or None. The time does not depend on where HMACs differ."""
    match = None
    for token in tokens:
        if hmac.compare_digest(compute_token_hmac(secret, token.token_id), mac):
            match = token
    return match
