"""Every page of the console over a broker of Shoal's, and at night over Apache Kafka."""

from __future__ import annotations

import asyncio
import html
import re
import time
import urllib.request
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import pytest
from aiohttp import encode_basic_auth
from shoal.client.admin.configs import ConfigChange, ConfigResource, ConfigResourceType
from shoal.client.admin.topics import NewTopic
from shoal.client.client import Client, SyncClient
from shoal.client.errors import expect
from shoal.client.net.cluster import TopicPartition
from shoal.client.settings import Settings
from shoal.client.share.acquired import Acknowledgement, AcknowledgeType, AcquiredRecords
from shoal.console import pages
from shoal.console.access.security import ConsoleAccess, parse_users
from shoal.protocol.reasons import FailureReason
from support.brokers.commands import Shoal
from support.brokers.ports import free_ports
from support.brokers.queues import Queue
from support.brokers.servers import ShoalProcess
from support.console.console_letters import Letters
from support.console.consoles import Console, Opened, console
from support.kafka.kafkas import KafkaProcess
from support.runs.conditions import ceiling, eventually, stopwatch
from support.workers import range_gap

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator
    from pathlib import Path

    from shoal.client.share.member import ShareSession
    from support.brokers.shared_servers import SharedKafka
    from support.security.secured_clusters import Secured

HOSTILE = {
    "script": b"<script>alert(1)</script><img src=x onerror=alert(1)>",
    "quotes": b"\"'></textarea></pre><svg onload=alert(1)>",
    "control": b"a\x1b[2Jb\rc\x7f",
    "direction": "user\u202egnp.exe".encode(),
    "broken": b"\xff\xfe<b>\x00",
    "large": b"<script>" * 1_250_000,
    "null": None,
    "empty": b"",
}


class Cluster(NamedTuple):
    """A broker with a queue of six records, three in each of two partitions.

    The first record of each partition is accepted. On Shoal the second is a dead letter.
    """

    bootstrap: str
    is_shoal: bool
    queue: Queue
    client: SyncClient


@pytest.fixture(
    scope="module",
    params=["shoal", pytest.param("kafka", marks=[pytest.mark.java, pytest.mark.nightly])],
)
def cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("console")
    is_shoal = request.param == "shoal"
    if is_shoal:
        (port,) = free_ports(1)
        shoal = ShoalProcess(folder / "data", metrics=f"127.0.0.1:{port}").start()
        bootstrap, stop = shoal.bootstrap, shoal.kill9
    else:
        kafka = KafkaProcess(folder / "node").start()
        bootstrap, stop = kafka.bootstrap, kafka.kill9
    try:
        with SyncClient(bootstrap) as client:
            queue = Queue(client, bootstrap, partitions=2)
            if is_shoal:
                dlq = {"errors.deadletterqueue.group.enable": "true"}
                letters = NewTopic(f"dlq.{queue.topic}", 1, configs=dlq)
                expect(client.run(client.admin.topics.create([letters])))
                queue.configure(
                    errors_deadletterqueue_topic_name=letters.name,
                    errors_deadletterqueue_copy_record_enable="true",
                )
            # Records of one millisecond in two partitions would have no order.
            began_ms = int(time.time() * 1000) - 60_000
            for value in range(6):
                queue.produce(
                    [f'{{"n": {value}}}'],
                    timestamp_ms=began_ms + value,
                    partition=value % 2,
                    key=b"k%d" % value,
                    headers=(("from", b"test"), ("n", b"%d" % value)),
                )
            client.run(_complete(client, queue, rejects=is_shoal))
            yield Cluster(bootstrap, is_shoal, queue, client)
    finally:
        stop()


async def _complete(client: SyncClient, queue: Queue, *, rejects: bool) -> None:
    """Accept the first record of each partition, and reject the second if `rejects`."""
    session = await client.client.share(queue.group, [queue.topic])
    acquired = await _acquire(session, 6)
    types = [AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE, AcknowledgeType.RELEASE]
    if rejects:
        types[1] = AcknowledgeType.REJECT
    refusals = await session.acknowledge(
        Acknowledgement(record.topic, record.partition, record.offset, record.offset, type)
        for batch in acquired
        for record in batch.records()
        for type in [types[record.offset]]
    )
    assert not refusals
    await session.close()


