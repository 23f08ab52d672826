"""Key ranges of consumer groups in heartbeats, commits and descriptions, against a real broker."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import pytest
from shoal.protocol import codec, frames
from shoal.protocol.api import ApiKey
from shoal.protocol.errors import ErrorCode
from shoal.protocol.features import GROUP_KEY_RANGES_FEATURE, KEY_HASH_MAX, OWN_CLIENT
from support.brokers.servers import ShoalProcess
from support.brokers.wireclient import WireClient
from support.runs.conditions import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

RECORDS = 100
HALF = (KEY_HASH_MAX + 1) // 2
TOPIC = "t"
SWITCH = "shoal.group.consumer.key.ranges.enable"
CONFIGS = {
    "group.consumer.assignment.interval.ms": "0",
    "shoal.group.consumer.connection.lost.grace.ms": "700",
    "shoal.group.consumer.takeover.heartbeat.interval.ms": "250",
    "shoal.group.consumer.key.ranges.balance.interval.ms": "100",
}
_names = (f"ranges-{i}" for i in itertools.count())


def start_broker(folder: Path) -> ShoalProcess:
    """Start a broker with a topic that members share by key ranges, and its records."""
    process = ShoalProcess(folder / "data", configs=CONFIGS).start()
    with WireClient(process.bootstrap) as client:
        client.create_topic(TOPIC, 1, shoal_key_ranges_enable="true")
        client.produce(TOPIC, *[b"v"] * RECORDS)
    return process


@pytest.fixture(scope="module")
def shoal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ShoalProcess]:
    process = start_broker(tmp_path_factory.mktemp("ranges"))
    yield process
    assert process.stop() == 0, "\n".join(process.log[-40:])


@pytest.fixture
def client(shoal: ShoalProcess) -> Iterator[WireClient]:
    with WireClient(shoal.bootstrap) as client:
        yield client


class Member:
    """A member of a consumer group that follows its assignment at once."""

    def __init__(self, client: WireClient, group: str, member_id: str, *, hash_version: int = 1):
        self.client, self.group, self.member_id = client, group, member_id
        self.hash_version = hash_version
        self.epoch = 0
        self.whole: list[Any] = []
        self.shared: list[Any] = []

    def send(self, **fields: Any) -> Any:
        body = {
            "group_id": self.group,
            "member_id": self.member_id,
            "member_epoch": self.epoch,
            "topic_partitions": self.whole if self.epoch else [],
            "key_ranges": self.shared if self.epoch else [],
            "key_hash_version": self.hash_version,
        }
        if self.epoch == 0:
            body |= {"rebalance_timeout_ms": 60_000, "subscribed_topic_names": [TOPIC]}
        return self.client.call(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, body | fields)

    def beat(self, **fields: Any) -> Any:
        answer = self.send(**fields)
        if answer.error_code:
            return answer
        self.epoch = answer.member_epoch
        if answer.assignment is not None:
            self.whole = [
                {"topic_id": t.topic_id, "partitions": list(t.partitions)}
                for t in answer.assignment.topic_partitions
            ]
            self.shared = [
                {
                    "topic_id": one.topic_id,
                    "partition": one.partition,
                    "ranges": [
                        {"first_hash": r.first_hash, "last_hash": r.last_hash} for r in one.ranges
                    ],
                }
                for one in getattr(answer.assignment, "key_ranges", [])
            ]
        return answer

    @property
    def ranges(self) -> list[tuple[int, int]]:
        """The key ranges of the partition that it owns."""
        if self.whole:
            return [(0, KEY_HASH_MAX)]
        return [(r["first_hash"], r["last_hash"]) for one in self.shared for r in one["ranges"]]

    def commit(self, position: int, *ranges: tuple[int, int], epoch: int | None = None) -> Any:
        """Commit a position of these key ranges, or a plain one; return the row."""
        row = {
            "partition_index": 0,
            "committed_offset": position,
            "committed_metadata": None,
            "key_ranges": [
                {"first_hash": a, "last_hash": b, "position": position, "finished": b""}
                for a, b in ranges
            ],
        }
        body = {
            "group_id": self.group,
            "member_id": self.member_id,
            "generation_id_or_member_epoch": self.epoch if epoch is None else epoch,
            "topics": [{"name": TOPIC, "partitions": [row]}],
        }
        return self.client.call(ApiKey.OFFSET_COMMIT, 9, body).topics[0].partitions[0]


def settled(*members: Member) -> None:
    """Heartbeat until the members' ranges tile the partition."""

    def attempt() -> bool:
        for member in members:
            member.beat()
        found = sorted(r for member in members for r in member.ranges)
        expected = 0
        for first, last in found:
            if first != expected:
                return False
            expected = last + 1
        return expected == KEY_HASH_MAX + 1 and len({m.epoch for m in members}) == 1

    eventually(attempt, what="ranges that tile the partition")


