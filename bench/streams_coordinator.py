"""The coordinator of a streams group with 500 members and 5,000 tasks: pauses and CPU.

`python bench/streams_coordinator.py [MEMBERS] [TASKS]`. The broker runs in this process, and a
connection without a socket sends it the heartbeats of all members, so that no client is measured. A
pause is the CPU time of one turn of the event loop. Members join, and then one after the other
leaves: each leave needs a new assignment.

The last line is JSON: `heartbeat_cpu_ms` the median CPU time of a heartbeat that changes nothing,
`assignment_cpu_ms` that of the first assignment, all turns together, and `pause_ms` the longest
turn of all assignments.
"""

from __future__ import annotations

import asyncio
import statistics
from typing import TYPE_CHECKING, Any
from uuid import UUID

import uvloop
from in_flight import Client, Turns, main
from shoal.protocol.api import ApiKey

if TYPE_CHECKING:
    from shoal.coordinator.group.streams.streams_group import StreamsGroup
    from shoal.server.broker import Broker

GROUP, TOPIC, SUBTOPOLOGIES = "large", "large-in", 10
LEAVES, BEATS = 9, 3
#: Turns below this are idle ones.
IDLE_MS = 0.3
LISTS = (
    "source_topic_regex",
    "state_changelog_topics",
    "repartition_sink_topics",
    "repartition_source_topics",
    "copartition_groups",
)


class WorkingTurns(Turns):
    """Turns with their sum: those in which the coordinator works."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self.work_ms = 0.0

    def watch(self) -> None:
        self.work_ms = 0.0
        super().watch()

    def noted(self, took_ms: float) -> None:
        if took_ms >= IDLE_MS:
            self.work_ms += took_ms


class Members:
    """The members of the group. Two of them belong to each process."""

    def __init__(self, client: Client, count: int) -> None:
        self._client = client
        self.epochs = {str(UUID(int=n * 7919 << 64)): 0 for n in range(count)}
        self._process_of = {
            m: str(UUID(int=n // 2 * 104_729 << 64)) for n, m in enumerate(self.epochs)
        }
        self.tasks: dict[str, Any] = dict.fromkeys(self.epochs, ())

    async def beat(self, member: str, *, full: bool = True) -> None:
        """Send a heartbeat. The member takes and revokes tasks at once. Unless it is `full`, the
        heartbeat has no tasks: nothing has changed."""
        joins = self.epochs[member] == 0
        body = {
            "group_id": GROUP,
            "member_id": member,
            "member_epoch": self.epochs[member],
            "rebalance_timeout_ms": 60_000 if joins else -1,
            "topology": topology() if joins else None,
            "process_id": self._process_of[member] if joins else None,
            "active_tasks": self.tasks[member] if full else None,
            "standby_tasks": () if full else None,
            "warmup_tasks": () if full else None,
            **dict.fromkeys(("client_tags", "task_offsets", "task_end_offsets")),
        }
        answer = await self._client.call(ApiKey.STREAMS_GROUP_HEARTBEAT, 0, body)
        assert not answer.error_code, answer
        self.epochs[member] = answer.member_epoch
        if answer.active_tasks is not None:
            self.tasks[member] = [
                {"subtopology_id": t.subtopology_id, "partitions": t.partitions}
                for t in answer.active_tasks
            ]

    async def leave(self, member: str) -> None:
        body = {
            "group_id": GROUP,
            "member_id": member,
            "member_epoch": -1,
            **dict.fromkeys(("topology", "active_tasks", "standby_tasks", "warmup_tasks")),
            **dict.fromkeys(("client_tags", "task_offsets", "task_end_offsets", "process_id")),
        }
        answer = await self._client.call(ApiKey.STREAMS_GROUP_HEARTBEAT, 0, body)
        assert not answer.error_code, answer
        del self.epochs[member], self.tasks[member]


def topology() -> dict[str, Any]:
    return {
        "epoch": 0,
        "subtopologies": [
            {"subtopology_id": str(n), "source_topics": [TOPIC], **dict.fromkeys(LISTS, ())}
            for n in range(SUBTOPOLOGIES)
        ],
    }


def group_of(broker: Broker) -> StreamsGroup:
    for _, shard in broker.groups.get_shards():
        found: Any = shard.context.groups.get(GROUP)
        if found is not None:
            group: StreamsGroup = found
            return group
    raise AssertionError("the group does not exist")


async def run(broker: Broker, members: int, tasks: int) -> dict[str, float]:
    turns = WorkingTurns(asyncio.get_running_loop())
    client = Client(broker, turns, GROUP)
    partitions = tasks // SUBTOPOLOGIES
    wanted = {"name": TOPIC, "num_partitions": partitions, "replication_factor": 1}
    await client.call(ApiKey.CREATE_TOPICS, 7, {"timeout_ms": 60_000, "topics": [wanted]})
    group = Members(client, members)
    for member in group.epochs:
        await group.beat(member)
    pauses, sums = [], []
    for number in range(LEAVES + 1):
        if number:
            leaving = next(iter(group.epochs))
            await group.leave(leaving)
            await group.beat(next(iter(group.epochs)))
        found = group_of(broker)
        turns.watch()
        while found.assignment_epoch < found.epoch:
            await asyncio.sleep(0)
        turns.report(f"assignment {number} of {members} members, {turns.work_ms:.1f} ms in all")
        sums.append(turns.work_ms)
        pauses.append(turns.longest_ms[-1])
        for _ in range(3):
            for member in list(group.epochs):
                await group.beat(member)
    owned = sum(len(t["partitions"]) for some in group.tasks.values() for t in some)
    assert owned == partitions * SUBTOPOLOGIES, owned
    costs = []
    for _ in range(BEATS):
        for member in group.epochs:
            before = client.cpu_ns
            await group.beat(member, full=False)
            costs.append((client.cpu_ns - before) / 1e6)
    return {
        "heartbeat_cpu_ms": statistics.median(costs),
        "assignment_cpu_ms": sums[0],
        "pause_ms": max(pauses),
    }


if __name__ == "__main__":
    uvloop.run(main(run, "500", "5000"))
