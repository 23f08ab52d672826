"""Streams-group membership, one rule for each test (KIP-1071). What needs no time is compared with
Kafka in `compat/oracles/test_streams_protocol.py`."""

from __future__ import annotations

import pytest
from shoal.coordinator.contract import CoordinatorResult, Reply, Token
from shoal.coordinator.group.offsets.requests import CommitRequest, PartitionCommit, TopicCommit
from shoal.coordinator.group.settings import GroupSettings
from shoal.coordinator.group.shard import GroupShard
from shoal.coordinator.group.streams.internal_topics import StatusCode
from shoal.coordinator.group.streams.streams_group import StreamsGroupState, UserEndpoint
from shoal.coordinator.group.streams.tasks import from_wire
from shoal.protocol.errors import ErrorCode
from support.brokers.coordinator_sim import Simulation
from support.streams.streams_groups import (
    NO_DELAYS,
    REBALANCE_TIMEOUT_MS,
    Client,
    Streams,
    image_of,
    missing,
    status_codes,
    subtopology,
    topology,
)

PLAIN = topology(subtopology("0", ["in"]))
STATEFUL = topology(subtopology("0", ["in"], ["log"]))
#: The least session timeout that a group may have.
SESSION_MS = 45_000


def streams(partitions: int = 4, /, **configs: str) -> Streams:
    given = {name.replace("_", "."): value for name, value in configs.items()}
    return Streams(image_of({"in": partitions}, NO_DELAYS | given), PLAIN)


def test_a_silent_member_is_fenced_and_its_tasks_move() -> None:
    group = streams(streams_session_timeout_ms=str(SESSION_MS + 5_000))
    a, b = Client("a", "pa"), Client("b", "pb")
    group.heartbeat(a)
    group.heartbeat(b)
    group.settle(a, b)
    group.sim.advance(SESSION_MS)
    group.heartbeat(b)
    group.sim.advance(4_999)
    assert set(group.group.members) == {"a", "b"}
    group.sim.advance(1)
    assert set(group.group.members) == {"b"}
    group.settle(b)
    assert b.active == {"0": {0, 1, 2, 3}}
    assert group.heartbeat(a) is ErrorCode.unknown_member_id


def lose(group: Streams, member: str, connection: str) -> None:
    def decide(shard: GroupShard, now_ms: int, token: Token) -> CoordinatorResult:
        shard.streams.on_connection_lost("g", member, connection, now_ms)
        return CoordinatorResult((), (Reply(token, {}),))

    group.sim.submit(object(), decide)


@pytest.mark.parametrize(("grace_ms", "fenced_after_ms"), [(3_000, 8_000), (0, SESSION_MS)])
def test_a_member_without_a_connection_is_fenced(grace_ms: int, fenced_after_ms: int) -> None:
    group = Streams(
        image_of({"in": 2}), PLAIN, shoal_group_streams_connection_lost_grace_ms=grace_ms
    )
    a = Client("a", "pa")
    group.heartbeat(a, connection_id="first")
    lose(group, "a", "first")
    group.sim.advance(fenced_after_ms - 1)
    assert group.group.members
    group.sim.advance(1)
    assert not group.group.members


def test_a_static_member_without_a_connection_keeps_its_tasks_for_its_session() -> None:
    group = Streams(image_of({"in": 2}), PLAIN, shoal_group_streams_connection_lost_grace_ms=3_000)
    before = Client("a", "pa", "i")
    group.heartbeat(before, connection_id="first")
    lose(group, "a", "first")
    group.sim.advance(SESSION_MS - 1)
    group.leave(before, epoch=-2)
    after = Client("b", "pa", "i")
    group.heartbeat(after, connection_id="second")
    assert (list(group.group.members), after.active) == (["b"], {"0": {0, 1}})
    group.sim.advance(1)
    assert list(group.group.members) == ["b"]
    group.leave(after, epoch=-2)
    group.sim.advance(SESSION_MS)
    assert not group.group.members


def test_a_member_may_connect_again() -> None:
    group = streams()
    a = Client("a", "pa")
    group.heartbeat(a, connection_id="first")
    lose(group, "a", "first")
    group.sim.advance(5_000)
    group.heartbeat(a, connection_id="second")
    lose(group, "a", "first")
    group.sim.advance(SESSION_MS - 1)
    assert group.group.members


