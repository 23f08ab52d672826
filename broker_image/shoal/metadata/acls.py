"""Access control entries: creation, removal and listings by filter (KIP-11, KIP-290, KIP-801).

Checks, messages and limits are those of Kafka's AclApis and AclControlManager.

The id of an entry is a hash of its fields. So a repeated request finds the entry that the first
attempt has created, and a lookup needs no index.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

from shoal.metadata.controller import ControllerResult
from shoal.metadata.records import RECORDS_PER_DECISION_MAX, MetadataRecord
from shoal.protocol.errors import ApiError, ErrorCode
from shoal.security.acls import (
    CLUSTER_NAME,
    WILDCARD,
    Acl,
    Operation,
    PatternType,
    Permission,
    ResourceType,
    parse_network,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from shoal.metadata.image import MetadataImage

#: The metadata.version from which on hosts of entries may be networks: 4.4-IV1.
NETWORKS_LEVEL = 32

Refusal = tuple[ErrorCode, str]
_NO_REFUSAL: Refusal = (ErrorCode.none, "")


class AclFilter(NamedTuple):
    """Which entries to describe or to delete. None, and ANY, match all values.

    The pattern type MATCH selects all patterns that match a resource with the name.
    """

    resource_type: ResourceType
    resource_name: str | None
    pattern_type: PatternType
    principal: str | None
    host: str | None
    operation: Operation
    permission: Permission

    def is_match(self, acl: Acl) -> bool:
        """Return whether the filter selects an entry."""
        return (
            self._has_name_of(acl)
            and self.principal in (None, acl.principal)
            and self.host in (None, acl.host)
            and self.resource_type in (ResourceType.ANY, acl.resource_type)
            and self.pattern_type in (PatternType.ANY, PatternType.MATCH, acl.pattern_type)
            and self.operation in (Operation.ANY, acl.operation)
            and self.permission in (Permission.ANY, acl.permission)
        )

    def _has_name_of(self, acl: Acl) -> bool:
        name = self.resource_name
        if name is None or self.pattern_type != PatternType.MATCH:
            return name in (None, acl.resource_name)
        if acl.pattern_type == PatternType.PREFIXED:
            return name.startswith(acl.resource_name)
        return acl.resource_name in (name, WILDCARD)

    @property
    def refusal(self) -> Refusal | None:
        """Return why entries cannot be deleted by this filter, or None."""
        if self.resource_type == ResourceType.UNKNOWN or self.pattern_type == PatternType.UNKNOWN:
            return ErrorCode.invalid_request, "Unknown patternFilter."
        if self.operation == Operation.UNKNOWN or self.permission == Permission.UNKNOWN:
            return ErrorCode.invalid_request, "Unknown entryFilter."
        return None


def compute_acl_id(acl: Acl) -> UUID:
    """Return the id of an entry."""
    name, principal, host = acl.resource_name, acl.principal, acl.host
    numbers = (acl.resource_type, acl.pattern_type, acl.operation, acl.permission)
    text = repr((*map(int, numbers), name, principal, host))
    return UUID(bytes=hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:16])


def build_acl_record(id: UUID, acl: Acl) -> MetadataRecord:
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


def create(image: MetadataImage, acls: Sequence[Acl]) -> ControllerResult:
    """Create entries, each independently. An entry that exists already is left as it is.

    The response is (error code, message) for each entry, in order. Raises `ApiError`.
    """
    records: dict[UUID, MetadataRecord] = {}
    outcomes = []
    for acl in acls:
        refusal = _find_refusal(acl, image.features.get("metadata.version", 0))
        outcomes.append(refusal or _NO_REFUSAL)
        if refusal is None:
            id = compute_acl_id(acl)
            if id not in image.acls:
                records[id] = build_acl_record(id, acl)
    if len(records) > RECORDS_PER_DECISION_MAX:
        raise ApiError(
            ErrorCode.policy_violation, "Unable to perform excessively large batch operation."
        )
    return ControllerResult(list(records.values()), outcomes)


def _find_refusal(acl: Acl, level: int) -> Refusal | None:
    """Return why an entry cannot be created at that metadata.version, or None."""
    if acl.resource_type == ResourceType.CLUSTER and acl.resource_name != CLUSTER_NAME:
        reason = f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}"
    elif not acl.resource_name:
        reason = "Invalid empty resource name"
    elif acl.resource_type <= ResourceType.ANY:
        reason = f"Invalid resourceType {acl.resource_type.name}"
    elif acl.pattern_type not in (PatternType.LITERAL, PatternType.PREFIXED):
        reason = f"Invalid patternType {acl.pattern_type.name}"
    elif acl.operation <= Operation.ANY:
        reason = f"Invalid operation {acl.operation.name}"
    elif acl.permission <= Permission.ANY:
        reason = f"Invalid permissionType {acl.permission.name}"
    elif ":" not in acl.principal:
        reason = (
            f"Could not parse principal from `{acl.principal}` (no colon is present separating the"
            " principal type from the principal name)"
        )
    elif not acl.host:
        reason = "Host pattern cannot be null or empty"
    elif "/" in acl.host:
        return _find_network_refusal(acl.host, level)
    else:
        return None
    return ErrorCode.invalid_request, reason


def _find_network_refusal(host: str, level: int) -> Refusal | None:
    """Return why a network in CIDR notation cannot be the host of an entry, or None."""
    if level < NETWORKS_LEVEL:
        reason = "CIDR-based ACL host patterns require metadata version 4.4-IV1 or higher."
        return ErrorCode.unsupported_version, reason
    try:
        parse_network(host)
    except ValueError as error:
        return ErrorCode.invalid_request, f"Invalid CIDR notation '{host}': {error}"
    return None


class AclDeleteResult(NamedTuple):
    """The outcome of one filter: an error, or the entries that it has deleted."""

    refusal: Refusal | None
    deleted: Sequence[Acl] = ()


def delete(image: MetadataImage, filters: Iterable[AclFilter]) -> ControllerResult:
    """Delete the entries that the filters select.

    The response is a `AclDeleteResult` for each filter, in order. An entry that several filters
    select is in the result of each. Raises `ApiError`.
    """
    records: dict[UUID, MetadataRecord] = {}
    outcomes = []
    for acl_filter in filters:
        if acl_filter.refusal is not None:
            outcomes.append(AclDeleteResult(acl_filter.refusal))
            continue
        matching = [(id, acl) for id, acl in image.acls.items() if acl_filter.is_match(acl)]
        for id, _ in matching:
            # As in Kafka, an entry that is deleted already counts at the limit.
            if len(records) >= RECORDS_PER_DECISION_MAX:
                raise ApiError(
                    ErrorCode.invalid_request,
                    f"Cannot remove more than {RECORDS_PER_DECISION_MAX} acls in a single delete"
                    " operation.",
                )
            records[id] = MetadataRecord("RemoveAccessControlEntryRecord", {"id": id})
        outcomes.append(AclDeleteResult(None, [acl for _, acl in matching]))
    return ControllerResult(list(records.values()), outcomes)


def describe(acls: Mapping[UUID, Acl], acl_filter: AclFilter) -> list[Acl]:
    """Return the entries that the filter selects, sorted by their patterns."""
    return sorted({acl for acl in acls.values() if acl_filter.is_match(acl)}, key=_get_sort_key)


def _get_sort_key(acl: Acl) -> tuple[ResourceType, str, PatternType, Acl]:
    return acl.resource_type, acl.resource_name, acl.pattern_type, acl
