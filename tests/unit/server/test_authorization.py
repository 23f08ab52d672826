"""The rows of authorization, the principals of Envelopes, and what a request needs."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from shoal.metadata.delta import MetadataDelta
from shoal.metadata.image import ImageScope, MetadataImage
from shoal.protocol.api import ApiKey
from shoal.protocol.errors import ApiError, ErrorCode, WireError
from shoal.protocol.frames import RequestHeader
from shoal.security import principals
from shoal.security.acls import Acl, Operation, PatternType, Permission, ResourceType
from shoal.security.audit import ALLOWED, REFUSED, AuditEntry
from shoal.security.principals import OWN, ForwardedPrincipal
from shoal.server.authorization import AccessControl, build_cluster_permission
from shoal.server.config import resolve
from shoal.server.handlers import HANDLERS
from shoal.server.metadata_cache import MetadataCache
from shoal.server.network.api import Peer, Request

STANDARD = {"authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer"}
#: As DefaultKafkaPrincipalBuilder of Kafka 4.3.1 writes them.
SERIALIZED = {
    "0000055573657206616c6963650000": ForwardedPrincipal("User:alice"),
    "000005557365720b434e3dc3a42c4f3d3a780100": ForwardedPrincipal(
        "User:CN=ä,O=:x", token_authenticated=True
    ),
    f"00000555736572c901{'78' * 200}0000": ForwardedPrincipal(f"User:{'x' * 200}"),
}


@pytest.mark.parametrize("text", SERIALIZED)
def test_principals_have_kafkas_bytes(text: str) -> None:
    assert principals.encode(SERIALIZED[text]).hex() == text
    assert principals.decode(bytes.fromhex(text)) == SERIALIZED[text]


def test_malformed_principals() -> None:
    whole = principals.encode(ForwardedPrincipal("User:alice"))
    for size in range(len(whole) - 1):
        with pytest.raises(WireError):
            principals.decode(whole[:size])
    for data in (b"\x00\x01" + whole[2:], whole.replace(b"alice", b"\xff" * 5), b"\x00" * 9):
        with pytest.raises(WireError):
            principals.decode(data)


def test_no_text_is_the_principal_of_a_node() -> None:
    """A user of that name was a super user whom no DENY stopped."""
    found, _ = access(STANDARD)
    need = build_cluster_permission(Operation.ALTER)
    data = principals.encode(ForwardedPrincipal(OWN))
    assert principals.decode(data).principal is OWN
    found.require(sent(ApiKey.CREATE_ACLS, 3, principals.decode(data).principal), need)
    for text in (str(OWN), "Node:other", f"User:{OWN}"):
        with pytest.raises(ApiError):
            found.require(sent(ApiKey.CREATE_ACLS, 3, text), need)
    for text in (str(OWN), "Group:x", "own"):
        with pytest.raises(ValueError, match="no principal of a client"):
            principals.encode(ForwardedPrincipal(text))


def sent(api: ApiKey, version: int, principal: str = "User:alice", **fields: Any) -> Request:
    header = RequestHeader(api, version, 1, "c", 0)
    body = type("Body", (), fields)
    return Request(header, body, Peer("10.0.0.1", 1, "L", principal, "c"))


def require_permissions(api: ApiKey, version: int, **fields: Any) -> str | None:
    """Return why a request of a user without permissions is refused, or None."""
    denying, _ = access(STANDARD)
    try:
        denying.require_all(sent(api, version, **fields), HANDLERS[api].permissions.for_request)
    except ApiError as error:
        return error.message
    return None


def test_what_a_whole_request_needs() -> None:
    def needs(permission: str) -> str:
        return f"The request needs {permission}."

    assert require_permissions(ApiKey.VOTE, 0) == needs("CLUSTER_ACTION on the cluster")
    assert require_permissions(ApiKey.HEARTBEAT, 4, group_id="g") == needs("READ on the group g")
    markers = require_permissions(ApiKey.WRITE_TXN_MARKERS, 1)
    assert markers == needs("ALTER or CLUSTER_ACTION on the cluster")
    # The name of the transactional id has moved, and brokers send the newer versions.
    partitions, fields = ApiKey.ADD_PARTITIONS_TO_TXN, {"v3_and_below_transactional_id": "x"}
    assert require_permissions(partitions, 3, **fields) == needs("WRITE on the transactional_id x")
    assert require_permissions(partitions, 4) == needs("CLUSTER_ACTION on the cluster")
    # Without a transactional id, the handler decides (KIP-679).
    assert require_permissions(ApiKey.INIT_PRODUCER_ID, 4, transactional_id=None) is None


class AuditLog:
    """Keeps the entries."""

    def __init__(self, *, logs_successes: bool = False) -> None:
        self.logs_successes = logs_successes
        self.entries: list[AuditEntry] = []

    def note(self, entry: AuditEntry) -> None:
        self.entries.append(entry)

    @property
    def lines(self) -> list[tuple[str, ...]]:
        """The event, the principal, the operation and the name of each entry."""
        names = "principal", "operation", "name"
        return [(one.event, *(str(one.values[name]) for name in names)) for one in self.entries]


def access(
    configs: dict[str, str], audit_log: AuditLog | None = None
) -> tuple[AccessControl, MetadataCache]:
    config = resolve(configs, {})
    cache = MetadataCache(ImageScope(1, config.explicit))
    return AccessControl(config, cache, audit_log or AuditLog()), cache


def entry(operation: Operation, permission: Permission = Permission.ALLOW) -> Acl:
    kind = ResourceType.CLUSTER
    return Acl(kind, "kafka-cluster", PatternType.LITERAL, "User:alice", "*", operation, permission)


def test_an_access_follows_the_committed_entries() -> None:
    found, cache = access(STANDARD)
    request = sent(ApiKey.ELECT_LEADERS, 2)
    changes: list[int] = []
    found.on_change(lambda: changes.append(found.generation))
    need = build_cluster_permission(Operation.ALTER)
    with pytest.raises(ApiError) as refused:
        found.require(request, need)
    assert refused.value.code is ErrorCode.cluster_authorization_failed
    acl = entry(Operation.ALTER)
    image = MetadataImage(acls={UUID(int=1): acl})
    cache.publish(image, MetadataDelta(acls_added=(acl,)))
    found.require(request, need)
    cache.publish(image, MetadataDelta())
    assert changes == [1]
    cache.publish(MetadataImage(), MetadataDelta(acls_removed=(acl,)))
    assert changes == [1, 2]
    assert not found.allows_cluster(request, Operation.ALTER)


def test_one_of_several_operations_suffices() -> None:
    found, cache = access(STANDARD)
    cache.publish(MetadataImage(), MetadataDelta(acls_added=(entry(Operation.CLUSTER_ACTION),)))
    need = build_cluster_permission(Operation.ALTER, Operation.CLUSTER_ACTION)
    found.require(sent(ApiKey.WRITE_TXN_MARKERS, 1), need)
    with pytest.raises(ApiError):
        found.require(sent(ApiKey.WRITE_TXN_MARKERS, 1, "User:bob"), need)


def test_super_users_and_the_node_itself() -> None:
    found, cache = access(STANDARD | {"super.users": "User:admin; User:CN=x,O=y"})
    deny = entry(Operation.ALL, Permission.DENY)._replace(principal="User:*")
    cache.publish(MetadataImage(), MetadataDelta(acls_added=(deny,)))
    for principal in ("User:admin", "User:CN=x,O=y", OWN):
        found.require(
            sent(ApiKey.VOTE, 1, principal), build_cluster_permission(Operation.CLUSTER_ACTION)
        )
    assert not found.allows_cluster(sent(ApiKey.VOTE, 1), Operation.CLUSTER_ACTION)


def test_refusals_are_reported_once_for_what_was_needed() -> None:
    log = AuditLog()
    found, _ = access(STANDARD, log)
    request = sent(ApiKey.WRITE_TXN_MARKERS, 1)
    with pytest.raises(ApiError):
        found.require(request, build_cluster_permission(Operation.ALTER, Operation.CLUSTER_ACTION))
    assert log.lines == [(REFUSED, "User:alice", "CLUSTER_ACTION", "kafka-cluster")]
    assert (
        found.filter_permitted(request, Operation.READ, ResourceType.TOPIC, "t", audited=False)
        == set()
    )
    assert len(log.lines) == 1


def test_allowed_requests_are_reported_at_the_level_debug() -> None:
    """Once each, with the operation that sufficed."""
    for logs_successes in (False, True):
        log = AuditLog(logs_successes=logs_successes)
        found, cache = access(STANDARD, log)
        cache.publish(MetadataImage(), MetadataDelta(acls_added=(entry(Operation.ALTER),)))
        request = sent(ApiKey.WRITE_TXN_MARKERS, 1)
        found.require(request, build_cluster_permission(Operation.ALTER, Operation.CLUSTER_ACTION))
        found.get_operation_bits(request, ResourceType.CLUSTER, "kafka-cluster")
        line = ALLOWED, "User:alice", "ALTER", "kafka-cluster"
        assert log.lines == [line] * logs_successes


def test_without_an_authorizer_nothing_is_checked() -> None:
    log = AuditLog(logs_successes=True)
    found, _ = access({}, log)
    assert not found.enabled
    assert found.filter_permitted(
        sent(ApiKey.FETCH, 4), Operation.READ, ResourceType.TOPIC, "ab"
    ) == {
        "a",
        "b",
    }
    found.require(sent(ApiKey.VOTE, 1), build_cluster_permission(Operation.CLUSTER_ACTION))
    assert not log.entries
