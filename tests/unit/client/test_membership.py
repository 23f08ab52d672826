"""The client's heartbeats: what it sends after a heartbeat without a response."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

import pytest
from shoal.client.consume.consumer import ConsumerMembership, GroupConsumer, IndividualCommit
from shoal.client.consume.fetcher import Isolation
from shoal.client.consume.start_offsets import Reset
from shoal.client.consume.whole_partitions import WholePartitions
from shoal.client.errors import ConnectionLost, KafkaError, is_transient
from shoal.client.net.cluster import BACKOFF_MS_MAX, Cluster, TopicPartition
from shoal.client.net.environment import HERE
from shoal.client.net.membership import LEAVE_MS, Membership
from shoal.client.settings import Settings
from shoal.client.share.member import ShareMembership
from shoal.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

TOPIC = UUID(int=7)


class AssignedTopic(NamedTuple):
    """A topic in the assignment of a heartbeat response."""

    partitions: list[int]
    topic_id: UUID = TOPIC


class Assignment(NamedTuple):
    """The assignment of a heartbeat response."""

    topic_partitions: list[AssignedTopic]


class HeartbeatResponse(NamedTuple):
    """The fields of the heartbeat responses of consumer groups and share groups."""

    error_code: int
    assignment: Assignment | None
    error_message: str | None = None
    member_epoch: int = 1
    member_id: str = "m"
    heartbeat_interval: timedelta = timedelta(seconds=5)


class CommitResponse(NamedTuple):
    """A response to OffsetCommit that names no topics."""

    topics: tuple[()] = ()


class Link:
    """A connection to the group's coordinator."""

    def __init__(self, bodies: list[Mapping[str, Any]]) -> None:
        self._bodies = bodies

    def choose_version(self, api_key: int, most: int) -> int:
        return most

    async def request(
        self, api_key: int, body: Mapping[str, Any], *, version: int
    ) -> CommitResponse:
        self._bodies.append(body)
        return CommitResponse()


class _Cluster:
    """Takes heartbeats, and drops the responses that the test wants lost."""

    def __init__(self) -> None:
        self.settings = Settings(())
        self.bodies: list[Mapping[str, Any]] = []
        self.lost = False
        #: Errors of the next responses, and how often a coordinator was found to be the wrong one.
        self.refusals: list[ErrorCode] = []
        self.forgotten = 0
        #: The longest pause between tries that a caller requested.
        self.pause_ms_max = 0
        #: The partitions that the next response assigns.
        self.assigned: list[int] | None = None
        #: Called while a connection is made.
        self.meanwhile: Callable[[], None] = lambda: None
        #: Called with each request that was sent; its response comes after the call.
        self.sent: Callable[[], Awaitable[None]] | None = None

    async def warn_of_missing_topics(self, names: Sequence[str], group: str) -> None: ...

    def now(self) -> float:
        return 0.0

    async def find_coordinator(self, group: str) -> int:
        return 1

    async def get_connection(self, node: int, lane: str) -> Link:
        self.meanwhile()
        return Link(self.bodies)

    async def retry(
        self,
        attempt: Callable[[], Awaitable[Any]],
        _timeout_ms: int | None = None,
        *,
        pause_ms_max: int = BACKOFF_MS_MAX,
    ) -> Any:
        self.pause_ms_max = pause_ms_max
        while True:
            try:
                return await attempt()
            except KafkaError as error:
                if not is_transient(error):
                    raise

    environment = HERE
    request_coordinator = Cluster.request_coordinator
    backoff = Cluster.make_backoff

    def forget_coordinator(self, group: str) -> None:
        self.forgotten += 1

    async def request(
        self, node: int, key: int, body: Mapping[str, Any], *, lane: str
    ) -> HeartbeatResponse:
        self.bodies.append(body)
        if self.sent is not None:
            await self.sent()
        if self.lost:
            raise ConnectionLost("the connection broke")
        assignment = None
        if self.assigned is not None:
            assignment, self.assigned = Assignment([AssignedTopic(self.assigned)]), None
        code = self.refusals.pop(0) if self.refusals else 0
        return HeartbeatResponse(code, assignment)


def _member(kind: str, cluster: Any) -> Membership:
    if kind == "consumer":
        return ConsumerMembership(cluster, "g", ["t"])
    return ShareMembership(cluster, "g", ["t"], None)


