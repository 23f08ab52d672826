"""SCRAM credentials of users as records (KIP-900, KIP-554)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.metadata.records import MetadataRecord

if TYPE_CHECKING:
    from shoal.security.scram import ScramCredential


def scram_record(name: str, mechanism: int, credential: ScramCredential) -> MetadataRecord:
    """Return the record that stores a user's credential."""
    return MetadataRecord(
        "UserScramCredentialRecord",
        {"name": name, "mechanism": mechanism} | credential._asdict(),
    )
