"""The console in Chromium over a real broker: each cause for which a queue does not deliver is
found on the page and mended with it, and each action is carried out by mouse and keyboard.

`SHOAL_SCREENSHOTS=FOLDER` writes a picture of each screen, light, dark and narrow.
"""

from __future__ import annotations

import asyncio
import os
import re
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import pytest
from browsers import Browser, Tab, chromium, chromium_path
from commands import Shoal
from ports import free_ports
from queues import Queue
from servers import ShoalProcess
from shoal.client.acquired import AcknowledgeType, AcquireMode
from shoal.client.client import SyncClient
from shoal.client.cluster import TopicPartition
from shoal.client.errors import expect
from shoal.client.settings import Settings
from shoal.client.topics import NewTopic
from shoal.console import queues
from shoal.console.app import serving
from shoal.console.security import Access

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator

    from shoal.client.share import ShareSession

T = TypeVar("T")
pytestmark = pytest.mark.nightly
SCREENSHOTS = os.environ.get("SHOAL_SCREENSHOTS", "")
#: The width of a phone in CSS pixels.
NARROW = 390
DLQ = "errors.deadletterqueue"


class Cluster(NamedTuple):
    bootstrap: str
    client: SyncClient


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    chromium_path()
    (port,) = free_ports(1)
    folder = tmp_path_factory.mktemp("browser")
    broker = ShoalProcess(folder / "data", metrics=f"127.0.0.1:{port}").start()
    try:
        with SyncClient(broker.bootstrap) as client:
            yield Cluster(broker.bootstrap, client)
    finally:
        broker.kill9()


class Page(NamedTuple):
    """A console, and the browser of the person in front of it."""

    url: str
    browser: Browser
    tab: Tab

    async def group(self, name: str) -> None:
        """Find a group in the overview, and open its page."""
        await self.tab.goto(f"{self.url}?q={name}")
        await self.tab.click(name)

    async def act(self, *buttons: str) -> None:
        """Click on buttons, one page after the other, until the result is there."""
        for button in buttons:
            await self.tab.click(button)
        await self.tab.until("location.pathname === '/run' && document.querySelector('.good')")

    async def shows_nothing_wrong(self, name: str) -> None:
        """Check the page for accessibility, and for errors. Write its pictures."""
        assert await self.tab.faults() == []
        assert self.tab.errors == []
        if not SCREENSHOTS:
            return
        for look, width, dark in (
            ("light", 1280, False),
            ("dark", 1280, True),
            ("narrow", NARROW, False),
        ):
            await self.tab.look(width=width, dark=dark)
            if dark:
                assert await self.tab.faults() == []
            await self.tab.screenshot(Path(SCREENSHOTS) / f"{name}-{look}.png")
        wider = f"document.documentElement.scrollWidth > {NARROW}"
        assert not await self.tab.evaluate(wider), "a narrow window must not scroll sideways"
        await self.tab.look(width=1280)


@asynccontextmanager
async def opened(cluster: Cluster, folder: Path) -> AsyncIterator[Page]:
    access = Access(port=0, allow_actions=True)
    settings = Settings.of(cluster.bootstrap)
    async with serving(settings, access, interval_s=1.0) as url, chromium(folder) as browser:
        yield Page(url, browser, await browser.tab())


def run(cluster: Cluster, folder: Path, call: Callable[[Page], Awaitable[None]]) -> None:
    async def whole() -> None:
        async with opened(cluster, folder) as page:
            await call(page)
            assert page.tab.errors == []

    asyncio.run(whole())


class Letters(Queue):
    """A queue with dead letters."""

    def __init__(self, cluster: Cluster, **configs: str) -> None:
        super().__init__(cluster.client, cluster.bootstrap)
        self.configure(**configs)
        self.letters = f"dlq.{self.topic}"
        topic = NewTopic(self.letters, 1, configs={f"{DLQ}.group.enable": "true"})
        expect(self.client.run(self.client.admin.topics.create([topic])))
        self.configure(**{f"{DLQ}.topic.name": self.letters, f"{DLQ}.copy.record.enable": "true"})

    def end(self, topic: str) -> int:
        where = TopicPartition(topic, 0)
        found = self.client.run(self.client.admin.topics.offsets({where: -1}))
        return expect(found)[where].offset

    def reject(self, count: int) -> None:
        """Reject this number of records, and wait for their letters."""
        self.client.run(self._reject(count))

    async def _reject(self, count: int) -> None:
        session = await self.client.client.share(self.group, [self.topic])
        left = count
        async with asyncio.timeout(60):
            while left:
                acquired = await session.acquire(
                    max_records=left, max_wait_ms=500, mode=AcquireMode.RECORD_LIMIT
                )
                for batch in acquired:
                    await session.acknowledge(batch.acknowledge(AcknowledgeType.REJECT))
                    left -= batch.count
            where = TopicPartition(self.letters, 0)
            topics = self.client.client.admin.topics
            while expect(await topics.offsets({where: -1}))[where].offset < count:
                await session.acquire(max_wait_ms=100)
        await session.close()