def test_a_member_that_does_not_revoke_in_time_is_fenced() -> None:
    group = streams()
    a, b = Client("a", "pa"), Client("b", "pb")
    group.heartbeat(a)
    everything = a.active
    group.heartbeat(b)
    group.heartbeat(a, follow=False)
    for _ in range(2):
        group.sim.advance(REBALANCE_TIMEOUT_MS // 2 - 1)
        group.heartbeat(a, active_tasks=everything, follow=False)
        group.heartbeat(b)
    assert not b.active
    group.sim.advance(2)
    group.settle(b)
    assert b.active == {"0": {0, 1, 2, 3}}


def test_a_new_group_waits_for_members_and_then_assigns_without_a_heartbeat() -> None:
    group = streams(streams_initial_rebalance_delay_ms="3000")
    a, b = Client("a", "pa"), Client("b", "pb")
    assert status_codes(group.heartbeat(a)) == [StatusCode.ASSIGNMENT_DELAYED]
    group.sim.advance(2_000)
    assert status_codes(group.heartbeat(b)) == [StatusCode.ASSIGNMENT_DELAYED]
    group.sim.advance(999)
    assert not any(group.group.target.values())
    group.sim.advance(1)
    assert {m: len(t.active["0"]) for m, t in group.group.target.items()} == {"a": 2, "b": 2}
    group.settle(a, b)
    assert group.group.state is StreamsGroupState.STABLE


def test_a_group_that_was_deleted_leaves_no_delay() -> None:
    group = streams(streams_initial_rebalance_delay_ms="3000")
    a = Client("a", "pa")
    group.heartbeat(a)
    group.sim.advance(2_000)
    group.leave(a)
    group.sim.submit("delete", lambda s, _now, t: s.delete_group("g", t))
    assert not group.exists
    group.heartbeat(a)
    group.sim.advance(2_999)
    assert not any(group.group.target.values())
    group.sim.advance(1)
    assert group.group.target["a"].active


def test_assignments_are_spaced() -> None:
    group = streams(streams_assignment_interval_ms="9000")
    a, b = Client("a", "pa"), Client("b", "pb")
    group.heartbeat(a)
    assert a.active
    group.sim.advance(1_000)
    assert status_codes(group.heartbeat(b)) == [StatusCode.ASSIGNMENT_DELAYED]
    group.sim.advance(7_999)
    assert "b" not in group.group.target
    group.sim.advance(1)
    assert group.group.target["b"].active


def test_the_heartbeat_interval_is_configured_and_shorter_while_a_member_waits() -> None:
    group = streams(streams_heartbeat_interval_ms="7000")
    a, b = Client("a", "pa"), Client("b", "pb")
    assert group.heartbeat(a)["heartbeat_interval_ms"] == 7_000
    assert group.heartbeat(b)["heartbeat_interval_ms"] == 500
    group.settle(a, b)
    assert group.heartbeat(b)["heartbeat_interval_ms"] == 7_000


def test_the_interval_of_task_offsets_is_configured() -> None:
    group = streams(streams_task_offset_interval_ms="20000")
    assert group.heartbeat(Client("a", "pa"))["task_offset_interval_ms"] == 20_000


def test_standby_tasks_are_elsewhere() -> None:
    configs = NO_DELAYS | {"streams.num.standby.replicas": "1"}
    group = Streams(image_of({"in": 4, "log": 4}, configs), STATEFUL)
    a, b = Client("a", "pa"), Client("b", "pb")
    group.heartbeat(a)
    assert not a.standby
    group.heartbeat(b)
    group.settle(a, b)
    assert a.standby == b.active
    assert b.standby == a.active


def test_the_size_of_a_group_is_limited() -> None:
    group = Streams(image_of({"in": 1}), PLAIN, group_streams_max_size=1)
    group.heartbeat(Client("a", "pa"))
    assert group.heartbeat(Client("b", "pb")) is ErrorCode.group_max_size_reached


def test_a_failover_keeps_members_and_restarts_their_deadlines() -> None:
    group = streams()
    a = Client("a", "pa")
    group.heartbeat(a)
    group.sim.advance(SESSION_MS - 1)
    group.sim.restart()
    group.sim.advance(SESSION_MS - 1)
    assert set(group.group.members) == {"a"}
    assert group.heartbeat(a)["active_tasks"] is None
    group.sim.advance(SESSION_MS)
    assert not group.group.members


def test_a_member_that_missed_its_tasks_gets_them_again() -> None:
    """Kafka 4.3.1 does not repeat them, so nobody runs the tasks until the next rebalance."""
    group = streams()
    a, b = Client("a", "pa"), Client("b", "pb")
    group.heartbeat(a)
    group.heartbeat(b)
    group.heartbeat(a)
    group.heartbeat(a)
    group.heartbeat(b, follow=False)
    assert not b.active
    group.heartbeat(b)
    assert b.active == {"0": {2, 3}}


def test_a_member_gets_the_tasks_that_a_late_join_brought() -> None:
    """The join came over a connection that the member has given up: see `test_late_joins`."""
    group = streams(2)
    a, b, late = Client("a", "pa"), Client("b", "pb"), Client("b", "pb")
    group.heartbeat(a, connection_id="new")
    group.heartbeat(b, connection_id="new")
    group.heartbeat(a, connection_id="new")
    group.heartbeat(a, connection_id="new")
    group.heartbeat(late, connection_id="given up")
    assert late.active == {"0": {1}}
    group.heartbeat(b, connection_id="new")
    assert b.active == {"0": {1}}
    assert group.heartbeat(b, connection_id="new")["active_tasks"] is None


def test_missing_internal_topics_are_named_until_they_exist() -> None:
    group = Streams(image_of({"in": 3}), STATEFUL)
    a = Client("a", "pa")
    response = group.heartbeat(a)
    assert status_codes(response) == [StatusCode.MISSING_INTERNAL_TOPICS]
    assert missing(response) == {"log": 3}
    assert group.group.state is StreamsGroupState.NOT_READY
    group.change(image_of({"in": 3, "log": 3}))
    assert not status_codes(group.heartbeat(a))
    assert a.active == {"0": {0, 1, 2}}


def test_tasks_follow_the_partitions_of_a_source() -> None:
    group = streams(2)
    a = Client("a", "pa")
    group.heartbeat(a)
    assert a.active == {"0": {0, 1}}
    group.change(image_of({"in": 3}))
    group.heartbeat(a)
    assert a.active == {"0": {0, 1, 2}}
    group.change(image_of({}))
    response = group.heartbeat(a)
    assert status_codes(response) == [StatusCode.MISSING_SOURCE_TOPICS]


@pytest.mark.parametrize(
    "change",
    [
        {"subtopology_id": "0"},
        {
            "copartition_groups": [
                {"source_topics": [1], "source_topic_regex": [], "repartition_source_topics": []}
            ]
        },
    ],
    ids=["subtopology twice", "index outside"],
)
def test_a_topology_that_contradicts_itself_is_refused(change: dict[str, object]) -> None:
    second = {**subtopology("1", ["in"]), **change}
    group = Streams(image_of({"in": 1}), topology(subtopology("0", ["in"]), second))
    assert group.heartbeat(Client("a", "pa")) is ErrorCode.streams_invalid_topology
    assert not group.exists


def test_a_refused_heartbeat_changes_nothing() -> None:
    group = streams(2)
    a = Client("a", "pa")
    group.heartbeat(a)
    written = len(group.sim.log)
    group.change(image_of({"in": 3}))
    refused = group.heartbeat(a, active_tasks={"0": frozenset([7])}, follow=False)
    assert refused is ErrorCode.invalid_request
    assert len(group.sim.log) == written
    group.heartbeat(a)
    assert a.active == {"0": {0, 1, 2}}


def test_endpoints_name_only_partitions_that_exist() -> None:
    """Kafka 4.3.1 names partitions beyond those of a smaller source topic."""
    group = Streams(image_of({"in": 3, "small": 1}), topology(subtopology("0", ["in", "small"])))
    a = Client("a", "pa")
    response = group.heartbeat(a, user_endpoint=UserEndpoint("here", 1))
    (found,) = response["partitions_by_user_endpoint"]
    assert found["active_partitions"] == [
        {"topic": "in", "partitions": [0, 1, 2]},
        {"topic": "small", "partitions": [0]},
    ]


def test_a_group_without_its_topics_has_endpoints_without_partitions() -> None:
    """Kafka 4.3.1 answers UNKNOWN_SERVER_ERROR."""
    group = Streams(image_of({}), PLAIN)
    response = group.heartbeat(Client("a", "pa"), user_endpoint=UserEndpoint("here", 1))
    (found,) = response["partitions_by_user_endpoint"]
    assert found["active_partitions"] == []


def test_a_record_may_list_a_subtopology_twice_and_without_tasks() -> None:
    listed = [("1", [3]), ("0", [2, 1]), ("1", [0]), ("2", [])]
    tasks = from_wire([{"subtopology_id": s, "partitions": p} for s, p in listed])
    assert list(tasks.items()) == [("0", {1, 2}), ("1", {0, 3})]
    assert from_wire([{"subtopology_id": "0", "partitions": []}]) == {}


def test_a_group_is_deleted_when_its_last_offset_has_expired() -> None:
    sim = Simulation(
        lambda: GroupShard(GroupSettings(offsets_retention_minutes=60), image_of({"in": 1}))
    )
    group = Streams(image_of({"in": 1}), PLAIN)
    group.sim = sim
    a = Client("a", "pa")
    group.heartbeat(a)
    partition = PartitionCommit(0, 5, -1, "")
    commit = CommitRequest("g", "a", None, a.epoch, [TopicCommit("in", None, [partition])], 9)
    sim.submit("commit", lambda s, now_ms, t: s.offsets.commit(commit, now_ms, t))
    for _ in range(180):
        sim.advance(30_000)
        group.heartbeat(a)
    assert sim.shard.offsets.get("g", "in", 0) is not None
    group.leave(a)
    sim.advance(2 * 3_600_000)
    assert not group.exists
    assert not sim.rebuilt().get_hard_state()["groups"]
