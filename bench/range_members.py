"""Members of a consumer group that share one partition by key ranges.

`working_members` has 5 ms of work for each record and compares eight members with a plain one.
`idle_members` has none: four members in processes of their own, a plain one, and four members of a
share group with key order, all with our client. Rates count from the first tenth of the records on.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import random
import time
import uuid
from typing import TYPE_CHECKING, Any

from key_range_balance import ranges_of, tile
from key_workers import KEYS, PLAIN_RECORDS, TIMEOUT_S, WORK_S, Progress, plain_rate
from load_checks import LoadFailed, Stall
from loads import check_processes
from range_readers import DIVIDED
from shoal.client.client import Client
from shoal.client.consume.consumer import GroupConsumer
from shoal.client.consume.start_offsets import Reset
from shoal.client.share.member import AcknowledgeType
from shoal.protocol.features import KEY_HASH_MAX

if TYPE_CHECKING:
    from collections.abc import Callable

    from brokers import Broker
    from load_checks import Sent
    from load_setup import Figures, Run

WORKING, RECORDS = 8, 20_000
IDLE, IDLE_KEYS, IDLE_RECORDS = 4, 10_000, 1_000_000
#: Between two commits of a member, in seconds.
COMMIT_S = 1.0
PLAIN, BY_KEY_RANGES, SHARING = "plain", "key ranges", "share"
#: What a member has done before there are records.
JOINED, WAITING = 1, 2
#: The largest part of the hashes of one of four members.
PART_MAX = (KEY_HASH_MAX + 1) // IDLE * 1.02


class Shared:
    """What the processes of members and the runner share."""

    def __init__(self, members: int) -> None:
        self.done = multiprocessing.Array("q", members)
        self.stages = multiprocessing.Array("q", members)
        #: All members have joined; there are records; there are no more.
        self.joined, self.begin, self.end = (multiprocessing.Event() for _ in range(3))

    async def wait(self, number: int) -> None:
        """Wait until there are records. The membership lasts meanwhile."""
        self.stages[number] = WAITING
        while not self.begin.is_set():
            await asyncio.sleep(0.01)


def working_members(_broker: Broker, run: Run, fill: Callable[..., Sent]) -> Figures:
    topic, count = run.topic(configs=DIVIDED), run.count(RECORDS)
    members = asyncio.run(_working(run, topic, count, fill))
    plain = asyncio.run(plain_rate(run.bootstrap, topic, run.count(PLAIN_RECORDS)))
    return {"members_per_s": members, "plain_per_s": plain, "ratio_to_plain": members / plain}


async def _working(run: Run, topic: str, count: int, fill: Callable[..., Sent]) -> float:
    """Return the rate of the members, which share the partition before it has records."""
    progress, done, rate = Progress(count), asyncio.Event(), 0.0
    group = f"bench-{uuid.uuid4().hex[:10]}"

    async def work(member: GroupConsumer) -> None:
        nonlocal rate
        committed_s = time.monotonic()
        while not done.is_set():
            for record in await member.poll(100):
                await asyncio.sleep(WORK_S)
                if progress.add(record):
                    rate = progress.rate()
                    done.set()
            if time.monotonic() > committed_s + COMMIT_S:
                await member.commit()
                committed_s = time.monotonic()

    clients = [Client(run.bootstrap) for _ in range(WORKING)]
    members = [
        await GroupConsumer.join(
            client.cluster, group, [topic], reset=Reset.EARLIEST, key_ranges=True
        )
        for client in clients
    ]
    async with asyncio.timeout(TIMEOUT_S), asyncio.TaskGroup() as tasks:
        for member in members:
            tasks.create_task(work(member))
        while not tile([ranges_of(member) for member in members]):
            await asyncio.sleep(0.05)
        keys = [2 * key for key in random.Random(1).choices(range(KEYS), k=count)]
        await asyncio.to_thread(fill, run, topic, keys, batch=100)
    for member, client in zip(members, clients, strict=True):
        await member.close()
        await client.close()
    return rate


def idle_members(_broker: Broker, run: Run, fill: Callable[..., Sent]) -> Figures:
    """10,000 keys, 100 B, one partition, no work."""
    found: Figures = {}
    names = {
        PLAIN: ("plain_per_s", 1),
        BY_KEY_RANGES: ("members_per_s", IDLE),
        SHARING: ("share_per_s", IDLE),
    }
    count = run.count(IDLE_RECORDS)
    for kind, (figure, members) in names.items():
        topic = run.topic(configs=DIVIDED)
        group = run.share_group() if kind == SHARING else f"bench-{uuid.uuid4().hex[:10]}"
        if kind == SHARING:
            run.configure_group(group, {"share.ordering": "key"})
        keys = [2 * key for key in random.Random(1).choices(range(IDLE_KEYS), k=count)]
        found[figure] = _together(run, kind, group, topic, members, count, fill, keys)
    return {
        **found,
        "ratio_to_plain": found["members_per_s"] / found["plain_per_s"],
        "ratio_to_share": found["members_per_s"] / found["share_per_s"],
    }


def _together(
    run: Run,
    kind: str,
    group: str,
    topic: str,
    members: int,
    count: int,
    fill: Callable[..., Sent],
    keys: list[int],
) -> float:
    """Return the rate of all members together. They join, and then wait for the records."""
    shared = Shared(members)
    words = (run.bootstrap, group, topic, shared)
    processes = [
        multiprocessing.Process(target=_member, args=(kind, n, *words)) for n in range(members)
    ]
    for process in processes:
        process.start()
    stall = Stall(count)
    for stage, event in ((JOINED, shared.joined), (WAITING, shared.begin)):
        while min(shared.stages) < stage:
            time.sleep(0.01)
            check_processes(processes)
            stall.look(0)
        if stage == WAITING:
            fill(run, topic, keys, batch=100)
        event.set()
    done, end = shared.done, shared.end
    warm, began_s, begun = count // 10, 0.0, 0
    while (total := sum(done[:])) < count:
        time.sleep(0.002)
        check_processes(processes)
        stall.look(total)
        if not begun and total >= warm:
            began_s, begun = time.perf_counter(), total
    rate = (total - begun) / (time.perf_counter() - began_s)
    end.set()
    for process in processes:
        process.join(30)
    check_processes(processes)
    if total != count:
        raise LoadFailed(f"{kind}: {total} of {count} records, some twice")
    return rate


def _member(kind: str, number: int, bootstrap: str, group: str, topic: str, shared: Shared) -> None:
    work = _share if kind == SHARING else _consume
    asyncio.run(work(kind, number, bootstrap, group, topic, shared))


async def _consume(
    kind: str, number: int, bootstrap: str, group: str, topic: str, shared: Shared
) -> None:
    async with (
        Client(bootstrap) as client,
        await GroupConsumer.join(
            client.cluster,
            group,
            [topic],
            reset=Reset.EARLIEST,
            key_ranges=kind == BY_KEY_RANGES,
        ) as member,
    ):
        while not shared.joined.is_set():
            await member.poll(50)
            part = sum(last - first + 1 for first, last in ranges_of(member))
            # Each has an equal part, as far as ranges of hashes can be equal.
            is_there = bool(member.positions) if kind == PLAIN else 0 < part <= PART_MAX
            shared.stages[number] = JOINED if is_there else 0
        await shared.wait(number)
        committed_s = time.monotonic()
        while not shared.end.is_set():
            shared.done[number] += sum(1 for _ in await member.poll(100))
            if time.monotonic() > committed_s + COMMIT_S:
                await member.commit()
                committed_s = time.monotonic()


async def _share(
    _kind: str, number: int, bootstrap: str, group: str, topic: str, shared: Shared
) -> None:
    """Accept each acquisition with the next one."""
    async with Client(bootstrap) as client, await client.share(group, [topic]) as session:
        while not shared.joined.is_set():
            await session.acquire(max_wait_ms=50)
            shared.stages[number] = JOINED
        await shared.wait(number)
        due: list[Any] = []
        while due or not shared.end.is_set():
            found = await session.acquire(max_wait_ms=100, acknowledgements=due)
            if found.refusals:
                raise LoadFailed(f"refused: {found.refusals[0]}")
            # A consumer reads each record's fields, too.
            shared.done[number] += sum(1 for batch in found for _ in batch.records())
            due = [a for batch in found for a in batch.acknowledge(AcknowledgeType.ACCEPT)]