async def _acquire(session: ShareSession, count: int) -> list[AcquiredRecords]:
    """Acquire this number of records. A member of Kafka's waits for its assignment."""
    found: list[AcquiredRecords] = []
    async with asyncio.timeout(120):
        while sum(batch.count for batch in found) < count:
            found += await session.acquire(max_wait_ms=1_000)
    return found


def run(call: Callable[[Console], Coroutine[None, None, None]], cluster: Cluster) -> None:
    """Run a test on a console that has read one sample."""

    async def whole() -> None:
        async with console(cluster.bootstrap) as opened:
            await opened.sample()
            await call(opened)

    asyncio.run(whole())


def test_the_overview_has_the_queue(cluster: Cluster) -> None:
    async def call(page: Console) -> None:
        found = (await page.get("/")).words
        assert "1 of 1 running" in found
        assert "Offline partitions 0 of" in found
        assert "of 1 Queues" in found.replace("in trouble 1 of 1", "of 1")
        assert f"No consumers {cluster.queue.group} {cluster.queue.topic}" in found
        (queue,) = page.sampler.queues
        if cluster.is_shoal:
            assert (queue.depth, queue.letters, queue.held) == (2, 2, 0)
            assert "These brokers are not Shoal's" not in found
        else:
            assert (queue.depth, queue.letters, queue.held) == (4, None, None)
            assert "These brokers are not Shoal's" in found
        assert queue.oldest_ms is not None

    run(call, cluster)


@pytest.mark.java
def test_the_overview_has_a_queue_of_kafka(kafka: SharedKafka) -> None:
    with SyncClient(kafka.bootstrap) as client:
        queue = Queue(client, kafka.bootstrap)
        queue.produce([1, 2])

    async def whole() -> None:
        async with console(kafka.bootstrap) as page:
            await page.sample()
            assert queue.group in (await page.get("/", q=queue.group)).words

    asyncio.run(whole())


def test_the_overview_is_filtered(cluster: Cluster) -> None:
    async def call(page: Console) -> None:
        assert cluster.queue.group in (await page.get("/", q=cluster.queue.topic)).words
        found = (await page.get("/", q="<no>")).words
        assert "No queue has “<no>” in the name" in found

    run(call, cluster)


def test_before_the_first_sample_pages_are_loading(cluster: Cluster) -> None:
    async def whole() -> None:
        async with console(cluster.bootstrap) as page:
            for path in ("/", f"/group?id={cluster.queue.group}", "/topics"):
                assert "Loading: waiting for the first answer" in (await page.get(path)).words
            await page.get("/group", id="none", status=404)

    asyncio.run(whole())


def test_a_share_group(cluster: Cluster) -> None:
    queue = cluster.queue

    async def call(page: Console) -> None:
        found = await page.get("/group", id=queue.group)
        left = 2 if cluster.is_shoal else 4
        assert f"The group has no consumers, and {left} records wait." in found.words
        assert f"shoal consume {queue.topic} --from-beginning" in found.words
        assert f"Depth of {queue.topic}, records" in found.words
        assert "share.auto.offset.reset earliest" in found.words
        assert "The group has no consumers." in found.words
        assert ("2 Available" in found.words) is cluster.is_shoal
        assert (f"dlq.{queue.topic}" in found.words) is cluster.is_shoal
        missing = await page.get("/group", id="none", status=404)
        assert "There is no group 'none'." in missing.words
        await page.get("/group", status=400)

    run(call, cluster)


def test_consumers_and_locks(cluster: Cluster) -> None:
    queue = Queue(cluster.client, cluster.bootstrap)
    queue.produce([1, 2, 3])

    async def hold() -> None:
        session = await cluster.client.client.share(queue.group, [queue.topic])
        acquired = await _acquire(session, 3)
        async with console(cluster.bootstrap) as page:
            await page.sample()
            found = (await page.get("/group", id=queue.group)).words
            assert "1 consumer" in found
            assert session.member_id in found
            assert "127.0.0.1" in found
            assert ("3 In flight" in found) is cluster.is_shoal
        await session.acknowledge(
            [one for batch in acquired for one in batch.acknowledge(AcknowledgeType.ACCEPT)]
        )
        await session.close()

    cluster.client.run(hold())