async def join(cluster: Cluster, queue: Queue) -> ShareSession:
    """Join the group as a consumer, in the loop of the cluster's client."""
    return await beside(cluster, cluster.client.client.share(queue.group, [queue.topic]))


async def beside(cluster: Cluster, call: Coroutine[Any, Any, T]) -> T:
    """Run a call on the cluster's own client, beside the console."""
    return await asyncio.to_thread(cluster.client.run, call)


async def acquire(cluster: Cluster, session: ShareSession, count: int) -> None:
    """Acquire this number of records, and keep them."""

    async def taking() -> None:
        left = count
        async with asyncio.timeout(60):
            while left > 0:
                found = await session.acquire(
                    max_records=left, max_wait_ms=500, mode=AcquireMode.RECORD_LIMIT
                )
                left -= sum(batch.count for batch in found)

    await beside(cluster, taking())


def test_paused(cluster: Cluster, tmp_path: Path) -> None:
    queue = Queue(cluster.client, cluster.bootstrap)
    queue.produce([1, 2])

    async def call(page: Page) -> None:
        session = await join(cluster, queue)
        await page.group(queue.group)
        await page.act("Pause delivery", "Pause delivery")
        await page.group(queue.group)
        await page.tab.sees("Delivery is paused. Resume it with")
        await page.shows_nothing_wrong("group-paused")
        await page.tab.goto(page.url)
        await page.tab.sees(f"Paused {queue.group}")
        await page.group(queue.group)
        await page.tab.click("Resume delivery")
        await page.tab.sees(f"of group {queue.group} may be delivered to 1 consumer again.")
        await page.shows_nothing_wrong("confirm-resume")
        await page.act("Resume delivery")
        await page.shows_nothing_wrong("result")
        await acquire(cluster, session, 2)
        await beside(cluster, session.close())

    run(cluster, tmp_path, call)


def test_held_keys(cluster: Cluster, tmp_path: Path) -> None:
    queue = Letters(cluster, share_ordering="key", share_ordering_key_dead_letter="hold")
    queue.produce([0, 1, 2], key=b"k<b>")
    queue.reject(1)

    async def call(page: Page) -> None:
        session = await join(cluster, queue)
        await page.group(queue.group)
        await page.tab.sees(f"2 records of {queue.topic} wait behind dead letters")
        await page.shows_nothing_wrong("group-held")
        await page.tab.click("Send the letters back")
        await page.shows_nothing_wrong("form-redrive")
        await page.tab.click("Show what will happen")
        await page.tab.sees("1 letter of")
        await page.shows_nothing_wrong("confirm-redrive")
        await page.act("Send 1 letter back")
        await acquire(cluster, session, 1)
        await beside(cluster, session.close())
        queue_end = await asyncio.to_thread(queue.end, queue.topic)
        assert queue_end == 4

    run(cluster, tmp_path, call)


def test_skip_a_held_key(cluster: Cluster, tmp_path: Path) -> None:
    queue = Letters(cluster, share_ordering="key", share_ordering_key_dead_letter="hold")
    queue.produce([0, 1], key=b"k")
    queue.reject(1)

    async def call(page: Page) -> None:
        session = await join(cluster, queue)
        await page.group(queue.group)
        await page.tab.sees(f"1 record of {queue.topic} waits behind dead letters")
        await page.act("Skip the letters", "Skip 1 record")
        await acquire(cluster, session, 1)
        await beside(cluster, session.close())

    run(cluster, tmp_path, call)


