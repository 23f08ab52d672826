"""The console in Chromium over a real broker: each page looks as it should, each cause for which a
queue does not deliver is found on the page and mended with it, and each action is carried out by
mouse and keyboard.

CI opens each page and carries out each action once. Longer scenarios are nightly.
"""

from __future__ import annotations

import asyncio
import re
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict, TypeVar

import pytest
from shoal.client.admin.topics import NewTopic
from shoal.client.client import SyncClient
from shoal.client.errors import expect
from shoal.client.settings import Settings
from shoal.client.share.acquired import AcknowledgeType, AcquireMode
from shoal.console.access.security import ConsoleAccess
from shoal.console.app import serving
from shoal.console.sampling import queues
from shoal.protocol.reasons import FailureReason
from support.brokers.commands import Shoal
from support.brokers.ports import free_ports
from support.brokers.queues import Queue
from support.brokers.servers import ShoalProcess
from support.console.browsers import Browser, Tab, chromium, chromium_path
from support.console.console_letters import Letters
from support.console.console_resources import api_server
from support.console.console_screens import Page

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterator
    from pathlib import Path

    from shoal.client.share.member import ShareSession

T = TypeVar("T")
DLQ = "errors.deadletterqueue"


HOLD = {"share_ordering": "key", "share_ordering_key_dead_letter": "hold"}


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


class Names(TypedDict):
    topic: str
    group: str


def named(name: str) -> Names:
    """Return the names of a queue. Random ones would move the boxes of a screen."""
    return {"topic": f"t-{name}", "group": f"g-{name}"}


class Desk(NamedTuple):
    """A console and a browser, which the tests of this file share."""

    url: str
    browser: Browser
    runner: asyncio.Runner

    def run(self, call: Callable[[Page], Awaitable[None]]) -> None:
        """Let a person of their own do something."""

        async def whole() -> None:
            tab = await self.browser.tab()
            try:
                await call(Page(self.url, self.browser, tab))
                assert tab.errors == []
            finally:
                await tab.close()

        self.runner.run(whole())