def test_a_consumer_group(cluster: Cluster) -> None:
    where = cluster.queue.topic
    group = f"reads-{where}"
    (first, *_) = cluster.client.run(cluster.client.admin.topics.describe([where]))
    assert first == where
    Shoal(cluster.bootstrap).run("consume", where, "-g", group, "--from-beginning", "-n", "6")

    async def call(page: Console) -> None:
        found = (await page.get("/group", id=group)).words
        assert "Consumer group, Empty" in found
        assert "Committed offset" in found
        assert "Key ranges" not in found
        assert group in (await page.get("/topic", name=where)).words

    run(call, cluster)


@pytest.mark.parametrize("cluster", ["shoal"], indirect=True)
def test_key_ranges(cluster: Cluster) -> None:
    """The row of the member with an unfinished record is first, with a link to it. Apache Kafka has
    no key ranges."""
    topic = f"ranges-{cluster.queue.topic}"

    async def whole() -> None:
        async with Client(cluster.bootstrap) as client:
            allowed = {"shoal.key.ranges.enable": "true"}
            expect(await client.admin.topics.create([NewTopic(topic, 1, configs=allowed)]))
            async with (
                range_gap.gap(client, cluster.bootstrap, topic, topic) as slow,
                console(cluster.bootstrap) as page,
            ):
                await page.sample()
                found = await page.get("/group", id=topic)
                assert f"{topic} 0 {slow} 50.0 % 3 37 36 yes 3 " in found.words
                assert " 50.0 % 40 0 37 no " in found.words
                assert re.search(rf'href="[^"]*{topic}[^"]*offset=3[^"]*"', found.text)

    asyncio.run(whole())


def test_topics(cluster: Cluster) -> None:
    async def call(page: Console) -> None:
        found = (await page.get("/topics")).words
        assert cluster.queue.topic in found
        assert "__share_group_state" not in found
        assert "__share_group_state" in (await page.get("/topics", internal=1)).words
        assert "No topic has “zzz” in its name." in (await page.get("/topics", q="zzz")).words

    run(call, cluster)


def test_long_tables_have_pages(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Short ones here: Kafka's broker applies 150 new topics long after its controller."""
    monkeypatch.setattr(pages, "ROWS_MAX", 10)
    prefix = f"many-{cluster.queue.topic}"
    names = [f"{prefix}-{n:03}" for n in range(15)]
    admin = cluster.client.admin
    expect(cluster.client.run(admin.topics.create([NewTopic(name, 1) for name in names])))

    async def call(page: Console) -> None:
        seen: list[str] = []
        found = await page.get("/topics", q=prefix)
        seen += re.findall(rf">({prefix}-\d+)</a>", found.text)
        assert "Page 1 of 2, 15 rows" in found.words
        following = re.search(r'rel="next" href="([^"]*)"', found.text)
        assert following is not None
        found = await page.get(html.unescape(following[1]))
        seen += re.findall(rf">({prefix}-\d+)</a>", found.text)
        assert "Page 2 of 2, 15 rows" in found.words
        assert seen == names
        for odd in ("0", "-1", "x", "9" * 30):
            assert "Page 1 of 2" in (await page.get("/topics", q=prefix, page=odd)).words
        assert "Page 2 of 2" in (await page.get("/topics", q=prefix, page=9)).words

    run(call, cluster)


def test_a_topic(cluster: Cluster) -> None:
    topic = cluster.queue.topic
    change = ConfigChange("retention.ms", "77777777")
    resource = ConfigResource(ConfigResourceType.TOPIC, topic)
    configs = cluster.client.client.admin.configs
    expect(cluster.client.run(configs.alter({resource: [change]})))

    def in_force() -> bool:
        described = expect(cluster.client.run(configs.describe([resource])))
        return described[resource]["retention.ms"].value == "77777777"

    eventually(in_force, what="a broker may hear of the change later than its controller")

    async def call(page: Console) -> None:
        found = (await page.get("/topic", name=topic)).words
        assert "Partition Leader Replicas In sync Start offset End offset Offsets Size" in found
        assert "0 1 1 1 0 3 3" in found
        # Kafka reports the default only of a config that is not set.
        default = "log.retention.hours=168" if cluster.is_shoal else "–"
        assert f"retention.ms 77777777 {default} the topic" in found
        assert "6 records read" in found
        assert '{"n": 5}' in found
        missing = await page.get("/topic", name="none", status=404)
        assert "no topic 'none'" in missing.words
        await page.get("/topic", name="not/a topic", status=404)

    run(call, cluster)


def test_browse(cluster: Cluster) -> None:
    topic = cluster.queue.topic

    async def values(page: Console, **fields: object) -> list[str]:
        found = await page.get("/topic", name=topic, **fields)
        return re.findall(r"{&#34;n&#34;: (\d)}", found.text)

    async def call(page: Console) -> None:
        assert await values(page) == ["5", "4", "3", "2", "1", "0"]
        assert await values(page, partition=1) == ["5", "3", "1"]
        assert await values(page, from_="offset", at=1, partition=0) == ["2", "4"]
        assert await values(page, from_="offset", at=99, partition=0) == []
        assert await values(page, from_="time", at="1h") == ["0", "1", "2", "3", "4", "5"]
        assert await values(page, from_="time", at="2999-01-01T00:00Z") == []
        assert await values(page, key="k3") == ["3"]
        assert await values(page, value='"n": 4') == ["4"]
        assert await values(page, header="n=2") == ["2"]
        assert await values(page, header="n") == ["5", "4", "3", "2", "1", "0"]
        assert await values(page, header="from=no") == []

    run(call, cluster)


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"from_": "offset", "at": "x"}, "The offset must be a number, not 'x'."),
        ({"from_": "offset", "at": "9" * 30}, "The offset must be a number"),
        ({"from_": "time", "at": "soon"}, "'soon' is not a time."),
        ({"from_": "there"}, "From= must be end, offset or time"),
        ({"partition": "-1"}, "The partition must be a number, not '-1'."),
        ({"partition": "7"}, "has 2 partitions, no partition 7"),
    ],
)
def test_mistakes_in_the_form(cluster: Cluster, fields: dict[str, str], sentence: str) -> None:
    async def call(page: Console) -> None:
        found = await page.get("/topic", name=cluster.queue.topic, **fields)
        assert sentence in found.words

    run(call, cluster)


