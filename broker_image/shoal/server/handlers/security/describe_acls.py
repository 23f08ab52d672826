"""DescribeAcls: the access control entries that a filter selects (KIP-140, KIP-290)."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any

from shoal.metadata.acls import AclFilter, describe
from shoal.protocol.errors import ApiError, ErrorCode, WireError
from shoal.security.acls import Acl, Operation, PatternType, Permission, ResourceType

if TYPE_CHECKING:
    from shoal.protocol.responses import security as responses
    from shoal.server.broker import Broker
    from shoal.server.network.api import Request

NO_AUTHORIZER = "No Authorizer is configured."


def has_authorizer(broker: Broker) -> bool:
    """Return whether this node authorizes requests."""
    return bool(broker.config["authorizer.class.name"])


def handle(broker: Broker, request: Request) -> responses.DescribeAclsResponse:
    body = request.body
    if has_unknown(body):
        raise WireError("DescribeAcls has a filter with an UNKNOWN element")
    if not has_authorizer(broker):
        raise ApiError(ErrorCode.security_disabled, "No Authorizer is configured on the broker")
    matches = describe(broker.image.acls, parse_filter(body))
    return {
        "error_code": ErrorCode.none,
        "error_message": "",
        "resources": [
            {
                "resource_type": resource_type,
                "resource_name": name,
                "pattern_type": pattern_type,
                "acls": [build_acl_fields(acl) for acl in acls],
            }
            for (resource_type, name, pattern_type), acls in groupby(matches, key=lambda a: a[:3])
        ],
    }


def has_unknown(body: Any) -> bool:
    """Return whether a filter has the number of UNKNOWN. Kafka closes the connection then."""
    return not all(
        (body.resource_type_filter, body.pattern_type_filter, body.operation, body.permission_type)
    )


def parse_filter(body: Any) -> AclFilter:
    """Return the filter of a request, or of one of its parts."""
    return AclFilter(
        ResourceType(body.resource_type_filter),
        body.resource_name_filter,
        PatternType(body.pattern_type_filter),
        body.principal_filter,
        body.host_filter,
        Operation(body.operation),
        Permission(body.permission_type),
    )


def build_acl_fields(acl: Acl) -> responses.DescribeAclsAclDescription:
    """Return the fields of an entry without those of its pattern."""
    return {
        "principal": acl.principal,
        "host": acl.host,
        "operation": acl.operation,
        "permission_type": acl.permission,
    }
