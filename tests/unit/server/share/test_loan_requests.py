"""Requests for loans of tenants' limits that no broker of ours sends."""

from __future__ import annotations

from typing import Any, cast
from uuid import UUID

import pytest
from shoal.protocol import codec
from shoal.protocol.api import ApiKey
from shoal.protocol.errors import ApiError, ErrorCode
from shoal.server.share.tenant_loans import LoanService


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ([b"%d" % number for number in range(101)], "names 101 tenants, at most 100"),
        ([b"n" * 129], "a tenant's name of more than 128 bytes"),
    ],
)
def test_a_request_that_costs_too_much_is_refused(names: list[bytes], message: str) -> None:
    """Before anything is looked up."""
    nothing = cast("Any", None)
    service = LoanService(nothing, nothing, nothing, nothing, nothing, nothing)
    wishes = {"topic_id": UUID(int=7), "tenants": [{"name": name} for name in names]}
    fields = {"group_id": "g", "topics": [], "tenant_wishes": wishes}
    data = codec.write_request(ApiKey.READ_SHARE_GROUP_STATE_SUMMARY, 1, fields)
    body = codec.read_request(ApiKey.READ_SHARE_GROUP_STATE_SUMMARY, 1, memoryview(bytes(data)))
    with pytest.raises(ApiError, match=message) as refused:
        service.lend(body)
    assert refused.value.code is ErrorCode.invalid_request