def pair(client: WireClient) -> tuple[Member, Member]:
    """Two members of a new group that share the partition."""
    group = next(_names)
    one, other = Member(client, group, "one"), Member(client, group, "other")
    settled(one)
    settled(one, other)
    return one, other


def committed(member: Member) -> tuple[int, list[tuple[int, int, int]]]:
    """The stable offset, and the positions of the key ranges."""
    asked = {
        "group_id": member.group,
        "topics": [{"name": TOPIC, "partition_indexes": [0]}],
        "member_epoch": -1,
        "key_ranges_wanted": True,
    }
    (group,) = member.client.call(ApiKey.OFFSET_FETCH, 9, {"groups": [asked]}).groups
    part = group.topics[0].partitions[0]
    ranges = getattr(part, "key_ranges", [])
    return part.committed_offset, [(r.first_hash, r.last_hash, r.position) for r in ranges]


def raw(client: WireClient, api: ApiKey, version: int, body: dict[str, Any]) -> bytes:
    """The bytes of a response after its header."""
    client.send(api, version, body)
    size = int.from_bytes(client.sock.recv(4), "big")
    frame = b""
    while len(frame) < size:
        frame += client.sock.recv(size - len(frame))
    return frame[len(frames.build_response_head(api, version, 0)) :]


def test_two_members_share_a_partition(client: WireClient) -> None:
    one, other = pair(client)
    assert (one.ranges, other.ranges) == ([(0, HALF - 1)], [(HALF, KEY_HASH_MAX)])
    assert (one.whole, other.whole) == ([], [])


def test_a_range_is_revoked_before_it_is_given(client: WireClient) -> None:
    group = next(_names)
    one, other = Member(client, group, "one"), Member(client, group, "other")
    settled(one)
    assert other.beat().error_code == 0
    assert other.ranges == []
    one.beat()  # It reports the whole partition.
    assert one.ranges == [(0, HALF - 1)]
    other.beat()
    assert other.ranges == []
    assert one.commit(7, (0, HALF - 1)).error_code == 0
    # It still owns all of it, and may commit what it gives up.
    assert one.commit(8, (HALF, KEY_HASH_MAX)).error_code == 0
    settled(one, other)
    assert committed(other) == (7, [(0, HALF - 1, 7), (HALF, KEY_HASH_MAX, 8)])


def test_the_stable_offset_is_the_lowest_position(client: WireClient) -> None:
    """A partition has no committed offset until all of its ranges have a position."""
    one, other = pair(client)
    row = one.commit(20, *one.ranges)
    assert (row.error_code, row.individual_commit.stable_offset) == (0, -1)
    assert committed(one) == (-1, [(0, HALF - 1, 20), (HALF, KEY_HASH_MAX, -1)])
    row = other.commit(5, *other.ranges)
    assert (row.error_code, row.individual_commit.stable_offset) == (0, 5)
    row = other.commit(20, *other.ranges)
    assert (row.error_code, row.individual_commit.stable_offset) == (0, 20)
    assert committed(one) == (20, [])


def test_other_clients_see_unchanged_bytes(client: WireClient) -> None:
    one, other = pair(client)
    asked = {"groups": [{"group_id": one.group, "topics": None, "member_epoch": -1}]}
    assert one.commit(5, *one.ranges).error_code == 0
    assert other.commit(5, *other.ranges).error_code == 0
    expected = raw(client, ApiKey.OFFSET_FETCH, 9, asked)
    assert one.commit(30, *one.ranges).error_code == 0
    assert committed(one)[0] == 5
    assert raw(client, ApiKey.OFFSET_FETCH, 9, asked) == expected
    described = {"group_ids": [one.group]}
    (group,) = client.call(ApiKey.CONSUMER_GROUP_DESCRIBE, 1, described).groups
    for member in group.members:
        (topic,) = member.assignment.topic_partitions
        assert (topic.topic_name, list(topic.partitions)) == (TOPIC, [0])
        assert not hasattr(member, "key_ranges")
    described["key_ranges_wanted"] = True  # type: ignore[assignment]
    (group,) = client.call(ApiKey.CONSUMER_GROUP_DESCRIBE, 1, described).groups
    found = {
        m.member_id: [(r.first_hash, r.last_hash) for r in m.key_ranges[0].ranges]
        for m in group.members
    }
    assert found == {"one": one.ranges, "other": other.ranges}


