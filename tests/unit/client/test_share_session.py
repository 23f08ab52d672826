"""A member of a share group among several brokers, of which one is unreachable."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

import pytest
from shoal.client.errors import KafkaError, Unreachable
from shoal.client.share.member import (
    Acknowledgement,
    AcknowledgeType,
    RejectedAcknowledgement,
    ShareSession,
)
from shoal.protocol.api import ApiKey
from shoal.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Mapping

TOPIC_ID = UUID(int=7)

LOST = KafkaError(ErrorCode.leader_not_available, "no leader")


class AcquiredRange(NamedTuple):
    """A range of offsets in a ShareFetch response."""

    first_offset: int = 0
    last_offset: int = 0
    delivery_count: int = 1


class FetchedPartition(NamedTuple):
    """A partition with one acquired record in a ShareFetch response."""

    partition_index: int
    acknowledge_error_code: int = 0
    error_code: int = 0
    acquired_records: tuple[AcquiredRange, ...] = (AcquiredRange(),)
    records: bytes = b""


class FetchedTopic(NamedTuple):
    """A topic in a ShareFetch response."""

    partitions: tuple[FetchedPartition, ...]
    topic_id: UUID = TOPIC_ID


class ShareResponse(NamedTuple):
    """The fields that responses to ShareFetch and ShareAcknowledge have in common."""

    responses: tuple[FetchedTopic, ...] = ()
    error_code: int = 0
    acquisition_lock_timeout: timedelta = timedelta(seconds=30)


class Link:
    """An open connection to a broker that has one record for each fetch."""

    closed = False
    #: Whether acknowledgements, and so the end of a session, get no response.
    is_silent = False
    features: frozenset[str] = frozenset()

    def __init__(self, partition: int) -> None:
        self._partition = partition
        self.acknowledged: list[int] = []

    def close(self) -> None:
        self.closed = True

    def choose_version(self, api_key: int) -> int:
        return 2

    async def request(self, api_key: int, body: Any, *, timeout_ms: int = 0) -> ShareResponse:
        self.acknowledged += [
            batch["first_offset"]
            for topic in body["topics"]
            for partition in topic["partitions"]
            for batch in partition["acknowledgement_batches"]
        ]
        if api_key == ApiKey.SHARE_ACKNOWLEDGE:
            if self.is_silent:
                await asyncio.Event().wait()
            return ShareResponse()
        return ShareResponse((FetchedTopic((FetchedPartition(self._partition),)),))


class Topic(NamedTuple):
    """A topic in the metadata of a client."""

    topic_id: UUID = TOPIC_ID


class BrokerSettings(NamedTuple):
    """The settings of a client that a share session reads."""

    request_timeout_ms: int = 30_000


class Membership:
    """A member that has been assigned some partitions, and gets no others."""

    group, member_id = "g", "m"
    has_left = False

    def __init__(self, partitions: int) -> None:
        self.assignment: Mapping[UUID, tuple[int, ...]] = {TOPIC_ID: tuple(range(partitions))}

    def check(self) -> None:
        """The member has not failed."""

    async def leave(self) -> None:
        self.has_left = True

    async def wait_for_change(self, _timeout_s: float) -> bool:
        await asyncio.sleep(0)
        return False


class Brokers:
    """Broker n leads partition n, and is reachable once its event is set. `forgetful` names the
    lookup of topics that fails: `topic_name`, `topic` or `leader`."""

    settings = BrokerSettings()
    forgetful = ""

    def __init__(self, count: int) -> None:
        self.brokers = range(count)
        self.reachable = [asyncio.Event() for _ in range(count)]
        self.tried = [0] * count
        self.links: list[Link] = []

    async def get_connection(self, node_id: int, lane: str) -> Link:
        self.tried[node_id] += 1
        await self.reachable[node_id].wait()
        self.links.append(Link(node_id))
        return self.links[-1]

    def _remember(self, what: str) -> None:
        if self.forgetful == what:
            raise LOST

    async def get_topic_name(self, topic_id: UUID) -> str:
        self._remember("topic_name")
        return "jobs"

    async def get_topic(self, name: str) -> Topic:
        self._remember("topic")
        return Topic()

    async def find_leader(self, name: str, partition: int) -> int:
        self._remember("leader")
        return partition

    def forget_topic_id(self, topic_id: UUID) -> None:
        pass


class Moved(Brokers):
    """Broker 0 led the only partition and is gone; refreshed metadata names broker 1."""

    def __init__(self) -> None:
        super().__init__(2)
        self._leader = 0

    async def get_connection(self, node_id: int, lane: str) -> Link:
        if node_id == 0:
            self.tried[0] += 1
            raise Unreachable("no broker there")
        return await super().get_connection(node_id, lane)

    async def find_leader(self, name: str, partition: int) -> int:
        return self._leader

    def forget_topic_id(self, topic_id: UUID) -> None:
        assert topic_id == TOPIC_ID
        self._leader = 1


def session(brokers: Brokers, partitions: int = 0) -> ShareSession:
    membership = Membership(partitions or len(brokers.reachable))
    return ShareSession(brokers, membership)  # type: ignore[arg-type]


def test_records_of_one_broker_do_not_wait_for_another_that_is_not_reached() -> None:
    async def main() -> None:
        brokers = Brokers(2)
        brokers.reachable[0].set()
        member = session(brokers)
        for _ in range(2):
            async with asyncio.timeout(5):
                found = await member.acquire(max_wait_ms=10_000)
            assert [one.partition for one in found] == [0]
        brokers.reachable[1].set()
        assert sorted(one.partition for one in await member.acquire()) == [0, 1]
        assert brokers.tried == [1, 3]

    asyncio.run(main())


def test_a_close_that_is_cancelled_leaves_the_group() -> None:
    """Its heartbeats used to continue, and its partitions were assigned to nobody else."""

    async def main() -> None:
        brokers = Brokers(1)
        brokers.reachable[0].set()
        member = session(brokers)
        assert await member.acquire(max_wait_ms=10_000)
        (link,) = brokers.links
        link.is_silent = True
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(member.close(), 0.1)
        assert link.closed
        left = member.membership
        assert isinstance(left, Membership)
        assert left.has_left

    asyncio.run(main())


def test_a_lone_broker_is_waited_for() -> None:
    async def main() -> None:
        brokers = Brokers(1)
        found = asyncio.create_task(session(brokers).acquire(max_wait_ms=60_000))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(found), 0.4)
        brokers.reachable[0].set()
        assert (await found).count == 1
        assert brokers.tried == [1]

    asyncio.run(main())


async def with_a_record(brokers: Brokers) -> tuple[ShareSession, Acknowledgement]:
    """Return a member that has the first broker's record, and the acknowledgement that accepts
    it."""
    brokers.reachable[0].set()
    member = session(brokers)
    (one,) = await member.acquire()
    return member, Acknowledgement("jobs", one.partition, 0, 0, AcknowledgeType.ACCEPT)


@pytest.mark.parametrize("forgotten", ["topic_name", "topic", "leader"])
def test_an_acknowledgement_that_rides_along_is_sent_or_comes_back(forgotten: str) -> None:
    """Whatever the client lacks about the topic at that moment."""

    async def main() -> None:
        brokers = Brokers(1)
        member, accept = await with_a_record(brokers)
        brokers.forgetful = forgotten
        asyncio.get_running_loop().call_later(0.05, setattr, brokers, "forgetful", "")
        got = await member.acquire(acknowledgements=[accept], max_wait_ms=5_000)
        assert got.refusals == (RejectedAcknowledgement(accept, LOST),)
        brokers.forgetful = forgotten
        assert forgotten == "topic_name" or await member.acknowledge([accept]) == got.refusals

    asyncio.run(main())


@pytest.mark.parametrize("rides", [True, False])
def test_a_refusal_before_a_failed_request_is_reported_once(rides: bool) -> None:
    async def main() -> None:
        brokers = Brokers(1)
        member, accept = await with_a_record(brokers)
        brokers.forgetful = "topic"

        async def fails(*_: object, **__: object) -> None:
            raise Unreachable("no broker there")

        member.links[0].request = fails  # type: ignore[method-assign]
        if rides:
            got = await member.acquire(acknowledgements=[accept], max_wait_ms=0)
            assert got.refusals == (RejectedAcknowledgement(accept, LOST),)
        else:
            assert await member.acknowledge([accept]) == (RejectedAcknowledgement(accept, LOST),)

    asyncio.run(main())


def test_a_partition_that_is_taken_away_keeps_its_locks() -> None:
    """The member may still work on its records, so its session with that broker stays open."""

    async def main() -> None:
        brokers = Brokers(1)
        brokers.reachable[0].set()
        member = session(brokers)
        (one,) = await member.acquire()
        link: Any = member.links[0]
        member.membership.assignment = {}
        assert (await member.acquire(max_wait_ms=0)).count == 0
        assert await member.acknowledge(one.acknowledge(AcknowledgeType.ACCEPT)) == ()
        assert link.acknowledged == [0]

    asyncio.run(main())


def test_a_leader_that_is_gone_is_looked_up_again() -> None:
    """No other broker reports the new leader if the old one led all the member's partitions."""

    async def main() -> None:
        brokers = Moved()
        brokers.reachable[1].set()
        member = session(brokers, partitions=1)
        async with asyncio.timeout(5):
            assert (await member.acquire(max_wait_ms=4_000)).count == 1
        assert brokers.tried == [1, 1]

    asyncio.run(main())
