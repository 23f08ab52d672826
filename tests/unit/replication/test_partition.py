"""When records are committed, on the leader of a partition."""

from __future__ import annotations

from typing import NamedTuple
from uuid import UUID

import pytest
from shoal.log.config import LogConfig
from shoal.log.errors import OffsetOutOfRange
from shoal.log.log import Log
from shoal.log.memory import MemoryStorage
from shoal.protocol.errors import ErrorCode
from shoal.record.records import build_batch
from shoal.replication.leadership import AlterPartition, Follower
from shoal.replication.partition import Divergence, Partition, ReplicaFetch, ReplicaFetchResult
from shoal.replication.pending_append import PendingAppend
from shoal.replication.replica_fetcher import FetchSessionResponse, ReplicaFetcher


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
    """Append records; return the offset after them."""
    batch = build_batch([(1, None, value, ()) for value in values])
    return to.append(batch, now_ms=1).last_offset + 1


def test_the_high_watermark_follows_the_log_end() -> None:
    leader = partition(MemoryStorage())
    moves: list[int] = []
    leader.on_advance(lambda p: moves.append(p.high_watermark))
    assert append(leader, b"a", b"b") == 2
    assert append(leader, b"c") == 3
    assert moves == [2, 3]
    assert leader.is_committed(3)
    assert not leader.is_committed(4)


def test_a_callback_that_removes_itself_hides_no_other() -> None:
    """Several share groups read a partition, and each drops its window when the leadership is
    lost."""
    leader = partition(MemoryStorage())
    calls: list[str] = []

    def once(p: Partition) -> None:
        calls.append("once")
        p.forget(once)

    leader.on_advance(once)
    leader.on_advance(lambda p: calls.append("second"))
    leader.on_advance(lambda p: calls.append("third"))
    leader.notify_changed()
    append(leader, b"a")
    assert calls == ["once", "second", "third", "second", "third"]


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
    assert leader.high_watermark == 0
    assert len(asked) == 2
    assert leader.read(0, 1000, committed=False, min_one=True).data == b""

    leader.log.finish_sync(sync)
    leader.mark_synced(leader.log.recovery_point)
    assert leader.is_committed(first)
    assert not leader.is_committed(second)

    storage.crash(lambda n: 0)
    assert open_log(storage).log_end_offset == first


def test_flush_messages_asks_for_a_sync_and_holds_nothing_back() -> None:
    leader = partition(MemoryStorage())
    leader.flush_messages = 3
    asked: list[Partition] = []
    leader.sync_requested = asked.append
    append(leader, b"a", b"b")
    assert not asked
    assert leader.is_committed(append(leader, b"c"))
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
    assert partition(MemoryStorage()).find_epoch_error(named) is code


def test_another_broker_leads() -> None:
    follower = partition(MemoryStorage())
    follower.leader_id = 2
    assert follower.find_epoch_error(-1) is ErrorCode.not_leader_or_follower


def test_divergence() -> None:
    leader = partition(MemoryStorage(), leader_epoch=1)
    append(leader, b"a", b"b")
    leader.leader_epoch = 4
    append(leader, b"c")
    assert leader.find_divergence(fetch_offset=3, last_fetched_epoch=4) is None
    assert leader.find_divergence(fetch_offset=2, last_fetched_epoch=1) is None
    assert leader.find_divergence(fetch_offset=3, last_fetched_epoch=1) == Divergence(1, 2)
    assert leader.find_divergence(fetch_offset=3, last_fetched_epoch=2) == Divergence(1, 2)
    with pytest.raises(OffsetOutOfRange):
        leader.find_divergence(fetch_offset=3, last_fetched_epoch=5)


def test_records_are_deleted_up_to_the_high_watermark() -> None:
    leader = partition(MemoryStorage())
    append(leader, b"a", b"b", b"c")
    assert leader.delete_records(2) == 2
    assert leader.delete_records(1) == 2
    for offset in (4, -2):
        with pytest.raises(OffsetOutOfRange):
            leader.delete_records(offset)


# With followers.


class Registered(NamedTuple):
    """A partition in the controller's state."""

    leader: int = 1
    leader_epoch: int = 3
    partition_epoch: int = 1
    isr: tuple[int, ...] = (1, 2, 3)
    replicas: tuple[int, ...] = (1, 2, 3)


