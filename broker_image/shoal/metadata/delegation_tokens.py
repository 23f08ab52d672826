"""Delegation tokens as records (KIP-900, KIP-48)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.metadata.records import MetadataRecord

if TYPE_CHECKING:
    from shoal.security.delegation_tokens import DelegationToken


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
