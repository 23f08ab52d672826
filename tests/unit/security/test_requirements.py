"""What each API requires, for people, and the words of `shoal explain`."""

from __future__ import annotations

import pytest
from shoal.cli import resources
from shoal.cli.resources import AclResource
from shoal.cli.session import CommandError
from shoal.protocol.api import ApiKey
from shoal.security.acls import Acl, Operation, PatternType, Permission, ResourceType
from shoal.security.requirements import OPERATIONS, find_api, format_api_name
from shoal.server.handlers import HANDLERS


def show(key: ApiKey) -> list[str]:
    """Return the requirements of an API as `shoal explain` lists them, one a line."""
    return [
        " or ".join(f"{n.operation.name} {n.resource_type.name}" for n in requirement.alternatives)
        + (f": {requirement.condition}" if requirement.condition else "")
        for requirement in HANDLERS[key].permissions.list_requirements()
    ]


def test_requirements_come_from_the_row_of_the_api() -> None:
    assert show(ApiKey.API_VERSIONS) == []
    assert show(ApiKey.WRITE_TXN_MARKERS) == ["ALTER CLUSTER or CLUSTER_ACTION CLUSTER"]
    assert show(ApiKey.TXN_OFFSET_COMMIT) == [
        "WRITE TRANSACTIONAL_ID",
        "READ GROUP",
        "READ TOPIC",
    ]
    assert show(ApiKey.DELETE_TOPICS) == [
        "DELETE TOPIC or DELETE CLUSTER",
        "DESCRIBE TOPIC or DELETE CLUSTER: a topic that is named by its id",
    ]


def test_what_only_controllers_require_is_a_requirement_once() -> None:
    """A follower needs the same on both kinds of listeners, DescribeCluster does not."""
    assert show(ApiKey.FETCH) == ["READ TOPIC: a consumer", "CLUSTER_ACTION CLUSTER: a follower"]
    assert show(ApiKey.DESCRIBE_CLUSTER) == [
        "DESCRIBE CLUSTER: to see the permitted operations",
        "ALTER CLUSTER: on a listener of controllers",
    ]


def test_operations_exist_for_their_resources() -> None:
    for key, api in HANDLERS.items():
        for requirement in api.permissions.list_requirements():
            for need in requirement.alternatives:
                assert need.operation in OPERATIONS[need.resource_type], key


def test_alternatives_are_on_the_cluster() -> None:
    """`shoal explain` decides about them without a name."""
    rows = [api.permissions.list_requirements() for api in HANDLERS.values()]
    others = [need for row in rows for r in row for need in r.alternatives[1:]]
    assert others
    assert {n.resource_type for n in others} == {ResourceType.CLUSTER}


def test_names_of_apis() -> None:
    for name in ("ShareFetch", "share-fetch", "SHARE_FETCH", "sharefetch"):
        assert find_api(name) is ApiKey.SHARE_FETCH
    assert find_api("Share") is None
    assert [format_api_name(key) for key in (ApiKey.INIT_PRODUCER_ID, ApiKey.VOTE)] == [
        "InitProducerId",
        "Vote",
    ]
    assert all(find_api(format_api_name(key)) is key for key in ApiKey)


def test_resources() -> None:
    assert resources.parse_resource("topic:a:b") == AclResource(ResourceType.TOPIC, "a:b")
    assert resources.parse_resource("transactional-id:x").type is ResourceType.TRANSACTIONAL_ID  # type: ignore[union-attr]
    assert resources.parse_resource("user:ann") == AclResource(ResourceType.USER, "User:ann")
    assert resources.parse_resource("cluster") == AclResource(ResourceType.CLUSTER, "kafka-cluster")
    assert resources.parse_resource("orders") == "orders"
    assert resources.parse_resource("a:b") == "a:b", "no type, so it is a name"
    with pytest.raises(CommandError, match="Write topic:NAME"):
        resources.parse_resource("topic:")


def test_principals() -> None:
    assert resources.parse_principal("ann") == "User:ann"
    assert resources.parse_principal("*") == "User:*"
    assert resources.parse_principal("User:CN=ann,O=x") == "User:CN=ann,O=x"
    assert resources.parse_principal("CN=ann,O=x:y") == "User:CN=ann,O=x:y"


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
    assert resources.format_acl(acl) == (
        "deny two-phase-commit on transactional id tx… for User:ann from 10.0.0.1"
    )
    assert resources.make_acl_row(acl)["resource_type"] == "transactional-id"
