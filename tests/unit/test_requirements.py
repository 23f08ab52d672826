"""The table of what each API requires, and the words of `shoal explain`."""

from __future__ import annotations

import pytest
from shoal.cli import resources
from shoal.cli.resources import Resource
from shoal.cli.session import Failed
from shoal.protocol.api import ApiKey
from shoal.security.acls import Acl, Operation, PatternType, Permission, ResourceType
from shoal.security.requirements import OPERATIONS, REQUIREMENTS, Need, api_name, find_api
from shoal.server.handlers import HANDLERS
from shoal.server.handlers.authorization import ROWS


def test_every_api_that_brokers_serve_has_a_row() -> None:
    assert not {key for key in HANDLERS if key not in REQUIREMENTS}


def checked_by_brokers(key: ApiKey) -> set[frozenset[Need]]:
    """Return a set with the alternatives of each requirement of an API."""
    row = ROWS[key]
    checked = {
        frozenset(Need(operation, whole.resource_type) for operation in whole.operations)
        for whole in (*row.whole, *row.at_controllers)
    }
    for operation, resource_type, or_cluster in row.each:
        needs = {Need(operation, resource_type)}
        if or_cluster is not None:
            needs.add(Need(or_cluster, ResourceType.CLUSTER))
        checked.add(frozenset(needs))
    return checked


def test_the_table_has_what_brokers_check() -> None:
    table = {
        key.name: {frozenset(requirement.alternatives) for requirement in REQUIREMENTS[key]}
        for key in ROWS
    }
    assert table == {key.name: checked_by_brokers(key) for key in ROWS}


def test_operations_exist_for_their_resources() -> None:
    for key, row in REQUIREMENTS.items():
        for requirement in row:
            for need in requirement.alternatives:
                assert need.operation in OPERATIONS[need.resource_type], key


def test_alternatives_are_on_the_cluster() -> None:
    """`shoal explain` decides about them without a name."""
    others = [n for row in REQUIREMENTS.values() for r in row for n in r.alternatives[1:]]
    assert others
    assert {n.resource_type for n in others} == {ResourceType.CLUSTER}


def test_names_of_apis() -> None:
    for name in ("ShareFetch", "share-fetch", "SHARE_FETCH", "sharefetch"):
        assert find_api(name) is ApiKey.SHARE_FETCH
    assert find_api("Share") is None
    assert [api_name(key) for key in (ApiKey.INIT_PRODUCER_ID, ApiKey.VOTE)] == [
        "InitProducerId",
        "Vote",
    ]
    assert all(find_api(api_name(key)) is key for key in ApiKey)


def test_resources() -> None:
    assert resources.parse("topic:a:b") == Resource(ResourceType.TOPIC, "a:b")
    assert resources.parse("transactional-id:x").type is ResourceType.TRANSACTIONAL_ID  # type: ignore[union-attr]
    assert resources.parse("user:ann") == Resource(ResourceType.USER, "User:ann")
    assert resources.parse("cluster") == Resource(ResourceType.CLUSTER, "kafka-cluster")
    assert resources.parse("orders") == "orders"
    assert resources.parse("a:b") == "a:b", "no type, so it is a name"
    with pytest.raises(Failed, match="Write topic:NAME"):
        resources.parse("topic:")


def test_principals() -> None:
    assert resources.principal("ann") == "User:ann"
    assert resources.principal("*") == "User:*"
    assert resources.principal("User:CN=ann,O=x") == "User:CN=ann,O=x"
    assert resources.principal("CN=ann,O=x:y") == "User:CN=ann,O=x:y"


def test_entries_as_sentences() -> None:
    acl = Acl(
        ResourceType.TRANSACTIONAL_ID,
        "tx",
        PatternType.PREFIXED,
        "User:ann",
        "10.0.0.1",
        Operation.TWO_PHASE_COMMIT,
        Permission.DENY,
    )
    assert resources.sentence(acl) == (
        "deny two-phase-commit on transactional id tx… for User:ann from 10.0.0.1"
    )
    assert resources.row(acl)["resource_type"] == "transactional-id"
