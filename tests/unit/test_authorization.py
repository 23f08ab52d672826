"""The rows of authorization, the principals of Envelopes, and what a request needs."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from shoal.metadata.delta import MetadataDelta
from shoal.metadata.image import MetadataImage, Scope
from shoal.protocol.api import ApiKey
from shoal.protocol.errors import ApiError, ErrorCode, WireError
from shoal.protocol.frames import RequestHeader
from shoal.security import principals
from shoal.security.acls import Acl, Operation, PatternType, Permission, ResourceType
from shoal.security.audit import ALLOWED, REFUSED, Entry
from shoal.security.principals import OWN, ForwardedPrincipal
from shoal.server.authorization import Access, cluster
from shoal.server.config import resolve
from shoal.server.handlers import HANDLERS, authorization
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
    need = cluster(Operation.ALTER)
    data = principals.encode(ForwardedPrincipal(OWN))
    assert principals.decode(data).principal is OWN
    found.require(sent(ApiKey.CREATE_ACLS, 3, principals.decode(data).principal), need)
    for text in (str(OWN), "Node:other", f"User:{OWN}"):
        with pytest.raises(ApiError):
            found.require(sent(ApiKey.CREATE_ACLS, 3, text), need)
    for text in (str(OWN), "Group:x", "own"):
        with pytest.raises(ValueError, match="no principal of a client"):
            principals.encode(ForwardedPrincipal(text))


def test_every_api_has_a_row() -> None:
    assert set(HANDLERS) <= set(authorization.ROWS)


def test_an_api_without_a_row_fails_at_import(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(authorization.ROWS, ApiKey.PRODUCE)
    with pytest.raises(AssertionError, match="no row for PRODUCE"):
        authorization.needs_of(ApiKey.PRODUCE)


def sent(api: ApiKey, version: int, principal: str = "User:alice", **fields: Any) -> Request:
    header = RequestHeader(api, version, 1, "c", 0)
    body = type("Body", (), fields)
    return Request(header, body, Peer("10.0.0.1", 1, "L", principal, "c"))


def needs(api: ApiKey, version: int, **fields: Any) -> list[str]:
    found = authorization.needs_of(api)
    assert found is not None
    return [str(need) for need in found(sent(api, version, **fields))]


def test_what_a_whole_request_needs() -> None:
    assert needs(ApiKey.VOTE, 0) == ["CLUSTER_ACTION on the cluster"]
    assert needs(ApiKey.HEARTBEAT, 4, group_id="g") == ["READ on the group g"]
    assert needs(ApiKey.WRITE_TXN_MARKERS, 1) == ["ALTER or CLUSTER_ACTION on the cluster"]
    # The name of the transactional id has moved, and brokers send the newer versions.
    fields = {"v3_and_below_transactional_id": "x"}
    assert needs(ApiKey.ADD_PARTITIONS_TO_TXN, 3, **fields) == ["WRITE on the transactional_id x"]
    assert needs(ApiKey.ADD_PARTITIONS_TO_TXN, 4) == ["CLUSTER_ACTION on the cluster"]
    # Without a transactional id, the handler decides (KIP-679).
    assert needs(ApiKey.INIT_PRODUCER_ID, 4, transactional_id=None) == []


class AuditLog:
    """Keeps the entries."""

    def __init__(self, *, logs_successes: bool = False) -> None:
        self.logs_successes = logs_successes
        self.entries: list[Entry] = []

    def note(self, entry: Entry) -> None:
        self.entries.append(entry)

    @property
    def lines(self) -> list[tuple[str, ...]]:
        """The event, the principal, the operation and the name of each entry."""
        names = "principal", "operation", "name"
        return [(one.event, *(str(one.values[name]) for name in names)) for one in self.entries]


def access(
    configs: dict[str, str], audit_log: AuditLog | None = None
) -> tuple[Access, MetadataCache]:
    config = resolve(configs, {})
    cache = MetadataCache(Scope(1, config.given))
    return Access(config, cache, audit_log or AuditLog()), cache


def entry(operation: Operation, permission: Permission = Permission.ALLOW) -> Acl:
    kind = ResourceType.CLUSTER
    return Acl(kind, "kafka-cluster", PatternType.LITERAL, "User:alice", "*", operation, permission)


def test_an_access_follows_the_committed_entries() -> None:
    found, cache = access(STANDARD)
    request = sent(ApiKey.ELECT_LEADERS, 2)
    changes: list[int] = []
    found.on_change(lambda: changes.append(found.generation))
    need = cluster(Operation.ALTER)
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
    need = cluster(Operation.ALTER, Operation.CLUSTER_ACTION)
    found.require(sent(ApiKey.WRITE_TXN_MARKERS, 1), need)
    with pytest.raises(ApiError):
        found.require(sent(ApiKey.WRITE_TXN_MARKERS, 1, "User:bob"), need)


def test_super_users_and_the_node_itself() -> None:
    found, cache = access(STANDARD | {"super.users": "User:admin; User:CN=x,O=y"})
    deny = entry(Operation.ALL, Permission.DENY)._replace(principal="User:*")
    cache.publish(MetadataImage(), MetadataDelta(acls_added=(deny,)))
    for principal in ("User:admin", "User:CN=x,O=y", OWN):
        found.require(sent(ApiKey.VOTE, 1, principal), cluster(Operation.CLUSTER_ACTION))
    assert not found.allows_cluster(sent(ApiKey.VOTE, 1), Operation.CLUSTER_ACTION)


def test_refusals_are_reported_once_for_what_was_needed() -> None:
    log = AuditLog()
    found, _ = access(STANDARD, log)
    request = sent(ApiKey.WRITE_TXN_MARKERS, 1)
    with pytest.raises(ApiError):
        found.require(request, cluster(Operation.ALTER, Operation.CLUSTER_ACTION))
    assert log.lines == [(REFUSED, "User:alice", "CLUSTER_ACTION", "kafka-cluster")]
    assert found.permitted(request, Operation.READ, ResourceType.TOPIC, "t", audited=False) == set()
    assert len(log.lines) == 1


def test_allowed_requests_are_reported_at_the_level_debug() -> None:
    """Once each, with the operation that sufficed."""
    for logs_successes in (False, True):
        log = AuditLog(logs_successes=logs_successes)
        found, cache = access(STANDARD, log)
        cache.publish(MetadataImage(), MetadataDelta(acls_added=(entry(Operation.ALTER),)))
        request = sent(ApiKey.WRITE_TXN_MARKERS, 1)
        found.require(request, cluster(Operation.ALTER, Operation.CLUSTER_ACTION))
        found.operations(request, ResourceType.CLUSTER, "kafka-cluster")
        line = ALLOWED, "User:alice", "ALTER", "kafka-cluster"
        assert log.lines == [line] * logs_successes


def test_without_an_authorizer_nothing_is_checked() -> None:
    log = AuditLog(logs_successes=True)
    found, _ = access({}, log)
    assert not found.enabled
    assert found.permitted(sent(ApiKey.FETCH, 4), Operation.READ, ResourceType.TOPIC, "ab") == {
        "a",
        "b",
    }
    found.require(sent(ApiKey.VOTE, 1), cluster(Operation.CLUSTER_ACTION))
    assert not log.entries
