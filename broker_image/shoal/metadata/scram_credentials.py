"""SCRAM credentials of users: changes and listings (KIP-554, KIP-900).

Checks and messages are those of Kafka's ScramControlManager and ScramImage. A request may name a
user once, even for two mechanisms. Clients send salted passwords, never passwords.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from shoal.metadata.controller import ControllerResult
from shoal.metadata.records import RECORDS_PER_DECISION_MAX, MetadataRecord
from shoal.protocol.errors import ApiError, ErrorCode
from shoal.security.scram import ITERATIONS_MIN, SCRAM_MECHANISMS, from_salted_password

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from shoal.metadata.image import MetadataImage
    from shoal.protocol.responses import security as responses
    from shoal.security.scram import ScramCredential

#: More iterations would let one login occupy a client for too long.
ITERATIONS_MAX = 16_384
_MECHANISMS = {mechanism.number: mechanism for mechanism in SCRAM_MECHANISMS.values()}
_TWICE = "A user credential cannot be altered twice in the same request"
Refusal = tuple[ErrorCode, str | None]


class ScramCredentialDeletion(NamedTuple):
    """Which credential of a user to delete; `mechanism` is a number of the protocol."""

    name: str
    mechanism: int


class ScramCredentialUpsertion(NamedTuple):
    """A credential to create or to replace."""

    name: str
    mechanism: int
    iterations: int
    salt: bytes
    salted_password: bytes


def build_scram_record(name: str, mechanism: int, credential: ScramCredential) -> MetadataRecord:
    """Return the record that stores a user's credential."""
    return MetadataRecord(
        "UserScramCredentialRecord",
        {"name": name, "mechanism": mechanism} | credential._asdict(),
    )


def alter(
    image: MetadataImage,
    deletions: Sequence[ScramCredentialDeletion],
    upsertions: Sequence[ScramCredentialUpsertion],
) -> ControllerResult:
    """Delete, create and replace credentials, each user's independently.

    The response maps each user to (error code, message). Raises `ApiError`.
    """
    if len(deletions) + len(upsertions) > RECORDS_PER_DECISION_MAX:
        raise ApiError(
            ErrorCode.policy_violation,
            f"A request may alter the credentials of at most {RECORDS_PER_DECISION_MAX} users.",
        )
    changes: list[ScramCredentialDeletion | ScramCredentialUpsertion] = [*deletions, *upsertions]
    times = Counter(change.name for change in changes)
    records: list[MetadataRecord] = []
    outcomes: dict[str, Refusal] = {}
    for change in changes:
        if change.name in outcomes:
            continue
        refusal = (
            _find_deletion_refusal(image, change)
            if isinstance(change, ScramCredentialDeletion)
            else _find_upsertion_refusal(change)
        )
        if refusal is None and times[change.name] > 1:
            refusal = ErrorCode.duplicate_resource, _TWICE
        if (
            refusal is None
            and isinstance(change, ScramCredentialUpsertion)
            and not change.salted_password
        ):
            refusal = ErrorCode.unknown_server_error, None  # Java has no key of no bytes.
        outcomes[change.name] = refusal or (ErrorCode.none, None)
        if refusal is None:
            records.append(_build_record(change))
    return ControllerResult(records, outcomes)


def _build_record(change: ScramCredentialDeletion | ScramCredentialUpsertion) -> MetadataRecord:
    if isinstance(change, ScramCredentialDeletion):
        return MetadataRecord("RemoveUserScramCredentialRecord", change._asdict())
    credential = from_salted_password(
        _MECHANISMS[change.mechanism], change.salted_password, change.salt, change.iterations
    )
    return build_scram_record(change.name, change.mechanism, credential)


def _find_refusal(change: ScramCredentialDeletion | ScramCredentialUpsertion) -> Refusal | None:
    if not change.name:
        return ErrorCode.unacceptable_credential, "Username must not be empty"
    if change.mechanism not in _MECHANISMS:
        return ErrorCode.unsupported_sasl_mechanism, "Unknown SCRAM mechanism"
    return None


def _find_deletion_refusal(
    image: MetadataImage, deletion: ScramCredentialDeletion
) -> Refusal | None:
    refusal = _find_refusal(deletion)
    if refusal is None and deletion not in image.scram_credentials:
        message = "Attempt to delete a user credential that does not exist"
        return ErrorCode.resource_not_found, message
    return refusal


def _find_upsertion_refusal(upsertion: ScramCredentialUpsertion) -> Refusal | None:
    refusal = _find_refusal(upsertion)
    if refusal is not None:
        return refusal
    if upsertion.iterations < ITERATIONS_MIN:
        return ErrorCode.unacceptable_credential, "Too few iterations"
    if upsertion.iterations > ITERATIONS_MAX:
        return ErrorCode.unacceptable_credential, "Too many iterations"
    return None


def describe(
    credentials: Mapping[tuple[str, int], ScramCredential], names: Sequence[str] | None
) -> list[responses.DescribeUserScramCredentialsResult]:
    """Return the mechanisms and iterations of users; of all users if `names` is empty or None.

    These are the rows of the response of DescribeUserScramCredentials.
    """
    by_name: dict[str, list[responses.DescribeUserScramCredentialsCredentialInfo]] = {}
    for (name, mechanism), credential in sorted(credentials.items()):
        info: responses.DescribeUserScramCredentialsCredentialInfo = {
            "mechanism": mechanism,
            "iterations": credential.iterations,
        }
        by_name.setdefault(name, []).append(info)
    times = Counter(names or list(by_name))
    return [_describe_user(name, times[name], by_name.get(name)) for name in times]


def _describe_user(
    name: str,
    times: int,
    infos: Sequence[responses.DescribeUserScramCredentialsCredentialInfo] | None,
) -> responses.DescribeUserScramCredentialsResult:
    code, message = ErrorCode.none, ""
    if times > 1:
        code = ErrorCode.duplicate_resource
        message = (
            f"Cannot describe SCRAM credentials for the same user twice in a single request: {name}"
        )
    elif infos is None:
        code = ErrorCode.resource_not_found
        message = f"Attempt to describe a user credential that does not exist: {name}"
    return {
        "user": name,
        "error_code": code,
        "error_message": message,
        "credential_infos": [] if code or infos is None else infos,
    }
