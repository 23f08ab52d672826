"""Individual commit in the group shard: what the random model does not reach."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest
from shoal.coordinator.contract import CoordinatorRecord, ProducerIdAndEpoch
from shoal.coordinator.group.consumer.membership import ConsumerGroupHeartbeatRequest
from shoal.coordinator.group.offsets import individual_commit
from shoal.coordinator.group.offsets.individual_commit import (
    KeyRangeProgress,
    KeyRangeRequest,
    from_record,
    make_single_range,
    to_wire,
)
from shoal.coordinator.group.offsets.requests import CommitRequest, PartitionCommit, TopicCommit
from shoal.coordinator.group.settings import GroupSettings
from shoal.coordinator.group.shard import GroupShard
from shoal.protocol.errors import ApiError, ErrorCode
from shoal.protocol.features import KEY_HASH_MAX
from shoal.record.finished_offsets import EMPTY, FinishedOffsets
from support.brokers.coordinator_sim import Simulation

if TYPE_CHECKING:
    from collections.abc import Mapping

TOPIC = UUID(int=1)
FINISHED = FinishedOffsets.from_ranges([(7, 9)])


@pytest.fixture
def sim() -> Simulation[GroupShard]:
    return Simulation(lambda: GroupShard(GroupSettings()))


def commit(
    sim: Simulation[GroupShard],
    *rows: PartitionCommit,
    topic_id: UUID = TOPIC,
    producer: ProducerIdAndEpoch | None = None,
) -> list[Mapping[str, Any]]:
    beat = ConsumerGroupHeartbeatRequest(
        "g",
        member_id="m",
        member_epoch=0,
        rebalance_timeout_ms=60_000,
        subscribed_topic_names=frozenset({"other"}),
        owned={},
    )
    joined, committed = object(), object()
    sim.submit(joined, lambda s, now_ms, t: s.consumer.heartbeat(beat, now_ms, t))
    epoch = sim.delivered[joined]["member_epoch"]
    topics = [TopicCommit("t", topic_id, rows)]
    request = CommitRequest("g", "m", None, epoch, topics, 9, producer=producer)
    sim.submit(committed, lambda s, now_ms, t: s.offsets.commit(request, now_ms, t))
    found: list[Mapping[str, Any]] = sim.delivered[committed]["topics"][0]["partitions"]
    return found


def individual(
    position: int, *ranges: tuple[int, int], partition: int = 0, metadata: str = ""
) -> PartitionCommit:
    encoded = FinishedOffsets.from_ranges(ranges).encode()
    key_range = KeyRangeRequest(0, KEY_HASH_MAX, position, encoded)
    return PartitionCommit(partition, 0, -1, metadata, [key_range])


def committed(sim: Simulation[GroupShard], partition: int = 0) -> tuple[int, str, int]:
    offset = sim.shard.offsets.get("g", "t", partition)
    assert offset is not None
    return offset.offset, str(offset.finished), offset.gap_timestamp_ms


def test_a_gap_has_the_age_of_its_own_first_commit(sim: Simulation[GroupShard]) -> None:
    commit(sim, individual(5))
    assert committed(sim) == (5, "", -1)
    sim.advance(1_000)
    first_ms = sim.now_ms
    commit(sim, individual(5, (7, 7)))
    sim.advance(1_000)
    commit(sim, individual(5, (9, 9)))
    sim.restart()
    assert committed(sim) == (5, "7,9", first_ms)
    sim.advance(1_000)
    commit(sim, individual(7))
    assert committed(sim) == (8, "9", sim.now_ms)


def test_a_lower_limit_still_accepts_what_closes_gaps() -> None:
    """The limit was lowered below the number of ranges that are stored."""
    settings = GroupSettings(shoal_group_consumer_individual_commit_max_ranges=2)
    current = KeyRangeProgress(0, FinishedOffsets.from_ranges((o, o) for o in range(1, 12, 2)), 1)

    def after(position: int, *ranges: tuple[int, int]) -> str:
        done = individual_commit.RangeCommit(position, FinishedOffsets.from_ranges(ranges))
        progress = individual_commit.advance_progress(current, done, 2, settings)
        return f"{progress.stable_offset}: {progress.finished}"

    assert after(0, (4, 4)) == "0: 1,3-5,7,9,11"
    assert after(1) == "2: 3,5,7,9,11"
    with pytest.raises(ApiError, match="would have 7 ranges"):
        after(0, (13, 13))


def test_a_recreated_topic_starts_again(sim: Simulation[GroupShard]) -> None:
    commit(sim, individual(50, (60, 60)))
    (row,) = commit(sim, individual(3, (5, 5)), topic_id=UUID(int=2))
    assert row["individual_commit"]["stable_offset"] == 3
    assert committed(sim)[:2] == (3, "5")


def test_records_of_one_request_fit_into_a_batch(sim: Simulation[GroupShard]) -> None:
    """Each partition has 5,000 ranges, far apart."""
    far = [(o << 40, o << 40) for o in range(1, 5_001)]
    rows = []
    for partition in range(20):
        rows += commit(sim, individual(1, *far, partition=partition))
    assert [row["error_code"] for row in rows] == [ErrorCode.none] * 20
    rows = commit(sim, *(individual(2, partition=partition) for partition in range(20)))
    fit = [row["error_code"] is ErrorCode.none for row in rows]
    assert fit == sorted(fit, reverse=True)
    assert 0 < sum(fit) < 20
    refused = rows[-1]
    assert refused["error_code"] is ErrorCode.invalid_commit_offset_size
    message = refused["individual_commit"]["error_message"]
    assert message.endswith("Commit t-19 in another request.")
    assert [committed(sim, p)[0] for p in range(20)] == [2 if ok else 1 for ok in fit]


def test_a_transaction_adds_to_a_plain_commit_that_overtook_it(
    sim: Simulation[GroupShard],
) -> None:
    producer = ProducerIdAndEpoch(17, 0)
    commit(sim, individual(5, (7, 9)), producer=producer)
    commit(sim, PartitionCommit(0, 2, -1, None))
    (row,) = commit(sim, individual(0, (4, 4)), producer=producer)
    assert row["individual_commit"]["stable_offset"] == 2
    sim.mark(17, committed=True)
    assert committed(sim)[:2] == (2, "4")
    assert sim.rebuilt().get_hard_state() == sim.shard.get_hard_state()


def test_long_metadata(sim: Simulation[GroupShard]) -> None:
    (row,) = commit(sim, individual(2, metadata="x" * 5_000))
    assert row["error_code"] is ErrorCode.offset_metadata_too_large
    assert "metadata" in row["individual_commit"]["error_message"]
    assert sim.shard.offsets.get("g", "t", 0) is None


def test_key_ranges_that_do_not_tile_are_delivered_again() -> None:
    """A record with a part of the hashes, or whose lowest position is not its offset, has only its
    offset here."""
    progress = KeyRangeProgress(5, FINISHED, 1_000)
    (stored,) = to_wire(make_single_range(progress))
    assert from_record(5, [stored]) == make_single_range(progress)
    low, high = {**stored, "last_hash": 99}, {**stored, "first_hash": 100}
    assert from_record(5, [low, high]) == ((0, 99, progress), (100, KEY_HASH_MAX, progress))
    ahead = {**high, "position": 9, "finished": b"", "gap_timestamp": -1}
    assert from_record(5, [low, ahead])[1] == (100, KEY_HASH_MAX, KeyRangeProgress(9))
    for broken in ([low], [low, {**high, "first_hash": 101}], [high, low], [low, high, high]):
        assert from_record(5, broken) == make_single_range(KeyRangeProgress(5))
    assert from_record(4, [stored]) == make_single_range(KeyRangeProgress(4))
    assert from_record(9, [low, ahead]) == make_single_range(KeyRangeProgress(9))


def test_without_finished_offsets_the_record_is_kafkas(sim: Simulation[GroupShard]) -> None:
    commit(sim, individual(5, metadata="a"))
    commit(sim, PartitionCommit(0, 5, -1, "a"))
    records = [record for record, _, _ in sim.log if isinstance(record, CoordinatorRecord)]
    offsets = [record for record in records if record.key.startswith(b"\0\1")]
    assert len(offsets) == 2
    assert offsets[0] == offsets[1]
    assert to_wire(make_single_range(KeyRangeProgress(5, EMPTY))) == ()
