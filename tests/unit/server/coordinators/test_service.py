"""The coordinators' services without a broker; fakes implement the ports of their collaborators."""

from __future__ import annotations

import asyncio
import gc
import weakref
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

import pytest
import uvloop
from shoal.client.errors import Unreachable
from shoal.coordinator.contract import CoordinatorResult, Reply, Token
from shoal.coordinator.group.consumer import membership as consumer_membership
from shoal.coordinator.group.groups import GroupType
from shoal.coordinator.group.modern.membership import LEAVE_EPOCH
from shoal.coordinator.group.offsets.offsets import TOMBSTONES_MAX
from shoal.coordinator.group.offsets.requests import CommitRequest, PartitionCommit, TopicCommit
from shoal.coordinator.group.share import membership as share_membership
from shoal.log.config import LogConfig
from shoal.log.log import Log
from shoal.log.memory import MemoryStorage
from shoal.metadata.delta import MetadataDelta
from shoal.metadata.image import (
    BrokerImage,
    ConfigResourceType,
    ImageScope,
    MetadataImage,
    PartitionImage,
    TopicImage,
)
from shoal.protocol.errors import ApiError, ErrorCode
from shoal.replication.partition import Partition
from shoal.server import logs
from shoal.server.config import resolve
from shoal.server.coordinators.groups import TOPIC, GroupService
from shoal.server.coordinators.service import WAITING_STEP_S
from shoal.server.coordinators.transactions import TOPIC as TRANSACTIONS
from shoal.server.coordinators.transactions import TransactionService
from shoal.server.metadata_cache import MetadataCache
from shoal.server.metrics.registry import MetricRegistry
from shoal.server.network.purgatory import Purgatory
from shoal.server.node import Node
from shoal.transaction.shard import ProducerIdentity, WriteMarkers
from shoal.transaction.transactions import TV_2

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping

    from shoal.coordinator.group.shard import GroupShard
    from shoal.protocol.api import ApiKey
    from shoal.server.coordinators.service import InternalTopic
    from shoal.server.coordinators.transactions import Errors

NODE_ID = 1
TOPIC_ID = UUID(int=7)


def image(*names: str) -> MetadataImage:
    """Return metadata of topics with one partition each, which this node leads."""
    led = PartitionImage((NODE_ID,), (NODE_ID,), NODE_ID, 0, 0)
    topics = {name: TopicImage(name, TOPIC_ID, (led,)) for name in names}
    return MetadataImage(scope=ImageScope(NODE_ID), topics=topics)


def replica(topic: str) -> Partition:
    log = Log.open(
        MemoryStorage(), f"{topic}-0", LogConfig.from_settings({}), now_ms=1, clean=False
    )
    return Partition(
        topic,
        TOPIC_ID,
        0,
        log,
        node_id=NODE_ID,
        leader_id=NODE_ID,
        leader_epoch=0,
        isr=(NODE_ID,),
        replicas=(NODE_ID,),
    )


class Partitions:
    """The replicas of this node, by topic; each topic has one partition."""

    def __init__(self) -> None:
        self.by_topic: dict[str, Partition] = {}

    def find_by_name(self, topic: str, index: int) -> Partition | None:
        return self.by_topic.get(topic)


class Replicas:
    """Whether this node is cut off from its cluster."""

    def __init__(self) -> None:
        self.cut_off = False

    def is_cut_off(self, partition: Partition) -> bool:
        return self.cut_off


class ProducerIds:
    def take(self) -> int:
        return 0

    def wait_if_empty(self) -> asyncio.Future[Any] | None:
        return None


class Peers:
    """No other broker can be reached, but for `answers`, which requests wait for in turn."""

    def __init__(self) -> None:
        self.answers: list[asyncio.Future[Any]] = []

    async def request(
        self,
        broker_id: int,
        api_key: ApiKey,
        fields: Mapping[str, Any],
        *,
        timeout_ms: int | None = None,
    ) -> Any:
        if self.answers:
            return await self.answers.pop(0)
        raise Unreachable(f"broker {broker_id}")


