"""Individual commit in OffsetCommit, TxnOffsetCommit and OffsetFetch, against a real broker."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from shoal.protocol import codec, frames
from shoal.protocol.api import ApiKey
from shoal.protocol.errors import ErrorCode
from shoal.protocol.features import INDIVIDUAL_COMMIT_FEATURE, KEY_HASH_MAX
from shoal.record.finished_offsets import HEADER, FinishedOffsets
from support.brokers.servers import ShoalProcess
from support.brokers.wireclient import WireClient
from support.runs.conditions import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

RECORDS = 100
MAX_RANGES = 10
CONFIGS = {
    "group.initial.rebalance.delay.ms": "0",
    "shoal.group.consumer.individual.commit.max.ranges": str(MAX_RANGES),
}
_names = (f"group-{i}" for i in itertools.count())


@pytest.fixture(scope="module")
def shoal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ShoalProcess]:
    process = ShoalProcess(tmp_path_factory.mktemp("individual") / "data", configs=CONFIGS).start()
    yield process
    assert process.stop() == 0, "\n".join(process.log[-40:])


@pytest.fixture(scope="module", autouse=True)
def topic(shoal: ShoalProcess) -> str:
    with WireClient(shoal.bootstrap) as client:
        client.create_topic("t", 2)
        for partition in range(2):
            client.produce("t", *[b"v"] * RECORDS, partition=partition)
    return "t"


@pytest.fixture
def client(shoal: ShoalProcess) -> Iterator[WireClient]:
    with WireClient(shoal.bootstrap) as client:
        yield client


class Member(NamedTuple):
    """A member of a consumer group that owns partition 0 and 1 of `t`."""

    client: WireClient
    group: str
    member_id: str
    epoch: int

    def commit(self, *key_ranges: dict[str, Any], partition: int = 0, **fields: Any) -> Any:
        """Commit; return the row of the partition."""
        row = {
            "partition_index": partition,
            "committed_offset": 0,
            "committed_metadata": None,
            "key_ranges": list(key_ranges),
        }
        body = {
            "group_id": self.group,
            "member_id": self.member_id,
            "generation_id_or_member_epoch": self.epoch,
            "topics": [{"name": "t", "partitions": [row | fields.pop("row", {})]}],
            **fields,
        }
        return self.client.call(ApiKey.OFFSET_COMMIT, 9, body).topics[0].partitions[0]

    def fetch(self, **fields: Any) -> Any:
        topics = [{"name": "t", "partition_indexes": [0, 1]}]
        group = {"group_id": self.group, "topics": topics, "member_epoch": -1, **fields}
        (found,) = self.client.call(ApiKey.OFFSET_FETCH, 9, {"groups": [group]}).groups
        return found

    def committed(self) -> tuple[int, str]:
        """The stable offset and the finished ranges of partition 0."""
        part = self.fetch(key_ranges_wanted=True).topics[0].partitions[0]
        ranges = getattr(part, "key_ranges", [])
        assert all((r.first_hash, r.last_hash) == (0, KEY_HASH_MAX) for r in ranges)
        assert all(r.position == part.committed_offset for r in ranges)
        finished = FinishedOffsets.decode(ranges[0].finished) if ranges else ""
        return part.committed_offset, str(finished)


def key_range(position: int, *ranges: tuple[int, int], **fields: Any) -> dict[str, Any]:
    return {
        "first_hash": 0,
        "last_hash": KEY_HASH_MAX,
        "position": position,
        "finished": FinishedOffsets.from_ranges(ranges).encode(),
        **fields,
    }


def heartbeat(client: WireClient, group: str, member_id: str, epoch: int, **fields: Any) -> Any:
    body = {"group_id": group, "member_id": member_id, "member_epoch": epoch, **fields}
    return client.call(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, body)


def joined(client: WireClient) -> Member:
    """A member of a new group."""
    group = next(_names)
    fields = {
        "rebalance_timeout_ms": 60_000,
        "subscribed_topic_names": ["t"],
        "topic_partitions": [],
    }

    def attempt() -> Any:
        answer = heartbeat(client, group, "m", 0, **fields)
        return None if answer.error_code else answer

    answer = eventually(attempt, what="a member")
    return Member(client, group, answer.member_id, answer.member_epoch)


@pytest.fixture
def member(client: WireClient) -> Member:
    return joined(client)


def test_a_commit_adds_and_merges(member: Member) -> None:
    row = member.commit(key_range(5, (7, 9), (11, 11)))
    assert (row.error_code, row.individual_commit.stable_offset) == (0, 5)
    assert member.committed() == (5, "7-9,11")
    assert member.commit(key_range(5, (10, 10))).individual_commit.stable_offset == 5
    assert member.committed() == (5, "7-11")
    assert member.commit(key_range(7)).individual_commit.stable_offset == 12
    assert member.committed() == (12, "")


def test_a_repeated_or_lower_commit_is_counted(member: Member, shoal: ShoalProcess) -> None:
    name = "shoal_group_coordinator_individual_commit_repeated_count_total"
    before = shoal.metric(name)
    for _ in range(2):
        row = member.commit(key_range(20, (30, 39)))
        assert (row.error_code, row.individual_commit.stable_offset) == (0, 20)
    row = member.commit(key_range(3, (10, 12), (31, 33)))
    assert (row.error_code, row.individual_commit.stable_offset) == (0, 20)
    assert member.committed() == (20, "30-39")
    assert shoal.metric(name) == before + 2


def test_other_clients_see_unchanged_bytes(member: Member) -> None:
    """OffsetFetch without the tag answers as if the stable offset had been committed plainly."""
    assert member.commit(row={"committed_offset": 20}).error_code == 0
    asked = {"groups": [{"group_id": member.group, "topics": None, "member_epoch": -1}]}
    expected = _raw(member.client, ApiKey.OFFSET_FETCH, 9, asked)
    assert member.commit(key_range(20, (30, 39))).error_code == 0
    assert member.committed() == (20, "30-39")
    assert _raw(member.client, ApiKey.OFFSET_FETCH, 9, asked) == expected


def test_a_plain_commit_replaces_everything(member: Member) -> None:
    member.commit(key_range(20, (30, 39)))
    row = member.commit(row={"committed_offset": 4})
    assert row.error_code == 0
    assert not hasattr(row, "individual_commit")
    assert member.committed() == (4, "")


def _raw(client: WireClient, api: ApiKey, version: int, body: dict[str, Any]) -> bytes:
    """The bytes of a response after its header."""
    client.send(api, version, body)
    size = int.from_bytes(client.sock.recv(4), "big")
    frame = b""
    while len(frame) < size:
        frame += client.sock.recv(size - len(frame))
    return frame[len(frames.build_response_head(api, version, 0)) :]


WRONG = HEADER.pack(9, 5, 1, 1, 1) + b"\x01"
SHORT = HEADER.pack(5, 9, 5, 1, 1) + b"\x04"


@pytest.mark.parametrize(
    ("asked", "error", "message"),
    [
        (key_range(3, (100, 100)), "offset_out_of_range", "Offset 100 of t-0 cannot be finished"),
        (key_range(101), "offset_out_of_range", "the log ends at offset 100"),
        (key_range(0, finished=WRONG), "invalid_request", "9-5 ends before it starts"),
        (key_range(0, finished=SHORT), "invalid_request", "5-9 does not have the lengths"),
        (
            key_range(0, finished=HEADER.pack(5, 5, 1, 0, 0) * 100_000),
            "invalid_commit_offset_size",
            "The request has more than 10 ranges of finished offsets",
        ),
        (key_range(0, finished=b"x"), "invalid_request", "end within the header"),
        (key_range(-1), "invalid_request", "The position -1 is below 0"),
        (key_range(0, first_hash=-5), "invalid_request", "is outside of 0-9223372036854775807"),
        (key_range(0, first_hash=9, last_hash=5), "invalid_request", "9-5 ends before it begins"),
        (
            key_range(0, *[(o, o) for o in range(1, 2 * MAX_RANGES + 2, 2)]),
            "invalid_commit_offset_size",
            "The request has more than 10 ranges of finished offsets",
        ),
    ],
)
def test_bad_input_is_named(
    member: Member, asked: dict[str, Any], error: str, message: str
) -> None:
    member.commit(key_range(1, (50, 50)))
    row = member.commit(asked)
    assert ErrorCode(row.error_code).name == error
    assert message in row.individual_commit.error_message
    assert row.individual_commit.stable_offset == -1
    assert member.committed() == (1, "50")


def test_key_ranges_that_overlap_are_refused(member: Member) -> None:
    row = member.commit(key_range(0, last_hash=9), key_range(0, first_hash=9))
    assert row.error_code == ErrorCode.invalid_request
    expected = "9-9223372036854775807 overlaps the one before it"
    assert expected in row.individual_commit.error_message


def test_a_partition_at_its_limit_accepts_only_what_closes_gaps(member: Member) -> None:
    """shoal.group.consumer.individual.commit.max.ranges"""
    member.commit(key_range(0, *[(o, o) for o in range(1, 2 * MAX_RANGES, 2)]))
    row = member.commit(key_range(0, (50, 50)))
    assert row.error_code == ErrorCode.invalid_commit_offset_size
    assert "Finish the record at that offset first" in row.individual_commit.error_message
    assert member.commit(key_range(0, (2, 2))).error_code == 0
    row = member.commit(key_range(1))
    assert (row.error_code, row.individual_commit.stable_offset) == (0, 4)


def test_a_fetch_has_the_limit(member: Member) -> None:
    assert member.fetch(key_ranges_wanted=True).ranges_max == MAX_RANGES
    assert not hasattr(member.fetch(), "ranges_max")


def test_an_old_member_epoch(member: Member) -> None:
    row = member._replace(epoch=member.epoch + 1).commit(key_range(1))
    assert row.error_code == ErrorCode.stale_member_epoch
    assert "is at epoch" in row.individual_commit.error_message
    row = member._replace(member_id="other").commit(key_range(1))
    assert row.error_code == ErrorCode.unknown_member_id
    row = member._replace(member_id="", epoch=-1).commit(key_range(1))
    assert row.error_code == ErrorCode.unknown_member_id
    assert "names no member" in row.individual_commit.error_message
    assert member.committed() == (-1, "")


def test_groups_of_other_types(client: WireClient) -> None:
    nobody = Member(client, next(_names), "m", 1)
    row = nobody.commit(key_range(1))
    assert row.error_code == ErrorCode.group_id_not_found
    assert "does not exist" in row.individual_commit.error_message
    classic = Member(client, next(_names), "", -1)
    assert classic.commit(row={"committed_offset": 3}).error_code == 0
    row = classic.commit(key_range(9))
    assert row.error_code == ErrorCode.group_id_not_found
    assert "is a classic group" in row.individual_commit.error_message
    assert classic.committed() == (3, "")
    share = Member(client, next(_names), "m", 1)
    body = {
        "group_id": share.group,
        "member_id": "AAAAAAAAAAAAAAAAAAAAAA",
        "member_epoch": 0,
        "subscribed_topic_names": ["t"],
    }
    assert client.call(ApiKey.SHARE_GROUP_HEARTBEAT, 1, body).error_code == 0
    row = share.commit(key_range(9))
    assert row.error_code == ErrorCode.group_id_not_found
    assert "is a share group" in row.individual_commit.error_message


def begun(client: WireClient, name: str) -> dict[str, Any]:
    """Begin a transaction, with the group's partition; return the producer's fields."""
    find = {"key_type": 1, "coordinator_keys": [name]}

    def ready() -> bool:
        (row,) = client.call(ApiKey.FIND_COORDINATOR, 6, find).coordinators
        return not row.error_code

    eventually(ready)
    body = {"transactional_id": name, "transaction_timeout_ms": 60_000}

    def initialized() -> Any:
        answer = client.call(
            ApiKey.INIT_PRODUCER_ID, 4, {**body, "producer_id": -1, "producer_epoch": -1}
        )
        return None if answer.error_code else answer

    answer = eventually(initialized)
    return {
        "transactional_id": name,
        "producer_id": answer.producer_id,
        "producer_epoch": answer.producer_epoch,
    }


def commit_in_transaction(member: Member, producer: dict[str, Any], asked: dict[str, Any]) -> Any:
    row = {
        "partition_index": 0,
        "committed_offset": 0,
        "committed_leader_epoch": -1,
        "committed_metadata": None,
        "key_ranges": [asked],
    }
    body = {
        **producer,
        "group_id": member.group,
        "member_id": member.member_id,
        "generation_id": member.epoch,
        "topics": [{"name": "t", "partitions": [row]}],
    }
    return member.client.call(ApiKey.TXN_OFFSET_COMMIT, 5, body).topics[0].partitions[0]


def end(client: WireClient, producer: dict[str, Any], *, committed: bool) -> None:
    answer = client.call(ApiKey.END_TXN, 5, {**producer, "committed": committed})
    assert answer.error_code == 0
    producer["producer_epoch"] = answer.producer_epoch


def test_transactions(member: Member) -> None:
    """Finished offsets of a transaction count once it commits; until then others are refused."""
    member.commit(key_range(10, (20, 20)))
    producer = begun(member.client, member.group)
    row = commit_in_transaction(member, producer, key_range(12, (21, 22)))
    assert (row.error_code, row.individual_commit.stable_offset) == (0, 12)
    row = commit_in_transaction(member, producer, key_range(12, (30, 30)))
    assert row.error_code == 0
    assert member.committed() == (10, "20")
    row = member.commit(key_range(11))
    assert row.error_code == ErrorCode.concurrent_transactions
    assert "Repeat the commit once that transaction ends" in row.individual_commit.error_message
    end(member.client, producer, committed=True)
    eventually(lambda: member.committed() == (12, "20-22,30"))

    row = commit_in_transaction(member, producer, key_range(50))
    assert (row.error_code, row.individual_commit.stable_offset) == (0, 50)
    row = commit_in_transaction(member, producer, key_range(50, (200, 200)))
    assert row.error_code == ErrorCode.offset_out_of_range
    end(member.client, producer, committed=False)

    def settled() -> bool:
        return member.commit(key_range(13)).error_code == 0

    eventually(settled)
    assert member.committed() == (13, "20-22,30")


def test_the_switch(tmp_path: Any) -> None:
    """shoal.group.consumer.individual.commit.enable"""
    name = "shoal.group.consumer.individual.commit.enable"
    process = ShoalProcess(tmp_path / "data", configs={name: "false"}).start()
    try:
        with WireClient(process.bootstrap) as client:
            client.create_topic("t", 2)
            client.produce("t", b"v")
            assert INDIVIDUAL_COMMIT_FEATURE not in features(client)
            row = joined(client).commit(key_range(1))
            assert row.error_code == ErrorCode.policy_violation
            assert f"Set {name}=true" in row.individual_commit.error_message
    finally:
        process.stop()


def test_only_our_client_learns_of_the_feature(client: WireClient) -> None:
    assert INDIVIDUAL_COMMIT_FEATURE in features(client)
    assert INDIVIDUAL_COMMIT_FEATURE not in features(client, "apache-kafka-java")


def features(client: WireClient, software: str = "shoal") -> set[str]:
    body = {"client_software_name": software, "client_software_version": "1"}
    answer = client.call(ApiKey.API_VERSIONS, 4, body)
    return {feature.name for feature in answer.supported_features}


def test_requests_without_the_field_have_kafkas_bytes() -> None:
    part: dict[str, Any] = {
        "partition_index": 0,
        "committed_offset": 3,
        "committed_metadata": None,
    }
    body = {
        "group_id": "g",
        "generation_id_or_member_epoch": 1,
        "member_id": "m",
        "topics": [{"name": "t", "partitions": [part]}],
    }
    plain = codec.write_request(ApiKey.OFFSET_COMMIT, 9, body)
    assert b"\xe8\x07" not in plain
    part["key_ranges"] = [key_range(3, (5, 6))]
    data = bytes(codec.write_request(ApiKey.OFFSET_COMMIT, 9, body))
    assert b"\xe8\x07" in data
    found = codec.read_request(ApiKey.OFFSET_COMMIT, 9, memoryview(data)).topics[0].partitions[0]
    assert found.key_ranges[0].position == 3
