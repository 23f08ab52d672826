"""What is committed when, on the leader of a partition."""

from __future__ import annotations

from uuid import UUID

import pytest
from shoal.log.config import LogConfig
from shoal.log.errors import OffsetOutOfRange
from shoal.log.log import Log
from shoal.log.memory import MemoryStorage
from shoal.protocol.errors import ErrorCode
from shoal.record.records import build_batch
from shoal.replication.partition import Divergence, Partition


def open_log(storage: MemoryStorage) -> Log:
    return Log.open(storage, "t-0", LogConfig(), now_ms=0, clean=False)


def partition(storage: MemoryStorage, *, leader_epoch: int = 3) -> Partition:
    return Partition(
        "t",
        UUID(int=1),
        0,
        open_log(storage),
        node_id=1,
        leader_id=1,
        leader_epoch=leader_epoch,
        isr=(1,),
        replicas=(1,),
    )


def append(to: Partition, *values: bytes) -> int:
    """The offset behind the records."""
    batch = build_batch([(1, None, value, ()) for value in values])
    return to.append(batch, now_ms=1).last_offset + 1


def test_the_high_watermark_follows_the_log_end() -> None:
    leader = partition(MemoryStorage())
    moves: list[int] = []
    leader.on_advance.append(lambda p: moves.append(p.high_watermark))
    assert append(leader, b"a", b"b") == 2
    assert append(leader, b"c") == 3
    assert moves == [2, 3]
    assert leader.acknowledged(3) and not leader.acknowledged(4)


def test_under_group_commit_it_follows_the_disk() -> None:
    storage = MemoryStorage()
    leader = partition(storage)
    leader.group_commit = True
    asked: list[Partition] = []
    leader.sync_requested = asked.append
    first = append(leader, b"a")
    sync = leader.log.begin_sync()
    assert sync is not None
    sync.run()
    second = append(leader, b"b")
    assert leader.high_watermark == 0 and len(asked) == 2
    assert leader.read(0, 1000, committed=False, min_one=True).data == b""

    leader.log.finish_sync(sync)
    leader.synced(leader.log.recovery_point)
    assert leader.acknowledged(first) and not leader.acknowledged(second)

    storage.crash(lambda n: 0)
    assert open_log(storage).log_end_offset == first


def test_flush_messages_asks_for_a_sync_and_holds_nothing_back() -> None:
    leader = partition(MemoryStorage())
    leader.flush_messages = 3
    asked: list[Partition] = []
    leader.sync_requested = asked.append
    append(leader, b"a", b"b")
    assert not asked
    assert leader.acknowledged(append(leader, b"c"))
    assert asked == [leader]


@pytest.mark.parametrize(
    ("named", "code"),
    [
        (-1, None),
        (3, None),
        (2, ErrorCode.fenced_leader_epoch),
        (4, ErrorCode.unknown_leader_epoch),
    ],
)
def test_leader_epochs(named: int, code: ErrorCode | None) -> None:
    assert partition(MemoryStorage()).epoch_error(named) is code


def test_another_broker_leads() -> None:
    follower = partition(MemoryStorage())
    follower.leader_id = 2
    assert follower.epoch_error(-1) is ErrorCode.not_leader_or_follower


def test_divergence() -> None:
    leader = partition(MemoryStorage(), leader_epoch=1)
    append(leader, b"a", b"b")
    leader.leader_epoch = 4
    append(leader, b"c")
    assert leader.divergence(fetch_offset=3, last_fetched_epoch=4) is None
    assert leader.divergence(fetch_offset=2, last_fetched_epoch=1) is None
    assert leader.divergence(fetch_offset=3, last_fetched_epoch=1) == Divergence(1, 2)
    assert leader.divergence(fetch_offset=3, last_fetched_epoch=2) == Divergence(1, 2)
    with pytest.raises(OffsetOutOfRange):
        leader.divergence(fetch_offset=3, last_fetched_epoch=5)


def test_records_are_deleted_up_to_the_high_watermark() -> None:
    leader = partition(MemoryStorage())
    append(leader, b"a", b"b", b"c")
    assert leader.delete_records(2) == 2
    assert leader.delete_records(1) == 2
    for offset in (4, -2):
        with pytest.raises(OffsetOutOfRange):
            leader.delete_records(offset)
