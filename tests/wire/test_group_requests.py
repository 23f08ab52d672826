"""Group requests in every served version, against a real broker."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest
from kio.static.constants import EntityType
from shoal.protocol import codec
from shoal.protocol.api import ApiKey
from shoal.protocol.errors import ErrorCode
from shoal.server.handlers import HANDLERS
from support.brokers.servers import ShoalProcess
from support.brokers.wireclient import WireClient

if TYPE_CHECKING:
    from collections.abc import Iterator

PARTITIONS = 3
NOT_FOUND = ErrorCode.group_id_not_found
_names = (f"group-{i}" for i in itertools.count())


@pytest.fixture(scope="module")
def shoal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ShoalProcess]:
    process = ShoalProcess(
        tmp_path_factory.mktemp("groups") / "data",
        configs={"group.initial.rebalance.delay.ms": "0"},
    ).start()
    yield process
    assert process.stop() == 0, "\n".join(process.log[-40:])


@pytest.fixture(scope="module", autouse=True)
def topic_id(shoal: ShoalProcess) -> UUID:
    with WireClient(shoal.bootstrap) as client:
        return client.create_topic("t", PARTITIONS)


@pytest.fixture
def client(shoal: ShoalProcess) -> Iterator[WireClient]:
    with WireClient(shoal.bootstrap) as client:
        yield client


@pytest.fixture
def group() -> str:
    return next(_names)


def versions(key: ApiKey) -> list[int]:
    return list(HANDLERS[key].versions)


def join(client: WireClient, group: str, version: int = 9, **fields: Any) -> Any:
    """Join a group as a client of that version does; return the response."""
    body = {
        "group_id": group,
        "session_timeout_ms": 10_000,
        "rebalance_timeout_ms": 10_000,
        "member_id": "",
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": b"\x00\x00\x00\x00\x00\x00"}],
        **fields,
    }
    answer = client.call(ApiKey.JOIN_GROUP, version, body)
    if answer.error_code == ErrorCode.member_id_required:
        assert version >= 4
        body["member_id"] = answer.member_id
        answer = client.call(ApiKey.JOIN_GROUP, version, body)
    return answer


def commit(
    client: WireClient, group: str, topic_id: UUID | None, offset: int, version: int, **fields: Any
) -> list[tuple[int, int]]:
    """Commit `offset` for every partition and for a missing one; return the error codes."""
    partitions = [
        {
            "partition_index": p,
            "committed_offset": offset,
            "committed_leader_epoch": 4,
            "committed_metadata": f"at {offset}",
        }
        for p in (*range(PARTITIONS), 99)
    ]
    body = {
        "group_id": group,
        "generation_id_or_member_epoch": -1,
        "member_id": "",
        "retention_time_ms": -1,
        "topics": [{"name": "t", "topic_id": topic_id, "partitions": partitions}],
        **fields,
    }
    answer = client.call(ApiKey.OFFSET_COMMIT, version, body)
    (topic,) = answer.topics
    return sorted((p.partition_index, int(p.error_code)) for p in topic.partitions)


def fetch(client: WireClient, group: str, topics: Any, version: int) -> Any:
    """Fetch one group's offsets; return a response for one group in all versions."""
    if version < 8:
        body: dict[str, Any] = {"group_id": group, "topics": topics}
    else:
        body = {"groups": [{"group_id": group, "topics": topics}]}
    answer = client.call(ApiKey.OFFSET_FETCH, version, {**body, "require_stable": True})
    return answer if version < 8 else answer.groups[0]


