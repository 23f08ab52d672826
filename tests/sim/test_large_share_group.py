"""A share group of thousands of members on a simulated cluster: joins, leaves, deaths, a failover.

At night the group is as large as `group.share.max.size` allows; CI runs a twentieth of that.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import pytest
from shoal.client.errors import ClientError
from shoal.client.net.connection import Connection, connect
from shoal.protocol.api import ApiKey
from shoal.protocol.errors import ErrorCode
from sim.cluster_clients import wait
from sim.scenes import Asked, Scene, scene

MOST = 10_000
PARTITIONS, CONNECTIONS, AT_A_TIME = 12, 10, 50
GROUP, TOPIC, CONSUMER_GROUPS = "crowd", "jobs", 0
ASSIGNMENT_INTERVAL_S = ROUND_S = 1.5
CONFIGS = {
    "group.share.max.size": str(MOST),
    "group.share.max.share.sessions": str(MOST),
    "group.share.heartbeat.interval.ms": "5000",
    "group.share.session.timeout.ms": "8000",
    "group.share.max.session.timeout.ms": "8000",
}
#: Errors that a member gets while its coordinator moves.
_MOVING = (
    ErrorCode.not_coordinator,
    ErrorCode.coordinator_not_available,
    ErrorCode.coordinator_load_in_progress,
)


@dataclass
class Member:
    member_id: str
    epoch: int = 0
    assigned: frozenset[int] = frozenset()
    #: It leaves with its next heartbeat; or it is dead and sends none.
    leaves: bool = False
    dead: bool = False


@dataclass
class Crowd:
    """Members that share a few connections and heartbeat periodically."""

    cluster: Scene
    members: dict[str, Member] = field(default_factory=dict)
    links: list[Connection] = field(default_factory=list)
    rounds: int = 0
    ends: bool = False
    errors: Counter[ErrorCode] = field(default_factory=Counter)

    async def run(self) -> None:
        while not self.ends:
            try:
                if not self.links:
                    await self._find()
                await self._round()
                self.rounds += 1
            except ClientError:
                self._close()
            await wait(ROUND_S)
        self._close()

    async def _find(self) -> None:
        """Connect to the group's coordinator, as any broker reports it."""
        fields = {"key_type": CONSUMER_GROUPS, "coordinator_keys": [GROUP]}
        for id in self.cluster.cluster.brokers:
            settings = self.cluster.settings(id)
            try:
                link = await connect(settings, settings.bootstrap[0])
                (row,) = (await link.request(ApiKey.FIND_COORDINATOR, fields)).coordinators
                link.close()
                if not row.error_code:
                    settings = self.cluster.settings(row.node_id)
                    for _ in range(CONNECTIONS):
                        self.links.append(await connect(settings, settings.bootstrap[0]))
                    return
            except ClientError:
                self._close()

    def _close(self) -> None:
        for link in self.links:
            link.close()
        self.links.clear()

    async def _round(self) -> None:
        """Send a heartbeat of every member."""
        alive = [member for member in self.members.values() if not member.dead]
        shares = [alive[n :: len(self.links)] for n in range(len(self.links))]
        await asyncio.gather(*map(self._some, self.links, shares))

    async def _some(self, link: Connection, members: list[Member]) -> None:
        for at in range(0, len(members), AT_A_TIME):
            some = members[at : at + AT_A_TIME]
            bodies = map(self._heartbeat, some)
            sent = (link.request(ApiKey.SHARE_GROUP_HEARTBEAT, body) for body in bodies)
            for member, answer in zip(some, await asyncio.gather(*sent), strict=True):
                self._answered(member, answer)

    def _heartbeat(self, member: Member) -> dict[str, Any]:
        joins = member.epoch == 0 and not member.leaves
        return {
            "group_id": GROUP,
            "member_id": member.member_id,
            "member_epoch": -1 if member.leaves else member.epoch,
            "subscribed_topic_names": [TOPIC] if joins else None,
        }

    def _answered(self, member: Member, answer: Any) -> None:
        if answer.error_code:
            self.errors[answer.error_code] += 1
            if answer.error_code not in _MOVING:
                member.epoch = 0
        elif member.leaves:
            del self.members[member.member_id]
        else:
            member.epoch = answer.member_epoch
            if answer.assignment is not None:
                topics = answer.assignment.topic_partitions
                member.assigned = frozenset(p for t in topics for p in t.partitions)

    # Actions of the test.

    def joins(self, count: int) -> None:
        for _ in range(count):
            member_id = str(UUID(int=self.cluster.kernel.random.getrandbits(128)))
            self.members[member_id] = Member(member_id)

    def goes_round(self, times: int = 1) -> None:
        end = self.rounds + times
        self.cluster.until(lambda: self.rounds >= end, "a heartbeat of every member")

    def settles(self) -> None:
        """Wait until members read all partitions evenly and have the group's assignment."""
        alive = {m.member_id: m for m in self.members.values() if not m.dead}

        def settled() -> bool:
            sizes = Counter(len(m.assigned) for m in alive.values())
            readers = Counter(p for m in alive.values() for p in m.assigned)
            each = -(-len(alive) // PARTITIONS)
            return (
                all(m.epoch for m in alive.values())
                and sizes.keys() <= {1, 2}
                and readers == dict.fromkeys(range(PARTITIONS), each)
            )

        # Gaps may be filled in a balanced way; the full assignment follows after the interval.
        for wait_s in (0.0, ASSIGNMENT_INTERVAL_S):
            self.cluster.passes(wait_s)
            self.cluster.until(settled, "balance")
        group = self._described()
        assert (group.group_state, group.group_epoch) == ("Stable", group.assignment_epoch)
        assert {m.member_id: _partitions(m.assignment) for m in group.members} == {
            m.member_id: m.assigned for m in alive.values()
        }

    def _described(self) -> Any:
        coordinator = self.cluster.coordinator(GROUP, CONSUMER_GROUPS, _running(self.cluster))
        fields = {"group_ids": [GROUP], "include_authorized_operations": False}
        (group,) = self.cluster.asked(coordinator, ApiKey.SHARE_GROUP_DESCRIBE, fields).groups
        return group


def _partitions(assignment: Any) -> frozenset[int]:
    return frozenset(p for t in assignment.topic_partitions for p in t.partitions)


def _running(cluster: Scene) -> int:
    return min(machine.id for machine, _ in cluster.cluster.running())


@pytest.mark.parametrize(
    "count", [200, pytest.param(MOST, marks=[pytest.mark.nightly, pytest.mark.timeout(3600)])]
)
def test_thousands_of_members_join_leave_die_and_survive_a_failover(count: int) -> None:
    with scene(configs=CONFIGS) as cluster:
        cluster.make_topic(TOPIC, [1, 2, 3], PARTITIONS)
        coordinator = cluster.coordinator(GROUP, CONSUMER_GROUPS)
        crowd = Crowd(cluster)
        crowd.joins(count)
        work = Asked(cluster, crowd.run)
        crowd.settles()

        for member in list(crowd.members.values())[: count // 5]:
            member.leaves = True
        crowd.goes_round(2)
        crowd.joins(count // 10)
        crowd.settles()
        assert not crowd.errors

        cluster.cluster.brokers[coordinator].crash()
        for member in list(crowd.members.values())[::10]:
            member.dead = True
        crowd.joins(count // 20)
        crowd.settles()
        assert crowd.errors.keys() <= {*_MOVING}, crowd.errors
        crowd.ends = True
        work.result()
