"""Admin calls on access control entries, SCRAM credentials and delegation tokens.

Reached as `Admin.acls`, `Admin.users` and `Admin.tokens`. Passwords are hashed here, so the cluster
receives neither a password nor anything else that a client could log in with.
"""

from __future__ import annotations

import base64
from enum import IntEnum
from typing import TYPE_CHECKING, Any, NamedTuple

from shoal.client.errors import KafkaError, UnsupportedVersion, check
from shoal.client.net import message_fields
from shoal.client.security import scram
from shoal.client.security.secret import Secret, SecretBytes
from shoal.protocol.api import ApiKey
from shoal.security.acls import Acl, Operation, PatternType, Permission, ResourceType

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from shoal.client.net.cluster import Cluster

#: Iterations of new SCRAM credentials, twice the least that RFC 7677 permits.
ITERATIONS = 8_192
SALT_SIZE = 24
#: The field of authorized operations if the broker did not compute them.
_NOT_COMPUTED = -(2**31)


class AclFilter(NamedTuple):
    """Selects entries. None and ANY match everything; see KIP-290 for pattern types."""

    resource_type: ResourceType = ResourceType.ANY
    resource_name: str | None = None
    pattern_type: PatternType = PatternType.ANY
    principal: str | None = None
    host: str | None = None
    operation: Operation = Operation.ANY
    permission: Permission = Permission.ANY


