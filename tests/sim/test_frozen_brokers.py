"""Clients of a cluster of which one broker stands still: its process is stopped, and its
connections stay open. The clients continue with the other brokers."""

from __future__ import annotations

import asyncio
from itertools import count
from typing import TYPE_CHECKING

import pytest
from shoal.client.admin.configs import ConfigChange, ConfigResource, ConfigResourceType
from shoal.client.client import Client
from shoal.client.errors import expect
from shoal.client.net.cluster import PATIENCE_S
from shoal.client.share.member import (
    LATE_S,
    LONG_POLL_MS_MAX,
    SETTLED_AT,
    WAITED_MAX,
    AcknowledgeType,
)
from shoal.log.uuids import format_uuid
from shoal.protocol.api import ApiKey
from sim.cluster_brokers import CONFIGS
from sim.cluster_clients import wait
from sim.scenes import Asked, Scene, scene
from sim.test_scenes import FOUND_S, GROUP, SHARE, SOON_S

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from shoal.client.produce.producer import Producer
    from shoal.client.share.member import AcquiredRecords, RejectedAcknowledgement, ShareSession

#: A member's round that one of its brokers does not answer.
ROUND_S = LONG_POLL_MS_MAX / 1000 + LATE_S + SOON_S
SESSION_S = int(CONFIGS["broker.session.timeout.ms"]) / 1000


def test_metadata_comes_from_another_broker_if_the_last_one_freezes() -> None:
    """The client asked the broker that had answered before, and waited for 30 s."""
    with scene() as cluster:
        took_s: list[float] = []

        async def look() -> None:
            async with cluster.client() as client:
                await client.cluster.refresh(())
                link = await client.cluster.get_any_connection()
                frozen = next(
                    b.node_id
                    for b in client.cluster.brokers.values()
                    if (b.host, b.port) == link.address
                )
                cluster.cluster.brokers[frozen].pause()
                for _ in range(2):
                    began_s = cluster.kernel.now
                    await client.cluster.refresh(())
                    took_s.append(cluster.kernel.now - began_s)

        Asked(cluster, look).result()
        assert took_s[0] < PATIENCE_S + SOON_S
        assert took_s[1] < SOON_S, "the frozen broker is the last choice"


def test_a_write_whose_caller_is_cancelled_is_not_sent_afterwards() -> None:
    with scene() as cluster:
        frozen = cluster.cluster.brokers[1]
        new = {"name": "work", "num_partitions": 1, "replication_factor": 3}
        topics = [new | {"assignments": (), "configs": ()}]
        body = {"topics": topics, "timeout_ms": 10_000, "validate_only": False}

        async def create() -> None:
            async with Client(cluster.settings(1), frozen.environment()) as client:
                frozen.pause()
                asking = asyncio.ensure_future(client.cluster.ask(ApiKey.CREATE_TOPICS, body))
                await wait(1)
                asking.cancel()
                frozen.resume()
                await wait(1)

        Asked(cluster, create).result()
        assert all("work" not in broker.image.topics for _, broker in cluster.cluster.running())


class Team:
    """A share group of one member that consumes two topics. Broker `frozen` leads one of them, and
    is neither the controller nor a coordinator of the group."""

    def __init__(self, cluster: Scene) -> None:
        self.cluster = cluster
        controller = int(cluster.controller().id)
        self.frozen, self.other = (id for id in cluster.cluster.brokers if id != controller)
        self.ids = {
            "frozen": cluster.make_topic("frozen", (self.frozen, controller, self.other)),
            "other": cluster.make_topic("other", (self.other, self.frozen, controller)),
        }
        self.group = next(filter(self._is_elsewhere, map("group-{}".format, count())))

    def _is_elsewhere(self, group: str) -> bool:
        keys = [
            (group, GROUP),
            *((f"{group}:{format_uuid(id)}:0", SHARE) for id in self.ids.values()),
        ]
        return self.frozen not in {self.cluster.coordinator(*key, self.other) for key in keys}

    def freeze(self) -> None:
        self.cluster.cluster.brokers[self.frozen].pause()

    def thaw(self) -> None:
        self.cluster.cluster.brokers[self.frozen].resume()

    def now(self) -> float:
        return self.cluster.kernel.now

    def runs(self, work: Callable[[Member], Awaitable[None]]) -> None:
        """Run a member that has consumed a record of each topic."""
        run_member(self.cluster, self.group, list(self.ids), work)