def test_a_new_leader_syncs_what_a_restart_left_unsynced() -> None:
    """Under group commit its high watermark waits for the disk. Without an append that requests the
    sync, committed records could not be read."""
    storage = MemoryStorage()
    append(partition(storage), b"a", b"b")
    back = Partition(
        "t",
        UUID(int=1),
        0,
        open_log(storage),
        node_id=1,
        leader_id=2,
        leader_epoch=3,
        isr=(1, 2),
        replicas=(1, 2),
    )
    asked: list[Partition] = []
    back.sync_requested = asked.append
    back.sync_tail()
    back.register(Registered(leader_epoch=4, isr=(1, 2), replicas=(1, 2)), 0)
    assert not asked
    assert back.log.recovery_point < back.log.log_end_offset

    back.group_commit = True
    back.sync_tail()
    back.register(Registered(leader_epoch=5, partition_epoch=2, isr=(1, 2), replicas=(1, 2)), 0)
    assert asked == [back, back]


class Led:
    """Broker 1 of three, with a clock and a list of its requests to the controller."""

    def __init__(self, *, isr: tuple[int, ...] = (1, 2, 3), min_isr: int = 2) -> None:
        self.asked: list[AlterPartition] = []
        self.partition = Partition(
            "t",
            UUID(int=1),
            0,
            open_log(MemoryStorage()),
            node_id=1,
            leader_id=1,
            leader_epoch=3,
            isr=isr,
            replicas=(1, 2, 3),
            alter_isr=lambda _, change: self.asked.append(change),
            broker_epoch_of=lambda broker_id: 10 + broker_id,
        )
        self.partition.min_isr = min_isr
        self.partition.lag_time_max_ms = 1_000

    def fetch(
        self, replica: int, offset: int, now_ms: int = 0, **changes: int
    ) -> ReplicaFetchResult:
        asked = {"fetch_offset": offset, "last_fetched_epoch": 3 if offset else -1}
        asked |= {"current_leader_epoch": 3, "log_start_offset": 0} | changes
        epoch = asked.pop("broker_epoch", 10 + replica)
        return self.partition.fetch_for_follower(
            replica, epoch, ReplicaFetch(**asked), max_bytes=10_000, min_one=True, now_ms=now_ms
        )


def test_the_high_watermark_is_the_least_of_the_in_sync() -> None:
    led = Led()
    end = append(led.partition, b"a", b"b")
    assert led.partition.high_watermark == 0
    assert led.fetch(2, 0).records
    assert led.fetch(3, 0).records
    led.fetch(2, end)
    assert not led.partition.is_committed(end)
    assert led.fetch(3, end) == (0, end, 0, None, b"")
    assert led.partition.is_committed(end)


def test_bytes_count_once_they_are_committed() -> None:
    led = Led()
    append(led.partition, b"a")
    assert led.partition.bytes_appended
    assert not led.partition.bytes_committed
    led.fetch(2, 1)
    led.fetch(3, 1)
    assert led.partition.bytes_committed == led.partition.bytes_appended


def test_a_lagging_replica_leaves_once_the_controller_agrees() -> None:
    led = Led()
    end = append(led.partition, b"a")
    led.fetch(2, end, now_ms=900)
    led.partition.tick(1_000)
    assert not led.asked
    led.partition.tick(1_001)
    (asked,) = led.asked
    assert asked.isr == ((1, 11), (2, 12))
    assert asked.partition_epoch == 0
    assert led.partition.high_watermark == 0
    led.partition.complete_isr_change((1, 2), 1)
    assert led.partition.high_watermark == end