class Coordinators:
    """Both services of one node, within a running loop."""

    def __init__(self) -> None:
        config = resolve({"node.id": str(NODE_ID)}, {})
        self.node = node = Node(config, asyncio.get_running_loop())
        self.cache = MetadataCache(ImageScope(NODE_ID))
        self.partitions, self.replicas, self.peers = Partitions(), Replicas(), Peers()
        #: The error of the next creations of a topic.
        self.refusal: ApiError | None = None
        self.created: list[str] = []
        shared = (
            node,
            self.cache,
            self.partitions,
            self.replicas,
            self.create_topic,
            MetricRegistry(),
        )
        self.groups = GroupService(*shared)
        self.transactions = TransactionService(
            *shared,
            groups=self.groups,
            producer_ids=ProducerIds(),
            peers=self.peers,
            purgatory=Purgatory(node.loop, node.timers),
        )

    async def create_topic(self, topic: InternalTopic) -> None:
        await asyncio.sleep(0)
        self.created.append(topic.name)
        if self.refusal is not None:
            raise self.refusal
        self.lead(topic.name)

    def lead(self, topic: str) -> None:
        """Publish metadata by which this node leads the topic's partition, and load it."""
        self.partitions.by_topic[topic] = replica(topic)
        self.cache.publish(image(topic), MetadataDelta())
        self.groups.start()
        self.transactions.start()

    def stop(self) -> None:
        self.node.timers.stop()
        self.node.disk.close()


def share_heartbeat(
    request: Any, shard: GroupShard, now_ms: int, token: Token
) -> CoordinatorResult:
    return shard.share.heartbeat(request, now_ms, token)


def consumer_heartbeat(
    request: Any, shard: GroupShard, now_ms: int, token: Token
) -> CoordinatorResult:
    return shard.consumer.heartbeat(request, now_ms, token)


def echo(_shard: GroupShard, _now_ms: int, token: Token) -> CoordinatorResult:
    return CoordinatorResult((), (Reply(token, {"answered": True}),))