class Acls:
    """Calls on access control entries."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    async def describe(self, acl_filter: AclFilter = AclFilter()) -> list[Acl]:
        """Return the entries that match, in order. Raises `KafkaError`, such as
        SECURITY_DISABLED for a cluster without an authorizer."""
        answer = await _ask(self.cluster, ApiKey.DESCRIBE_ACLS, _make_filter_body(acl_filter))
        check(answer.error_code, answer.error_message or "describing access control entries")
        return sorted(
            Acl(
                ResourceType(r.resource_type),
                r.resource_name,
                PatternType(r.pattern_type),
                a.principal,
                a.host,
                Operation(a.operation),
                Permission(a.permission_type),
            )
            for r in answer.resources
            for a in r.acls
        )

    async def create(self, acls: Iterable[Acl]) -> dict[Acl, KafkaError | None]:
        """Add entries. Entries that exist already stay as they are."""
        unique_acls = list(dict.fromkeys(acls))
        body = {
            "creations": [
                {
                    "resource_type": a.resource_type,
                    "resource_name": a.resource_name,
                    "resource_pattern_type": a.pattern_type,
                    "principal": a.principal,
                    "host": a.host,
                    "operation": a.operation,
                    "permission_type": a.permission,
                }
                for a in unique_acls
            ]
        }
        answer = await _ask(self.cluster, ApiKey.CREATE_ACLS, body)
        return {
            acl: message_fields.parse_error(result, str(acl))
            for acl, result in zip(unique_acls, answer.results, strict=True)
        }

    async def delete(self, filters: Iterable[AclFilter]) -> dict[AclFilter, list[Acl] | KafkaError]:
        """Remove the entries that match a filter. Return those that it has removed."""
        unique_filters = list(dict.fromkeys(filters))
        body = {"filters": [_make_filter_body(f) for f in unique_filters]}
        answer = await _ask(self.cluster, ApiKey.DELETE_ACLS, body)
        return {
            acl_filter: _parse_removed(result)
            for acl_filter, result in zip(unique_filters, answer.filter_results, strict=True)
        }


def _make_filter_body(acl_filter: AclFilter) -> dict[str, Any]:
    return {
        "resource_type_filter": acl_filter.resource_type,
        "resource_name_filter": acl_filter.resource_name,
        "pattern_type_filter": acl_filter.pattern_type,
        "principal_filter": acl_filter.principal,
        "host_filter": acl_filter.host,
        "operation": acl_filter.operation,
        "permission_type": acl_filter.permission,
    }


def _parse_removed(result: Any) -> list[Acl] | KafkaError:
    error = message_fields.parse_error(result, "removing access control entries")
    removed_acls = []
    for a in result.matching_acls:
        acl = Acl(
            ResourceType(a.resource_type),
            a.resource_name,
            PatternType(a.pattern_type),
            a.principal,
            a.host,
            Operation(a.operation),
            Permission(a.permission_type),
        )
        removed_acls.append(acl)
        error = error or message_fields.parse_error(a, f"removing {acl}")
    return error or sorted(removed_acls)


class ScramMechanism(IntEnum):
    """The mechanisms, with the numbers of the protocol (KIP-554)."""

    SCRAM_SHA_256 = 1
    SCRAM_SHA_512 = 2

    def __str__(self) -> str:
        return self.name.replace("_", "-")


class ScramInfo(NamedTuple):
    """What a cluster discloses about a credential. `mechanism` is a name."""

    mechanism: str
    iterations: int


class ScramUpsertion(NamedTuple):
    """A credential to store: the salted password, from which the broker derives its keys."""

    user: str
    mechanism: ScramMechanism
    iterations: int
    salt: bytes
    salted_password: SecretBytes

    @classmethod
    def from_password(
        cls,
        user: str,
        mechanism: ScramMechanism,
        password: Secret,
        salt: bytes,
        iterations: int = ITERATIONS,
    ) -> ScramUpsertion:
        """Hash a password. It takes milliseconds."""
        digest = scram.DIGESTS[str(mechanism)]
        salted = scram.salt_password(digest, password, salt, iterations)
        return cls(user, mechanism, iterations, salt, SecretBytes(salted))


#: A credential to set or to delete; both begin with the user.
Change = ScramUpsertion | tuple[str, ScramMechanism]


class Users:
    """Calls on the SCRAM credentials of users."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    async def describe(
        self, users: Iterable[str] | None = None
    ) -> dict[str, tuple[ScramInfo, ...] | KafkaError]:
        """Return the credentials of users; None: of all. RESOURCE_NOT_FOUND for one without."""
        names = None if users is None else [{"name": n} for n in dict.fromkeys(users)]
        answer = await _ask(self.cluster, ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, {"users": names})
        check(answer.error_code, answer.error_message or "describing users")
        return {
            result.user: message_fields.parse_error(result, f"user {result.user!r}")
            or tuple(
                sorted(
                    ScramInfo(_format_mechanism(c.mechanism), c.iterations)
                    for c in result.credential_infos
                )
            )
            for result in sorted(answer.results, key=lambda r: r.user)
        }

    async def alter(
        self,
        upsertions: Sequence[ScramUpsertion] = (),
        deletions: Sequence[tuple[str, ScramMechanism]] = (),
    ) -> dict[str, KafkaError | None]:
        """Set and delete credentials. Return the first error of each user."""
        results: dict[str, KafkaError | None] = {}
        # Brokers accept one change of a user in a request.
        rounds: list[dict[str, Change]] = []
        changes: list[Change] = [*deletions, *upsertions]
        for change in changes:
            user = change[0]
            free = next((r for r in rounds if user not in r), None)
            if free is None:
                rounds.append(free := {})
            free[user] = change
        for user_changes in rounds:
            for result in await self._alter(user_changes.values()):
                error = message_fields.parse_error(result, f"user {result.user!r}")
                results[result.user] = results.get(result.user) or error
        return results

    async def _alter(self, changes: Iterable[Change]) -> list[Any]:
        upsertions = [c for c in changes if isinstance(c, ScramUpsertion)]
        deletions = [c for c in changes if not isinstance(c, ScramUpsertion)]
        body = {
            "deletions": [{"name": user, "mechanism": m} for user, m in deletions],
            "upsertions": [
                {
                    "name": u.user,
                    "mechanism": u.mechanism,
                    "iterations": u.iterations,
                    "salt": u.salt,
                    "salted_password": u.salted_password,
                }
                for u in upsertions
            ],
        }
        answer = await _ask(self.cluster, ApiKey.ALTER_USER_SCRAM_CREDENTIALS, body)
        return list(answer.results)


def _format_mechanism(number: int) -> str:
    try:
        return str(ScramMechanism(number))
    except ValueError:
        return f"mechanism {number}"


class DelegationToken(NamedTuple):
    """A token (KIP-48, KIP-373). Times are milliseconds since 1970; principals are texts.

    `hmac` in base 64 is the password of clients that log in with the token.
    """

    token_id: str
    hmac: SecretBytes
    owner: str
    requester: str
    renewers: tuple[str, ...]
    issue_ms: int
    expiry_ms: int
    max_ms: int

    @property
    def password(self) -> Secret:
        return Secret(base64.b64encode(self.hmac).decode())


class Identity(NamedTuple):
    """A client as the broker has authenticated it. `requester` differs from `principal` for a
    client that logged in with a token of another owner."""

    principal: str
    requester: str