@pytest.mark.parametrize("version", versions(ApiKey.JOIN_GROUP))
def test_a_life_in_a_group(client: WireClient, group: str, version: int) -> None:
    """Join, sync, heartbeat, describe and leave, in versions of about the same age."""
    joined = join(client, group, version)
    assert joined.error_code == ErrorCode.none
    assert (joined.generation_id, joined.protocol_name) == (1, "range")
    assert joined.leader == joined.member_id
    assert [m.member_id for m in joined.members] == [joined.member_id]
    member = {"group_id": group, "generation_id": 1, "member_id": joined.member_id}
    synced = client.call(
        ApiKey.SYNC_GROUP,
        min(version, 5),
        {
            **member,
            "protocol_type": "consumer",
            "protocol_name": "range",
            "assignments": [{"member_id": joined.member_id, "assignment": b"all of it"}],
        },
    )
    assert (synced.error_code, synced.assignment) == (ErrorCode.none, b"all of it")
    assert client.call(ApiKey.HEARTBEAT, min(version, 4), member).error_code == ErrorCode.none
    old = {**member, "generation_id": 0}
    refused = client.call(ApiKey.HEARTBEAT, min(version, 4), old)
    assert refused.error_code == ErrorCode.illegal_generation

    asked = {"groups": [group], "include_authorized_operations": True}
    (found,) = client.call(ApiKey.DESCRIBE_GROUPS, min(version, 6), asked).groups
    assert (found.group_state, found.protocol_data) == ("Stable", "range")
    assert found.members[0].member_assignment == b"all of it"
    assert found.members[0].client_host == "/127.0.0.1"
    if version >= 3:
        assert found.authorized_operations == 3400  # As Kafka 4.3.1 without an authorizer.

    leaver = {"member_id": joined.member_id}
    left = client.call(
        ApiKey.LEAVE_GROUP, min(version, 5), {"group_id": group, **leaver, "members": [leaver]}
    )
    assert left.error_code == ErrorCode.none
    again = client.call(
        ApiKey.LEAVE_GROUP, min(version, 5), {"group_id": group, **leaver, "members": [leaver]}
    )
    code = again.error_code if version < 3 else again.members[0].error_code
    assert code == ErrorCode.unknown_member_id


@pytest.mark.parametrize("version", versions(ApiKey.OFFSET_COMMIT))
def test_commit_in_every_version(
    client: WireClient, group: str, topic_id: UUID, version: int
) -> None:
    codes = commit(client, group, topic_id, 7, version)
    assert codes == [(0, 0), (1, 0), (2, 0), (99, ErrorCode.unknown_topic_or_partition)]
    (topic,) = fetch(client, group, [{"name": "t", "partition_indexes": [1]}], 9).topics
    (found,) = topic.partitions
    epoch = 4 if version >= 6 else -1
    assert (found.committed_offset, found.metadata) == (7, "at 7")
    assert found.committed_leader_epoch == epoch

    gone = [{"partition_index": 0, "committed_offset": 1, "committed_metadata": None}]
    body = {
        "group_id": group,
        "member_id": "nobody",
        "generation_id_or_member_epoch": 3,
        "topics": [{"name": "t", "topic_id": topic_id, "partitions": gone}],
    }
    refused = client.call(ApiKey.OFFSET_COMMIT, version, {**body, "group_id": "no such group"})
    none = ErrorCode.illegal_generation if version < 9 else NOT_FOUND
    assert refused.topics[0].partitions[0].error_code == none
    refused = client.call(ApiKey.OFFSET_COMMIT, version, body)
    assert refused.topics[0].partitions[0].error_code == ErrorCode.unknown_member_id
    stray = {"name": "none", "topic_id": UUID(int=77), "partitions": gone}
    refused = client.call(ApiKey.OFFSET_COMMIT, version, {**body, "topics": [stray]})
    missing = ErrorCode.unknown_topic_id if version >= 10 else ErrorCode.unknown_topic_or_partition
    assert refused.topics[0].partitions[0].error_code == missing


@pytest.mark.parametrize("version", versions(ApiKey.OFFSET_FETCH))
def test_fetch_in_every_version(
    client: WireClient, group: str, topic_id: UUID, version: int
) -> None:
    commit(client, group, topic_id, 7, 9)
    asked = [{"name": "t", "topic_id": topic_id, "partition_indexes": [0, 99]}]
    answer = fetch(client, group, asked, version)
    (topic,) = answer.topics
    assert [(p.partition_index, p.committed_offset, p.metadata) for p in topic.partitions] == [
        (0, 7, "at 7"),
        (99, -1, ""),
    ]
    if version >= 2:
        assert answer.error_code == ErrorCode.none
        (everything,) = fetch(client, group, None, version).topics
        assert sorted(p.partition_index for p in everything.partitions) == [0, 1, 2]
        assert getattr(everything, "name", "t") == "t"
        assert getattr(everything, "topic_id", topic_id) == topic_id
    assert fetch(client, "nobody", asked, version).topics[0].partitions[0].committed_offset == -1


