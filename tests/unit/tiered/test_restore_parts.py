"""What a restore makes of backups: metadata, positions, share groups, transactions."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from shoal.coordinator.contract import CoordinatorRecord
from shoal.coordinator.group import records as group_records
from shoal.coordinator.group.records import RecordType
from shoal.coordinator.share import records as share_records
from shoal.coordinator.share.backoff import Delay
from shoal.coordinator.share.records import ShareKey, ShareUpdate
from shoal.metadata.image import PartitionImage
from shoal.metadata.records import MetadataRecord
from shoal.record.control import build_marker
from shoal.record.finished_offsets import FinishedOffsets
from shoal.record.records import build_batch
from shoal.server.tiered import restored_metadata, restored_state
from shoal.server.tiered.backups import INCARNATION, STATE_TOPICS
from shoal.server.tiered.restored_metadata import EPOCH_GAP
from shoal.server.tiered.restored_state import EndOffsets
from shoal.tiered import backup
from shoal.tiered.segment_object import DamagedObject
from shoal.transaction import records as transaction_records
from shoal.transaction.states import TransactionState
from shoal.transaction.transactions import TransactionMetadata

T, PLAIN = UUID(int=1), UUID(int=2)
OFFSETS = UUID(int=3)
ENDS = EndOffsets({("t", 0): 100, ("plain", 0): 0}, {(T, 0): 100, (PLAIN, 0): 0})
BROKER, TOPIC = 4, 2


# Objects


def test_backups_are_read_as_they_were_written() -> None:
    pairs = [(b"%d" % n, None if n % 7 == 0 else b"v%d" % n) for n in range(1, 500)]
    body = b"".join(backup.build_batches(pairs))
    data = backup.encode({"offset": 7}, body)
    found = backup.decode(data)
    assert found.fields == {"offset": 7}
    assert list(backup.read_pairs(found.body)) == pairs
    for at in (0, 5, 9, 20, len(data) - 1):
        damaged = bytearray(data)
        damaged[at] ^= 1
        with pytest.raises(DamagedObject):
            backup.decode(damaged)
    with pytest.raises(DamagedObject):
        backup.decode(data[:-1])
    with pytest.raises(DamagedObject):
        backup.decode(b"")


def batch(*pairs: tuple[bytes, bytes | None], producer_id: int = -1) -> bytes:
    transactional = producer_id >= 0
    return bytes(
        build_batch(
            [(0, key, value, ()) for key, value in pairs],
            producer_id=producer_id,
            producer_epoch=0 if transactional else -1,
            base_sequence=0 if transactional else -1,
            transactional=transactional,
        )
    )


def marker(producer_id: int, *, committed: bool) -> bytes:
    return bytes(
        build_marker(
            committed=committed,
            producer_id=producer_id,
            producer_epoch=0,
            coordinator_epoch=0,
            timestamp_ms=0,
        )
    )


def test_the_last_record_of_each_key_is_live() -> None:
    live = backup.CompactedView()
    live.replay(batch((b"a", b"1"), (b"b", b"1"), (b"c", b"1")) + batch((b"a", b"2"), (b"b", None)))
    assert list(live) == [(b"c", b"1"), (b"a", b"2")]


def test_transactions_count_from_their_commit_on() -> None:
    live = backup.CompactedView()
    live.replay(batch((b"a", b"0")))
    live.replay(batch((b"a", b"1"), producer_id=7) + batch((b"a", b"2"), producer_id=8))
    live.replay(batch((b"b", b"1"), producer_id=9))
    live.replay(marker(8, committed=True) + marker(7, committed=False))
    assert list(live) == [(b"a", b"2")]
    assert live.open == {9: [(b"b", b"1")]}


def test_updates_count_with_the_record_before_them() -> None:
    live = backup.CompactedView(STATE_TOPICS["__share_group_state"])
    snapshot, update = b"\x00\x00x", b"\x00\x01x"
    live.replay(batch((snapshot, b"old"), (update, b"1"), (snapshot, b"new"), (update, b"2")))
    live.replay(batch((update, b"3"), (b"\x00\x00y", b"y"), (b"\x00\x01y", b"1")))
    assert list(live)[:3] == [(snapshot, b"new"), (update, b"2"), (update, b"3")]
    live.replay(batch((b"\x00\x00y", None)))
    assert len(list(live)) == 3


# Metadata


def partition(topic_id: UUID, index: int, *replicas: int, epoch: int = 5) -> MetadataRecord:
    registered = PartitionImage(replicas, replicas[:1], replicas[0], epoch, 9)
    fields = registered._asdict() | {"topic_id": topic_id, "partition_id": index}
    return MetadataRecord("PartitionRecord", fields)


def config(kind: int, resource: str, name: str, value: str) -> MetadataRecord:
    fields = {"resource_type": kind, "resource_name": resource, "name": name, "value": value}
    return MetadataRecord("ConfigRecord", fields)


def lost() -> restored_metadata.LostCluster:
    records = [
        MetadataRecord("FeatureLevelRecord", {"name": "metadata.version", "feature_level": 30}),
        MetadataRecord("TopicRecord", {"name": "t", "topic_id": T}),
        partition(T, 0, 1, 2, 3),
        partition(T, 1, 7, 8, 9),
        MetadataRecord("TopicRecord", {"name": "plain", "topic_id": PLAIN}),
        partition(PLAIN, 0, 9),
        MetadataRecord("TopicRecord", {"name": "__consumer_offsets", "topic_id": OFFSETS}),
        partition(OFFSETS, 0, 3),
        config(TOPIC, "t", "remote.storage.enable", "true"),
        config(TOPIC, "plain", "retention.ms", "5"),
        config(BROKER, "", "log.retention.ms", "7"),
        config(BROKER, "", INCARNATION, "an earlier one"),
        config(BROKER, "1", "log.retention.ms", "8"),
        config(BROKER, "9", "log.retention.ms", "9"),
    ]
    return restored_metadata.make_lost_cluster(records, 41)


def restored(
    brokers: list[int],
    topics: set[str] | None = None,
    epochs: dict[tuple[UUID, int], int] | None = None,
) -> restored_metadata.RestoredMetadata:
    return restored_metadata.build_restored(
        lost(), brokers=brokers, topics=topics, incarnation="new", leader_epochs=epochs or {}
    )


def test_the_metadata_of_a_restored_cluster() -> None:
    found = restored([1, 2, 3], epochs={(T, 1): 50})
    image = found.image
    assert set(image.topics) == {"t", "plain", "__consumer_offsets"}
    assert image.topics["t"].topic_id == T
    first, second = image.topics["t"].partitions
    assert first.replicas == first.isr == (1, 2, 3)
    assert set(second.replicas) == {1, 2, 3}
    assert (first.leader, first.leader_epoch) == (1, 5 + EPOCH_GAP)
    assert second.leader_epoch == 50 + EPOCH_GAP, "the manifest knows of later elections"
    assert len(image.topics["plain"].partitions[0].replicas) == 1
    assert image.resolve_topic_config("t")["remote.storage.enable"] is True
    assert image.broker_config[INCARNATION] == "new"
    assert image.broker_config["log.retention.ms"] == 8, "broker 1 is in the new cluster"
    assert (BROKER, "9") not in image.configs
    assert image.features == {"metadata.version": 30}
    # All brokers count as stopped cleanly in their last epoch, so that each may lead.
    assert set(image.brokers) == {1, 2, 3}
    assert all(b.fenced and b.broker_epoch == found.broker_epoch for b in image.brokers.values())
    assert first.directories == tuple(image.brokers[id].log_dirs[0] for id in (1, 2, 3))
    assert image.offset == 41


def test_fewer_brokers_and_one_topic() -> None:
    image = restored([5], {"t"}).image
    assert set(image.topics) == {"t", "__consumer_offsets"}
    assert [p.replicas for p in image.topics["t"].partitions] == [(5,), (5,)]
    assert (TOPIC, "plain") not in image.configs
    assert restored([5, 6]).image.topics["t"].partitions[1].replicas in ((5, 6), (6, 5))


def test_all_nodes_write_the_same_metadata() -> None:
    assert restored([1, 2, 3]) == restored([1, 2, 3])


# Groups


def commit(offset: int, topic: str = "t", **more: Any) -> tuple[bytes, bytes | None]:
    value = {"offset": offset, "leader_epoch": 3, "metadata": "m", "commit_timestamp": 5} | more
    key = {"group": "g", "topic": topic, "partition": 0}
    found = group_records.encode_record(RecordType.OFFSET_COMMIT, key, value)
    return found.key, found.value


def positions(*pairs: tuple[bytes, bytes | None]) -> list[dict[str, Any]]:
    out = []
    for key, value in restored_state.restore_groups(pairs, ENDS, states=frozenset()):
        decoded = group_records.decode(CoordinatorRecord(key, value))
        assert decoded is not None
        assert decoded.value is not None
        out.append(decoded.value)
    return out


@pytest.mark.parametrize(("offset", "expected"), [(0, 0), (99, 99), (100, 100), (101, 100)])
def test_positions_move_back_to_the_end(offset: int, expected: int) -> None:
    (found,) = positions(commit(offset))
    assert found["offset"] == expected
    assert found["leader_epoch"] == (3 if offset <= 100 else -1)
    assert found["metadata"] == "m"


def test_positions_of_other_topics() -> None:
    assert [found["offset"] for found in positions(commit(7, "plain"))] == [0]
    assert positions(commit(7, "gone")) == []


@pytest.mark.parametrize(("last", "kept"), [(98, True), (99, True), (100, False)])
def test_finished_offsets_above_the_end_are_delivered_again(last: int, kept: bool) -> None:
    finished = FinishedOffsets.from_ranges([(50, 60), (last, last)]).encode()
    one = {"first_hash": 0, "last_hash": 9, "position": 40, "finished": finished}
    (found,) = positions(commit(40, key_ranges=[one]))
    assert bool(found["key_ranges"]) is kept
    assert found["offset"] == 40


def test_members_are_gone_and_groups_stay() -> None:
    member = {
        "member_id": "m",
        "group_instance_id": None,
        "client_id": "c",
        "client_host": "h",
        "rebalance_timeout": 1,
        "session_timeout": 1,
        "subscription": b"",
        "assignment": b"",
    }
    classic = group_records.encode_record(
        RecordType.GROUP_METADATA,
        {"group": "g"},
        {
            "protocol_type": "consumer",
            "generation": 4,
            "protocol": "range",
            "leader": "m",
            "current_state_timestamp": 1,
            "members": [member],
        },
    )
    modern = group_records.encode_record(
        RecordType.CONSUMER_GROUP_METADATA, {"group_id": "h"}, {"epoch": 3, "metadata_hash": 1}
    )
    target = group_records.encode_record(
        RecordType.CONSUMER_GROUP_TARGET_ASSIGNMENT_METADATA,
        {"group_id": "h"},
        {"assignment_epoch": 3, "assignment_timestamp": 1},
    )
    first, second = positions(*(tuple(one) for one in (classic, modern, target)))  # type: ignore[arg-type]
    assert (first["members"], first["leader"], first["generation"]) == ([], None, 4)
    assert second["epoch"] == 3


# Share groups

KEY = ShareKey("workers", T, 0)


def snapshot(key: ShareKey) -> CoordinatorRecord:
    return share_records.encode_snapshot(
        key,
        snapshot_epoch=1,
        state_epoch=2,
        leader_epoch=8,
        start_offset=0,
        delivery_complete_count=0,
        create_timestamp=1,
        write_timestamp=2,
        state_batches=[],
    )


def share_state(start: int, *batches: tuple[int, int, int, int], **more: Any) -> dict[str, Any]:
    first = snapshot(KEY)
    update = ShareUpdate(1, 8, start, 3, list(batches), more.get("delays", ()))
    changed = (
        share_records.encode_key(share_records.ShareRecordType.SHARE_UPDATE, KEY),
        share_records.encode_update(update),
    )
    pairs = [(first.key, first.value), changed]
    ((key, value),) = restored_state.restore_share_groups(pairs, more.get("ends", ENDS))
    decoded = share_records.decode(CoordinatorRecord(key, value))
    assert decoded is not None
    assert decoded.value is not None
    return decoded.value


def test_a_share_partition_without_a_state_is_initialized_again() -> None:
    """The backup of the group may be newer than that of the states."""
    named = {"topic_id": T, "topic_name": "t", "partitions": [0, 1]}
    value = {"initializing_topics": [], "initialized_topics": [named], "deleting_topics": []}
    kind = RecordType.SHARE_GROUP_STATE_PARTITION_METADATA
    record = group_records.encode_record(kind, {"group_id": "g"}, value)
    state = snapshot(ShareKey("g", T, 0))
    states = restored_state.list_share_keys([(state.key, state.value)])
    assert states == {ShareKey("g", T, 0)}
    ((_, found),) = restored_state.restore_groups([(record.key, record.value)], ENDS, states=states)
    decoded = group_records.decode(CoordinatorRecord(record.key, found))
    assert decoded is not None
    assert decoded.value is not None
    parts = {
        side: [(row["topic_name"], list(row["partitions"])) for row in decoded.value[side]]
        for side in ("initializing_topics", "initialized_topics")
    }
    assert parts == {"initializing_topics": [("t", [1])], "initialized_topics": [("t", [0])]}


def batches(value: dict[str, Any]) -> list[tuple[int, int]]:
    return [(b["first_offset"], b["last_offset"]) for b in value["state_batches"]]


def test_share_groups_forget_what_they_finished_above_the_end() -> None:
    found = share_state(90, (91, 94, 2, 1), (97, 105, 2, 1), (110, 120, 2, 1))
    assert found["start_offset"] == 90
    assert batches(found) == [(91, 94), (97, 99)]
    assert found["delivery_complete_count"] == -1, "the number above the end is not known"
    # The partition's leader has another epoch, and an admin's resets still count.
    assert (found["leader_epoch"], found["state_epoch"]) == (0, 2)


def test_a_share_group_that_was_further() -> None:
    found = share_state(105, (107, 108, 2, 1))
    assert (found["start_offset"], batches(found)) == (100, [])


def test_a_share_group_below_the_end_keeps_all() -> None:
    found = share_state(10, (12, 14, 0, 2), (15, 16, 2, 1), delays=[Delay(12, 14, 2, 10**15)])
    assert batches(found) == [(12, 14), (15, 16)]
    assert found["delivery_complete_count"] == 3
    assert len(found["delays"]) == 1


def test_delays_above_the_end_are_cut() -> None:
    delays = [Delay(98, 104, 2, 10**15), Delay(105, 106, 2, 10**15)]
    found = share_state(97, (98, 106, 0, 2), delays=delays)
    assert [(d["first_offset"], d["last_offset"]) for d in found["delays"]] == [(98, 99)]


def test_share_partitions_of_gone_topics_are_left_out() -> None:
    with pytest.raises(ValueError, match="not enough values"):
        share_state(10, ends=EndOffsets({}, {}))


# Transactions


def transaction(id: str, state: TransactionState, producer_id: int) -> tuple[bytes, bytes | None]:
    found = TransactionMetadata(
        producer_id, 4, 1000, state, {("t", 0): None}, start_timestamp_ms=1, update_timestamp_ms=2
    )
    stored = transaction_records.build_record(id, found)
    return stored.key, stored.value


def test_open_transactions_abort_and_decided_ones_commit() -> None:
    found = restored_state.restore_transactions(
        [
            transaction("open", TransactionState.ONGOING, 1),
            transaction("aborting", TransactionState.PREPARE_ABORT, 2),
            transaction("committing", TransactionState.PREPARE_COMMIT, 3),
            transaction("done", TransactionState.COMPLETE_COMMIT, 4),
        ]
    )
    decoded = [
        transaction_records.decode(CoordinatorRecord(key, value)) for key, value in found.pairs
    ]
    states = {}
    for one in decoded:
        assert one is not None
        assert one[1] is not None
        states[one[0]] = (one[1].state, one[1].producer_epoch, len(one[1].partitions))
    assert states == {
        # The epoch fences the producer that had it open.
        "open": (TransactionState.COMPLETE_ABORT, 5, 0),
        "aborting": (TransactionState.COMPLETE_ABORT, 5, 0),
        "committing": (TransactionState.PREPARE_COMMIT, 4, 1),
        "done": (TransactionState.COMPLETE_COMMIT, 4, 1),
    }
    assert found.committing == {3: frozenset({("t", 0)})}