def test_heartbeats_of_plain_members_have_kafkas_bytes(client: WireClient) -> None:
    one, _ = pair(client)
    body = {
        "group_id": one.group,
        "member_id": "plain",
        "member_epoch": 0,
        "rebalance_timeout_ms": 60_000,
        "subscribed_topic_names": [TOPIC],
        "topic_partitions": [],
    }
    tag = b"\xe8\x07"
    assert tag not in codec.write_request(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, body)
    assert tag not in raw(client, ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, body)
    shared = {**body, "member_id": one.member_id, "key_hash_version": 1}
    assert tag in raw(client, ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, shared)


def test_a_range_of_another_member_is_refused(client: WireClient) -> None:
    one, other = pair(client)
    row = one.commit(20, *other.ranges)
    assert row.error_code == ErrorCode.stale_member_epoch
    message = row.individual_commit.error_message
    assert f"Member one does not own the key range {HALF}-{KEY_HASH_MAX} of t-0" in message
    row = one.commit(20, (0, KEY_HASH_MAX - 1))
    assert row.error_code == ErrorCode.stale_member_epoch
    # A plain commit would replace the positions of all.
    assert one.commit(20).error_code == ErrorCode.stale_member_epoch
    # A member that had less before commits with an old epoch.
    row = other.commit(20, *other.ranges, epoch=other.epoch - 1)
    assert row.error_code == ErrorCode.stale_member_epoch
    assert "has not owned t-0 since epoch" in row.individual_commit.error_message
    assert committed(one) == (-1, [])


def test_a_fenced_member_cannot_commit(client: WireClient) -> None:
    one, other = pair(client)
    mine = other.ranges
    client.call(
        ApiKey.CONSUMER_GROUP_HEARTBEAT,
        1,
        {"group_id": other.group, "member_id": "other", "member_epoch": -1},
    )
    settled(one)
    assert one.ranges == [(0, KEY_HASH_MAX)]
    assert other.commit(50, *mine).error_code == ErrorCode.unknown_member_id
    assert one.commit(9, (0, HALF - 1)).error_code == 0


def test_a_lost_connection_ends_a_membership_after_the_grace(
    shoal: ShoalProcess, client: WireClient
) -> None:
    """shoal.group.consumer.connection.lost.grace.ms. The session would last 45 s."""
    one, other = pair(client)
    with WireClient(shoal.bootstrap) as second:
        other.client = second
        other.beat()
    # A member that heartbeats over another connection in time stays.
    other.client = client
    other.beat()
    with WireClient(shoal.bootstrap) as third:
        gone = Member(third, one.group, "gone")
        settled(one, other, gone)
    eventually(lambda: one.beat() and other.beat() and settled_alone(one, other), timeout_s=20)
    gone.client = client
    assert gone.commit(5, *gone.ranges).error_code == ErrorCode.unknown_member_id


