"""Share-group membership, one rule for each test (KIP-932, and two rules of Shoal's own)."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections import Counter, defaultdict
from typing import Any
from uuid import UUID

import pytest
from shoal.coordinator.contract import CoordinatorResult, Reply
from shoal.coordinator.group.settings import GroupSettings
from shoal.coordinator.group.shard import GroupShard
from shoal.coordinator.group.share.membership import (
    PARK_MS,
    WAITING_HEARTBEAT_INTERVAL_MS,
    MemberReassignment,
    ShareGroupHeartbeatRequest,
    ShareStateInitialization,
)
from shoal.metadata.image import ConfigResourceType, MetadataImage, PartitionImage, TopicImage
from shoal.protocol.errors import ErrorCode
from support.brokers.coordinator_sim import Simulation

TOPIC_ID = UUID(int=7)
GROUP = "g"


def image(partitions: int = 2, /, **group_configs: str) -> MetadataImage:
    topic = TopicImage("jobs", TOPIC_ID, (PartitionImage((0,), (0,), 0, 0, 0),) * partitions)
    return MetadataImage(
        topics={"jobs": topic},
        topics_by_id={TOPIC_ID: topic},
        configs={(ConfigResourceType.GROUP, GROUP): group_configs},
    )


class Share:
    """A group, its members' heartbeats, and the share coordinator's responses."""

    def __init__(self, metadata: MetadataImage | None = None, **settings: Any) -> None:
        metadata = metadata or image()
        self.sim: Simulation[GroupShard] = Simulation(
            lambda: GroupShard(GroupSettings(**settings), metadata)
        )
        self.count = 0

    def heartbeat(self, member: str, epoch: int = 0, connection: str = "") -> Any:
        """Return the response, None while it is parked, or the error code of a refusal."""
        self.count += 1
        token = f"{member}-{self.count}"
        topics = frozenset(["jobs"]) if epoch == 0 else None
        request = ShareGroupHeartbeatRequest(
            GROUP, member, epoch, subscribed_topic_names=topics, connection_id=connection or member
        )
        self.sim.submit(token, lambda s, now_ms, t: s.share.heartbeat(request, now_ms, t))
        return self.answer(token)

    def answer(self, token: str) -> Any:
        return self.sim.failed.get(token, self.sim.delivered.get(token))

    def tell(self, decide: Any) -> None:
        def acknowledged(shard: GroupShard, now_ms: int, token: Any) -> CoordinatorResult:
            result = decide(shard.share, now_ms)
            return CoordinatorResult(
                result.records, (*result.replies, Reply(token, {})), result.effects
            )

        self.count += 1
        self.sim.submit(f"acknowledged-{self.count}", acknowledged)
        self.sim.advance(0)

    def initialize(self) -> None:
        """Answer the requests to the share coordinator."""
        asked = [e for e in self.sim.performed if isinstance(e, ShareStateInitialization)]
        self.sim.performed.clear()
        for effect in asked:
            self.tell(lambda s, now, e=effect: s.on_initialized(e.group_id, e.partitions, now))

    def join(self, member: str) -> Any:
        """Join a group, which may need initialization."""
        answer = self.heartbeat(member)
        token = f"{member}-{self.count}"
        self.initialize()
        return answer or self.answer(token)

    def lose(self, member: str, connection: str = "") -> None:
        lost = connection or member
        self.tell(lambda s, now: s.on_connection_lost(GROUP, member, lost, now))

    @property
    def group(self) -> Any:
        return self.sim.shard.context.groups.get(GROUP)

    def assigned(self, member: str) -> set[int]:
        return set(self.group.target[member].get(TOPIC_ID, ()))


def partitions(answer: Any) -> set[int]:
    return {p for t in answer["assignment"]["topic_partitions"] for p in t["partitions"]}


def test_the_first_answer_of_a_new_group_waits_for_the_initialization_and_has_the_assignment():
    share = Share()
    assert share.heartbeat("a") is None
    (effect,) = share.sim.performed
    assert effect == ShareStateInitialization(GROUP, 2, {TOPIC_ID: frozenset({0, 1})})
    share.initialize()
    assert partitions(share.answer("a-1")) == {0, 1}


def test_the_first_answer_does_not_wait_for_ever():
    share = Share()
    share.heartbeat("a")
    share.sim.advance(PARK_MS - 1)
    assert share.answer("a-1") is None
    share.sim.advance(1)
    answer = share.answer("a-1")
    assert partitions(answer) == set()
    assert answer["heartbeat_interval_ms"] == WAITING_HEARTBEAT_INTERVAL_MS
    share.initialize()
    assert partitions(share.heartbeat("a", answer["member_epoch"])) == {0, 1}


def test_an_initialization_that_failed_is_asked_for_again():
    share = Share()
    share.heartbeat("a")
    (effect,) = share.sim.performed
    share.sim.performed.clear()
    share.tell(lambda s, now: s.on_initialization_failed(GROUP, effect.partitions, now))
    assert partitions(share.answer("a-1")) == set()
    assert [e.partitions for e in share.sim.performed] == [effect.partitions]


def test_a_heartbeat_that_is_held_is_answered_when_its_member_sends_another():
    share = Share()
    share.heartbeat("a")
    assert share.heartbeat("a", -1)["member_epoch"] == -1
    assert share.answer("a-1")["error_code"] is ErrorCode.coordinator_load_in_progress


def test_a_member_that_joins_within_the_assignment_interval_has_work_at_once():
    """KIP-1263 spaces full assignments; available partitions are shared now, and moved later."""
    share = Share()
    share.join("a")
    assert partitions(share.join("b")) == {0}
    assert share.assigned("a") == {0, 1}
    share.sim.advance(1_000)
    assert share.assigned("a") == {1}
    assert share.assigned("b") == {0}


def test_a_leavers_partitions_are_reassigned_within_the_assignment_interval():
    share = Share()
    share.join("a")
    share.join("b")
    share.sim.advance(1_000)
    share.heartbeat("b", -1)
    assert share.assigned("a") == {0, 1}


def test_a_lost_connection_ends_a_membership_after_the_grace():
    share = Share(shoal_group_share_connection_lost_grace_ms=300)
    share.join("a")
    share.join("b")
    share.sim.advance(1_000)
    share.lose("b")
    share.sim.advance(299)
    assert sorted(share.group.members) == ["a", "b"]
    share.sim.advance(1)
    assert sorted(share.group.members) == ["a"]
    assert share.assigned("a") == {0, 1}
    assert share.heartbeat("b", 4) is ErrorCode.unknown_member_id


def test_a_member_that_is_heard_of_over_another_connection_stays():
    share = Share()
    epoch = share.join("a")["member_epoch"]
    share.lose("a")
    share.heartbeat("a", epoch, connection="another")
    share.lose("a")  # The old connection again: it no longer counts.
    share.sim.advance(10_000)
    assert sorted(share.group.members) == ["a"]


def test_a_member_gets_what_a_late_join_brought():
    """The join came over a connection that the member has given up: see `test_late_joins`."""
    share = Share()
    share.join("a")
    joined = share.join("b")
    epoch, assigned = joined["member_epoch"], partitions(joined)
    assert "assignment" not in share.heartbeat("b", epoch)
    assert partitions(share.heartbeat("b", connection="given up")) == assigned
    assert partitions(share.heartbeat("b", epoch)) == assigned
    assert "assignment" not in share.heartbeat("b", epoch)


def test_the_fewer_readers_a_partition_has_the_sooner_members_are_asked_again():
    share = Share(image(1))
    assert share.join("a")["heartbeat_interval_ms"] == 400
    assert share.join("b")["heartbeat_interval_ms"] == WAITING_HEARTBEAT_INTERVAL_MS
    share.sim.advance(1_000)
    epoch = share.group.members["b"].member_epoch
    assert share.heartbeat("b", epoch)["heartbeat_interval_ms"] == 800


def test_the_takeover_interval_can_be_switched_off():
    share = Share(shoal_group_share_takeover_heartbeat_interval_ms=0)
    assert share.join("a")["heartbeat_interval_ms"] == 5_000


def test_a_new_assignment_of_a_member_is_reported_to_the_broker():
    """Its fetch may wait for partitions that it had before."""
    share = Share()
    share.join("a")
    epoch = share.group.members["a"].member_epoch
    share.heartbeat("a", epoch)
    assert MemberReassignment(GROUP, "a") in share.sim.performed
    share.sim.performed.clear()
    share.heartbeat("a", epoch)
    assert share.sim.performed == []


def test_a_session_ends_and_a_heartbeat_extends_it():
    share = Share(image(**{"share.session.timeout.ms": "50000"}))
    epoch = share.join("a")["member_epoch"]
    share.sim.advance(49_000)
    share.heartbeat("a", epoch)
    share.sim.advance(49_000)
    assert not share.group.is_empty
    share.sim.advance(1_000)
    assert share.group.is_empty
    assert share.group.state_name == "Empty"


def test_a_group_takes_no_more_members_than_it_may():
    share = Share(group_share_max_size=1)
    share.join("a")
    assert share.heartbeat("b") is ErrorCode.group_max_size_reached
    assert partitions(share.heartbeat("a")) == {0, 1}


@pytest.mark.parametrize(
    ("epoch", "code"),
    [(3, None), (0, None), (4, ErrorCode.fenced_member_epoch), (-2, ErrorCode.invalid_request)],
)
def test_member_epochs(epoch: int, code: ErrorCode | None):
    share = Share()
    assert share.join("a")["member_epoch"] == 3
    answer = share.heartbeat("a", epoch)
    assert answer is code if code is not None else answer["member_epoch"] == 3


def test_the_state_of_its_partitions_is_deleted_before_the_group():
    share = Share()
    share.join("a")
    share.heartbeat("a", -1)
    share.sim.submit("d", lambda s, now_ms, t: s.share.start_deletion(GROUP, None, t))
    assert share.sim.delivered["d"]["partitions"] == {TOPIC_ID: frozenset({0, 1})}
    assert share.group.initialization.deleting == {TOPIC_ID: "jobs"}
    share.tell(lambda s, _now: s.on_deleted(GROUP, [TOPIC_ID]))
    assert not share.group.initialization.deleting
    share.sim.submit("x", lambda s, now_ms, t: s.delete_group(GROUP, t))
    assert share.group is None


def test_a_reset_needs_an_empty_group():
    share = Share()
    share.join("a")
    wanted = {TOPIC_ID: frozenset({0})}
    share.sim.submit("r", lambda s, now_ms, t: s.share.start_reset(GROUP, wanted, t))
    assert share.sim.failed["r"] is ErrorCode.non_empty_group
    share.heartbeat("a", -1)
    share.sim.submit("s", lambda s, now_ms, t: s.share.start_reset(GROUP, wanted, t))
    assert share.sim.delivered["s"]["state_epoch"] == share.group.epoch


LARGE = 4_000


def large_group(size: int, partitions: int = 64) -> Share:
    """Return a settled group whose members do not time out during a test."""
    share = Share(image(partitions), group_share_max_size=LARGE + 1)
    share.join("m0")
    for n in range(1, size):
        share.heartbeat(f"m{n}")
    share.sim.advance(2_000)
    assert share.group.epoch == share.group.assignment_epoch
    return share


def test_a_join_and_a_leave_cost_the_same_in_a_large_group() -> None:
    """At most twice the CPU of those in a group of 100, and the same number of records."""
    groups = {size: large_group(size) for size in (100, LARGE)}
    costs: dict[tuple[int, str], list[int]] = defaultdict(list)
    for _ in range(25):
        for size, share in groups.items():
            for what, step in (
                ("join", lambda share=share: share.heartbeat("new")),
                ("heartbeat", lambda share=share: share.heartbeat("m5", share.group.epoch - 1)),
                ("leave", lambda share=share: share.heartbeat("new", -1)),
                ("settle", lambda share=share: share.sim.advance(1_100)),
            ):
                logged, began = len(share.sim.log), time.process_time_ns()
                step()
                costs[size, what].append(time.process_time_ns() - began)
                costs[size, f"records of a {what}"].append(len(share.sim.log) - logged)
    middle = {key: statistics.median(found) for key, found in costs.items()}
    for size, what in middle:
        if size == LARGE:
            assert middle[LARGE, what] <= 2 * middle[100, what], (what, middle)
    targets = groups[LARGE].sim.shard.share._targets
    assert targets.build_count == 1
    sizes = Counter(len(groups[LARGE].assigned(f"m{n}")) for n in range(LARGE))
    assert sizes.keys() <= {1, 2}


@pytest.mark.parametrize("restarts", [False, True])
def test_thousands_of_members_are_assigned_in_steps(restarts: bool) -> None:
    """No step exceeds a batch, each parked response contains an assignment, and a shard that is
    rebuilt half-way continues."""
    size = 2_000
    share = Share(image(64), group_share_max_size=size)
    for n in range(size):
        share.heartbeat(f"m{n}")
    (effect,) = share.sim.performed
    share.sim.submit(
        "state", lambda s, now, _: s.share.on_initialized(GROUP, effect.partitions, now)
    )
    assert 0 < len(share.group.target) < size
    if restarts:
        share.sim.restart()
        assert share.heartbeat("m0")["assignment"]["topic_partitions"]
    share.sim.advance(3_000)
    if not restarts:
        assert all(partitions(share.answer(f"m{n}-{n + 1}")) for n in range(size))
        assert not share.sim.failed
    assert {len(share.assigned(f"m{n}")) for n in range(size)} <= {1, 2}
    readers = Counter(p for n in range(size) for p in share.assigned(f"m{n}"))
    assert set(readers.values()) == {-(-size // 64)}
    assert share.group.epoch == share.group.assignment_epoch
    assert share.sim.rebuilt().get_hard_state() == share.sim.shard.get_hard_state()


def test_a_member_whose_assignment_stays_follows_the_epoch_without_a_record() -> None:
    share = Share(image(1))
    epoch = share.join("a")["member_epoch"]
    share.sim.advance(2_000)
    share.heartbeat("b")
    share.sim.advance(2_000)
    taken = share.heartbeat("a", epoch)["member_epoch"]
    assert taken == share.group.epoch > epoch
    share.heartbeat("c")
    share.sim.advance(2_000)
    logged = len(share.sim.log)
    later = share.heartbeat("a", taken)
    assert later["member_epoch"] == share.group.epoch > taken
    assert "assignment" not in later
    assert len(share.sim.log) == logged
    # An epoch that the member has received is accepted; one ahead of the group's is fenced.
    assert share.heartbeat("a", taken)["member_epoch"] == later["member_epoch"]
    assert share.heartbeat("a", share.group.epoch + 1) is ErrorCode.fenced_member_epoch
    token = f"d-{share.count}"
    share.sim.submit(token, lambda s, _, t: s.share.describe(GROUP, t))
    epochs = {m["member_id"]: m["member_epoch"] for m in share.answer(token)["members"]}
    assert epochs["a"] == share.group.epoch


def test_members_of_a_large_group_are_asked_for_a_bounded_number_of_heartbeats() -> None:
    share = large_group(2_000, partitions=2_000)
    answer = share.heartbeat("m7")
    assert answer["heartbeat_interval_ms"] == 2_000
    assert large_group(50, partitions=50).heartbeat("m7")["heartbeat_interval_ms"] == 400


@pytest.mark.parametrize(("assignor", "leaders"), [("leader", 1), ("simple", 2)])
def test_members_have_few_leaders(assignor: str, leaders: int) -> None:
    """group.share.assignors. Two members share six partitions of two brokers. One joins first and
    has all, and gives half of them away."""
    rows = [PartitionImage((n % 2, 1 - n % 2), (0, 1), n % 2, 0, 0) for n in (0, 0, 1, 1, 0, 1)]
    topic = TopicImage("jobs", TOPIC_ID, tuple(rows))
    metadata = MetadataImage(
        topics={"jobs": topic},
        topics_by_id={TOPIC_ID: topic},
        configs={(ConfigResourceType.GROUP, GROUP): {"share.assignment.interval.ms": "0"}},
    )
    share = Share(metadata, group_share_assignors=(assignor,))
    for member in ("a", "b"):
        share.join(member)
    for member in ("a", "b"):
        owned = share.assigned(member)
        assert len(owned) == 3
        assert len({rows[index].replicas[0] for index in owned}) == leaders
    # A broker that is away for a while moves nothing; a reassignment does.
    before = {member: share.assigned(member) for member in ("a", "b")}
    away = tuple(row._replace(leader=1, isr=(1,)) for row in rows)
    set_partitions(share, away)
    share.heartbeat("a", share.group.members["a"].member_epoch)
    assert {member: share.assigned(member) for member in ("a", "b")} == before
    if assignor == "leader":
        swapped = tuple(row._replace(replicas=row.replicas[::-1]) for row in rows[:1])
        set_partitions(share, (*swapped, *rows[1:3], rows[3]._replace(replicas=(0, 1)), *rows[4:]))
        for member in ("a", "b"):
            share.heartbeat(member, share.group.members[member].member_epoch)
        share.sim.advance(1_000)
        preferred = [1, 0, 1, 0, 0, 1]
        for member in ("a", "b"):
            assert len({preferred[index] for index in share.assigned(member)}) == 1


def set_partitions(share: Share, partitions: tuple[PartitionImage, ...]) -> None:
    """Change the metadata of the topic."""
    context = share.sim.shard.context
    topic = TopicImage("jobs", TOPIC_ID, partitions)
    context.image = dataclasses.replace(
        context.image, topics={"jobs": topic}, topics_by_id={TOPIC_ID: topic}
    )
    share.tell(lambda s, now: s.on_metadata_changed((), now))
