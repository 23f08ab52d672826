"""CreateAcls: create access control entries, each with a result of its own (KIP-140, KIP-290)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shoal.metadata.acls import create as decide
from shoal.protocol import codec
from shoal.protocol.api import ApiKey
from shoal.protocol.errors import ApiError, ErrorCode, WireError
from shoal.security.acls import Acl, Operation, PatternType, Permission, ResourceType
from shoal.server.handlers import audited
from shoal.server.handlers.security.describe_acls import NO_AUTHORIZER, has_authorizer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shoal.protocol.responses import security as responses
    from shoal.server.broker import Broker
    from shoal.server.network.api import Answer, Request


def read(version: int, frame: memoryview, at: int) -> Any:
    """Decode the body. Raises `WireError` for an element with the number of UNKNOWN, which closes
    the connection, as in Kafka."""
    body = codec.read_request(ApiKey.CREATE_ACLS, version, frame.toreadonly(), at)
    for c in body.creations:
        if not all((c.resource_type, c.resource_pattern_type, c.operation, c.permission_type)):
            raise WireError("CreateAcls has an entry with an UNKNOWN element")
    return body


def handle(broker: Broker, request: Request) -> Answer:
    if not has_authorizer(broker):
        raise ApiError(ErrorCode.security_disabled, NO_AUTHORIZER)
    acls = [
        Acl(
            ResourceType(c.resource_type),
            c.resource_name,
            PatternType(c.resource_pattern_type),
            c.principal,
            c.host,
            Operation(c.operation),
            Permission(c.permission_type),
        )
        for c in request.body.creations
    ]
    if any(_is_filter(acl) for acl in acls):
        # Kafka fails to make such an entry, and so refuses the whole request.
        raise ApiError(ErrorCode.unknown_server_error)

    def respond(outcomes: Sequence[tuple[ErrorCode, str]]) -> responses.CreateAclsResponse:
        created = [acl for acl, (code, _) in zip(acls, outcomes, strict=True) if not code]
        audited.log_changes(broker, request, map(str, created))
        return {
            "results": [
                {"error_code": code, "error_message": message} for code, message in outcomes
            ]
        }

    return broker.security_records.submit(lambda image: decide(image, acls), respond)


def _is_filter(acl: Acl) -> bool:
    return (
        acl.resource_type == ResourceType.ANY
        or acl.pattern_type in (PatternType.ANY, PatternType.MATCH)
        or acl.operation == Operation.ANY
        or acl.permission == Permission.ANY
    )


def refuse(request: Request, code: int, message: str | None) -> responses.CreateAclsResponse:
    result: responses.CreateAclsAclCreationResult = {"error_code": code, "error_message": message}
    return {"results": [result] * len(request.body.creations)}