def test_a_long_scan_can_be_continued(cluster: Cluster) -> None:
    queue = Queue(cluster.client, cluster.bootstrap)
    queue.produce(range(120), batch=10)

    async def call(page: Console) -> None:
        seen: list[int] = []
        at = 0
        for _ in range(3):
            found = await page.get("/topic", name=queue.topic, from_="offset", at=at, partition=0)
            seen += map(
                int, re.findall(r'class="name cut" data-label="Value">\s*(\d+)', found.text)
            )
            more = re.search(r"at offset (\d+)</a>", found.text)
            if more is None:
                break
            at = int(more[1])
        assert seen == list(range(120))

    run(call, cluster)


def test_hostile_payloads(cluster: Cluster) -> None:
    queue = Queue(
        cluster.client, cluster.bootstrap, topic_configs={"max.message.bytes": "12000000"}
    )
    for name, value in HOSTILE.items():
        header = ((f"<b>{name}", value if value is None else value[:100]),)
        queue.client.run(_send(queue, name, value, header))

    async def call(page: Console) -> None:
        listed = await page.get("/topic", name=queue.topic)
        _is_safe(listed)
        assert len(listed.text) < 200_000
        for offset, (name, value) in enumerate(HOSTILE.items()):
            place = {"topic": queue.topic, "partition": "0", "offset": str(offset)}
            for wanted in ("auto", "text", "json", "hex"):
                found = await page.get("/record", **place, as_=wanted)
                _is_safe(found)
                assert len(found.text) < 700_000, (name, wanted)
            if value:
                async with page.browser.get("/payload", params=place) as response:
                    assert await response.read() == value
                    assert response.headers["Content-Disposition"].startswith("attachment")
                    assert response.content_type == "application/octet-stream"
                    assert "default-src 'none'" in response.headers["Content-Security-Policy"]
        found = await page.get("/record", topic=queue.topic, partition=0, offset=0)
        assert "<script>alert(1)</script>" in found.words

    run(call, cluster)


def test_a_record_that_does_not_exist(cluster: Cluster) -> None:
    """The page does not wait for its topic or partition to be created."""
    settings = replace(Settings.from_bootstrap(cluster.bootstrap), retry_timeout_ms=3_600_000)
    topic = cluster.queue.topic

    async def whole() -> None:
        async with console(settings) as page:
            await page.get("/record", topic=topic, partition=0, offset=999, status=404)
            await page.get("/record", topic=topic, partition=0, offset="x", status=400)
            await page.get("/record", topic=topic, partition=9, offset=0, status=404)
            await page.get("/record", topic="none", partition=0, offset=0, status=404)

    asyncio.run(whole())