def run_member(
    cluster: Scene, group: str, topics: list[str], work: Callable[[Member], Awaitable[None]]
) -> None:
    """Run a member of a group that has consumed a record of each of these topics."""
    changes = [ConfigChange("share.auto.offset.reset", "earliest")]
    resource = ConfigResource(ConfigResourceType.GROUP, group)

    async def run() -> None:
        async with cluster.client() as client, client.producer() as producer:
            expect(await client.admin.configs.alter({resource: changes}))
            async with await client.share(group, topics) as session:
                member = Member(session, producer)
                for topic in topics:
                    await member.produce(topic)
                await member.consume(set(topics))
                await work(member)

    Asked(cluster, run).result()


class Member:
    def __init__(self, session: ShareSession, producer: Producer) -> None:
        self.session, self._producer = session, producer

    async def produce(self, topic: str) -> None:
        await (await self._producer.send(topic, b"value"))

    async def consume(self, topics: set[str]) -> list[AcquiredRecords]:
        """Accept a record of each of these topics, and return what was acquired."""
        found: list[AcquiredRecords] = []
        while {one.topic for one in found} != topics:
            got = await self.session.acquire(max_wait_ms=500)
            assert not await self.settle(got)
            found += got
        return found

    async def settle(
        self, acquired: Iterable[AcquiredRecords]
    ) -> tuple[RejectedAcknowledgement, ...]:
        acks = [a for one in acquired for a in one.acknowledge(AcknowledgeType.ACCEPT)]
        return await self.session.acknowledge(acks)


def test_records_of_other_leaders_do_not_wait_for_one_that_freezes() -> None:
    """A round ended with its last answer. The records of the other leaders waited for 30 s, until
    their locks had ended."""
    with scene() as cluster:
        team = Team(cluster)

        async def work(member: Member) -> None:
            team.freeze()
            for _ in range(3):
                await member.produce("other")
                began_s = team.now()
                await member.consume({"other"})
                took_s.append(team.now() - began_s)

        took_s: list[float] = []
        team.runs(work)
        assert took_s[0] < ROUND_S
        assert max(took_s[1:]) < SOON_S, "later rounds do not wait for a broker that is late"


def test_the_new_leader_of_a_frozen_broker_is_found_before_the_request_ends() -> None:
    """The member asked for leaders once its fetch had failed, after 30 s."""
    with scene() as cluster:
        team = Team(cluster)

        async def work(member: Member) -> None:
            await member.produce("frozen")
            team.freeze()
            began_s = team.now()
            await member.consume({"frozen"})
            took_s.append(team.now() - began_s)

        took_s: list[float] = []
        team.runs(work)
        assert took_s[0] < SESSION_S + FOUND_S


@pytest.mark.parametrize("late", [False, True], ids=["soon", "late"])
def test_a_late_answer_is_consumed_while_its_locks_are_fresh(late: bool) -> None:
    """The broker thaws, and answers while nobody acquires. Its records come with the next call, or
    are released if their locks have waited for long."""
    with scene() as cluster:
        team = Team(cluster)

        async def work(member: Member) -> None:
            session = member.session
            await member.produce("frozen")
            team.freeze()
            assert not (await session.acquire(max_wait_ms=100)).count
            assert session.late == {team.frozen}
            team.thaw()
            lock_ms = session.lock_timeout_ms
            wait_ms = lock_ms * WAITED_MAX * (1.5 if late else 0.5)
            await wait(wait_ms / 1000)
            got = await session.acquire(max_wait_ms=500)
            (one,) = got
            (record,) = one.ranges
            assert (one.topic, record.delivery_count) == ("frozen", 2 if late else 1)
            assert not session.late
            fresh_ms = lock_ms if late else lock_ms - wait_ms
            assert fresh_ms <= got.lock_timeout_ms < fresh_ms + 50
            assert not await member.settle(got)
            done.append(True)

        done: list[bool] = []
        team.runs(work)
        assert done


