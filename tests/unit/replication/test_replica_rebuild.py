"""A follower whose next records are only in the object store (KIP-405, KIP-1023)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

import pytest
from shoal.client.errors import ClientError
from shoal.log.config import LogConfig
from shoal.log.memory import MemoryStorage
from shoal.log.producers import ProducerStateManager
from shoal.log.remote import RebuiltState, RemoteUnavailable
from shoal.protocol.api import ApiKey
from shoal.protocol.errors import ErrorCode
from shoal.replication.partition import Partition
from shoal.replication.replica_fetcher import FetchOutcome, FetchSessionResponse, ReplicaFetcher
from shoal.server.replication.leader_offsets import LeaderOffsets, LeaderRefused
from support.storage.log_material import NOW_MS, batch, fill, open_log

if TYPE_CHECKING:
    from shoal.log.log import Log

TOPIC_ID = UUID(int=1)
KEY = (TOPIC_ID, 0)
CONFIG = LogConfig(
    segment_bytes=300, remote_storage_enable=True, retention_ms=-1, local_retention_bytes=0
)
STATE = RebuiltState(18, ((0, 0),), ProducerStateManager().to_snapshot())


class Remote:
    """All records are in the object store."""

    copied_end_offset = 100
    end_offset = 99

    def read(self, *_: object) -> Any:
        raise AssertionError("the leader reads no remote records for a follower")


def partition(node_id: int, log: Log) -> Partition:
    return Partition(
        "t",
        TOPIC_ID,
        0,
        log,
        node_id=node_id,
        leader_id=1,
        leader_epoch=0,
        isr=(1,),
        replicas=(1, 2),
    )


class Pair:
    """A leader with offsets 18 to 20 on its disk, and a follower with an empty disk."""

    def __init__(self, **options: Any) -> None:
        log = open_log(MemoryStorage(), CONFIG)
        remote: Any = Remote()
        log.remote = remote
        fill(log, [batch(b"x" * 100, b"y" * 100) for _ in range(10)])
        self.leader = partition(1, log)
        log.tick_retention(NOW_MS, high_watermark=20)
        assert log.local_start_offset == 18
        self.follower = partition(2, open_log(MemoryStorage(), CONFIG))
        self.fetcher = ReplicaFetcher(1, **options)
        self.fetcher.follow(self.follower)
        self.position = self.follower.get_fetch_position()

    def fetch(self, now_ms: int = 0) -> tuple[int, FetchOutcome] | None:
        """Fetch once; return the fetch offset and the outcome, None if nothing was fetched."""
        request = self.fetcher.build_next_fetch(now_ms)
        if request is None:
            return None
        for _, self.position in request.partitions:
            pass  # A position that is not in the request is the one of the last.
        answer = self.leader.fetch_for_follower(
            2, 1, self.position, max_bytes=1 << 20, min_one=True, now_ms=now_ms
        )
        response = FetchSessionResponse(ErrorCode.none, 7, {KEY: answer})
        return self.position.fetch_offset, self.fetcher.complete_fetch(response, now_ms)

    def complete(
        self, state: RebuiltState | None = STATE, epoch: int = 0, now_ms: int = 0
    ) -> FetchOutcome:
        return self.fetcher.complete_rebuild(self.follower, epoch, state, 0, now_ms)


def test_a_follower_with_an_empty_disk_gets_the_tail_from_its_leader() -> None:
    pair = Pair()
    assert pair.fetch() == (0, FetchOutcome(rebuild=[pair.follower]))
    assert pair.fetch() is None, "it looks for its state"
    assert pair.complete() == FetchOutcome(sync=[pair.follower])
    assert pair.fetch() is None, "the state is not durable yet"
    pair.fetcher.mark_synced(pair.follower, 18)
    assert pair.fetch() == (18, FetchOutcome())
    log = pair.follower.log
    assert (log.log_start_offset, log.local_start_offset, log.log_end_offset) == (0, 18, 20)
    assert pair.follower.high_watermark == 20
    assert log.epochs.entries == pair.leader.log.epochs.entries


def test_a_follower_that_is_behind_drops_what_it_has() -> None:
    pair = Pair()
    fill(pair.follower.log, [batch(b"x" * 100, b"y" * 100) for _ in range(3)])
    pair.fetcher.notify_changed(pair.follower)
    assert pair.fetch() == (6, FetchOutcome(rebuild=[pair.follower]))
    pair.complete()
    assert pair.follower.log.local_start_offset == 18


def test_the_log_end_is_no_remote_offset() -> None:
    """An empty local log of the leader has nothing that is only in the object store."""
    pair = Pair()
    pair.complete()
    pair.leader.log.roll(20, NOW_MS)
    pair.leader.log.tick_retention(NOW_MS, high_watermark=20)
    assert pair.leader.log.local_start_offset == 20
    fetched = pair.leader.fetch_for_follower(
        2,
        1,
        pair.follower.get_fetch_position()._replace(fetch_offset=20),
        max_bytes=100,
        min_one=True,
        now_ms=0,
    )
    assert fetched.error_code is ErrorCode.none


def test_a_rebuild_that_fails_is_repeated_after_a_pause() -> None:
    pair = Pair()
    pauses, now_ms = [], 0
    for _ in range(9):
        assert pair.fetch(now_ms) == (0, FetchOutcome(rebuild=[pair.follower]))
        pair.fetcher.fail_rebuild(pair.follower, now_ms)
        pair.fetch(now_ms)
        due_ms = pair.fetcher.find_next_due_ms()
        assert due_ms is not None
        pauses.append(due_ms - now_ms)
        now_ms = due_ms
    assert pauses == [20, 40, 80, 160, 320, 640, 1000, 1000, 1000]


def test_results_of_an_earlier_leader_epoch_are_not_used() -> None:
    pair = Pair()
    pair.fetch()
    pair.follower.leader_epoch = 1
    pair.complete(epoch=0)
    assert pair.follower.log.log_end_offset == 0
    # A result that comes twice, or after the partition was followed again.
    pair.fetcher.follow(pair.follower)
    assert pair.complete(epoch=1) == FetchOutcome()
    assert pair.follower.log.log_end_offset == 0


def test_a_damaged_state_is_reported() -> None:
    pair = Pair()
    pair.fetch()
    outcome = pair.complete(STATE._replace(producer_snapshot=b"damaged"))
    assert [found for found, _ in outcome.failed] == [pair.follower]
    assert pair.fetch(20) == (0, FetchOutcome(rebuild=[pair.follower]))


def test_an_empty_follower_may_begin_behind_the_object_store() -> None:
    pair = Pair(starts_at_last_tiered=lambda _partition: True)
    assert pair.fetch() is None
    assert pair.fetcher.begin_rebuilds() == [pair.follower]
    assert pair.fetcher.begin_rebuilds() == []
    pair.fetcher.fail_rebuild(pair.follower, 0)
    assert pair.fetch(19) is None
    assert pair.fetcher.begin_rebuilds() == []
    assert pair.fetch(20) is None
    assert pair.fetcher.begin_rebuilds() == [pair.follower]
    assert pair.complete(STATE._replace(next_offset=20), now_ms=20).sync == [pair.follower]
    pair.fetcher.mark_synced(pair.follower, 20)
    assert pair.fetch(20) == (20, FetchOutcome())


def test_a_leader_without_remote_records_serves_all() -> None:
    pair = Pair(starts_at_last_tiered=lambda _partition: True)
    pair.fetch()
    assert pair.fetcher.begin_rebuilds() == [pair.follower]
    assert pair.complete(None) == FetchOutcome()
    found = pair.fetch()
    assert found is not None, "it fetches, and does not ask for the offset again"
    assert found[0] == 0


def test_a_follower_with_records_fetches_on() -> None:
    pair = Pair(starts_at_last_tiered=lambda _partition: True)
    other = partition(2, open_log(MemoryStorage(), CONFIG))
    fill(other.log, [batch(b"x")])
    fetcher = ReplicaFetcher(1, starts_at_last_tiered=lambda _partition: True)
    fetcher.follow(other)
    assert fetcher.build_next_fetch(0) is not None
    assert fetcher.begin_rebuilds() == []
    assert pair.fetch() is None


class Entry(NamedTuple):
    """A partition in a response of ListOffsets or OffsetForLeaderEpoch."""

    offset: int = -1
    leader_epoch: int = -1
    end_offset: int = -1
    error_code: int = 0


class Topic(NamedTuple):
    """A topic in such a response."""

    partitions: list[Entry]


class Response(NamedTuple):
    """A response with one partition."""

    topics: list[Topic]


class Peers:
    """A leader that answers by timestamp, and by leader epoch (negative: an error)."""

    def __init__(self, offsets: dict[int, Entry], epochs: dict[int, Entry]) -> None:
        self.offsets, self.epochs = offsets, epochs

    async def request(self, leader_id: int, api_key: ApiKey, fields: dict[str, Any]) -> Response:
        assert leader_id == 1
        (asked,) = fields["topics"][0]["partitions"]
        assert asked["current_leader_epoch"] == 0
        if api_key is ApiKey.LIST_OFFSETS:
            entry = self.offsets.get(asked["timestamp"])
        else:
            entry = self.epochs.get(asked["leader_epoch"])
        if entry is None:
            raise ClientError("the leader is away")
        return Response([Topic([entry])])


class Store:
    """The object store; `asked` has (offset, leader epoch) of each question."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, int]] = []

    async def fetch_state_behind(
        self, _partition: Partition, offset: int, leader_epoch: int
    ) -> RebuiltState:
        self.asked.append((offset, leader_epoch))
        return STATE


