"""Committed offsets: transactions, retention, and expiry in steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest
from shoal.coordinator.contract import ProducerIdAndEpoch, RecordOrigin
from shoal.coordinator.group.offsets.offsets import TOMBSTONES_MAX
from shoal.coordinator.group.offsets.requests import (
    CommitRequest,
    PartitionCommit,
    TopicCommit,
    TopicQuery,
)
from shoal.coordinator.group.records import RecordType, encode_record
from shoal.coordinator.group.settings import PROPERTIES, GroupSettings
from shoal.coordinator.group.shard import GroupShard
from shoal.metadata.image import MetadataImage
from support.brokers.coordinator_sim import Marker, Simulation

if TYPE_CHECKING:
    from collections.abc import Mapping

HOUR_MS = 3_600_000
SETTINGS = GroupSettings(offsets_retention_minutes=60)
PRODUCER = 17


@pytest.fixture
def sim() -> Simulation[GroupShard]:
    return Simulation(lambda: GroupShard(SETTINGS))


def commit(
    sim: Simulation[GroupShard],
    offset: int,
    *,
    group: str = "g",
    partitions: int = 1,
    **fields: Any,
) -> None:
    rows = [PartitionCommit(p, offset, -1, None) for p in range(partitions)]
    request = CommitRequest(group, "", None, -1, [TopicCommit("t", None, rows)], 9, **fields)
    sim.submit(object(), lambda shard, now_ms, t: shard.offsets.commit(request, now_ms, t))


def transactional(
    shard: GroupShard, offset: int, at_offset: int, producer_id: int = PRODUCER
) -> None:
    """Replay the records of a TxnOffsetCommit."""
    value = {"offset": offset, "metadata": "", "commit_timestamp": 1}
    key = {"group": "g", "topic": "t", "partition": 0}
    at = RecordOrigin(at_offset, 1, producer_id, 0, True)
    shard.replay(encode_record(RecordType.OFFSET_COMMIT, key, value), at)


def fetched(shard: GroupShard, *, stable: bool = True, group: str = "g") -> Mapping[str, Any]:
    row = shard.offsets.fetch(
        group, [TopicQuery("t", None, [0])], member_id=None, member_epoch=-1, require_stable=stable
    )
    partition: Mapping[str, Any] = row["topics"][0]["partitions"][0]
    return partition


def test_an_offset_in_a_transaction_counts_from_its_marker_on(sim: Simulation[GroupShard]) -> None:
    commit(sim, 5)
    transactional(sim.shard, 8, at_offset=100)
    # KIP-447: readers of stable offsets get a retriable error.
    assert fetched(sim.shard)["error_code"].name == "unstable_offset_commit"
    assert fetched(sim.shard, stable=False)["committed_offset"] == 5
    sim.shard.replay_end_transaction(PRODUCER, committed=True)
    assert fetched(sim.shard)["committed_offset"] == 8


def test_an_aborted_transaction_leaves_no_trace(sim: Simulation[GroupShard]) -> None:
    commit(sim, 5)
    before = sim.rebuilt().get_hard_state()
    transactional(sim.shard, 8, at_offset=100)
    sim.shard.replay_end_transaction(PRODUCER, committed=False)
    assert fetched(sim.shard)["committed_offset"] == 5
    assert sim.shard.get_hard_state() == before


def test_a_transaction_goes_through_the_runtime(sim: Simulation[GroupShard]) -> None:
    """TxnOffsetCommit is a separate batch of its producer, also within one turn. Offsets count the
    log's markers."""
    rows = [PartitionCommit(0, 8, -1, None)]
    request = CommitRequest(
        "g",
        "",
        None,
        -1,
        [TopicCommit("t", None, rows)],
        5,
        producer=ProducerIdAndEpoch(PRODUCER, 3),
    )
    for decide in (
        lambda s, now_ms, t: s.offsets.commit(request._replace(producer=None), now_ms, t),
        lambda s, now_ms, t: s.offsets.commit(request, now_ms, t),
        lambda s, now_ms, t: s.offsets.commit(request._replace(group_id="h"), now_ms, t),
    ):
        sim.runtime.submit(0, object(), decide, sim.now_ms)
    sim.runtime.flush()
    assert [producer for _, _, producer in sim.log] == [None, (PRODUCER, 3), (PRODUCER, 3)]
    assert sim.appends == 2
    assert fetched(sim.shard)["error_code"].name == "unstable_offset_commit"
    sim.mark(PRODUCER, committed=True)
    commit(sim, 9, group="other")
    offset = sim.shard.offsets.get("other", "t", 0)
    assert offset is not None
    assert offset.record_offset == 4
    assert fetched(sim.shard)["committed_offset"] == 8
    assert sim.rebuilt().get_hard_state() == sim.shard.get_hard_state()


def test_a_plain_commit_that_overtakes_a_transaction_is_kept(sim: Simulation[GroupShard]) -> None:
    transactional(sim.shard, 8, at_offset=3)
    value = {"offset": 9, "metadata": "", "commit_timestamp": 1}
    key = {"group": "g", "topic": "t", "partition": 0}
    sim.shard.replay(encode_record(RecordType.OFFSET_COMMIT, key, value), RecordOrigin(4, 1))
    sim.shard.replay_end_transaction(PRODUCER, committed=True)
    assert fetched(sim.shard)["committed_offset"] == 9