def test_unknown_topic_ids(client: WireClient, group: str) -> None:
    asked = [{"topic_id": UUID(int=5), "partition_indexes": [0]}]
    (topic,) = fetch(client, group, asked, 10).topics
    assert topic.topic_id == UUID(int=5)
    assert topic.partitions[0].error_code == ErrorCode.unknown_topic_id


def test_offsets_of_a_recreated_topic(client: WireClient, group: str) -> None:
    """An offset counts for the topic it was committed for, not for another one of the same name."""
    first = client.create_topic("again")
    partition = {"partition_index": 0, "committed_offset": 5, "committed_metadata": ""}
    body = {
        "group_id": group,
        "member_id": "",
        "topics": [{"topic_id": first, "partitions": [partition]}],
    }
    client.call(ApiKey.OFFSET_COMMIT, 10, body)
    topics = {"topics": [{"name": "again"}], "topic_names": ["again"], "timeout_ms": 10_000}
    client.call(ApiKey.DELETE_TOPICS, 6, topics)
    second = client.create_topic("again")
    for topic_id in (first, second):
        asked = [{"topic_id": topic_id, "partition_indexes": [0]}]
        (topic,) = fetch(client, group, asked, 10).topics
        assert topic.partitions[0].committed_offset == -1


def test_metadata_that_is_too_long(client: WireClient, group: str) -> None:
    partitions = [
        {"partition_index": p, "committed_offset": 1, "committed_metadata": "m" * size}
        for p, size in ((0, 4096), (1, 4097))
    ]
    body = {"group_id": group, "member_id": "", "topics": [{"name": "t", "partitions": partitions}]}
    (topic,) = client.call(ApiKey.OFFSET_COMMIT, 9, body).topics
    assert sorted((p.partition_index, p.error_code) for p in topic.partitions) == [
        (0, ErrorCode.none),
        (1, ErrorCode.offset_metadata_too_large),
    ]


@pytest.mark.parametrize("version", versions(ApiKey.FIND_COORDINATOR))
def test_find_coordinator(shoal: ShoalProcess, client: WireClient, version: int) -> None:
    body = {"key": "some group", "key_type": 0, "coordinator_keys": ["some group", "other"]}
    answer = client.call(ApiKey.FIND_COORDINATOR, version, body)
    for found in answer.coordinators if version >= 4 else (answer,):
        assert found.error_code == ErrorCode.none
        assert f"{found.host}:{found.port}" == shoal.bootstrap


def test_coordinators_that_are_not(client: WireClient) -> None:
    def code(version: int, kind: int, key: str) -> int:
        body = {"key_type": kind, "key": key, "coordinator_keys": [key]}
        answer = client.call(ApiKey.FIND_COORDINATOR, version, body)
        return answer.coordinators[0].error_code if version >= 4 else answer.error_code

    assert code(6, 9, "what") == ErrorCode.invalid_request
    assert code(6, 2, "no share key") == ErrorCode.invalid_request
    assert code(5, 2, "g:AAAAAAAAAAAAAAAAAAAAAQ:0") == ErrorCode.invalid_request


@pytest.mark.parametrize("version", versions(ApiKey.LIST_GROUPS))
def test_list_groups(client: WireClient, group: str, topic_id: UUID, version: int) -> None:
    commit(client, group, topic_id, 1, 9)

    def listed(**filters: Any) -> dict[str, Any]:
        answer = client.call(ApiKey.LIST_GROUPS, version, filters)
        assert answer.error_code == ErrorCode.none
        return {g.group_id: g for g in answer.groups}

    found = listed()[group]
    assert found.protocol_type == ""
    if version >= 4:
        assert found.group_state == "Empty"
        assert group in listed(states_filter=["EMPTY"])
        assert group not in listed(states_filter=["stable"])
    if version >= 5:
        assert found.group_type == "classic"
        assert group in listed(types_filter=["Classic"])
        assert group not in listed(types_filter=["share", "consumer"])


