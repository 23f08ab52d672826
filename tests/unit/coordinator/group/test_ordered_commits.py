"""Transactions that wait for their turn: what lets them commit, and what ends their wait."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from shoal.coordinator.contract import ProducerIdAndEpoch
from shoal.coordinator.group.consumer.heartbeat import ConsumerGroupHeartbeatRequest
from shoal.coordinator.group.key_ranges import key_slots
from shoal.coordinator.group.offsets.individual_commit import KeyRangeRequest
from shoal.coordinator.group.offsets.requests import CommitRequest, PartitionCommit, TopicCommit
from shoal.coordinator.group.settings import GroupSettings
from shoal.coordinator.group.shard import GroupShard
from shoal.metadata.image import ConfigResourceType, MetadataImage, PartitionImage, TopicImage
from shoal.protocol.errors import ErrorCode
from shoal.protocol.features import KEY_HASH_MAX
from support.brokers.coordinator_sim import Simulation

IDS = {"a": UUID(int=1), "b": UUID(int=2)}
PARTITION = (PartitionImage((0,), (0,), 0, 0, 0),)
TOPICS = {name: TopicImage(name, id, PARTITION) for name, id in IDS.items()}
IMAGE = MetadataImage(
    topics=TOPICS,
    topics_by_id={topic.topic_id: topic for topic in TOPICS.values()},
    configs={(ConfigResourceType.TOPIC, name): {"shoal.key.ranges.enable": "true"} for name in IDS},
)
HALF = (KEY_HASH_MAX + 1) // 2
LOWER, UPPER = (0, HALF - 1), (HALF, KEY_HASH_MAX)
WAIT_MS = 5_000


class Group:
    """A group whose members share two topics of one partition each."""

    def __init__(self, *members: str) -> None:
        self.sim = Simulation(lambda: GroupShard(GroupSettings(), IMAGE))
        self.count = 0
        self.epochs: dict[str, int] = {}
        for member in members:
            self.beat(member)
        self.settle()

    def settle(self) -> None:
        for _ in range(4):
            self.sim.advance(1_000)
            for member in self.epochs:
                self.beat(member)

    def ask(self, decide: Any) -> int:
        self.count += 1
        self.sim.submit(self.count, decide)
        self.sim.advance(0)
        return self.count

    def answer(self, token: int) -> Any:
        """The answer; None while the request waits."""
        return self.sim.delivered.get(token, self.sim.failed.get(token))

    def beat(self, member: str, epoch: int | None = None) -> Any:
        group = self.sim.shard.context.groups.get("g")
        known = getattr(group, "members", {}).get(member)
        request = ConsumerGroupHeartbeatRequest(
            "g",
            member,
            self.epochs.get(member, 0) if epoch is None else epoch,
            rebalance_timeout_ms=60_000,
            subscribed_topic_names=frozenset(IDS),
            owned={},
            owned_slices={} if known is None else dict(known.current.slices),
            key_hash_version=1,
        )
        answer = self.answer(self.ask(lambda s, now, t: s.consumer.heartbeat(request, now, t)))
        if answer["member_epoch"] < 0:
            self.epochs.pop(member)
        else:
            self.epochs[member] = answer["member_epoch"]
        return answer

    def owned(self, member: str, topic: str = "a") -> list[tuple[int, int]]:
        group: Any = self.sim.shard.context.groups.get("g")
        return key_slots.to_ranges(group.members[member].current.get_slots(IDS[topic], 0))

    def commit(
        self,
        member: str,
        position: int,
        *topics: str,
        first: int = -1,
        producer: int = 0,
        ranges: list[tuple[int, int]] | None = None,
        connection: str = "",
        wait_ms: int = WAIT_MS,
    ) -> int:
        """Commit all key ranges of a member in `topics`, "a" by default. Return its token."""
        commits = [
            TopicCommit(
                name,
                IDS[name],
                [
                    PartitionCommit(
                        0,
                        position,
                        -1,
                        None,
                        [
                            KeyRangeRequest(*r, position, b"")
                            for r in ranges or self.owned(member, name)
                        ],
                        first,
                    )
                ],
            )
            for name in topics or ("a",)
        ]
        request = CommitRequest(
            "g",
            member,
            None,
            self.epochs.get(member, -1),
            commits,
            9,
            producer=ProducerIdAndEpoch(producer, 0) if producer else None,
            order_timeout_ms=wait_ms,
            connection_id=connection,
        )
        return self.ask(lambda s, now_ms, t: s.offsets.commit(request, now_ms, t))

    def error(self, token: int) -> ErrorCode | None:
        """The error of an answer; None while the request waits."""
        answer = self.answer(token)
        if answer is None or isinstance(answer, ErrorCode):
            return answer
        (code,) = {row["error_code"] for t in answer["topics"] for row in t["partitions"]}
        return ErrorCode(code)

    def message(self, token: int) -> str:
        row = self.answer(token)["topics"][0]["partitions"][0]
        return str(row["individual_commit"]["error_message"])

    def end(self, producer: int, *, committed: bool = True) -> None:
        self.sim.mark(producer, committed=committed)
        self.sim.advance(0)

    @property
    def ordered(self) -> Any:
        return self.sim.shard.offsets.ranges.ordered


@pytest.fixture
def group() -> Group:
    group = Group("m", "n")
    assert [group.owned(m, t) for m in "mn" for t in "ab"] == [[LOWER], [LOWER], [UPPER], [UPPER]]
    return group


def test_a_commit_waits_for_what_is_below_its_first_record(group: Group) -> None:
    token = group.commit("m", 20, first=10, producer=1)
    assert group.error(token) is None
    assert len(group.ordered) == 1
    group.commit("n", 9)
    assert group.error(token) is None
    records = len(group.sim.log)
    group.commit("n", 10)
    assert group.error(token) is ErrorCode.none
    assert len(group.ordered) == 0
    # The commit of the other member, and the one that waited.
    assert len(group.sim.log) == records + 2


def test_no_order_means_no_wait(group: Group) -> None:
    assert group.error(group.commit("m", 20, producer=1)) is ErrorCode.none
    assert group.error(group.commit("n", 20, first=0, producer=2)) is ErrorCode.none


def test_only_decided_transactions_count(group: Group) -> None:
    assert group.error(group.commit("n", 10, producer=2)) is ErrorCode.none
    token = group.commit("m", 20, first=10, producer=1)
    assert group.error(token) is None
    group.end(2, committed=False)
    assert group.error(token) is None
    group.commit("n", 10, producer=2)
    assert group.error(token) is None
    group.end(2)
    assert group.error(token) is ErrorCode.none


def test_first_records_order_the_transactions_of_a_partition(group: Group) -> None:
    """Their keys are interleaved, and neither waits for the last record of the other one."""
    later = group.commit("m", 40, first=12, producer=1)
    assert group.error(later) is None
    earlier = group.commit("n", 50, first=3, producer=2)
    assert group.error(earlier) is ErrorCode.none
    assert group.error(later) is None
    group.end(2)
    assert group.error(later) is ErrorCode.none


def test_the_youngest_of_a_cycle_is_refused_at_once(group: Group) -> None:
    older = group.commit("m", 40, "a", first=5, producer=1)
    younger = group.commit("n", 50, "b", first=5, producer=2)
    assert group.error(older) is None
    assert group.error(younger) is ErrorCode.transaction_abortable
    assert "key ranges of b-0, of members m, to get to offset 5" in group.message(younger)
    assert group.ordered.refusals == 1
    group.end(2, committed=False)
    assert group.error(group.commit("n", 9, "a", first=2, producer=2)) is ErrorCode.none
    group.end(2)
    assert group.error(older) is ErrorCode.none


def test_a_dead_owners_successor_frees_the_others(group: Group) -> None:
    token = group.commit("m", 20, first=10, producer=1)
    group.beat("n", -1)
    # The ranges of the dead one have no owner, and are waited for.
    group.sim.advance(1_000)
    assert group.error(token) is None
    for _ in range(4):
        group.beat("o")
    assert group.owned("o") == [UPPER]
    assert group.error(token) is None
    group.commit("o", 15)
    assert group.error(token) is ErrorCode.none


def test_a_member_that_gets_what_it_waits_for_must_read_it_first(group: Group) -> None:
    token = group.commit("m", 20, first=10, producer=1)
    group.beat("n", -1)
    for _ in range(3):
        group.beat("m")
    # The client repeats the commit with its new epoch.
    assert group.answer(token)["topics"][0]["partitions"][0]["error_code"] == (
        ErrorCode.stale_member_epoch
    )
    token = group.commit("m", 20, first=10, producer=1, ranges=[LOWER])
    assert group.error(token) is ErrorCode.transaction_abortable
    assert group.owned("m") == [(0, KEY_HASH_MAX)]
    group.end(1, committed=False)
    assert group.error(group.commit("m", 20, first=0, producer=1)) is ErrorCode.none


def test_what_ends_a_wait(group: Group) -> None:
    """Its time, its transaction, its connection, its member, and another coordinator."""
    token = group.commit("m", 20, first=10, producer=1)
    group.sim.advance(WAIT_MS - 1)
    assert group.error(token) is None
    group.sim.advance(1)
    assert group.error(token) is ErrorCode.transaction_abortable
    assert f"has waited {WAIT_MS} ms for key ranges of a-0, of members n" in group.message(token)
    assert group.ordered.refusals == 1

    token = group.commit("m", 20, first=10, producer=1)
    group.end(1, committed=False)
    assert group.error(token) is ErrorCode.invalid_producer_epoch

    token = group.commit("m", 20, first=10, producer=1, connection="c1")
    group.ask(lambda s, _now, t: s.offsets.ranges.ordered.on_connection_lost("c2", t))
    assert group.error(token) is None
    group.ask(lambda s, _now, t: s.offsets.ranges.ordered.on_connection_lost("c1", t))
    assert group.error(token) is ErrorCode.network_exception

    token = group.commit("m", 20, first=10, producer=1)
    group.beat("m", -1)
    assert group.error(token) is ErrorCode.unknown_member_id
    group.sim.advance(WAIT_MS)

    token = group.commit("n", 20, first=10, producer=2)
    group.sim.restart()
    assert group.answer(token) is ErrorCode.not_coordinator
    assert len(group.ordered) == 0
    assert group.sim.shard.next_deadline_ms is not None


def test_a_repeated_commit_keeps_its_place(group: Group) -> None:
    """Over another connection, it stays older than the one that makes the cycle."""
    lost = group.commit("m", 40, "a", first=5, producer=1, connection="c1")
    again = group.commit("m", 40, "a", first=5, producer=1, connection="c2")
    assert group.error(lost) is ErrorCode.concurrent_transactions
    group.ask(lambda s, _now, t: s.offsets.ranges.ordered.on_connection_lost("c1", t))
    group.sim.advance(1_000)
    younger = group.commit("n", 50, "b", first=5, producer=2)
    assert group.error(younger) is ErrorCode.transaction_abortable
    assert group.error(again) is None
    repeated = group.commit("m", 40, "a", first=5, producer=1, connection="c3")
    group.sim.advance(WAIT_MS)
    assert f"has waited {1_000 + WAIT_MS} ms" in group.message(repeated)


def test_several_commits_become_ready_at_once(group: Group) -> None:
    group.commit("m", 20, "a", first=10, producer=1)
    group.commit("m", 20, "b", first=10, producer=3)
    assert len(group.ordered) == 2
    appends = group.sim.appends
    group.commit("n", 15, "a", "b")
    assert len(group.ordered) == 0
    # Each transaction has a batch of its own.
    assert group.sim.appends == appends + 3


def test_nothing_of_a_refused_commit_is_stored(group: Group) -> None:
    """One of its partitions is in another open transaction."""
    assert group.error(group.commit("m", 5, "b", producer=9)) is ErrorCode.none
    records = len(group.sim.log)
    token = group.commit("m", 20, "a", "b", first=0, producer=1)
    assert group.error(token) is ErrorCode.concurrent_transactions
    assert len(group.sim.log) == records


def test_bad_input(group: Group) -> None:
    for first in (20, -2):
        token = group.commit("m", 20, first=first, producer=1)
        assert group.answer(token) is ErrorCode.invalid_request
    assert group.answer(group.commit("m", 20, first=3, producer=1, wait_ms=0)) is (
        ErrorCode.invalid_request
    )
    group.epochs["x"] = 1
    token = group.commit("x", 20, first=3, producer=1, ranges=[LOWER])
    assert group.answer(token) is ErrorCode.unknown_member_id
    token = group.commit("m", 20, first=3, producer=1, ranges=[UPPER])
    assert group.answer(token) is ErrorCode.stale_member_epoch
    assert len(group.ordered) == 0