class Tokens:
    """Calls on delegation tokens."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    async def create(
        self,
        *,
        owner: str | None = None,
        renewers: Iterable[str] = (),
        max_lifetime_ms: int = -1,
    ) -> DelegationToken:
        """Create a token for this client's principal, or for another `owner`. Renewers are
        principals. Raises `KafkaError`."""
        renewing = tuple(renewers)
        answer = await self._create(owner, renewing, max_lifetime_ms)
        check(answer.error_code, "creating a delegation token")
        times = (answer.issue_timestamp_ms, answer.expiry_timestamp_ms, answer.max_timestamp_ms)
        return _parse_token(answer, renewing, times)

    async def _create(self, owner: str | None, renewers: Iterable[str], lifetime_ms: int) -> Any:
        kind, name = _split_principal(owner) if owner else (None, None)
        body = {
            "owner_principal_type": kind,
            "owner_principal_name": name,
            "renewers": [_make_principal_body(renewer) for renewer in renewers],
            "max_lifetime_ms": lifetime_ms,
        }
        # Not again after a lost answer, which may have created a token.
        return await self.cluster.ask(ApiKey.CREATE_DELEGATION_TOKEN, body)

    async def renew(self, hmac: bytes, period_ms: int = -1) -> int:
        """Extend a token by a period; -1: by that of the broker. Return its new end."""
        body = {"hmac": hmac, "renew_period_ms": period_ms}
        answer = await _ask(self.cluster, ApiKey.RENEW_DELEGATION_TOKEN, body)
        check(answer.error_code, "renewing the delegation token")
        return int(answer.expiry_timestamp_ms)

    async def expire(self, hmac: bytes, period_ms: int = -1) -> int:
        """End a token after a period; -1: now. Return its end."""
        body = {"hmac": hmac, "expiry_time_period_ms": period_ms}
        answer = await _ask(self.cluster, ApiKey.EXPIRE_DELEGATION_TOKEN, body)
        check(answer.error_code, "ending the delegation token")
        return int(answer.expiry_timestamp_ms)

    async def describe(self, owners: Iterable[str] | None = None) -> list[DelegationToken]:
        """Return the tokens of these owners that the client may see; None: of all owners."""
        principals = None if owners is None else [_make_principal_body(owner) for owner in owners]
        body = {"owners": principals}
        answer = await _ask(self.cluster, ApiKey.DESCRIBE_DELEGATION_TOKEN, body)
        check(answer.error_code, "describing delegation tokens")
        tokens = [
            _parse_token(
                t,
                [f"{r.principal_type}:{r.principal_name}" for r in t.renewers],
                (t.issue_timestamp, t.expiry_timestamp, t.max_timestamp),
            )
            for t in answer.tokens
        ]
        return sorted(tokens, key=lambda token: (token.owner, token.issue_ms, token.token_id))

    async def identity(self) -> Identity | None:
        """Return this client as its broker has authenticated it; None if it does not report it.

        No API exists for it. But brokers name the principal in the answer to a request for a token
        that they refuse, here because its renewer is not a user. No token is created.
        """
        try:
            answer = await self._create(None, ["Nobody:"], 1)
        except UnsupportedVersion:
            return None
        principal = f"{answer.principal_type}:{answer.principal_name}"
        kind = getattr(answer, "token_requester_principal_type", "")
        name = getattr(answer, "token_requester_principal_name", "")
        return Identity(principal, f"{kind}:{name}") if answer.principal_type else None


def _parse_token(
    result: Any, renewers: Iterable[str], times: tuple[int, int, int]
) -> DelegationToken:
    owner = f"{result.principal_type}:{result.principal_name}"
    kind = getattr(result, "token_requester_principal_type", "")
    name = getattr(result, "token_requester_principal_name", "")
    return DelegationToken(
        result.token_id,
        SecretBytes(result.hmac),
        owner,
        f"{kind}:{name}" if kind else owner,
        tuple(renewers),
        *times,
    )


def _split_principal(principal: str) -> tuple[str, str]:
    kind, _, name = principal.partition(":")
    return kind, name


def _make_principal_body(principal: str) -> dict[str, str]:
    kind, name = _split_principal(principal)
    return {"principal_type": kind, "principal_name": name}


async def list_cluster_operations(cluster: Cluster) -> list[Operation] | None:
    """Return what the client may do with the cluster, or None if it may not see that."""
    body = {"include_cluster_authorized_operations": True, "endpoint_type": 1}
    answer = await _ask(cluster, ApiKey.DESCRIBE_CLUSTER, body)
    check(answer.error_code, answer.error_message)
    bits = answer.cluster_authorized_operations
    if bits == _NOT_COMPUTED:
        return None
    return [operation for operation in Operation if bits >> operation & 1]


async def _ask(cluster: Cluster, api_key: ApiKey, body: dict[str, Any]) -> Any:
    return await cluster.retry(lambda: cluster.ask(api_key, body))
