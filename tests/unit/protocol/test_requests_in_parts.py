"""Brokers send one another no request that is too large to be admitted."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from shoal.log.config import LogConfig
from shoal.log.memory import MemoryStorage
from shoal.protocol.api import ApiKey
from shoal.protocol.codec import find_max_entries
from shoal.protocol.errors import ErrorCode
from shoal.replication import replica_fetcher
from shoal.replication.partition import Partition
from shoal.replication.replica_fetcher import FetchSessionResponse, ReplicaFetcher
from shoal.server.coordinators import transaction_markers
from shoal.server.coordinators.transaction_markers import TransactionMarkerChannel
from shoal.transaction.shard import WriteMarkers
from support.runs.conditions import eventually_async
from support.storage.log_material import open_log

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

COUNT = 5


def follow(fetcher: ReplicaFetcher, number: int) -> Partition:
    log = open_log(MemoryStorage(), LogConfig())
    partition = Partition(
        f"t{number}",
        UUID(int=number + 1),
        0,
        log,
        node_id=2,
        leader_id=1,
        leader_epoch=0,
        isr=(1,),
        replicas=(1, 2),
    )
    fetcher.follow(partition)
    return partition


def test_a_follower_adds_its_partitions_to_the_session_in_parts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(replica_fetcher, "PARTITIONS_MAX", 2)
    fetcher = ReplicaFetcher(1)
    partitions = [follow(fetcher, number) for number in range(COUNT)]
    asked = []
    for epoch in range(4):
        request = fetcher.build_next_fetch(0)
        assert request is not None
        assert (request.session_id, request.session_epoch) == ((7, epoch) if epoch else (0, 0))
        asked.append([key[0].int - 1 for key, _ in request.partitions])
        fetcher.complete_fetch(FetchSessionResponse(ErrorCode.none, 7, {}), 0)
    assert asked == [[0, 1], [2, 3], [4], []]
    for partition in partitions[:-1]:
        fetcher.forget(partition)
    request = fetcher.build_next_fetch(0)
    assert request is not None
    # A new session has one partition, and forgets none.
    assert (request.session_id, len(request.partitions), request.forgotten) == (0, 1, [])


class Written(NamedTuple):
    partition_index: int = 0
    error_code: int = 0


class WrittenTopic(NamedTuple):
    name: str
    partitions: tuple[Written, ...] = (Written(),)


class WrittenMarker(NamedTuple):
    topics: list[WrittenTopic]


class Answer(NamedTuple):
    markers: list[WrittenMarker]


class OtherBroker:
    """Leads all partitions, and writes every marker. It is the channel's image and peers, too."""

    leader = 2

    def __init__(self) -> None:
        self.sent: list[list[str]] = []
        self.image = self

    def find_partition(self, _topic: str, _index: int) -> OtherBroker:
        return self

    async def request(
        self, _broker_id: int, _api_key: ApiKey, fields: Any, *, timeout_ms: int | None = None
    ) -> Answer:
        del timeout_ms
        (marker,) = fields["markers"]
        self.sent.append([topic["name"] for topic in marker["topics"]])
        return Answer([WrittenMarker([WrittenTopic(name) for name in self.sent[-1]])])


class ThisBroker:
    """A node whose clock stands still, and whose timers call at once. It leads nothing."""

    id = 1

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.clock = self.timers = self

    def now_ms(self) -> int:
        return 0

    def call_at(self, _due_ms: int, call: Callable[[], None]) -> None:
        self.loop.call_soon(call)


def test_markers_for_another_broker_are_sent_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction_markers, "PARTITIONS_MAX", 2)
    completed: list[WriteMarkers] = []

    async def scenario() -> list[list[str]]:
        here: Any = ThisBroker()
        there: Any = OtherBroker()
        channel = TransactionMarkerChannel(
            here,
            there,
            here,
            purgatory=here,
            peers=there,
            groups=here,
            coordinator_epoch=lambda _markers: 0,
            completed=completed.append,
        )
        partitions = tuple((f"t{number}", 0) for number in range(COUNT))
        channel.write(WriteMarkers("x", 1, 0, True, partitions, 2))
        await eventually_async(lambda: completed)
        sent: list[list[str]] = there.sent
        return sent

    assert asyncio.run(scenario()) == [["t0", "t1"], ["t2", "t3"], ["t4"]]


def test_what_brokers_send_at_most_is_admitted() -> None:
    """A partition of a topic with one partition is two entries; a marker is one more."""
    fetched = 4 * replica_fetcher.PARTITIONS_MAX  # As many removed as added.
    assert fetched <= find_max_entries(ApiKey.FETCH)
    markers = 1 + 2 * transaction_markers.PARTITIONS_MAX
    assert markers <= find_max_entries(ApiKey.WRITE_TXN_MARKERS)
    window = 10_000  # The largest group.share.partition.max.record.locks.
    assert 2 + 2 * window <= find_max_entries(ApiKey.WRITE_SHARE_GROUP_STATE)