def test_a_full_window(cluster: Cluster, tmp_path: Path) -> None:
    queue = Queue(cluster.client, cluster.bootstrap, share_partition_max_record_locks="100")
    queue.produce(range(150), batch=10)

    async def call(page: Page) -> None:
        session = await join(cluster, queue)
        await acquire(cluster, session, 100)
        await page.group(queue.group)
        await page.tab.sees("the records in flight have reached share.partition.max.record.locks")
        await page.tab.sees("Window full")
        await page.shows_nothing_wrong("group-window")
        await page.tab.click("Raise share.partition.max.record.locks")
        await page.tab.fill("New value", "7")
        await page.tab.click("Show what will happen")
        await page.tab.until("document.getElementById('mistake')")
        await page.shows_nothing_wrong("form-limit-mistake")
        await page.tab.fill("New value", "400")
        await page.tab.click("Show what will happen")
        await page.act("Change it to 400")
        await acquire(cluster, session, 50)
        await beside(cluster, session.close())

    run(cluster, tmp_path, call)


def test_a_flood_of_dead_letters(cluster: Cluster, tmp_path: Path) -> None:
    limit = "shoal.errors.deadletterqueue.flood.per.minute"
    queue = Letters(cluster, **{limit: "2"})
    queue.produce(range(4))
    queue.reject(2)

    async def call(page: Page) -> None:
        session = await join(cluster, queue)
        await page.group(queue.group)
        await page.tab.sees("the group wrote more dead letters in a minute than")
        await page.shows_nothing_wrong("group-flood")
        await page.tab.click(f"Raise {limit}")
        await page.tab.fill("New value", "1000")
        await page.tab.click("Show what will happen")
        await page.act("Change it to 1000")
        await acquire(cluster, session, 2)
        await beside(cluster, session.close())

    run(cluster, tmp_path, call)


def test_no_consumers(cluster: Cluster, tmp_path: Path) -> None:
    queue = Letters(cluster)
    queue.produce(range(4))
    queue.reject(1)

    async def call(page: Page) -> None:
        await page.group(queue.group)
        await page.tab.sees("The group has no consumers, and 3 records wait. Start one")
        shown = re.search(r"shoal (share-consume \S+ --group \S+)`?", await page.tab.text())
        assert shown is not None
        words = shown[1].rstrip(".").split()
        await asyncio.to_thread(Shoal(cluster.bootstrap).run, *words, "-n", "3")
        await page.tab.sees("Empty")

    run(cluster, tmp_path, call)


