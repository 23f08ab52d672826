"""Delegation tokens (KIP-48): a login that its owner creates for others, valid for a while."""

from __future__ import annotations

from typing import NamedTuple


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