@pytest.fixture(scope="module")
def desk(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    folder = tmp_path_factory.mktemp("desk")
    stack = AsyncExitStack()

    async def opened() -> tuple[str, Browser]:
        kubernetes = await stack.enter_async_context(api_server(folder, "g-pages"))
        access = ConsoleAccess(port=0, allow_actions=True, kubernetes=kubernetes)
        served = serving(Settings.from_bootstrap(cluster.bootstrap), access, interval_s=1.0)
        url = await stack.enter_async_context(served)
        browser = await stack.enter_async_context(chromium(folder))
        # Pages show the time of the first sample.
        tab = await browser.tab()
        await tab.goto(url)
        await tab.sees("of 1 running")
        await tab.close()
        return url, browser

    with asyncio.Runner() as runner:
        try:
            yield Desk(*runner.run(opened()), runner)
        finally:
            runner.run(stack.aclose())


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


def test_each_page(cluster: Cluster, desk: Desk) -> None:
    """Pages that no action opens. The others are below."""
    queue = Letters(cluster, **named("pages"))
    queue.produce(['{"n": 1, "text": "<b>"}', "plain", "rejected"], key=b"k")
    cluster.client.run(queue.reject(1, FailureReason("app.PageError", "no page 1")))
    place = "partition=0&offset=0"
    pages = {
        "overview": ("?q=g-pages", "No consumers g-pages"),
        "topics": ("topics?q=t-pages", "dlq.t-pages"),
        "topic": (f"topic?name={queue.topic}", '{"n": 1, "text": "<b>"}'),
        "record": (f"record?topic={queue.topic}&{place}", "Value"),
        "letter-topics": ("letters", "dlq.t-pages"),
        "exceptions": ("letters?by=exception", "app.PageError"),
        "letter": (f"letter?topic={queue.letters}&{place}", "rejected by client"),
        "consumers": ("consumers", "insufficient cpu"),
        "error": (f"record?topic={queue.topic}&partition=0&offset=9", "9 to 9 were requested"),
    }

    async def call(page: Page) -> None:
        for name, (path, text) in pages.items():
            await page.tab.goto(f"{page.url}{path}")
            await page.tab.sees(text)
            if name == "error":
                page.tab.errors.clear()  # The log of the browser has the status 404.
            # A letter has the random id of a consumer, which may need another line. Other tests'
            # letters have exceptions, too.
            await page.shows_nothing_wrong(name, has_boxes=name not in ("letter", "exceptions"))

    desk.run(call)


def test_paused(cluster: Cluster, desk: Desk) -> None:
    queue = Queue(cluster.client, cluster.bootstrap, **named("paused"))
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

    desk.run(call)


@pytest.mark.nightly
def test_held_keys(cluster: Cluster, desk: Desk) -> None:
    queue = Letters(
        cluster, **named("held"), share_ordering="key", share_ordering_key_dead_letter="hold"
    )
    queue.produce([0, 1, 2], key=b"k<b>")
    cluster.client.run(queue.reject(1))

    async def call(page: Page) -> None:
        session = await join(cluster, queue)
        await page.group(queue.group)
        await page.tab.sees(f"2 records of {queue.topic} wait behind dead letters")
        await page.tab.sees("1 Holds its key")
        await page.shows_nothing_wrong("group-held")
        await page.tab.click("Send the letters back")
        await page.shows_nothing_wrong("form-redrive")
        await page.tab.click("Show what will happen")
        await page.tab.sees("1 letter of")
        await page.shows_nothing_wrong("confirm-redrive")
        await page.act("Send 1 letter back")
        await acquire(cluster, session, 1)
        await beside(cluster, session.close())
        assert len(await beside(cluster, queue.records())) == 4

    desk.run(call)


def test_skip_a_held_key(cluster: Cluster, desk: Desk) -> None:
    queue = Letters(
        cluster, **named("skipped"), share_ordering="key", share_ordering_key_dead_letter="hold"
    )
    queue.produce([0, 1], key=b"k")
    cluster.client.run(queue.reject(1))

    async def call(page: Page) -> None:
        session = await join(cluster, queue)
        await page.group(queue.group)
        await page.tab.sees(f"1 record of {queue.topic} waits behind dead letters")
        await page.act("Skip the letters", "Skip 1 record")
        await acquire(cluster, session, 1)
        await beside(cluster, session.close())

    desk.run(call)


@pytest.mark.nightly
def test_a_full_window(cluster: Cluster, desk: Desk) -> None:
    queue = Queue(
        cluster.client, cluster.bootstrap, **named("window"), share_partition_max_record_locks="100"
    )
    queue.produce(range(150), batch=10)

    async def call(page: Page) -> None:
        session = await join(cluster, queue)
        await acquire(cluster, session, 100)
        await page.group(queue.group)
        await page.tab.sees("the records in flight have reached share.partition.max.record.locks")
        await page.tab.sees("Window full")
        await page.tab.sees("100 In flight")
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

    desk.run(call)


@pytest.mark.nightly
def test_a_flood_of_dead_letters(cluster: Cluster, desk: Desk) -> None:
    limit = "shoal.errors.deadletterqueue.flood.per.minute"
    queue = Letters(cluster, **named("flood"), **{limit: "2"})
    queue.produce(range(4))
    cluster.client.run(queue.reject(2))

    async def call(page: Page) -> None:
        session = await join(cluster, queue)
        await page.group(queue.group)
        await page.tab.sees("the group wrote more dead letters in a minute than")
        await page.shows_nothing_wrong("group-flood", has_boxes=False)
        await page.tab.click(f"Raise {limit}")
        await page.tab.fill("New value", "1000")
        await page.tab.click("Show what will happen")
        await page.act("Change it to 1000")
        await acquire(cluster, session, 2)
        await beside(cluster, session.close())

    desk.run(call)


@pytest.mark.nightly
def test_no_consumers(cluster: Cluster, desk: Desk) -> None:
    queue = Letters(cluster, **named("no-consumers"))
    queue.produce(range(4))
    cluster.client.run(queue.reject(1))

    async def call(page: Page) -> None:
        await page.group(queue.group)
        await page.tab.sees("The group has no consumers, and 3 records wait. Start one")
        shown = re.search(r"shoal (consume \S+ --from-beginning)", await page.tab.text())
        assert shown is not None
        shoal = Shoal(cluster.bootstrap)
        await asyncio.to_thread(shoal.run, *shown[1].split(), "-n", "4")
        await page.tab.sees("The group has no consumers, and 3 records wait. Start one")
        take = ("share-consume", queue.topic, "--group", queue.group)
        await asyncio.to_thread(shoal.run, *take, "-n", "3")
        await page.tab.sees("Empty")

    desk.run(call)


@pytest.mark.nightly
def test_a_consumer_that_hangs(
    cluster: Cluster, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page names the consumer. Its records are delivered to another one once it ends."""
    monkeypatch.setattr(queues, "LOCK_AGE_S_MAX", 1.0)
    queue = Queue(cluster.client, cluster.bootstrap, **named("hangs"))
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
        await page.shows_nothing_wrong("group-old-lock", has_boxes=False)
        await beside(cluster, hangs.close())
        other = await join(cluster, queue)
        await acquire(cluster, other, 3)
        await beside(cluster, other.close())

    desk.run(call)


@pytest.mark.nightly
def test_letters_that_cannot_be_written(cluster: Cluster, desk: Desk) -> None:
    queue = Letters(cluster, **named("letters-fail"))
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
        await page.tab.sees("0 records deep")
        assert "Dead letters cannot be written" not in await page.tab.text()
        letters = await beside(cluster, queue.records(f"dlq.absent-{queue.topic}"))
        assert len(letters) == 2

    desk.run(call)


def test_choose_edit_and_delete_letters(cluster: Cluster, desk: Desk) -> None:
    queue = Letters(cluster, **named("letters"))
    queue.produce(["<script>alert(1)</script>", b"\xff\xfe", "a\x1b[2Jb", b"x" * 300_000], key=b"k")
    cluster.client.run(queue.reject(4))

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

    desk.run(call)


def test_reset_offsets(cluster: Cluster, desk: Desk) -> None:
    queue = Letters(cluster, **named("reset"))
    queue.produce(range(3))
    cluster.client.run(queue.reject(3))

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

    desk.run(call)


def test_produce_by_keyboard(cluster: Cluster, desk: Desk) -> None:
    queue = Queue(cluster.client, cluster.bootstrap, **named("produce"))

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
        await page.shows_nothing_wrong("actions", has_boxes=False)

    desk.run(call)


async def press(tab: Tab, key: str) -> None:
    code = {"Tab": 9, "Enter": 13}[key]
    text = {"text": "\r"} if key == "Enter" else {}
    await tab.call(
        "Input.dispatchKeyEvent", type="keyDown", key=key, windowsVirtualKeyCode=code, **text
    )
    await tab.call("Input.dispatchKeyEvent", type="keyUp", key=key, windowsVirtualKeyCode=code)


@pytest.mark.nightly
def test_two_people(cluster: Cluster, desk: Desk) -> None:
    queue = Queue(cluster.client, cluster.bootstrap, **named("two-people"))
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
        await other.tab.close()
        await beside(cluster, session.close())

    desk.run(call)


@pytest.mark.nightly
def test_a_slow_redrive_shows_its_progress(cluster: Cluster, desk: Desk) -> None:
    queue = Letters(cluster, **named("slow"))
    queue.produce(range(30))
    cluster.client.run(queue.reject(30))

    async def call(page: Page) -> None:
        await page.tab.goto(f"{page.url}letters?topic={queue.letters}")
        await page.tab.click("Send all letters back")
        await page.tab.fill("Letters per second, at most", "2")
        await page.tab.click("Show what will happen")
        await page.tab.sees("At 2 per second it takes about 15 s.")
        await page.tab.click("Send 30 letters back")
        await page.tab.until("document.querySelector('progress')?.value > 8")
        await page.shows_nothing_wrong("running", has_boxes=False)
        await page.tab.click("Stop")
        await page.tab.sees("Stopped")
        await page.shows_nothing_wrong("stopped", has_boxes=False)

    desk.run(call)


@pytest.mark.nightly
def test_payloads_of_any_kind(cluster: Cluster, desk: Desk) -> None:
    """Nothing of a payload runs or becomes markup, also with 10 MB of it."""
    queue = Queue(
        cluster.client,
        cluster.bootstrap,
        **named("payloads"),
        topic_configs={"max.message.bytes": "12000000"},
    )
    script = b"<script>window.hacked = 1</script><img src=x onerror='window.hacked = 1'>"
    queue.produce([script], key=script, headers=((script.decode(), script),))
    queue.produce([b"\xff\xfe\x00", b"a\x1b[2Jb\rc", "user\u202egnp.exe"])
    queue.produce([script * 150_000])

    async def call(page: Page) -> None:
        await page.tab.goto(f"{page.url}topic?name={queue.topic}")
        await page.tab.sees("<script>window.hacked")
        await page.shows_nothing_wrong("topic-hostile", has_boxes=False)
        for offset in range(5):
            place = f"topic={queue.topic}&partition=0&offset={offset}"
            for form in ("auto", "text", "hex"):
                await page.tab.goto(f"{page.url}record?{place}&as={form}")
                await page.tab.sees("Value")
                assert await page.tab.evaluate("window.hacked || 0") == 0
                assert await page.tab.evaluate("document.querySelectorAll('main img').length") == 0
        await page.shows_nothing_wrong("record-large", has_boxes=False)

    desk.run(call)


@pytest.mark.nightly
def test_a_broker_that_dies_while_a_page_is_open(tmp_path: Path) -> None:
    broker = ShoalProcess(tmp_path / "data").start()

    async def call(page: Page) -> None:
        await page.tab.goto(page.url)
        await page.tab.sees("There are no queues yet.")
        await asyncio.to_thread(broker.kill9)
        await page.tab.sees("No answer from the cluster since")
        await page.tab.until("document.getElementById('pulse').dataset.state === 'bad'")
        await page.shows_nothing_wrong("broker-gone", has_boxes=False)
        await asyncio.to_thread(broker.start)
        await page.tab.until("!document.body.innerText.includes('No answer from the cluster')")
        await page.tab.until("document.getElementById('pulse').dataset.state === 'live'")

    async def whole() -> None:
        settings = replace(
            Settings.from_bootstrap(broker.bootstrap),
            retry_timeout_ms=500,
            connect_timeout_ms=1_000,
        )
        browser = chromium(tmp_path)
        async with (
            serving(settings, ConsoleAccess(port=0), interval_s=1.0) as url,
            browser as found,
        ):
            await call(Page(url, found, await found.tab()))

    chromium_path()
    try:
        asyncio.run(whole())
    finally:
        broker.kill9()


@pytest.mark.nightly
def test_five_thousand_topics(cluster: Cluster, desk: Desk) -> None:
    names = [f"many-{n:04}" for n in range(5_000)]
    admin = cluster.client.admin
    for at in range(0, len(names), 500):
        some = [NewTopic(name, 1) for name in names[at : at + 500]]
        expect(cluster.client.run(admin.topics.create(some)))

    async def call(page: Page) -> None:
        await page.tab.goto(page.url)
        await page.tab.sees("Offline partitions 0 of 5,")
        await page.tab.goto(f"{page.url}topics?q=many")
        await page.tab.sees("Page 1 of 50, 5,000 rows")
        await page.shows_nothing_wrong("topics-many", has_boxes=False)
        await page.tab.click("Next")
        await page.tab.sees("many-0199")

    desk.run(call)
