"""DeleteAcls: delete the access control entries that filters select (KIP-140, KIP-290)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shoal.metadata.acls import AclDeleteResult
from shoal.metadata.acls import delete as decide
from shoal.protocol import codec
from shoal.protocol.api import ApiKey
from shoal.protocol.errors import ApiError, ErrorCode, WireError
from shoal.server.handlers import audited
from shoal.server.handlers.security.describe_acls import (
    NO_AUTHORIZER,
    build_acl_fields,
    has_authorizer,
    has_unknown,
    parse_filter,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shoal.protocol.responses import security as responses
    from shoal.server.broker import Broker
    from shoal.server.network.api import Answer, Request


def read(version: int, frame: memoryview, at: int) -> Any:
    """Decode the body. Raises `WireError` for an element with the number of UNKNOWN, which closes
    the connection, as in Kafka."""
    body = codec.read_request(ApiKey.DELETE_ACLS, version, frame.toreadonly(), at)
    if any(has_unknown(entry) for entry in body.filters):
        raise WireError("DeleteAcls has a filter with an UNKNOWN element")
    return body


def handle(broker: Broker, request: Request) -> Answer:
    if not has_authorizer(broker):
        raise ApiError(ErrorCode.security_disabled, NO_AUTHORIZER)
    filters = [parse_filter(entry) for entry in request.body.filters]

    def respond(outcomes: Sequence[AclDeleteResult]) -> responses.DeleteAclsResponse:
        deleted = dict.fromkeys(acl for outcome in outcomes for acl in outcome.deleted)
        audited.log_changes(broker, request, map(str, deleted))
        return {"filter_results": [_build_result(outcome) for outcome in outcomes]}

    return broker.security_records.submit(lambda image: decide(image, filters), respond)


def _build_result(outcome: AclDeleteResult) -> responses.DeleteAclsFilterResult:
    code, message = outcome.refusal or (ErrorCode.none, None)
    return {
        "error_code": code,
        "error_message": message,
        "matching_acls": [
            {
                "error_code": ErrorCode.none,
                "error_message": None,
                "resource_type": acl.resource_type,
                "resource_name": acl.resource_name,
                "pattern_type": acl.pattern_type,
                **build_acl_fields(acl),
            }
            for acl in outcome.deleted
        ],
    }


def refuse(request: Request, code: int, message: str | None) -> responses.DeleteAclsResponse:
    result: responses.DeleteAclsFilterResult = {
        "error_code": code,
        "error_message": message,
        "matching_acls": (),
    }
    return {"filter_results": [result] * len(request.body.filters)}