async def _send(
    queue: Queue, name: str, value: bytes | None, headers: tuple[tuple[str, bytes | None], ...]
) -> None:
    producer = queue.client.client.producer(linger_ms=0)
    sent = await producer.send(queue.topic, value, key=name.encode(), headers=headers)
    await producer.close()
    await sent


def _is_safe(found: Opened) -> None:
    """Check that nothing of a payload is markup, and that nothing is inline or from elsewhere."""
    text = found.text
    assert text.count("<script") == 1, "only the console's own"
    assert '<script src="/static/console.js?v=' in text
    for pattern in (r"<img", r"<b>[a-z]", r"\son\w+=", r"\sstyle=", r"<style", r"<svg onload"):
        assert not re.search(pattern, re.sub(r">[^<]*<", "><", text)), pattern
    for url in re.findall(r"(?:src|href|action)=\"([^\"]*)\"", text):
        assert url.startswith(("/", "#")), url
        assert not url.startswith("//"), url
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f\u202e]", text)


def test_dead_letters(cluster: Cluster) -> None:
    if not cluster.is_shoal:

        async def none(page: Console) -> None:
            found = (await page.get("/letters")).words
            assert "These brokers report no topics of dead letters" in found
            await page.get("/letters", topic="none", status=404)

        return run(none, cluster)
    name = f"dlq.{cluster.queue.topic}"
    group, topic = cluster.queue.group, cluster.queue.topic

    async def call(page: Console) -> None:
        assert f"{name} 2 0 {group}" in (await page.get("/letters")).words
        found = (await page.get("/letters", topic=name)).words
        assert f"Reason rejected 2 Share group {group} 2 Source topic {topic} 2" in found
        assert '{"n":' in found
        assert f"shoal dlq redrive {name} --dry-run" in found
        few = (await page.get("/letters", topic=name, reason="rejected", group=group)).words
        assert f"shoal dlq redrive {name} --reason rejected --group {group} --dry-run" in few
        assert "No letter matches" in (await page.get("/letters", topic=name, reason="limit")).words
        letter = (await page.get("/letter", topic=name, partition=0, offset=0)).words
        assert "rejected: Offset rejected by client" in letter
        assert "__dlq.errors.delivery.count 1" in letter
        assert f"shoal dlq redrive {name} --partition 0 --offsets 0" in letter
        no_letter = await page.get("/letter", topic=topic, partition=0, offset=0, status=404)
        assert "has no dead letter at offset 0" in no_letter.words
        other = (await page.get("/letters", topic=topic)).words
        assert "None of the 6 records read is a dead letter." in other

    return run(call, cluster)


@pytest.mark.parametrize("cluster", ["shoal"], indirect=True)
def test_redriven_letters_are_marked(cluster: Cluster) -> None:
    """Apache Kafka 4.3 writes no dead letters."""
    name = f"dlq.{cluster.queue.topic}"
    Shoal(cluster.bootstrap).run("dlq", "redrive", name, "--partition", "0", "--offsets", "1")

    async def call(page: Console) -> None:
        assert f"{name} 2 1 {cluster.queue.group}" in (await page.get("/letters")).words
        found = await page.get("/letters", topic=name)
        assert found.words.count("Sent back") == 1
        assert "Sent back" in (await page.get("/letter", topic=name, partition=0, offset=1)).words
        before = await page.get("/letter", topic=name, partition=0, offset=0)
        assert "Sent back" not in before.words

    run(call, cluster)


@pytest.mark.parametrize("cluster", ["shoal"], indirect=True)
def test_exceptions_name_the_topics_that_they_occurred_in(cluster: Cluster) -> None:
    """Two groups write to one topic of dead letters. Three members join, which takes a second."""
    first, second = Letters(cluster), Letters(cluster)
    second.letters = first.letters
    second.configure(errors_deadletterqueue_topic_name=second.letters)
    for queue, exceptions in ((first, ["KeyError", "OSError"]), (second, ["KeyError"])):
        for exception in exceptions:
            queue.produce(["x"])
            cluster.client.run(queue.reject(1, FailureReason(exception, "m")))
    eventually(lambda: cluster.client.run(first.written()) == 3)

    async def call(page: Console) -> None:
        found = await page.get("/letters", topic=first.letters)
        assert f"Exception KeyError 2 in 2 topics OSError 1 in {first.topic}" in found.words

    run(call, cluster)


