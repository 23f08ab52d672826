"""AlterPartition requests of a leader: batched, applied, and retried."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

import pytest
from shoal.log.config import LogConfig
from shoal.log.log import Log
from shoal.log.memory import MemoryStorage
from shoal.metadata.delta import MetadataDelta
from shoal.metadata.image import BrokerImage, ImageScope, MetadataImage
from shoal.protocol.api import ApiKey
from shoal.protocol.errors import ApiError, ErrorCode
from shoal.replication.leadership import NOT_ELIGIBLE
from shoal.replication.partition import Partition
from shoal.server.config import resolve
from shoal.server.metadata_cache import MetadataCache
from shoal.server.node import Node
from shoal.server.replication.isr_changes import RETRY_BACKOFF_MS, IsrChanges

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

TOPIC_ID = UUID(int=9)


class PartitionResult(NamedTuple):
    partition_index: int
    error_code: ErrorCode
    isr: tuple[int, ...] = ()
    partition_epoch: int = -1


class TopicResult(NamedTuple):
    topic_id: UUID
    partitions: tuple[PartitionResult, ...]


class Response(NamedTuple):
    error_code: ErrorCode
    topics: tuple[TopicResult, ...] = ()


class Controller:
    """Records requests, and answers them as the test decides."""

    def __init__(self) -> None:
        self.requests: list[Mapping[str, Any]] = []
        self.respond: Callable[[Mapping[str, Any]], Response] = accepted

    async def request(
        self, api_key: ApiKey, fields: Mapping[str, Any], *, timeout_ms: int | None = None
    ) -> Response:
        assert api_key is ApiKey.ALTER_PARTITION
        assert timeout_ms
        self.requests.append(fields)
        return self.respond(fields)


def accepted(fields: Mapping[str, Any]) -> Response:
    """Accept every proposed ISR, in the next partition epoch."""
    return Response(
        ErrorCode.none,
        tuple(
            TopicResult(
                topic["topic_id"],
                tuple(
                    PartitionResult(
                        p["partition_index"],
                        ErrorCode.none,
                        tuple(member["broker_id"] for member in p["new_isr_with_epochs"]),
                        p["partition_epoch"] + 1,
                    )
                    for p in topic["partitions"]
                ),
            )
            for topic in fields["topics"]
        ),
    )


def unanswered(_fields: Mapping[str, Any]) -> Response:
    raise ApiError(ErrorCode.request_timed_out)


def refused(code: ErrorCode) -> Callable[[Mapping[str, Any]], Response]:
    return lambda fields: Response(
        ErrorCode.none, (TopicResult(TOPIC_ID, (PartitionResult(0, code),)),)
    )


class Leader:
    """Broker 1, which leads partitions with followers 2 and 3."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.node = Node(resolve({"node.id": "1"}, {}), loop)
        self.cache = MetadataCache(ImageScope(1, {}))
        brokers = {id: BrokerImage(id, None, 10 + id, (), {}, fenced=id == 3) for id in (1, 2, 3)}
        self.cache.publish(MetadataImage(scope=ImageScope(1, {}), brokers=brokers), MetadataDelta())
        self.controller = Controller()
        self.changes = IsrChanges(self.node, self.cache, self.controller)

    def partition(self, index: int) -> Partition:
        partition = Partition(
            "t",
            TOPIC_ID,
            index,
            Log.open(MemoryStorage(), f"t-{index}", LogConfig(), now_ms=0, clean=False),
            node_id=1,
            leader_id=1,
            leader_epoch=1,
            isr=(1, 2, 3),
            replicas=(1, 2, 3),
            alter_isr=self.changes.submit,
            broker_epoch_of=self.changes.get_broker_epoch,
        )
        partition.lag_time_max_ms = 0
        return partition

    def run(self, until: Callable[[], bool]) -> None:
        """Run the loop until the condition holds."""

        async def wait() -> None:
            async with asyncio.timeout(10):
                while not until():
                    await asyncio.sleep(0)

        self.loop.run_until_complete(wait())


@pytest.fixture
def leader() -> Iterator[Leader]:
    loop = asyncio.new_event_loop()
    leader = Leader(loop)
    yield leader
    leader.changes.stop()
    leader.node.timers.stop()
    leader.node.disk.close()
    loop.close()


def shrink(leader: Leader, *partitions: Partition) -> None:
    """Let both followers lag, so that the ISR shrinks to the leader."""
    for partition in partitions:
        partition.log.append_records([(b"k", b"v")], now_ms=0, leader_epoch=1)

    async def tick() -> None:
        for partition in partitions:
            partition.tick(leader.node.clock.now_ms())

    leader.loop.run_until_complete(tick())


def test_changes_of_one_turn_travel_in_one_request(leader: Leader) -> None:
    first, second = leader.partition(0), leader.partition(1)
    shrink(leader, first, second)
    leader.run(lambda: first.isr == second.isr == (1,))
    (request,) = leader.controller.requests
    assert (request["broker_id"], request["broker_epoch"]) == (1, 11)
    assert [p["partition_index"] for p in request["topics"][0]["partitions"]] == [0, 1]
    assert first.partition_epoch == 1


def test_a_change_without_an_answer_is_sent_again(leader: Leader) -> None:
    """The controller may have accepted it, so the same ISR is proposed."""
    leader.controller.respond = unanswered
    partition = leader.partition(0)
    shrink(leader, partition)
    leader.run(lambda: len(leader.controller.requests) == 1)
    began = leader.loop.time()
    leader.controller.respond = accepted
    leader.run(lambda: partition.isr == (1,))
    first, second = leader.controller.requests
    assert first == second
    assert leader.loop.time() - began >= RETRY_BACKOFF_MS / 1000 / 2


def test_a_stale_change_waits_for_the_image(leader: Leader) -> None:
    leader.controller.respond = refused(ErrorCode.fenced_leader_epoch)
    partition = leader.partition(0)
    shrink(leader, partition)
    leader.run(lambda: len(leader.controller.requests) == 1)
    assert partition.isr == (1, 2, 3)
    assert partition.leadership is not None
    assert partition.leadership.proposed is not None


def test_an_unsent_change_of_a_removed_partition_is_dropped(leader: Leader) -> None:
    kept, removed = leader.partition(0), leader.partition(1)

    async def remove() -> None:
        for partition in (kept, removed):
            partition.log.append_records([(b"k", b"v")], now_ms=0, leader_epoch=1)
            partition.tick(leader.node.clock.now_ms())
        leader.changes.discard(removed)

    leader.loop.run_until_complete(remove())
    leader.run(lambda: kept.isr == (1,))
    (request,) = leader.controller.requests
    assert [p["partition_index"] for p in request["topics"][0]["partitions"]] == [0]


def test_only_active_brokers_may_join_an_isr(leader: Leader) -> None:
    """KIP-841: a fenced broker is not eligible."""
    epochs = [leader.changes.get_broker_epoch(id) for id in (2, 3, 4)]
    assert epochs == [12, NOT_ELIGIBLE, NOT_ELIGIBLE]