@pytest.mark.parametrize("kind", ["consumer", "share"])
def test_a_heartbeat_after_one_without_a_response_is_complete(kind: str) -> None:
    """Found by the cluster simulation: the lost response had a new assignment. A coordinator sends
    that once, or to a member whose heartbeat is complete (KIP-848, KIP-932)."""

    async def main() -> list[bool]:
        cluster: Any = _Cluster()
        member = _member(kind, cluster)
        for lost in (False, False, True, False, False):
            cluster.lost = lost
            try:
                await member._beat()
            except ConnectionLost:
                assert lost
        if kind == "consumer":
            assert cluster.bodies[3]["rebalance_timeout_ms"] > 0
            assert cluster.bodies[3]["topic_partitions"] == []
        return [body["subscribed_topic_names"] is not None for body in cluster.bodies]

    assert asyncio.run(main()) == [True, False, False, True, False]


@pytest.mark.parametrize("kind", ["consumer", "share"])
def test_a_member_leaves_though_its_coordinator_has_moved(kind: str) -> None:
    """It used to leave once, at the last coordinator, and stayed a member for its session: for 45 s
    some partitions had no reader."""

    async def main() -> list[int]:
        cluster: Any = _Cluster()
        member = _member(kind, cluster)
        await member._beat()
        cluster.refusals = [ErrorCode.not_coordinator, ErrorCode.coordinator_load_in_progress]
        await member.leave()
        assert cluster.forgotten == 2
        assert member.member_epoch == 0
        assert 0 < cluster.pause_ms_max <= LEAVE_MS // 10, "a coordinator that comes late is found"
        # A member that was removed meanwhile has left.
        await member._beat()
        cluster.refusals = [ErrorCode.unknown_member_id]
        await member.leave()
        return [body["member_epoch"] for body in cluster.bodies]

    assert asyncio.run(main()) == [0, -1, -1, -1, 0, -1]


@pytest.mark.parametrize("kind", ["consumer", "share"])
def test_a_member_leaves_if_its_join_is_cancelled(kind: str) -> None:
    """The coordinator may have added it, and would keep it for its session."""

    async def main() -> list[int]:
        cluster: Any = _Cluster()
        joining = asyncio.create_task(_member(kind, cluster).join())

        async def cancel() -> None:
            cluster.sent = None
            joining.cancel()
            await asyncio.Event().wait()

        cluster.sent = cancel
        await asyncio.wait([joining])
        assert joining.cancelled()
        return [body["member_epoch"] for body in cluster.bodies]

    assert asyncio.run(main()) == [0, -1]


def test_a_consumer_that_cannot_be_made_leaves_its_group() -> None:
    """Its heartbeats used to continue, and its partitions had no reader."""

    async def main() -> list[int]:
        cluster: Any = _Cluster()

        def fail() -> None:
            raise ConnectionLost("the connection broke")

        cluster.meanwhile = fail
        with pytest.raises(ConnectionLost):
            await GroupConsumer.join(cluster, "g", ["t"], individual_commit=IndividualCommit())
        assert asyncio.all_tasks() == {asyncio.current_task()}
        return [body["member_epoch"] for body in cluster.bodies]

    assert asyncio.run(main()) == [0, -1]


def test_an_assignment_that_was_taken_back_is_confirmed() -> None:
    """A member that was assigned a partition and then not owned the same partitions all along, and
    reported nothing. The coordinator waited for its confirmation, and the partition had no reader
    for the rebalance timeout, a minute."""

    async def main() -> list[Any]:
        cluster: Any = _Cluster()
        member = ConsumerMembership(cluster, "g", ["t"])
        for assigned in ([0], None, [0, 1], [0], None, None):
            cluster.assigned = assigned
            await member._beat()
            if assigned == [0]:
                member.owned = dict(member.assignment)
        return [body["topic_partitions"] for body in cluster.bodies]

    owned = [{"topic_id": TOPIC, "partitions": (0,)}]
    assert asyncio.run(main()) == [[], owned, None, None, owned, None]


@pytest.mark.parametrize("when", ["never", "before", "meanwhile"])
def test_a_removed_member_commits_nothing_of_its_old_partitions(when: str) -> None:
    """It has joined again by then, and the broker accepts its commits under its new epoch. Such a
    commit moved back the position in a partition that another member had begun to read."""

    async def main() -> list[Any]:
        cluster: Any = _Cluster()
        member = ConsumerMembership(cluster, "g", ["t"])
        partitions = WholePartitions(
            cluster, member, reset=Reset.EARLIEST, isolation=Isolation.READ_UNCOMMITTED
        )
        consumer = GroupConsumer(cluster, member, partitions)
        partitions.next_offsets[TopicPartition("t", 0)] = 5
        if when == "before":
            member._on_fenced()
        elif when == "meanwhile":
            cluster.meanwhile = member._on_fenced
        try:
            await consumer.commit()
        except KafkaError as error:
            if error.code != ErrorCode.fenced_member_epoch:
                raise
            assert when != "never"
        return cluster.bodies

    assert len(asyncio.run(main())) == (when == "never")