def test_events_follow_the_samples(cluster: Cluster) -> None:
    queue = Queue(cluster.client, cluster.bootstrap)
    queue.produce([1])
    expect(
        cluster.client.run(
            cluster.client.admin.share_groups.alter_offsets(
                queue.group, {TopicPartition(queue.topic, 0): 0}
            )
        )
    )

    async def call(page: Console) -> None:
        async with page.browser.get("/live/", params={"q": queue.group}) as response:
            assert response.content_type == "text/event-stream"
            assert "default-src 'none'" in response.headers["Content-Security-Policy"]
            events = page.events(response)
            name, first = await anext(events)
            assert name == "state"
            assert queue.group in first
            assert "<html" not in first
            await asyncio.to_thread(queue.produce, [2, 3])
            await page.sample()
            name, second = await anext(events)
            assert name == "state"
            assert 'data-label="Depth, records">3' in second

    run(call, cluster)


def test_every_response_has_the_headers(cluster: Cluster) -> None:
    async def call(page: Console) -> None:
        assets = re.findall(r'"(/static/[^"]*)"', (await page.get("/")).text)
        assert len(assets) == 3
        for path, status in (
            ("/", 200),
            ("/none", 404),
            ("/static/../app.py", 404),
            ("/static/none", 404),
            *((asset, 200) for asset in assets),
        ):
            found = await page.get(path, status=status)
            policy = found.headers["Content-Security-Policy"]
            assert "default-src 'none'" in policy
            assert "frame-ancestors 'none'" in policy
            assert "unsafe" not in policy
            assert found.headers["X-Content-Type-Options"] == "nosniff"
            assert found.headers["Referrer-Policy"] == "same-origin"
            assert "aiohttp" not in found.headers["Server"]
            cached = path.startswith("/static/") and status == 200
            assert found.headers["Cache-Control"].startswith("max-age" if cached else "no-store")
        async with page.browser.post("/") as response:
            assert response.status == 405

    run(call, cluster)


def test_a_page_and_its_files_are_small(cluster: Cluster) -> None:
    async def call(page: Console) -> None:
        first = await page.get("/")
        assets = re.findall(r'"(/static/[^"]*)"', first.text)
        sizes = [len((await page.get(path)).text) for path in assets]
        assert len(first.text) + sum(sizes) < 200_000

    run(call, cluster)


def test_other_host_names_are_refused(cluster: Cluster) -> None:
    """DNS rebinding: a site maps its name to 127.0.0.1 and lets its script read the console."""

    async def call(page: Console) -> None:
        for name, status in (
            ("evil.example", 421),
            ("evil.example:9080", 421),
            ("localhost:9080", 200),
            ("127.0.0.1", 200),
            ("[::1]:1", 200),
        ):
            async with page.browser.get("/", headers={"Host": name}) as response:
                assert response.status == status, name
                assert (cluster.queue.group in await response.text()) is (status == 200)

    run(call, cluster)


def test_a_login(cluster: Cluster) -> None:
    async def whole() -> None:
        access = ConsoleAccess(users=parse_users("ann:secret: ü", "users"))
        async with console(cluster.bootstrap, access) as page:
            await page.sample()
            found = await page.get("/", status=401)
            assert found.headers["WWW-Authenticate"].startswith("Basic")
            assert cluster.queue.group not in found.text
            assert str(page.sampler.sample and page.sampler.sample.cluster.cluster_id) not in (
                found.text
            )
            for user, password, status in (
                ("ann", "secret: ü", 200),
                ("ann", "secret", 401),
                ("bob", "secret: ü", 401),
            ):
                login = {"Authorization": encode_basic_auth(user, password, "utf-8")}
                for path in ("/", "/static/console.css", "/topics"):
                    async with page.browser.get(path, headers=login) as response:
                        assert response.status == status
            async with page.browser.get("/", headers={"Authorization": "Basic ?"}) as response:
                assert response.status == 401

    asyncio.run(whole())