def test_a_group_with_an_open_transaction_stays(sim: Simulation[GroupShard]) -> None:
    transactional(sim.shard, 8, at_offset=0)
    sim.advance(3 * HOUR_MS)
    assert sim.shard.context.groups.get("g") is not None
    sim.shard.replay_end_transaction(PRODUCER, committed=False)
    sim.advance(HOUR_MS)
    assert sim.shard.context.groups.get("g") is None


def test_deleting_a_group_removes_pending_offsets(sim: Simulation[GroupShard]) -> None:
    transactional(sim.shard, 8, at_offset=0)
    sim.submit("delete", lambda shard, now_ms, t: shard.delete_group("g", t))
    sim.shard.replay_end_transaction(PRODUCER, committed=True)
    assert fetched(sim.shard)["committed_offset"] == -1


def test_retention_counts_from_the_last_commit(sim: Simulation[GroupShard]) -> None:
    commit(sim, 5)
    sim.advance(HOUR_MS // 2)
    commit(sim, 6)
    sim.advance(HOUR_MS - 1)
    assert fetched(sim.shard)["committed_offset"] == 6
    sim.advance(HOUR_MS)
    assert fetched(sim.shard)["committed_offset"] == -1
    assert sim.shard.context.groups.get("g") is None


def test_a_client_of_before_kip_211_names_its_own_retention(sim: Simulation[GroupShard]) -> None:
    commit(sim, 5, retention_time_ms=3 * HOUR_MS)
    record = sim.log[-1][0]
    assert not isinstance(record, Marker)
    assert record.value is not None
    assert record.value[:2] == b"\x00\x01"
    sim.advance(2 * HOUR_MS)
    sim.restart()
    assert fetched(sim.shard)["committed_offset"] == 5
    sim.advance(2 * HOUR_MS)
    assert fetched(sim.shard)["committed_offset"] == -1


def test_expired_offsets_go_in_bounded_steps(sim: Simulation[GroupShard]) -> None:
    per_group = TOMBSTONES_MAX // 2 + 1
    for n in range(5):
        commit(sim, 1, group=f"g{n}", partitions=per_group)
    sim.advance(HOUR_MS - 1)
    written = len(sim.log)
    appends = sim.appends
    sim.advance(HOUR_MS)
    assert len(sim.log) - written == 5 * per_group + 5
    assert sim.appends - appends >= 3
    assert not list(sim.shard.context.groups)


def test_offsets_of_deleted_topics_go_unless_they_are_another_topics(
    sim: Simulation[GroupShard],
) -> None:
    old, new = UUID(int=1), UUID(int=2)
    for n, topic_id in enumerate((old, new, None)):
        rows = [PartitionCommit(n, 5, -1, None)]
        request = CommitRequest("g", "", None, -1, [TopicCommit("t", topic_id, rows)], 9)

        def decide(shard: GroupShard, now_ms: int, token: Any, request: Any = request) -> Any:
            return shard.offsets.commit(request, now_ms, token)

        sim.submit(n, decide)
    sim.runtime.apply(
        0,
        lambda shard, now_ms: shard.on_metadata_changed(MetadataImage(), [("t", old)], now_ms),
        sim.now_ms,
    )
    sim.advance(0)
    left = [p for p in range(3) if sim.shard.offsets.get("g", "t", p)]
    assert left == [1]
    assert sim.rebuilt().get_hard_state() == sim.shard.get_hard_state()


def test_the_offsets_of_one_group_expire_in_bounded_steps(sim: Simulation[GroupShard]) -> None:
    commit(sim, 1, partitions=3 * TOMBSTONES_MAX)
    written, appends = len(sim.log), sim.appends
    sim.advance(2 * HOUR_MS)
    assert len(sim.log) - written == 3 * TOMBSTONES_MAX + 1
    assert sim.appends - appends >= 3
    assert not list(sim.shard.context.groups)


def test_a_group_with_many_offsets_is_deleted_in_bounded_steps(
    sim: Simulation[GroupShard],
) -> None:
    commit(sim, 1, partitions=2 * TOMBSTONES_MAX + 1)
    sizes = []
    while list(sim.shard.context.groups):
        written = len(sim.log)
        sim.submit(object(), lambda shard, _, token: shard.delete_group("g", token))
        sizes.append(len(sim.log) - written)
    assert sizes == [TOMBSTONES_MAX, TOMBSTONES_MAX, 2]
    assert not len(sim.shard.offsets)


def test_offsets_of_deleted_topics_go_in_bounded_steps(sim: Simulation[GroupShard]) -> None:
    """Those that are committed meanwhile are of a new topic of the same name."""
    for group in ("a", "b"):
        commit(sim, 1, group=group, partitions=TOMBSTONES_MAX)
    written, appends = len(sim.log), sim.appends
    sim.runtime.apply(
        0,
        lambda shard, now_ms: shard.on_metadata_changed(
            MetadataImage(), [("t", UUID(int=1))], now_ms
        ),
        sim.now_ms,
    )
    sim.advance(0)
    assert 0 < len(sim.log) - written <= TOMBSTONES_MAX
    commit(sim, 7, group="b")
    sim.advance(1_000)
    assert len(sim.log) - written == 2 * TOMBSTONES_MAX
    assert sim.appends - appends >= 3
    assert len(sim.shard.offsets) == 1
    assert fetched(sim.shard, group="b")["committed_offset"] == 7


def test_settings_follow_kafkas_properties() -> None:
    assert PROPERTIES["offset_metadata_max_bytes"] == "offset.metadata.max.bytes"
    known = MetadataImage().broker_config
    kafkas = {name for name in PROPERTIES.values() if not name.startswith("shoal.")}
    assert kafkas <= set(known)
    assert GroupSettings.from_properties(known) == GroupSettings()