def test_a_caught_up_replica_joins_and_then_holds_back_the_high_watermark() -> None:
    led = Led(isr=(1, 2))
    end = append(led.partition, b"a")
    led.fetch(2, end)
    assert led.partition.high_watermark == end
    led.fetch(3, 0)
    assert not led.asked
    led.fetch(3, end)
    (asked,) = led.asked
    assert asked.members == (1, 2, 3)
    later = append(led.partition, b"b")
    led.partition.lag_time_max_ms = -1
    led.fetch(2, later)
    assert led.partition.high_watermark == end

    led.partition.fail_isr_change(asked, ErrorCode.request_timed_out, 0, 50)
    led.fetch(2, later)
    assert led.partition.high_watermark == end, "it may have been accepted"
    led.partition.register(Registered(partition_epoch=0, isr=(1, 2)), 0)
    led.fetch(2, later)
    assert led.partition.high_watermark == end, "the ISR in force brings no change"
    led.partition.tick(50)
    assert led.asked == [asked, asked]
    led.partition.fail_isr_change(asked, ErrorCode.ineligible_replica, 50, 50)
    assert led.partition.high_watermark == later


def test_another_incarnation_or_a_fenced_broker_does_not_join() -> None:
    led = Led(isr=(1, 2))
    led.fetch(3, 0, broker_epoch=9)
    led.partition.broker_epoch_of = lambda broker_id: -1
    led.fetch(3, 0)
    assert not led.asked


def test_below_min_isr_nothing_is_committed() -> None:
    led = Led(isr=(1,))
    end = append(led.partition, b"a")
    assert led.partition.high_watermark == 0
    led.fetch(2, end)
    led.partition.complete_isr_change((1, 2), 1)
    assert led.partition.high_watermark == end


def test_min_isr_asks_no_more_than_there_are_replicas() -> None:
    alone = partition(MemoryStorage())
    alone.min_isr = 2
    assert alone.effective_min_isr == 1


def test_a_new_leader_is_behind_until_its_own_epoch_is_committed() -> None:
    led = Led()
    end = append(led.partition, b"a")
    led.partition.register(Registered(leader=2, leader_epoch=4), 0)
    assert not led.partition.is_leader
    assert led.partition.has_lost_leadership_since(3)
    led.partition.register(Registered(leader_epoch=5, partition_epoch=2), 0)
    assert led.partition.is_behind
    assert led.partition.has_lost_leadership_since(3)
    assert led.partition.log.latest_epoch == 5
    for replica in (2, 3):
        led.fetch(replica, end, current_leader_epoch=5)
    assert not led.partition.is_behind


def test_a_leaders_write_is_not_committed_by_the_next_leaders_high_watermark() -> None:
    led = Led()
    written = PendingAppend.from_partition(led.partition, append(led.partition, b"a"))
    assert not written.is_committed
    assert not written.is_lost
    led.partition.register(Registered(leader=2, leader_epoch=4), 0)
    led.partition.truncate(0)
    other = bytes(build_batch([(1, None, b"b", ())], base_offset=0, leader_epoch=4))
    led.partition.append_fetched(ReplicaFetchResult(ErrorCode.none, 1, 0, None, other), 0)
    assert led.partition.is_committed(written.end_offset)
    assert written.is_lost
    assert not written.is_committed

    led = Led()
    written = PendingAppend.from_partition(led.partition, append(led.partition, b"a"))
    for replica in (2, 3):
        led.fetch(replica, written.end_offset)
    assert written.is_committed
    assert not written.is_lost


def test_an_older_registration_changes_nothing() -> None:
    led = Led()
    led.partition.register(Registered(partition_epoch=5, isr=(1, 2)), 0)
    led.partition.register(Registered(partition_epoch=4, isr=(1, 2, 3)), 0)
    assert led.partition.isr == (1, 2)


def test_a_follower_of_another_epoch_is_refused() -> None:
    led = Led()
    assert led.fetch(2, 0, current_leader_epoch=2).error_code is ErrorCode.fenced_leader_epoch
    assert led.fetch(2, 0, current_leader_epoch=4).error_code is ErrorCode.unknown_leader_epoch
    assert led.fetch(2, 7).diverging == Divergence(3, 0)
    assert led.fetch(2, 7, last_fetched_epoch=9).error_code is ErrorCode.offset_out_of_range
    assert led.fetch(4, 0).error_code is ErrorCode.unknown_topic_or_partition


# The follower.


def follower(*values: bytes) -> Partition:
    """Return broker 2, which has led in epoch 1 and written these values."""
    found = Partition(
        "t",
        UUID(int=1),
        0,
        open_log(MemoryStorage()),
        node_id=2,
        leader_id=2,
        leader_epoch=1,
        isr=(2,),
        replicas=(1, 2, 3),
        partition_epoch=-1,
    )
    found.min_isr = 2
    if values:
        append(found, *values)
    found.register(Registered(partition_epoch=0), 0)
    return found