def test_a_user_without_rights_learns_so(secured: Secured) -> None:
    user = secured.new_user()
    hidden = f"hidden-from-{user}"
    admin = Settings.from_bootstrap(secured.addresses["PLAINTEXT"])
    with SyncClient(admin) as client:
        expect(client.run(client.admin.topics.create([NewTopic(hidden, 1, 1)])))
    settings = Settings.from_bootstrap(
        secured.addresses["SASL"], secured.properties("SASL", "OAUTHBEARER", user)
    )

    async def whole() -> None:
        async with console(settings) as page:
            await page.sample()
            overview = (await page.get("/")).words
            assert "There are no queues yet." in overview
            assert "Disk – not reported" in overview
            assert hidden not in (await page.get("/topics", internal=1)).words
            found = await page.get("/topic", name=hidden, status=403)
            assert "Ask an administrator for access to the topic." in found.words

    asyncio.run(whole())


def test_a_broker_that_dies_while_a_page_is_open(tmp_path: Path) -> None:
    broker = ShoalProcess(tmp_path / "data").start()
    settings = replace(
        Settings.from_bootstrap(broker.bootstrap), retry_timeout_ms=500, connect_timeout_ms=1_000
    )

    async def whole() -> None:
        async with console(settings) as page:
            await page.sample()
            async with page.browser.get("/live/") as response:
                events = page.events(response)
                assert "There are no queues yet." in (await anext(events))[1]
                broker.kill9()
                await page.sampler.step()
                name, text = await anext(events)
                assert name == "state"
                assert "No answer from the cluster since" in text
                assert "There are no queues yet." in text, "the last state stays"
                assert 'data-stale="' in text, "the header of the open page turns red by this"
                assert 'data-state="bad">No answer<' in (await page.get("/")).text
                found = await page.get("/topic", name="x", status=503)
                assert "No answer from the cluster since" in found.words
                await asyncio.to_thread(broker.start)
                await page.sample()
                assert "No answer" not in (await anext(events))[1]

    try:
        asyncio.run(whole())
    finally:
        broker.kill9()


@pytest.mark.nightly
def test_the_first_content_of_a_large_cluster(tmp_path: Path) -> None:
    """1,000 topics and 200 groups: the overview is there within 100 ms."""
    broker = ShoalProcess(tmp_path / "data").start()

    async def whole() -> float:
        async with console(broker.bootstrap) as page:
            admin = page.client.admin
            names = [f"t{n:04}" for n in range(1_000)]
            for at in range(0, 1_000, 100):
                some = [NewTopic(name, 1) for name in names[at : at + 100]]
                expect(await admin.topics.create(some))
            for n, name in enumerate(names[:200]):
                offsets = {TopicPartition(name, 0): 0}
                expect(await admin.share_groups.alter_offsets(f"g{n:03}", offsets))
            await page.sample()
            assert len(page.sampler.queues) == 200
            took_s = []
            for _ in range(5):
                with stopwatch() as passed_s:
                    found = await page.get("/")
                    took_s.append(passed_s())
            assert "Page 1 of 2, 200 rows" in found.words
            assets = re.findall(r'"(/static/[^"]*)"', found.text)
            sizes = [len((await page.get(path)).text) for path in assets]
            assert len(found.text) + sum(sizes) < 200_000
            return min(took_s)

    try:
        assert asyncio.run(whole()) < ceiling(0.1)
    finally:
        broker.kill9()


def test_the_command(cluster: Cluster) -> None:
    shoal = Shoal(cluster.bootstrap)
    running = shoal.start("console", "--listen", "127.0.0.1:0", "--interval", "1")
    try:
        (line,) = eventually(lambda: running.lines, what="the console's address")
        found = re.match(r"The console is at (http://(127\.0\.0\.1:\d+)/)\.", line)
        assert found is not None
        text = eventually(lambda: _fetched(found[1], cluster.queue.group), what="the first sample")
        assert "Queues" in text
        taken = shoal.refusal("console", "--listen", found[2])
        assert f"cannot listen on {found[2]}: address already in use" in taken.lower()
    finally:
        status = running.interrupt()
    assert status == 0


def test_mistakes_of_the_command(tmp_path: Path) -> None:
    users = tmp_path / "users"
    users.write_text("ann\n")
    for words, said in (
        (("--listen", "0.0.0.0:0"), "other hosts reach 0.0.0.0"),
        (("--login", str(users)), "must be USER:PASSWORD"),
        (("--certificate", str(users)), "It must be a PEM file"),
    ):
        assert said in Shoal("127.0.0.1:1").mistake("console", *words)


def _fetched(url: str, word: str) -> str | None:
    with urllib.request.urlopen(url, timeout=60) as answer:
        text = answer.read().decode()
    return text if word in text else None
