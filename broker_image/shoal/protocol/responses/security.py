"""Types of responses about access control entries, credentials, delegation tokens and quotas.

`tools/response_types.py` generates them from the schemas, and mypy compares them with
what handlers return.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from collections.abc import Sequence


class DescribeAclsAclDescription(TypedDict, total=False):
    principal: str
    host: str
    operation: int
    permission_type: int


class DescribeAclsResource(TypedDict, total=False):
    resource_type: int
    resource_name: str
    pattern_type: int
    acls: Sequence[DescribeAclsAclDescription]


class DescribeAclsResponse(TypedDict, total=False):
    throttle_time_ms: int
    error_code: int
    error_message: str | None
    resources: Sequence[DescribeAclsResource]


class CreateAclsAclCreationResult(TypedDict, total=False):
    error_code: int
    error_message: str | None


class CreateAclsResponse(TypedDict, total=False):
    throttle_time_ms: int
    results: Sequence[CreateAclsAclCreationResult]


class DeleteAclsMatchingAcl(TypedDict, total=False):
    error_code: int
    error_message: str | None
    resource_type: int
    resource_name: str
    pattern_type: int
    principal: str
    host: str
    operation: int
    permission_type: int


class DeleteAclsFilterResult(TypedDict, total=False):
    error_code: int
    error_message: str | None
    matching_acls: Sequence[DeleteAclsMatchingAcl]


class DeleteAclsResponse(TypedDict, total=False):
    throttle_time_ms: int
    filter_results: Sequence[DeleteAclsFilterResult]


class CreateDelegationTokenResponse(TypedDict, total=False):
    error_code: int
    principal_type: str
    principal_name: str
    issue_timestamp_ms: int
    expiry_timestamp_ms: int
    max_timestamp_ms: int
    token_id: str
    hmac: bytes
    throttle_time_ms: int
    token_requester_principal_type: str
    token_requester_principal_name: str


class RenewDelegationTokenResponse(TypedDict, total=False):
    error_code: int
    expiry_timestamp_ms: int
    throttle_time_ms: int


class DescribeClientQuotasEntityData(TypedDict, total=False):
    entity_type: str
    entity_name: str | None


class DescribeClientQuotasValueData(TypedDict, total=False):
    key: str
    value: float


class DescribeClientQuotasEntryData(TypedDict, total=False):
    entity: Sequence[DescribeClientQuotasEntityData]
    values: Sequence[DescribeClientQuotasValueData]


class DescribeClientQuotasResponse(TypedDict, total=False):
    throttle_time_ms: int
    error_code: int
    error_message: str | None
    entries: Sequence[DescribeClientQuotasEntryData] | None


class AlterClientQuotasEntityData(TypedDict, total=False):
    entity_type: str
    entity_name: str | None


class AlterClientQuotasEntryData(TypedDict, total=False):
    error_code: int
    error_message: str | None
    entity: Sequence[AlterClientQuotasEntityData]


class AlterClientQuotasResponse(TypedDict, total=False):
    throttle_time_ms: int
    entries: Sequence[AlterClientQuotasEntryData]


class AlterUserScramCredentialsResult(TypedDict, total=False):
    user: str
    error_code: int
    error_message: str | None


class AlterUserScramCredentialsResponse(TypedDict, total=False):
    throttle_time_ms: int
    results: Sequence[AlterUserScramCredentialsResult]


class SaslHandshakeResponse(TypedDict, total=False):
    error_code: int
    mechanisms: Sequence[str]


class SaslAuthenticateResponse(TypedDict, total=False):
    error_code: int
    error_message: str | None
    auth_bytes: bytes
    session_lifetime_ms: int


class ExpireDelegationTokenResponse(TypedDict, total=False):
    error_code: int
    expiry_timestamp_ms: int
    throttle_time_ms: int


class DescribeDelegationTokenDescribedDelegationTokenRenewer(TypedDict, total=False):
    principal_type: str
    principal_name: str


class DescribeDelegationTokenDescribedDelegationToken(TypedDict, total=False):
    principal_type: str
    principal_name: str
    issue_timestamp: int
    expiry_timestamp: int
    max_timestamp: int
    token_id: str
    hmac: bytes
    renewers: Sequence[DescribeDelegationTokenDescribedDelegationTokenRenewer]
    token_requester_principal_type: str
    token_requester_principal_name: str


class DescribeDelegationTokenResponse(TypedDict, total=False):
    error_code: int
    tokens: Sequence[DescribeDelegationTokenDescribedDelegationToken]
    throttle_time_ms: int


class DescribeUserScramCredentialsCredentialInfo(TypedDict, total=False):
    mechanism: int
    iterations: int


class DescribeUserScramCredentialsResult(TypedDict, total=False):
    user: str
    error_code: int
    error_message: str | None
    credential_infos: Sequence[DescribeUserScramCredentialsCredentialInfo]


class DescribeUserScramCredentialsResponse(TypedDict, total=False):
    throttle_time_ms: int
    error_code: int
    error_message: str | None
    results: Sequence[DescribeUserScramCredentialsResult]