def test_a_consumer_that_hangs(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page names the consumer. Its records are delivered to another one once it ends."""
    monkeypatch.setattr(queues, "LOCK_AGE_S_MAX", 1.0)
    queue = Queue(cluster.client, cluster.bootstrap)
    queue.produce(range(3))

    async def call(page: Page) -> None:
        hangs = await join(cluster, queue)
        await acquire(cluster, hangs, 3)
        await page.group(queue.group)
        await page.tab.sees("If the consumer hangs, end its process.")
        held = f"These consumers hold records: {hangs.member_id} at 127.0.0.1 (3 records)."
        await page.tab.sees(held)
        await page.tab.unfold("Records that consumers hold")
        await page.tab.sees(f"{queue.topic}-0 @0–2")
        await page.shows_nothing_wrong("group-old-lock")
        await beside(cluster, hangs.close())
        other = await join(cluster, queue)
        await acquire(cluster, other, 3)
        await beside(cluster, other.close())

    run(cluster, tmp_path, call)


def test_letters_that_cannot_be_written(cluster: Cluster, tmp_path: Path) -> None:
    queue = Letters(cluster)
    queue.configure(**{f"{DLQ}.topic.name": f"dlq.absent-{queue.topic}"})
    queue.produce(range(2))

    async def reject() -> None:
        session = await cluster.client.client.share(queue.group, [queue.topic])
        async with asyncio.timeout(60):
            while not (found := [*await session.acquire(max_wait_ms=500)]):
                pass
        for batch in found:
            await session.acknowledge(batch.acknowledge(AcknowledgeType.REJECT))
        await session.close()

    cluster.client.run(reject())

    async def call(page: Page) -> None:
        await page.group(queue.group)
        await page.tab.sees("Dead letters cannot be written: the dead-letter topic does not exist.")
        await page.shows_nothing_wrong("group-letters-fail")
        await page.tab.click("Repair the dead-letter topic")
        await page.shows_nothing_wrong("form-letter-topic")
        await page.act("Show what will happen", "Repair")
        await page.group(queue.group)
        await page.tab.until(
            "!document.body.innerText.includes('Dead letters cannot be written')"
            " && document.body.innerText.includes('Empty')"
        )
        assert await asyncio.to_thread(queue.end, f"dlq.absent-{queue.topic}") == 2

    run(cluster, tmp_path, call)


def test_choose_edit_and_delete_letters(cluster: Cluster, tmp_path: Path) -> None:
    queue = Letters(cluster)
    queue.produce(["<script>alert(1)</script>", b"\xff\xfe", "a\x1b[2Jb", b"x" * 300_000], key=b"k")
    queue.reject(4)

    async def call(page: Page) -> None:
        letters = f"{page.url}letters?topic={queue.letters}"
        await page.tab.goto(letters)
        await page.shows_nothing_wrong("letters")
        for choice in ("Choose letter 0@1", "Choose letter 0@2"):
            await page.tab.choose(choice)
        await page.tab.click("Send the chosen letters back")
        await page.act("Show what will happen", "Send 2 letters back")

        await page.tab.goto(letters)
        await page.tab.click("0@0")
        await page.tab.click("Edit it and send it back")
        await page.shows_nothing_wrong("form-edit")
        await page.tab.fill("Value", "one\ntwo <b>")
        await page.tab.click("Show what will happen")
        await page.shows_nothing_wrong("confirm-edit")
        assert "one" not in await page.tab.evaluate("location.href")
        await page.act("Send 1 edited letter back")
        fetched = await beside(cluster, cluster.client.client.fetch_range(queue.topic, 0, 4, 6))
        sent = [record.value for one in fetched for record in one.records()]
        assert sent == [b"\xff\xfe", b"a\x1b[2Jb", b"one\ntwo <b>"]

        await page.tab.goto(f"{page.url}letter?topic={queue.letters}&partition=0&offset=3")
        await page.tab.click("Edit it and send it back")
        await page.tab.sees("is too large to edit here")
        page.tab.errors.clear()  # The log of the browser has the status 409.

        await page.tab.goto(letters)
        await page.tab.click("Delete all letters")
        await page.shows_nothing_wrong("confirm-purge")
        await page.tab.fill(f"Type {queue.letters} to confirm", queue.letters)
        await page.act("Delete 4 records")
        await page.tab.goto(letters)
        await page.tab.sees("There are no dead letters.")

    run(cluster, tmp_path, call)


def test_reset_offsets(cluster: Cluster, tmp_path: Path) -> None:
    queue = Letters(cluster)
    queue.produce(range(3))
    queue.reject(3)

    async def call(page: Page) -> None:
        await page.group(queue.group)
        await page.tab.click("Reset offsets")
        await page.shows_nothing_wrong("form-reset")
        await page.tab.select("Move to", "shift")
        await page.tab.fill("Offset, time or number", "-2")
        await page.tab.click("Show what will happen")
        await page.tab.sees("Up to 2 records are delivered again")
        await page.shows_nothing_wrong("confirm-reset")
        await page.act("Move 1 position")
        (position,) = (await asyncio.to_thread(queue.positions)).values()
        assert position.start_offset == 1

    run(cluster, tmp_path, call)


def test_produce_by_keyboard(cluster: Cluster, tmp_path: Path) -> None:
    queue = Queue(cluster.client, cluster.bootstrap)

    async def call(page: Page) -> None:
        await page.tab.goto(f"{page.url}topic?name={queue.topic}")
        await page.tab.click("Produce a test record")
        await page.shows_nothing_wrong("form-produce")
        await page.tab.fill("Value", '{"n": 1}')
        await page.tab.fill("Headers", "from=console")
        for key in ("Tab", "Enter"):
            await press(page.tab, key)
        await page.tab.sees("One record goes to any partition")
        await page.shows_nothing_wrong("confirm-produce")
        await page.act("Produce 1 record")
        await page.tab.goto(f"{page.url}actions")
        await page.tab.sees(f"Produced the record {queue.topic}-0@0.")
        await page.shows_nothing_wrong("actions")

    run(cluster, tmp_path, call)


async def press(tab: Tab, key: str) -> None:
    code = {"Tab": 9, "Enter": 13}[key]
    text = {"text": "\r"} if key == "Enter" else {}
    await tab.call(
        "Input.dispatchKeyEvent", type="keyDown", key=key, windowsVirtualKeyCode=code, **text
    )
    await tab.call("Input.dispatchKeyEvent", type="keyUp", key=key, windowsVirtualKeyCode=code)


def test_two_people(cluster: Cluster, tmp_path: Path) -> None:
    queue = Queue(cluster.client, cluster.bootstrap)
    queue.produce([1])

    async def call(page: Page) -> None:
        session = await join(cluster, queue)
        await acquire(cluster, session, 1)
        other = Page(page.url, page.browser, await page.browser.tab())
        for one in (page, other):
            await one.group(queue.group)
            await one.tab.click("Pause delivery")
            await one.tab.sees("Delivery to 1 consumer")
        await page.act("Pause delivery")
        await other.tab.click("Pause delivery")
        await other.tab.sees(f"Delivery to group {queue.group} is paused already.")
        await beside(cluster, session.close())

    run(cluster, tmp_path, call)


def test_a_slow_redrive_shows_its_progress(cluster: Cluster, tmp_path: Path) -> None:
    queue = Letters(cluster)
    queue.produce(range(30))
    queue.reject(30)

    async def call(page: Page) -> None:
        await page.tab.goto(f"{page.url}letters?topic={queue.letters}")
        await page.tab.click("Send all letters back")
        await page.tab.fill("Letters per second, at most", "2")
        await page.tab.click("Show what will happen")
        await page.tab.sees("At 2 per second it takes about 15 s.")
        await page.tab.click("Send 30 letters back")
        await page.tab.until("document.querySelector('progress')?.value > 8")
        await page.shows_nothing_wrong("running")
        await page.tab.click("Stop")
        await page.tab.sees("Stopped")
        await page.shows_nothing_wrong("stopped")

    run(cluster, tmp_path, call)


def test_payloads_of_any_kind(cluster: Cluster, tmp_path: Path) -> None:
    """Nothing of a payload runs or becomes markup, also with 10 MB of it."""
    queue = Queue(
        cluster.client, cluster.bootstrap, topic_configs={"max.message.bytes": "12000000"}
    )
    script = b"<script>window.hacked = 1</script><img src=x onerror='window.hacked = 1'>"
    queue.produce([script], key=script, headers=((script.decode(), script),))
    queue.produce([b"\xff\xfe\x00", b"a\x1b[2Jb\rc", "user\u202egnp.exe"])
    queue.produce([script * 150_000])

    async def call(page: Page) -> None:
        await page.tab.goto(f"{page.url}topic?name={queue.topic}")
        await page.tab.sees("<script>window.hacked")
        await page.shows_nothing_wrong("topic")
        for offset in range(5):
            place = f"topic={queue.topic}&partition=0&offset={offset}"
            for form in ("auto", "text", "hex"):
                await page.tab.goto(f"{page.url}record?{place}&as={form}")
                await page.tab.sees("Value")
                assert await page.tab.evaluate("window.hacked || 0") == 0
                assert await page.tab.evaluate("document.querySelectorAll('main img').length") == 0
        await page.shows_nothing_wrong("record-large")

    run(cluster, tmp_path, call)


def test_a_broker_that_dies_while_a_page_is_open(tmp_path: Path) -> None:
    broker = ShoalProcess(tmp_path / "data").start()

    async def call(page: Page) -> None:
        await page.tab.goto(page.url)
        await page.tab.sees("There are no queues yet.")
        await asyncio.to_thread(broker.kill9)
        await page.tab.sees("No answer from the cluster since")
        await page.shows_nothing_wrong("broker-gone")
        await asyncio.to_thread(broker.start)
        await page.tab.until("!document.body.innerText.includes('No answer from the cluster')")

    async def whole() -> None:
        settings = replace(
            Settings.of(broker.bootstrap), retry_timeout_ms=500, connect_timeout_ms=1_000
        )
        browser = chromium(tmp_path)
        async with serving(settings, Access(port=0), interval_s=1.0) as url, browser as found:
            await call(Page(url, found, await found.tab()))

    chromium_path()
    try:
        asyncio.run(whole())
    finally:
        broker.kill9()


def test_five_thousand_topics(cluster: Cluster, tmp_path: Path) -> None:
    names = [f"many-{n:04}" for n in range(5_000)]
    admin = cluster.client.admin
    for at in range(0, len(names), 500):
        some = [NewTopic(name, 1) for name in names[at : at + 500]]
        expect(cluster.client.run(admin.topics.create(some)))

    async def call(page: Page) -> None:
        await page.tab.goto(page.url)
        await page.tab.sees("1 of 1 running")
        await page.tab.goto(f"{page.url}topics?q=many")
        await page.tab.sees("Page 1 of 50, 5,000 rows")
        await page.shows_nothing_wrong("topics-many")
        await page.tab.click("Next")
        await page.tab.sees("many-0199")

    run(cluster, tmp_path, call)