@pytest.mark.parametrize("version", versions(ApiKey.DELETE_GROUPS))
def test_delete_groups(client: WireClient, group: str, topic_id: UUID, version: int) -> None:
    commit(client, group, topic_id, 1, 9)
    busy = next(_names)
    join(client, busy)
    body = {"groups_names": [group, "nobody", busy]}
    answer = client.call(ApiKey.DELETE_GROUPS, version, body)
    assert {r.group_id: r.error_code for r in answer.results} == {
        group: ErrorCode.none,
        "nobody": NOT_FOUND,
        busy: ErrorCode.non_empty_group,
    }
    asked = [{"name": "t", "partition_indexes": [0]}]
    assert fetch(client, group, asked, 9).topics[0].partitions[0].committed_offset == -1


@pytest.mark.parametrize("version", versions(ApiKey.DESCRIBE_GROUPS))
def test_groups_that_are_not_there_are_dead(client: WireClient, version: int) -> None:
    (found,) = client.call(ApiKey.DESCRIBE_GROUPS, version, {"groups": ["nobody"]}).groups
    assert found.group_state == "Dead"
    assert found.error_code == (NOT_FOUND if version >= 6 else ErrorCode.none)
    if version >= 6:
        assert found.error_message == "Group nobody not found."


def test_delete_offsets(client: WireClient, group: str, topic_id: UUID) -> None:
    commit(client, group, topic_id, 1, 9)
    topics = [
        {"name": name, "partitions": [{"partition_index": 0}]} for name in ("t", "unknown topic")
    ]
    body = {"group_id": group, "topics": topics}
    answer = client.call(ApiKey.OFFSET_DELETE, 0, body)
    assert answer.error_code == ErrorCode.none
    assert {t.name: t.partitions[0].error_code for t in answer.topics} == {
        "t": ErrorCode.none,
        "unknown topic": ErrorCode.unknown_topic_or_partition,
    }
    (topic,) = fetch(client, group, None, 9).topics
    assert sorted(p.partition_index for p in topic.partitions) == [1, 2]
    refused = client.call(ApiKey.OFFSET_DELETE, 0, {**body, "group_id": "nobody"})
    assert refused.error_code == NOT_FOUND


def test_a_group_needs_a_name(client: WireClient) -> None:
    member = {"group_id": "", "generation_id": 1, "member_id": "m"}
    names = {"protocol_type": "consumer", "protocol_name": "range"}
    for key, version in ((ApiKey.SYNC_GROUP, 5), (ApiKey.HEARTBEAT, 4), (ApiKey.LEAVE_GROUP, 5)):
        answer = client.call(key, version, {**member, **names})
        assert answer.error_code == ErrorCode.invalid_group_id
    assert join(client, "").error_code == ErrorCode.invalid_group_id


def test_a_sync_names_its_protocol(client: WireClient, group: str) -> None:
    joined = join(client, group)
    member = {"group_id": group, "generation_id": 1, "member_id": joined.member_id}
    for names in ({}, {"protocol_type": "consumer", "protocol_name": "other"}):
        answer = client.call(ApiKey.SYNC_GROUP, 5, {**member, **names})
        assert answer.error_code == ErrorCode.inconsistent_group_protocol


@pytest.mark.parametrize("key", [k for k in HANDLERS if k in range(8, 17) or k in (42, 47)])
def test_answers_use_names_that_the_protocol_has(key: int) -> None:
    """A refusal of the whole request is a response in every version."""
    layout = codec.build_struct(
        codec.load_entity(key, max(HANDLERS[key].versions), EntityType.response)
    )
    assert HANDLERS[key].refuse is not None or any(
        f.name in ("error_code", "groups", "coordinators", "results") for f in layout.fields
    )