def test_the_only_broker_of_a_cluster_is_waited_for() -> None:
    """Nobody else has records. A call that ended without the answer left them locked, until the
    next call or the end of a long batch."""
    with scene(brokers=1) as cluster:
        ((id, broker),) = cluster.cluster.brokers.items()
        cluster.make_topic("jobs", (id,))

        async def work(member: Member) -> None:
            await member.produce("jobs")
            broker.pause()
            acquiring = asyncio.ensure_future(member.session.acquire(max_wait_ms=0))
            await wait(LATE_S * 3)
            assert not acquiring.done()
            broker.resume()
            assert (await acquiring).count == 1
            done.append(True)

        done: list[bool] = []
        run_member(cluster, "workers", ["jobs"], work)
        assert done


def test_acknowledgements_follow_a_late_answer() -> None:
    """A member holds a record of the broker that freezes, and its next fetch is late. Requests of
    one share session are sent one at a time: the acknowledgement waits, and succeeds."""
    with scene() as cluster:
        team = Team(cluster)

        async def work(member: Member) -> None:
            await member.produce("frozen")
            held = await member.session.acquire(max_wait_ms=500)
            assert held.count == 1
            team.freeze()
            assert not (await member.session.acquire(max_wait_ms=100)).count
            settling = asyncio.ensure_future(member.settle(held))
            await wait(1)
            assert not settling.done()
            team.thaw()
            assert not await settling
            done.append(True)

        done: list[bool] = []
        team.runs(work)
        assert done


@pytest.mark.parametrize("late", [False, True], ids=["settle", "settle-after-a-late-fetch"])
def test_locks_of_other_leaders_can_be_renewed_while_one_is_frozen(late: bool) -> None:
    """One call settles at all leaders. It waited for 30 s for the frozen one, and no renewal could
    be sent to the others until their locks had ended."""
    with scene(configs={"group.share.record.lock.duration.ms": "15000"}) as cluster:
        team = Team(cluster)

        async def work(member: Member) -> None:
            session = member.session
            held: list[AcquiredRecords] = []
            for topic in team.ids:
                await member.produce(topic)
            while len(held) < 2:
                held += await session.acquire(max_wait_ms=500)
            assert {one.topic for one in held} == set(team.ids)
            team.freeze()
            if late:
                assert not (await session.acquire(max_wait_ms=100)).count
            began_s = team.now()
            refusals = await member.settle(held)
            took_s.append(team.now() - began_s)
            assert [refusal.acknowledgement.topic for refusal in refusals] == ["frozen"]

        took_s: list[float] = []
        team.runs(work)
        assert took_s[0] < 15 * SETTLED_AT + SOON_S


def test_acknowledgements_that_a_fetch_carries_do_not_wait_longer() -> None:
    with scene(configs={"group.share.record.lock.duration.ms": "15000"}) as cluster:
        team = Team(cluster)

        async def work(member: Member) -> None:
            session = member.session
            await member.produce("frozen")
            held = await session.acquire(max_wait_ms=500)
            team.freeze()
            await member.produce("other")
            acks = [a for one in held for a in one.acknowledge(AcknowledgeType.ACCEPT)]
            began_s = team.now()
            got = await session.acquire(max_wait_ms=500, acknowledgements=acks)
            took_s.append(team.now() - began_s)
            assert [refusal.acknowledgement for refusal in got.refusals] == acks
            assert [one.topic for one in got] == ["other"]

        took_s: list[float] = []
        team.runs(work)
        assert took_s[0] < 15 * SETTLED_AT + ROUND_S