def test_the_boundary_follows_the_load(client: WireClient) -> None:
    """shoal.group.consumer.key.ranges.balance.interval.ms. All records have hashes of the first
    member, in two halves of its range."""
    one, other = pair(client)
    where = {name: one.shared[0][name] for name in ("topic_id", "partition")}
    quarters = [(0, HALF // 2 - 1), (HALF // 2, HALF - 1)]

    def moved() -> bool:
        loads = [{"first_hash": a, "last_hash": b, "records": 1_000} for a, b in quarters]
        for member in (one, other):
            assert member.beat(key_loads=[{**where, "loads": loads}]).error_code == 0
        return other.ranges not in ([], [(HALF, KEY_HASH_MAX)])

    eventually(moved, what="another boundary")
    settled(one, other)
    widths = [sum(b - a + 1 for a, b in m.ranges if a < HALF) / HALF for m in (one, other)]
    assert widths == pytest.approx([0.5, 0.5], abs=0.1)
    refused = one.send(key_loads=[{**where, "loads": [{"first_hash": 5, "last_hash": 4}]}])
    assert refused.error_code == ErrorCode.invalid_request
    assert "Report the records of assigned ranges" in refused.error_message


def test_members_with_key_ranges_heartbeat_often(client: WireClient) -> None:
    """shoal.group.consumer.takeover.heartbeat.interval.ms. A plain member has its group's."""

    def interval_ms(member: Member) -> int:
        return codec.to_ms(member.beat().heartbeat_interval)

    assert [interval_ms(member) for member in pair(client)] == [250, 250]
    plain = Member(client, next(_names), "plain", hash_version=0)
    settled(plain)
    assert interval_ms(plain) == 5_000


def settled_alone(*members: Member) -> bool:
    """Whether these members have the whole partition."""
    ranges = [r for member in members for r in member.ranges]
    return sum(last - first + 1 for first, last in ranges) == KEY_HASH_MAX + 1


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        ({"key_hash_version": 2}, "unsupported_version", "The member hashes keys by version 2"),
        (
            {"key_ranges": [{"topic_id": None, "partition": 0, "ranges": [{"last_hash": 5}]}]},
            "invalid_request",
            "key range 0-5 was not assigned. Report ranges of the last assignment",
        ),
    ],
)
def test_bad_heartbeats_are_named(
    client: WireClient, fields: dict[str, Any], error: str, message: str
) -> None:
    member = Member(client, next(_names), "m")
    settled(member)
    if "key_ranges" in fields:
        fields["key_ranges"][0]["topic_id"] = member.whole[0]["topic_id"]
    answer = member.send(**fields)
    assert ErrorCode(answer.error_code).name == error
    assert message in answer.error_message


def test_a_plain_member_leaves_the_last_partition_to_sharing_ones(
    shoal: ShoalProcess, client: WireClient
) -> None:
    """It gets the partition as a whole once they have left. What it gets again is counted."""
    shared = "shoal_group_coordinator_key_range_shared_partitions"
    redone = "shoal_group_coordinator_key_range_redone_records_total"
    before = shoal.metric(redone)
    group = next(_names)
    plain = Member(client, group, "plain", hash_version=0)
    settled(plain)
    assert plain.commit(11).error_code == 0
    one, other = Member(client, group, "one"), Member(client, group, "other")
    settled(plain, one, other)
    assert plain.whole == []
    assert len(one.ranges) == len(other.ranges) == 1
    assert one.commit(40, *one.ranges).error_code == 0
    assert committed(one)[0] == 11
    assert shoal.metric(shared) >= 1
    for member in (one, other):
        member.epoch = -1
        member.send()
    settled(plain)
    assert plain.whole
    assert plain.commit(12).error_code == 0
    assert shoal.metric(redone) == before + (40 - 11) // 2
    assert committed(plain) == (12, [])


def test_the_switch_of_the_topic_takes_effect(client: WireClient) -> None:
    """shoal.key.ranges.enable"""

    def alter(value: str) -> None:
        change = {"name": "shoal.key.ranges.enable", "config_operation": 0, "value": value}
        resource = {"resource_type": 2, "resource_name": TOPIC, "configs": [change]}
        answer = client.call(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, {"resources": [resource]})
        assert answer.responses[0].error_code == 0

    one, other = pair(client)
    alter("false")
    try:
        settled(one, other)
        assert sorted([one.ranges, other.ranges]) == [[], [(0, KEY_HASH_MAX)]]
    finally:
        alter("true")
    settled(one, other)
    assert len(one.ranges) == len(other.ranges) == 1


def features(client: WireClient) -> set[str]:
    body = {"client_software_name": OWN_CLIENT, "client_software_version": "1"}
    return {f.name for f in client.call(ApiKey.API_VERSIONS, 4, body).supported_features}


def test_the_switch(tmp_path: Any, client: WireClient) -> None:
    """shoal.group.consumer.key.ranges.enable"""
    assert GROUP_KEY_RANGES_FEATURE in features(client)
    process = ShoalProcess(tmp_path / "data", configs=CONFIGS | {SWITCH: "false"}).start()
    try:
        with WireClient(process.bootstrap) as client:
            client.create_topic(TOPIC, 1, shoal_key_ranges_enable="true")
            assert GROUP_KEY_RANGES_FEATURE not in features(client)
            one, other = Member(client, "g", "one"), Member(client, "g", "other")
            settled(one, other)
            assert sorted([one.ranges, other.ranges]) == [[], [(0, KEY_HASH_MAX)]]
            row = max(one, other, key=lambda m: m.ranges).commit(0, (0, HALF - 1))
            assert row.error_code == ErrorCode.policy_violation
            assert f"Set {SWITCH}=true on the brokers" in row.individual_commit.error_message
    finally:
        process.stop()
