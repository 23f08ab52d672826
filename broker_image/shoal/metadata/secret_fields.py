"""Metadata records for the eyes of users: secrets are masked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shoal.metadata import listener_configs
from shoal.metadata.image import ConfigResourceType
from shoal.metadata.records import HIDDEN, SECRETS

if TYPE_CHECKING:
    from shoal.metadata.records import MetadataRecord


def mask_secrets(record: MetadataRecord) -> dict[str, Any]:
    """Return the fields of a record, with `[hidden]` in place of secrets.

    Secrets are the keys and the salt of a SCRAM credential, and passwords among broker configs.
    """
    fields = record.fields
    names: tuple[str, ...] = SECRETS.get(record.kind, ())
    if record.kind == "ConfigRecord" and fields["resource_type"] == ConfigResourceType.BROKER:
        key = listener_configs.find_key(fields["name"])
        # A newer release may have passwords that this one does not know.
        if fields["value"] is not None and (key is None or key.sensitive):
            names = ("value",)
    return fields | dict.fromkeys(names, HIDDEN)
