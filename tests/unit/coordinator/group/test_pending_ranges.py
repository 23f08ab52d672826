"""The records of transactions with key ranges: when they are removed, and when they are settled."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from shoal.coordinator.contract import CoordinatorRecord, ProducerIdAndEpoch
from shoal.coordinator.group.consumer.heartbeat import ConsumerGroupHeartbeatRequest
from shoal.coordinator.group.offsets import range_commits
from shoal.coordinator.group.offsets.individual_commit import KeyRangeRequest
from shoal.coordinator.group.offsets.requests import (
    CommitRequest,
    PartitionCommit,
    TopicCommit,
    TopicQuery,
)
from shoal.coordinator.group.records import THIS_RECORD, RecordType, decode
from shoal.coordinator.group.settings import GroupSettings
from shoal.coordinator.group.shard import GroupShard
from shoal.metadata.image import MetadataImage, PartitionImage, TopicImage
from shoal.protocol.errors import ErrorCode
from shoal.protocol.features import KEY_HASH_MAX
from shoal.server.tiered import restored_state
from support.brokers.coordinator_sim import Simulation

TOPIC = UUID(int=1)
PARTITIONS = tuple(PartitionImage((0,), (0,), 0, 0, 0) for _ in range(3))
T = TopicImage("t", TOPIC, PARTITIONS)
IMAGE = MetadataImage(topics={"t": T}, topics_by_id={TOPIC: T})
HALF = (KEY_HASH_MAX + 1) // 2
LOWER, UPPER = (0, HALF - 1), (HALF, KEY_HASH_MAX)


class Group:
    """A group with one member, which owns everything."""

    def __init__(self) -> None:
        self.sim = Simulation(lambda: GroupShard(GroupSettings(), IMAGE))
        self.count = 0
        self.epoch = self.beat(0)["member_epoch"]

    def ask(self, decide: Any) -> Any:
        self.count += 1
        self.sim.submit(self.count, decide)
        return self.sim.delivered.get(self.count) or self.sim.failed[self.count]

    def beat(self, epoch: int) -> Any:
        request = ConsumerGroupHeartbeatRequest(
            "g",
            "m",
            epoch,
            rebalance_timeout_ms=60_000,
            subscribed_topic_names=frozenset({"t"}),
            owned={},
            key_hash_version=1,
        )
        return self.ask(lambda s, now_ms, t: s.consumer.heartbeat(request, now_ms, t))

    def commit(
        self, producer: int, position: int, key_range: tuple[int, int] | None, partition: int = 0
    ) -> ErrorCode:
        """Commit a key range, or plainly, in the transaction of a producer, or in none with 0."""
        ranges = [KeyRangeRequest(*key_range, position, b"")] if key_range is not None else []
        row = PartitionCommit(partition, position, -1, None, ranges)
        of = ProducerIdAndEpoch(producer, 0) if producer else None
        request = CommitRequest(
            "g", "m", None, self.epoch, [TopicCommit("t", TOPIC, [row])], 9, producer=of
        )
        answer = self.ask(lambda s, now_ms, t: s.offsets.commit(request, now_ms, t))
        return ErrorCode(answer["topics"][0]["partitions"][0]["error_code"])

    def end(self, producer: int, *, committed: bool = True) -> list[int]:
        """End a transaction. Return the positions, which a shard that is loaded has, too."""
        self.sim.mark(producer, committed=committed)
        before = self.positions(self.sim.shard)
        assert self.positions(self.sim.rebuilt()) == before
        self.sim.advance(0)
        assert self.positions(self.sim.rebuilt()) == before
        return before

    def positions(self, shard: GroupShard, partition: int = 0) -> list[int]:
        query = [TopicQuery("t", TOPIC, [partition])]
        answer = shard.offsets.fetch(
            "g",
            query,
            member_id=None,
            member_epoch=-1,
            require_stable=False,
            key_ranges_wanted=True,
        )
        (row,) = answer["topics"][0]["partitions"]
        return [r["position"] for r in row.get("key_ranges", ())] or [row["committed_offset"]]

    def records(self, kind: RecordType) -> list[Any]:
        found = [
            decode(stored) for stored, _, _ in self.sim.log if isinstance(stored, CoordinatorRecord)
        ]
        return [one for one in found if one is not None and one.type is kind]


def test_a_transaction_is_settled_in_one_batch() -> None:
    """The sum and the tombstone, once its marker is there; also after a crash before that."""
    group = Group()
    assert group.commit(1, 7, LOWER) is ErrorCode.none
    assert group.commit(2, 9, UPPER) is ErrorCode.none
    group.sim.mark(1, committed=True)
    group.sim.restart()
    assert group.positions(group.sim.shard) == [7, -1]
    assert group.commit(1, 8, LOWER) is ErrorCode.concurrent_transactions
    appends, length = group.sim.appends, len(group.sim.log)
    group.sim.advance(0)
    assert (group.sim.appends, len(group.sim.log)) == (appends + 1, length + 2)
    (offset,) = group.records(RecordType.OFFSET_COMMIT)
    # The other transaction is open, so the record says that it does not replace it.
    assert (offset.value["offset"], offset.value["replaced_at"]) == (-1, -1)
    assert group.records(RecordType.KEY_RANGES_IN_TRANSACTION)[-1].value is None
    assert group.commit(1, 8, LOWER) is ErrorCode.none
    group.sim.mark(1, committed=False)
    group.sim.mark(2, committed=True)
    group.sim.advance(0)
    assert group.records(RecordType.OFFSET_COMMIT)[-1].value["replaced_at"] == THIS_RECORD
    group.sim.compact(tombstones=True)
    group.sim.restart()
    assert group.positions(group.sim.shard) == [7, 9]
    assert len(group.sim.shard.offsets.ranges.pending) == 0


def test_a_reset_replaces_what_an_open_transaction_has_added() -> None:
    """What the same transaction adds after the reset counts, and nothing else."""
    group = Group()
    assert group.commit(1, 7, LOWER) is ErrorCode.none
    assert group.commit(2, 9, UPPER) is ErrorCode.none
    assert group.commit(0, 2, None) is ErrorCode.none
    assert group.commit(2, 4, (HALF, HALF)) is ErrorCode.none
    assert group.end(1) == [2]
    assert group.end(2) == [2, 4, 2]


def test_a_commit_beside_an_open_transaction_does_not_hide_it() -> None:
    group = Group()
    assert group.commit(0, 1, None) is ErrorCode.none
    assert group.commit(1, 7, LOWER) is ErrorCode.none
    assert group.commit(0, 9, UPPER) is ErrorCode.none
    assert group.end(1) == [7, 9]


def test_a_later_commit_of_a_transaction_adds_to_the_earlier_one() -> None:
    """Compaction keeps the last record of the transaction alone."""
    group = Group()
    assert group.commit(0, 1, None) is ErrorCode.none
    assert group.commit(1, 7, LOWER) is ErrorCode.none
    assert group.commit(1, 9, UPPER) is ErrorCode.none
    group.sim.mark(1, committed=True)
    group.sim.compact()
    assert group.positions(group.sim.rebuilt()) == [7, 9]


def test_a_pending_offset_of_a_transaction_is_not_overtaken() -> None:
    """Settling waits for it: the offset record would be newer."""
    group = Group()
    assert group.commit(1, 7, LOWER) is ErrorCode.none
    assert group.commit(2, 5, None) is ErrorCode.none
    assert group.end(1) == [7, -1]
    assert group.commit(3, 8, UPPER) is ErrorCode.concurrent_transactions
    assert group.end(2) == [5]
    assert not list(group.sim.shard.offsets.ranges.pending.find_unsettled())


def test_an_aborted_transaction_adds_nothing() -> None:
    group = Group()
    assert group.commit(0, 1, None) is ErrorCode.none
    assert group.commit(1, 7, LOWER) is ErrorCode.none
    assert group.commit(2, 7, (5, 5)) is ErrorCode.concurrent_transactions
    assert group.end(1, committed=False) == [1]
    assert group.sim.shard.offsets.ranges.aborted_records == 3
    assert not list(group.sim.shard.offsets.ranges.pending.find_unsettled())


def test_a_step_settles_a_bounded_number_of_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(range_commits, "_SETTLE_BYTES_MAX", 10)
    group = Group()
    for partition in range(3):
        assert group.commit(1, 7, LOWER, partition) is ErrorCode.none
    group.sim.mark(1, committed=True)
    appends = group.sim.appends
    group.sim.advance(0)
    group.sim.runtime.flush()
    assert group.sim.appends > appends
    assert len(group.records(RecordType.OFFSET_COMMIT)) == 3
    assert [group.positions(group.sim.rebuilt(), p) for p in range(3)] == [[7, -1]] * 3
    assert not list(group.sim.shard.offsets.ranges.pending.find_unsettled())


@pytest.mark.parametrize("how", ["topic", "group"])
def test_what_is_deleted_does_not_come_back(how: str) -> None:
    """A transaction that is open at the deletion has no effect, also after compaction."""
    group = Group()
    assert group.commit(0, 3, LOWER) is ErrorCode.none
    assert group.commit(1, 7, LOWER) is ErrorCode.none
    if how == "topic":
        gone = MetadataImage()
        group.sim.runtime.apply(
            0, lambda s, now_ms: s.on_metadata_changed(gone, [("t", TOPIC)], now_ms), 0
        )
        group.sim.runtime.flush()
    else:
        group.beat(-1)
        assert group.ask(lambda s, _, t: s.delete_group("g", t))["error_code"] == 0
    group.sim.mark(1, committed=True)
    group.sim.advance(0)
    for shard in (group.sim.shard, group.sim.rebuilt()):
        assert group.positions(shard) == [-1]
    group.sim.compact(tombstones=True)
    assert group.positions(group.sim.rebuilt()) == [-1]


def test_a_restored_group_refers_to_no_record() -> None:
    """The offsets of its log are others, and its transactions are gone."""
    group = Group()
    assert group.commit(1, 7, LOWER) is ErrorCode.none
    assert group.commit(0, 9, UPPER) is ErrorCode.none
    pairs = [(r.key, r.value) for r, _, _ in group.sim.log if isinstance(r, CoordinatorRecord)]
    ends = restored_state.EndOffsets({("t", 0): 100}, {})
    found = [
        decode(CoordinatorRecord(*pair))
        for pair in restored_state.restore_groups(pairs, ends, states=frozenset())
    ]
    kinds = {one.type: one for one in found if one is not None}
    assert RecordType.KEY_RANGES_IN_TRANSACTION not in kinds
    stored = kinds[RecordType.OFFSET_COMMIT].value
    assert stored is not None
    assert stored["replaced_at"] == THIS_RECORD
    assert [r["position"] for r in stored["key_ranges"]] == [-1, 9]