def run(test: Callable[[Coordinators], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        coordinators = Coordinators()
        try:
            await test(coordinators)
        finally:
            coordinators.stop()

    logs.configure(json=True, level="critical")
    uvloop.run(main())


def test_services_are_made_before_there_is_metadata() -> None:
    async def test(coordinators: Coordinators) -> None:
        coordinators.groups.start()
        coordinators.transactions.start()
        assert coordinators.groups.get_all_shards() == []
        with pytest.raises(ApiError) as refused:
            coordinators.transactions.find_coordinator("id")
        assert refused.value.code is ErrorCode.coordinator_not_available

    run(test)


def test_requests_wait_for_the_creation_of_the_topic() -> None:
    async def test(coordinators: Coordinators) -> None:
        first, second = (coordinators.groups.submit(id, echo) for id in "ab")
        assert coordinators.groups.queued == 2
        assert await first == await second == {"answered": True}
        assert coordinators.created == [TOPIC]

    run(test)


def test_requests_that_waited_are_decided_in_turns_and_before_those_that_come_meanwhile() -> None:
    async def test(coordinators: Coordinators) -> None:
        loop, events = asyncio.get_running_loop(), list[str]()

        def decide(name: str, shard: GroupShard, now_ms: int, token: Token) -> CoordinatorResult:
            if not events:
                loop.call_soon(come_meanwhile)
            events.append(name)
            end = loop.time() + WAITING_STEP_S / 2
            while loop.time() < end:
                pass  # A decision takes time.
            return echo(shard, now_ms, token)

        def come_meanwhile() -> None:
            events.append("another turn")
            replies.append(coordinators.groups.submit("g", partial(decide, "meanwhile")))

        names = [f"waited {number}" for number in range(5)]
        replies = [coordinators.groups.submit("g", partial(decide, name)) for name in names]
        for reply in replies:  # It grows meanwhile.
            await reply
        assert [event for event in events if event != "another turn"] == [*names, "meanwhile"]
        assert events.index("another turn") < events.index(names[-1])

    run(test)


def test_a_topic_that_cannot_be_created_refuses_the_requests_that_wait_for_it() -> None:
    async def test(coordinators: Coordinators) -> None:
        coordinators.refusal = ApiError(ErrorCode.invalid_replication_factor)
        for _ in range(2):
            with pytest.raises(ApiError) as refused:
                await coordinators.groups.submit("g", echo)
            assert refused.value.code is ErrorCode.coordinator_not_available
        assert coordinators.created == [TOPIC, TOPIC]

    run(test)


def test_a_broker_that_is_cut_off_is_no_coordinator() -> None:
    async def test(coordinators: Coordinators) -> None:
        coordinators.lead(TOPIC)
        assert await coordinators.groups.submit("g", echo) == {"answered": True}
        coordinators.replicas.cut_off = True
        assert coordinators.groups.is_stuck("g")
        with pytest.raises(ApiError) as refused:
            await coordinators.groups.submit("g", echo)
        assert refused.value.code is ErrorCode.not_coordinator

    run(test)


def coordinated_elsewhere() -> MetadataImage:
    """Return metadata by which broker 2 leads the topic of transactions."""
    led = PartitionImage((2,), (2,), 2, 0, 0)
    return MetadataImage(
        scope=ImageScope(NODE_ID),
        topics={TRANSACTIONS: TopicImage(TRANSACTIONS, TOPIC_ID, (led,))},
        brokers={id: BrokerImage(id, None, 1, (), {}, fenced=False) for id in (1, 2)},
    )


class Row(NamedTuple):
    partition_index: int
    partition_error_code: ErrorCode


class OfTopic(NamedTuple):
    name: str
    results_by_partition: list[Row]


class OfTransaction(NamedTuple):
    topic_results: list[OfTopic]


class Verified(NamedTuple):
    """The coordinator's response to AddPartitionsToTxn."""

    error_code: ErrorCode
    results_by_transaction: list[OfTransaction]


def verified(code: ErrorCode) -> Verified:
    """Return a coordinator's response about partition 0 of `work`."""
    return Verified(ErrorCode.none, [OfTransaction([OfTopic("work", [Row(0, code)])])])


def test_the_writes_of_a_producer_keep_their_order_while_they_are_enlisted() -> None:
    """The coordinator is asked again about the first write and has accepted the second by then. The
    log took the second first, and refused the first one for ever: a fatal error."""

    async def test(coordinators: Coordinators) -> None:
        new = asyncio.get_running_loop().create_future
        coordinators.cache.publish(coordinated_elsewhere(), MetadataDelta())
        first, second, again = coordinators.peers.answers = [new(), new(), new()]
        written: list[str] = []

        def enlist(name: str) -> None:
            coordinators.transactions.enlist(
                ProducerIdentity("t", 1, 0),
                [("work", 0)],
                implicit=False,
                callback=lambda errors: written.append(f"{name} {dict(errors)}"),
            )

        enlist("first")
        enlist("second")
        first.set_result(verified(ErrorCode.concurrent_transactions))
        second.set_result(verified(ErrorCode.none))
        async with asyncio.timeout(30):
            while coordinators.peers.answers:
                await asyncio.sleep(0)
        assert written == []
        again.set_result(verified(ErrorCode.none))
        async with asyncio.timeout(30):
            while len(written) < 2:
                await asyncio.sleep(0)
        assert written == ["first {}", "second {}"]

    run(test)


def test_a_write_that_cannot_be_enlisted_holds_up_no_other() -> None:
    async def test(coordinators: Coordinators) -> None:
        coordinators.cache.publish(coordinated_elsewhere(), MetadataDelta())
        broken: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        broken.set_exception(RuntimeError("a bug"))
        good: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        good.set_result(verified(ErrorCode.none))
        coordinators.peers.answers = [broken, good]
        found: list[Errors] = []
        for _ in range(2):
            coordinators.transactions.enlist(
                ProducerIdentity("t", 1, 0), [("work", 0)], implicit=False, callback=found.append
            )
        async with asyncio.timeout(30):
            while len(found) < 2:
                await asyncio.sleep(0)
        assert found == [{("work", 0): ErrorCode.unknown_server_error}, {}]

    run(test)


def test_a_write_learns_of_an_end_that_it_was_not_told_of() -> None:
    """The previous transaction ends between the coordinator's answer and the turn in which the
    write begins to wait. The write asks again soon, and not at the end of its patience."""
    id, work = "t", ("work", 0)
    patience = {"add.partitions.to.txn.retry.backoff.max.ms": "3600000"}

    async def test(coordinators: Coordinators) -> None:
        service = coordinators.transactions
        coordinators.lead(TRANSACTIONS)
        elsewhere = PartitionImage((2,), (2,), 2, 0, 0)
        known = coordinators.cache.image
        topics = {**known.topics, "work": TopicImage("work", UUID(int=8), (elsewhere,))}
        configs = {(ConfigResourceType.BROKER, ""): patience}
        coordinators.cache.publish(replace(known, topics=topics, configs=configs), MetadataDelta())
        # Broker 2 never answers that it has written the marker.
        coordinators.peers.answers = [asyncio.get_running_loop().create_future()]
        producer = await service.init_producer_id(id, 60_000, None)
        producer_id, epoch = producer["producer_id"], producer["producer_epoch"]
        found: list[Errors] = []

        def enlist(epoch: int) -> None:
            writer = ProducerIdentity(id, producer_id, epoch)
            service.enlist(writer, [work], implicit=True, callback=found.append)

        enlist(epoch)
        end = await service.end(
            ProducerIdentity(id, producer_id, epoch), committed=True, version=TV_2
        )
        enlist(end["producer_epoch"])
        assert found == [{}]
        markers = WriteMarkers(id, producer_id, end["producer_epoch"], True, (work,), TV_2)
        service.runtime.apply(0, lambda shard, now_ms: shard.complete(markers, now_ms), 1)
        async with asyncio.timeout(30):
            while len(found) < 2:
                await asyncio.sleep(0)
        assert found == [{}, {}]

    run(test)


def test_requests_wait_while_a_group_of_many_offsets_is_deleted() -> None:
    """A member that joined amid the deletion would find a part of the offsets."""

    async def test(coordinators: Coordinators) -> None:
        coordinators.lead(TOPIC)
        count = 2 * TOMBSTONES_MAX + 1
        rows = [PartitionCommit(p, 5, -1, None) for p in range(count)]
        request = CommitRequest("g", "", None, -1, [TopicCommit("t", None, rows)], 9)

        def read(shard: GroupShard, _now_ms: int, token: Token) -> CoordinatorResult:
            return CoordinatorResult((), (Reply(token, {"count": len(shard.offsets)}),))

        await coordinators.groups.submit(
            "g", lambda shard, now_ms, token: shard.offsets.commit(request, now_ms, token)
        )
        deletion = coordinators.groups.delete("g")
        readings = []
        while not deletion.done():
            readings.append(coordinators.groups.submit("g", read))
            await asyncio.sleep(0)
        assert deletion.result()["error_code"] is ErrorCode.none
        counts = [reading["count"] for reading in await asyncio.gather(*readings)]
        assert set(counts) == {count, 0}
        with pytest.raises(ApiError):
            await coordinators.groups.delete("g")

    run(test)


def test_only_share_groups_have_their_state_deleted_first() -> None:
    async def test(coordinators: Coordinators) -> None:
        deleted: list[str] = []

        async def delete(group_id: str) -> None:
            deleted.append(group_id)

        coordinators.lead(TOPIC)
        coordinators.groups.add_deletion_hook(GroupType.SHARE, delete)
        for epoch in (0, LEAVE_EPOCH):
            share = share_membership.ShareGroupHeartbeatRequest(
                "shared", "m", epoch, subscribed_topic_names=frozenset({"t"})
            )
            await coordinators.groups.submit(
                "shared",
                partial(share_heartbeat, share),
            )
            consumer = consumer_membership.ConsumerGroupHeartbeatRequest(
                "consumed",
                "m",
                epoch,
                rebalance_timeout_ms=1_000,
                subscribed_topic_names=frozenset({"t"}),
                owned={},
            )
            await coordinators.groups.submit(
                "consumed",
                partial(consumer_heartbeat, consumer),
            )
        for group_id in ("consumed", "shared"):
            await coordinators.groups.delete(group_id)
        assert deleted == ["shared"]
        with pytest.raises(ApiError) as refused:
            await coordinators.groups.delete("shared")
        assert refused.value.code is ErrorCode.group_id_not_found

    run(test)


def test_a_class_of_effects_has_one_performer() -> None:
    async def test(coordinators: Coordinators) -> None:
        with pytest.raises(AssertionError):
            coordinators.transactions.on_effect(WriteMarkers, lambda markers: None)

    run(test)


def test_a_refused_request_is_freed_at_once() -> None:
    """With its traceback, the refusal was in a cycle with the reply, so that the memory of many
    refusals stayed until the collector ran."""

    def refuse(_shard: GroupShard, _now_ms: int, _token: Token) -> CoordinatorResult:
        raise ApiError(ErrorCode.group_id_not_found)

    async def test(coordinators: Coordinators) -> None:
        coordinators.lead(TOPIC)
        await coordinators.groups.submit("g", echo)
        gc.disable()
        try:
            reply = coordinators.groups.submit("g", refuse)
            assert isinstance(reply.exception(), ApiError)
            freed = weakref.ref(reply)
            del reply
            assert freed() is None
        finally:
            gc.enable()

    run(test)
