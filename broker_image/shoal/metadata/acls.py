"""Access control entries as records (KIP-11, KIP-801)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.metadata.records import MetadataRecord

if TYPE_CHECKING:
    from uuid import UUID

    from shoal.security.acls import Acl


def acl_record(id: UUID, acl: Acl) -> MetadataRecord:
    """Return the record that stores an entry."""
    return MetadataRecord(
        "AccessControlEntryRecord",
        {
            "id": id,
            "resource_type": acl.resource_type,
            "resource_name": acl.resource_name,
            "pattern_type": acl.pattern_type,
            "principal": acl.principal,
            "host": acl.host,
            "operation": acl.operation,
            "permission_type": acl.permission,
        },
    )