def asked_of_store(
    offsets: dict[int, Entry], epochs: dict[int, Entry], *, from_last_tiered: bool = False
) -> list[tuple[int, int]]:
    store, peers = Store(), Peers({-2: Entry(5, 0)} | offsets, epochs)
    follower = partition(2, open_log(MemoryStorage(), CONFIG))
    leader: Any = LeaderOffsets(peers, 2, 1, follower)  # type: ignore[arg-type]
    found = asyncio.run(leader.rebuild(store, from_last_tiered=from_last_tiered))
    assert found == (STATE if store.asked else None, 5)
    return store.asked


@pytest.mark.parametrize(
    ("epochs", "expected"),
    [
        ({3: Entry(leader_epoch=2, end_offset=90)}, 2),
        ({3: Entry(leader_epoch=3, end_offset=90)}, 3),
        ({3: Entry(leader_epoch=2, end_offset=89)}, 4),
        ({3: Entry()}, 4),
    ],
)
def test_the_leader_epoch_of_the_last_remote_record(
    epochs: dict[int, Entry], expected: int
) -> None:
    """As in Kafka's TierStateMachine: with epoch 4 from offset 90 on, offset 89 is in the epoch
    that the leader returns for 3, unless that one ends before."""
    assert asked_of_store({-4: Entry(90, 4)}, epochs) == [(89, expected)]


def test_the_first_leader_epoch_has_no_earlier_one() -> None:
    assert asked_of_store({-4: Entry(90, 0)}, {}) == [(89, 0)]


def test_where_a_follower_begins() -> None:
    both = {-4: Entry(90, 0), -6: Entry(120, 0)}
    assert asked_of_store(both, {}) == [(89, 0)]
    assert asked_of_store(both, {}, from_last_tiered=True) == [(119, 0)]
    # The leader has all records on its disk, or nothing is copied yet.
    assert asked_of_store({-4: Entry(5, 0)}, {}) == []
    assert asked_of_store({-6: Entry(5, 0)}, {}, from_last_tiered=True) == []


def test_a_leader_that_does_not_know_its_remote_segments() -> None:
    with pytest.raises(RemoteUnavailable, match="has not read the metadata"):
        asked_of_store({-6: Entry(-1, -1)}, {}, from_last_tiered=True)
    fenced = Entry(error_code=ErrorCode.fenced_leader_epoch)
    with pytest.raises(LeaderRefused, match="fenced_leader_epoch"):
        asked_of_store({-4: fenced}, {})
    with pytest.raises(ClientError):
        asked_of_store({}, {})