def test_a_divergent_tail_is_cut_and_durable_before_the_next_fetch() -> None:
    led = Led()
    end = append(led.partition, b"a", b"b", b"c")
    other = follower(b"x")
    fetcher = ReplicaFetcher(1)
    fetcher.follow(other)
    request = fetcher.build_next_fetch(0)
    assert request is not None
    ((key, asked),) = request.partitions
    assert asked == (1, 1, 3, 0)
    answer = led.partition.fetch_for_follower(2, 12, asked, max_bytes=99, min_one=True, now_ms=0)
    assert answer.diverging is not None
    found = fetcher.complete_fetch(FetchSessionResponse(ErrorCode.none, 7, {key: answer}), 0)
    assert found.sync == [other]
    assert other.log.log_end_offset == 0
    assert fetcher.build_next_fetch(0) is None
    other.mark_synced(0)
    request = fetcher.build_next_fetch(0)
    assert request is not None
    assert request.session_id == 7
    ((key, asked),) = request.partitions
    answer = led.partition.fetch_for_follower(2, 12, asked, max_bytes=999, min_one=True, now_ms=0)
    fetcher.complete_fetch(FetchSessionResponse(ErrorCode.none, 7, {key: answer}), 0)
    assert other.log.log_end_offset == end


def test_an_epoch_without_a_record_does_not_keep_a_follower_out_of_step() -> None:
    """A short leadership recorded the epoch, which the current leader does not have."""
    other = follower()
    assert other.log.latest_epoch == 1
    other.truncate(0)
    assert other.log.latest_epoch == -1


def test_a_refused_partition_pauses_and_others_go_on() -> None:
    other = follower()
    fetcher = ReplicaFetcher(1)
    fetcher.follow(other)
    request = fetcher.build_next_fetch(0)
    assert request is not None
    refused = {other.key: ReplicaFetchResult(ErrorCode.unknown_leader_epoch)}
    fetcher.complete_fetch(FetchSessionResponse(ErrorCode.none, 7, refused), 0)
    assert fetcher.build_next_fetch(0) is None
    due_ms = fetcher.find_next_due_ms()
    assert due_ms is not None
    assert fetcher.build_next_fetch(due_ms) is not None


def test_a_response_to_a_request_of_an_earlier_epoch_is_ignored() -> None:
    led = Led()
    append(led.partition, b"a")
    other = follower()
    fetcher = ReplicaFetcher(1)
    fetcher.follow(other)
    request = fetcher.build_next_fetch(0)
    assert request is not None
    ((key, asked),) = request.partitions
    answer = led.partition.fetch_for_follower(2, 12, asked, max_bytes=999, min_one=True, now_ms=0)
    other.register(Registered(leader_epoch=4, partition_epoch=2), 0)
    fetcher.follow(other)
    fetcher.complete_fetch(FetchSessionResponse(ErrorCode.none, 7, {key: answer}), 0)
    assert other.log.log_end_offset == 0


def test_a_fetch_at_the_log_end_counts_like_any_other() -> None:
    """The fast path of leaders for idle partitions."""
    looked_at, noted = Led(), Led()
    for led in (looked_at, noted):
        append(led.partition, b"a", b"b")
        for replica in (2, 3):
            led.fetch(replica, 2, 10)
    assert looked_at.fetch(2, 2, 50).error_code is ErrorCode.none
    found = noted.partition.leadership
    assert found is not None
    assert looked_at.partition.leadership is not None
    epoch = found.followers[2].broker_epoch
    assert found.refresh_follower(2, epoch, 50)
    for name in Follower.__slots__:
        expected = getattr(looked_at.partition.leadership.followers[2], name)
        assert getattr(found.followers[2], name) == expected, name
    assert not found.refresh_follower(2, epoch + 1, 60), "another incarnation"
    append(noted.partition, b"c")
    noted.fetch(3, 2, 70)
    assert not found.refresh_follower(3, found.followers[3].broker_epoch, 80), "not at the end"
