"""Access control entries over the wire, and clients that differ by their addresses.

All clients are User:ANONYMOUS. An entry names a client by its address in 127.0.0.0/8; the
administrator connects from 127.0.0.1. Without any entry all is allowed, so that nodes and the
administrator can begin.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shoal.protocol.api import ApiKey
from shoal.security.acls import (
    ANONYMOUS,
    CLUSTER_NAME,
    Acl,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from support.brokers.wireclient import WireClient

ADMIN = "127.0.0.1"
#: The configs of a broker with an authorizer.
CONFIGS = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
}


def entry(
    host: str,
    operation: Operation,
    kind: ResourceType,
    name: str = "*",
    pattern: PatternType = PatternType.LITERAL,
    *,
    permission: Permission = Permission.ALLOW,
) -> Acl:
    """Return an entry for clients from `host`."""
    if kind is ResourceType.CLUSTER:
        name = CLUSTER_NAME
    return Acl(kind, name, pattern, ANONYMOUS, host, operation, permission)


def everything(host: str, without: ResourceType | None = None) -> list[Acl]:
    """Return entries that allow clients from `host` everything, but for one type of resource."""
    kinds = [kind for kind in ResourceType if kind > ResourceType.ANY and kind != without]
    return [entry(host, Operation.ALL, kind) for kind in kinds]


def creations(acls: Iterable[Acl]) -> dict[str, Any]:
    """Return the body of a CreateAcls request."""
    rows = [
        {
            "resource_type": acl.resource_type,
            "resource_name": acl.resource_name,
            "resource_pattern_type": acl.pattern_type,
            "principal": acl.principal,
            "host": acl.host,
            "operation": acl.operation,
            "permission_type": acl.permission,
        }
        for acl in acls
    ]
    return {"creations": rows}


def deletions(acls: Iterable[Acl]) -> dict[str, Any]:
    """Return the body of a DeleteAcls request for exactly these entries."""
    filters = [
        {
            "resource_type_filter": acl.resource_type,
            "resource_name_filter": acl.resource_name,
            "pattern_type_filter": acl.pattern_type,
            "principal_filter": acl.principal,
            "host_filter": acl.host,
            "operation": acl.operation,
            "permission_type": acl.permission,
        }
        for acl in acls
    ]
    return {"filters": filters}


def grant(admin: WireClient, acls: Iterable[Acl]) -> None:
    """Create entries."""
    answer = admin.call(ApiKey.CREATE_ACLS, 3, creations(acls))
    assert not any(row.error_code for row in answer.results), answer


def withdraw(admin: WireClient, acls: Iterable[Acl]) -> None:
    """Delete entries."""
    answer = admin.call(ApiKey.DELETE_ACLS, 3, deletions(acls))
    for row in answer.filter_results:
        assert not row.error_code, row
        assert len(row.matching_acls) == 1, row


def count(admin: WireClient) -> int:
    """Return the number of entries that a broker has."""
    body = {
        "resource_type_filter": 1,
        "pattern_type_filter": 1,
        "operation": 1,
        "permission_type": 1,
    }
    found = admin.call(ApiKey.DESCRIBE_ACLS, 3, body)
    return sum(len(resource.acls) for resource in found.resources)
