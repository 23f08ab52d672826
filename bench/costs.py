"""The cost of a partition, a connection and a group member: `python bench/costs.py`.

Memory is the growth of the process while they are added. CPU is the time for a number of requests.
docs/scaling.md has the figures.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

from brokers import Broker, Shoal
from shoal.client.admin.topics import NewTopic
from shoal.client.client import Client
from shoal.client.errors import expect
from shoal.client.net.connection import Connection, connect
from shoal.client.settings import Settings
from shoal.log.uuids import format_uuid
from shoal.protocol.api import ApiKey

if TYPE_CHECKING:
    from collections.abc import Sequence

#: The default maximum of a group (group.share.max.size).
MEMBERS = 200


class Costs:
    """A broker that is filled step by step."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._mb, self._cpu_s = broker.rss_mb(), broker.cpu_s()

    def note(self, what: str, count: int, *, memory: bool = True) -> None:
        mb, cpu_s = self._broker.rss_mb(), self._broker.cpu_s()
        grown = f"{(mb - self._mb) * 1024 / count:10.2f} KB" if memory else " " * 13
        used_us = (cpu_s - self._cpu_s) * 1e6 / count
        print(f"{what:44} {count:8,} {grown} {used_us:10.1f} us", flush=True)
        self._mb, self._cpu_s = mb, cpu_s


async def connections(address: tuple[str, int], count: int) -> list[Connection]:
    settings = Settings((address,))
    return [await connect(settings, address) for _ in range(count)]


async def heartbeats(
    links: Sequence[Connection],
    key: ApiKey,
    members: Sequence[str],
    epochs: dict[str, int],
    **fields: object,
) -> None:
    """Send one heartbeat of each member, over all links at once; `epochs` are the members'."""

    async def some(link: Connection, mine: Sequence[str]) -> None:
        for member in mine:
            body = {"member_id": member, "member_epoch": epochs.get(member, 0), **fields}
            answer = await link.request(key, body)
            assert not answer.error_code, answer
            epochs[member] = answer.member_epoch

    step = len(links)
    await asyncio.gather(*(some(link, members[n::step]) for n, link in enumerate(links)))


async def measure(broker: Broker, scale: float) -> None:
    address = ("127.0.0.1", broker.port)
    partitions, links_ = (int(n * scale) for n in (2_000, 1_000))
    print(f"idle: {broker.rss_mb():.1f} MB")
    async with Client(broker.bootstrap) as client:
        costs = Costs(broker)
        for n in range(partitions // 100):
            expect(await client.admin.topics.create([NewTopic(f"t-{n}", 100, 1)]))
        costs.note("a partition of one replica", partitions)
        links = await connections(address, links_)
        costs.note("a connection", links_)
        for name, key, own in (
            ("share group", ApiKey.SHARE_GROUP_HEARTBEAT, {}),
            ("consumer group", ApiKey.CONSUMER_GROUP_HEARTBEAT, {"rebalance_timeout_ms": 60_000}),
        ):
            group, members = f"costs-{key}", [format_uuid(uuid4()) for _ in range(MEMBERS)]
            joins = {"group_id": group, "subscribed_topic_names": ["t-0"], **own}
            if key is ApiKey.CONSUMER_GROUP_HEARTBEAT:
                joins["topic_partitions"] = ()
            epochs: dict[str, int] = {}
            await heartbeats(links[:20], key, members[:1], epochs, **joins)
            costs.note(f"{name}: the first member", 1)
            await heartbeats(links[:20], key, members[1:], epochs, **joins)
            costs.note(f"{name}: a member that joins, of 200", len(members))
            for _ in range(5):
                await heartbeats(links[:20], key, members, epochs, group_id=group)
            costs.note(f"{name}: a heartbeat", 5 * len(members), memory=False)
    for link in links:
        link.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", type=float, default=1.0)
    folder = Path(tempfile.mkdtemp(prefix="shoal-costs-"))
    broker = Shoal(folder)
    try:
        broker.start()
        asyncio.run(measure(broker, parser.parse_args().scale))
    finally:
        broker.kill9()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
