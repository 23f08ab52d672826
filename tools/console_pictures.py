"""Takes the console's pictures for README and docs: a small cluster with six queues under load,
after some minutes of history.

Use: `PYTHONPATH=tests python tools/console_pictures.py docs/images --minutes 30`
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from pathlib import Path

from shoal.client.client import Client, SyncClient
from shoal.client.settings import Settings
from shoal.client.share.acquired import AcknowledgeType, AcquireMode
from shoal.console.access.security import ConsoleAccess
from shoal.console.app import serving
from support.brokers.ports import free_ports
from support.brokers.queues import Queue
from support.brokers.servers import ShoalProcess
from support.console.browsers import chromium
from support.console.console_letters import Letters
from support.console.console_screens import NARROW, WIDE, Page

#: Records in a burst of the load, and seconds between two bursts.
BURST, EVERY_S = 20, 0.3
#: The pictures: name, path, width, height, and whether they are dark.
PICTURES = (
    ("overview", "", WIDE, 640, False),
    ("overview-dark", "", WIDE, 640, True),
    ("overview-narrow", "", NARROW, 844, False),
    ("group", "group?id=tellers", WIDE, 800, False),
    ("group-narrow", "group?id=tellers", NARROW, 844, False),
)


class Cluster:
    """A broker, its client, and queues of which each has another trouble."""

    def __init__(self, bootstrap: str, client: SyncClient) -> None:
        self.bootstrap, self.client = bootstrap, client
        self.jobs = self._queue("jobs", "workers")
        mail = self._queue("mail", "mailers", share_delivery_paused="true")
        mail.produce(range(800), batch=100)
        hold = {"share_ordering": "key", "share_ordering_key_dead_letter": "hold"}
        accounts = Letters(self, topic="accounts", group="tellers", **hold)
        for number in (b"17", b"23"):
            accounts.produce(['{"amount": 100}'], key=b"account-" + number)
        client.run(accounts.reject(2))
        for number in (b"17", b"17", b"23", b"42"):
            accounts.produce(['{"amount": 250}'], key=b"account-" + number)
        images = Letters(self, topic="images", group="thumbnails")
        images.produce(range(31))
        client.run(images.reject(5))
        later = self._queue("reminders", "reminders", share_delay_max_ms="604800000")
        later.produce(range(3), headers=(("shoal.deliver.after", b"86400000"),))
        hooks = self._queue("webhooks", "hooks")
        hooks.produce([1])
        client.run(visit(client.client, mail, accepts=0))
        client.run(visit(client.client, later, accepts=0))
        client.run(visit(client.client, hooks, accepts=1))
        # Its other records wait for their keys.
        client.run(visit(client.client, accounts, accepts=1))

    def _queue(self, topic: str, group: str, **configs: str) -> Queue:
        queue = Queue(self.client, self.bootstrap, topic=topic, group=group)
        if configs:
            queue.configure(**configs)
        return queue


async def visit(client: Client, queue: Queue, *, accepts: int) -> None:
    """Join the group of a queue, accept some records, and leave."""
    session = await client.share(queue.group, [queue.topic])
    while True:
        for batch in await session.acquire(max_wait_ms=500):
            await session.acknowledge(batch.acknowledge(AcknowledgeType.ACCEPT))
            accepts -= batch.count
        if accepts <= 0 and queue.group in await client.admin.groups.list():
            break
    await session.close()


async def produce(client: Client, queue: Queue) -> None:
    """Produce bursts until cancelled."""
    producer = client.producer()
    while True:
        for number in range(BURST):
            await producer.send(queue.topic, b'{"job": %d}' % number)
        await producer.flush()
        await asyncio.sleep(EVERY_S)


async def work(client: Client, queue: Queue) -> None:
    """Hold each burst for a moment, and accept it, until cancelled."""
    session = await client.share(queue.group, [queue.topic])
    while True:
        acquisition = await session.acquire(
            max_records=BURST, max_wait_ms=500, mode=AcquireMode.RECORD_LIMIT
        )
        await asyncio.sleep(EVERY_S)
        for batch in acquisition:
            await session.acknowledge(batch.acknowledge(AcknowledgeType.ACCEPT))


async def take(url: str, folder: Path, profile: Path) -> None:
    """Take all pictures."""
    async with chromium(profile) as browser:
        tab = await browser.tab()
        page = Page(url, browser, tab)
        for name, path, width, height, is_dark in PICTURES:
            await tab.look(width=width, height=height, dark=is_dark)
            await tab.goto(url + path)
            await tab.sees("Updated")
            await tab.screenshot(folder / f"console-{name}.png", whole=False)
        await tab.look(width=WIDE, height=500)
        await page.group("tellers")
        await tab.click("Send the letters back")
        await tab.click("Show what will happen")
        await tab.screenshot(folder / "console-confirm.png", whole=False)


async def run(cluster: Cluster, folder: Path, profile: Path, minutes: float) -> None:
    access = ConsoleAccess(port=0, allow_actions=True)
    settings = Settings.from_bootstrap(cluster.bootstrap)
    async with serving(settings, access) as url, Client(settings) as client:
        load = [
            asyncio.create_task(produce(client, cluster.jobs)),
            asyncio.create_task(work(client, cluster.jobs)),
        ]
        done, _ = await asyncio.wait(
            load, timeout=minutes * 60, return_when=asyncio.FIRST_COMPLETED
        )
        for task in done:
            task.result()
        try:
            await take(url, folder, profile)
        finally:
            for task in load:
                task.cancel()
            await asyncio.wait(load)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path, help="where the pictures go")
    parser.add_argument("--minutes", type=float, default=30.0, help="length of the history")
    arguments = parser.parse_args()
    (port,) = free_ports(1)
    with tempfile.TemporaryDirectory() as name:
        broker = ShoalProcess(Path(name) / "data", metrics=f"127.0.0.1:{port}").start()
        try:
            with SyncClient(broker.bootstrap) as client:
                cluster = Cluster(broker.bootstrap, client)
                asyncio.run(run(cluster, arguments.folder, Path(name), arguments.minutes))
        finally:
            broker.kill9()


if __name__ == "__main__":
    main()
