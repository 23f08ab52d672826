"""Every action of the console, over a broker of Shoal's; what Kafka has, over Apache Kafka too."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import subprocess
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from aiohttp import ClientSession, CookieJar, encode_basic_auth
from shoal.client.admin.configs import ConfigResource, ConfigResourceType
from shoal.client.admin.topics import NewTopic
from shoal.client.client import SyncClient
from shoal.client.errors import expect
from shoal.client.net.cluster import TopicPartition
from shoal.client.settings import Settings
from shoal.client.share.acquired import Acknowledgement, AcknowledgeType, AcquireMode
from shoal.console.access.security import ConsoleAccess, parse_users
from shoal.dead_letters.records import get_redrive_source
from support.brokers.commands import SHOAL
from support.brokers.ports import free_ports
from support.brokers.queues import Queue
from support.brokers.servers import ShoalProcess
from support.console.console_letters import Letters
from support.console.consoles import Console, Opened, another_browser, console
from support.kafka.kafkas import KafkaProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

    from support.security.secured_clusters import Secured

ACTING = ConsoleAccess(allow_actions=True)
HOLD = {
    "share_ordering": "key",
    "share_ordering_key_dead_letter": "hold",
}


class Cluster(NamedTuple):
    bootstrap: str
    client: SyncClient
    is_shoal: bool


@pytest.fixture(scope="module")
def shoal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    (port,) = free_ports(1)
    folder = tmp_path_factory.mktemp("actions")
    broker = ShoalProcess(folder / "data", metrics=f"127.0.0.1:{port}").start()
    try:
        with SyncClient(broker.bootstrap) as client:
            yield Cluster(broker.bootstrap, client, True)
    finally:
        broker.kill9()


@pytest.fixture(scope="module")
def kafka_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    node = KafkaProcess(tmp_path_factory.mktemp("kafka") / "node").start()
    try:
        with SyncClient(node.bootstrap) as client:
            yield Cluster(node.bootstrap, client, False)
    finally:
        node.kill9()


@pytest.fixture(
    params=["shoal", pytest.param("kafka_node", marks=[pytest.mark.java, pytest.mark.nightly])]
)
def cluster(request: pytest.FixtureRequest) -> Cluster:
    found: Cluster = request.getfixturevalue(request.param)
    return found


def run(
    call: Callable[[Console], Coroutine[None, None, None]],
    cluster: Cluster,
    access: ConsoleAccess = ACTING,
) -> None:
    """Run a test on a console that has read one sample."""

    async def whole() -> None:
        async with console(cluster.bootstrap, access) as page:
            await page.sample()
            await call(page)

    asyncio.run(whole())


def at(cluster: Cluster, call: Coroutine[Any, Any, Any]) -> Any:
    """Run a call on the cluster's own client, beside the console."""
    return asyncio.to_thread(cluster.client.run, call)


async def config(cluster: Cluster, group: str, name: str) -> str | None:
    resource = ConfigResource(ConfigResourceType.GROUP, group)
    found = await at(cluster, cluster.client.admin.configs.describe([resource]))
    return found[resource][name].value


def audited(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    return [json.loads(r.message) for r in caplog.records if r.name == "shoal.console.audit"]


def test_pause_and_resume(shoal: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "shoal.console.audit")
    queue = Letters(shoal)
    queue.produce([1, 2, 3])
    shoal.client.run(queue.reject(1))

    async def call(page: Console) -> None:
        found = await page.get("/group", id=queue.group)
        assert "Pause delivery" in found.words
        plan = await page.preview("pause", group=queue.group)
        assert f"Delivery to 0 consumers of group {queue.group} stops." in plan.words
        assert "2 records that are not settled now" in plan.words
        assert await config(shoal, queue.group, "share.delivery.paused") == "false"
        done = await page.confirm(plan)
        assert f"Done Paused delivery to group {queue.group}." in done.words
        assert await config(shoal, queue.group, "share.delivery.paused") == "true"
        await page.sample()
        found = await page.get("/group", id=queue.group)
        assert "Delivery is paused." in found.words
        assert f"/act-resume?group={queue.group}" in found.text
        again = await page.get("/act-pause", group=queue.group, status=409)
        assert f"Delivery to group {queue.group} is paused already." in again.words
        done = await page.act("resume", group=queue.group)
        assert f"Resumed delivery to group {queue.group}." in done.words
        assert await config(shoal, queue.group, "share.delivery.paused") == "false"
        assert "Resume delivery" in (await page.get("/actions")).words

    run(call, shoal)
    lines = audited(caplog)
    assert [(one["action"], one["result"], one["target"]) for one in lines] == [
        ("pause", "done", {"group": queue.group}),
        ("resume", "done", {"group": queue.group}),
    ]
    assert {(one["user"], one["remote"]) for one in lines} == {(None, "127.0.0.1")}


def test_a_new_group_has_its_dead_letters_in_the_next_sample(shoal: Cluster) -> None:
    """The console reads the topics of dead letters seldom, but at once for a group that is new."""

    async def call(page: Console) -> None:
        queue = await asyncio.to_thread(Letters, shoal)
        await asyncio.to_thread(queue.produce, [1, 2])
        await at(shoal, queue.reject(1))
        await page.sample()
        (found,) = (one for one in page.sampler.queues if one.group == queue.group)
        assert found.letters == 1

    run(call, shoal)


def test_a_console_that_only_reads_has_no_actions(shoal: Cluster) -> None:
    queue = Queue(shoal.client, shoal.bootstrap)

    async def call(page: Console) -> None:
        topic = await page.get("/topic", name=queue.topic)
        assert "This console only reads." in topic.words
        assert "/act-" not in topic.text
        assert "Set-Cookie" not in topic.headers
        await page.get("/act-produce", topic=queue.topic, status=404)
        await page.get("/actions", status=404)
        await page.post("/act-produce", {"topic": queue.topic}, status=404)
        await page.post("/confirm", {}, status=404)

    run(call, shoal, ConsoleAccess())


def test_forms_of_other_sites_are_refused(shoal: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "shoal.console.audit")
    queue = Letters(shoal)

    async def call(page: Console) -> None:
        form = (await page.get("/act-produce", topic=queue.topic)).fields
        form |= {"value": "p4yload"}
        for token in ("", "0" * 64, "\u00fc"):
            sent = await page.post("/act-produce", {**form, "token": token}, status=403)
            assert "The form is out of date" in sent.words
        del form["token"]
        await page.post("/act-produce", form, status=403)
        form = (await page.get("/act-produce", topic=queue.topic)).fields
        for headers in (
            {"Origin": "http://evil.example"},
            {"Origin": "http://127.0.0.1:1"},
            {"Origin": "null"},
            {"Sec-Fetch-Site": "cross-site"},
            {"Sec-Fetch-Site": "same-site"},
        ):
            sending = page.browser.post("/act-produce", data=form, headers=headers)
            async with sending as response:
                assert response.status == 403, headers
                assert "The form came from another address" in await response.text()
        async with another_browser(page) as other:
            await other.post("/act-produce", form, status=403)
        origin = f"http://127.0.0.1:{page.browser.port}"
        async with page.browser.post(
            "/act-produce", data=form, headers={"Origin": origin, "Sec-Fetch-Site": "same-origin"}
        ) as response:
            assert response.status == 200
        assert not await at(shoal, queue.records())

    run(call, shoal)
    lines = audited(caplog)
    assert {one["result"] for one in lines} == {"refused"}
    assert "p4yload" not in caplog.text


def test_the_cookie_and_the_headers_of_forms(shoal: Cluster) -> None:
    queue = Queue(shoal.client, shoal.bootstrap)

    async def call(page: Console) -> None:
        form = await page.get("/act-produce", topic=queue.topic)
        cookie = form.headers["Set-Cookie"]
        for word in ("HttpOnly", "SameSite=Strict", "Path=/"):
            assert word in cookie
        assert "frame-ancestors 'none'" in form.headers["Content-Security-Policy"]
        assert "form-action 'self'" in form.headers["Content-Security-Policy"]
        assert form.headers["X-Frame-Options"] == "DENY"
        assert form.headers["Cache-Control"] == "no-store"
        assert "Content-Encoding" not in form.headers, "its size would betray the token (BREACH)"
        assert "Set-Cookie" not in (await page.get("/act-produce", topic=queue.topic)).headers

    run(call, shoal)


def test_a_confirmation_is_sent_once(shoal: Cluster) -> None:
    queue = Letters(shoal)

    async def call(page: Console) -> None:
        plan = await page.preview("produce", topic=queue.topic, value="1")
        await page.confirm(plan)
        again = await page.confirm(plan, status=409)
        assert "This confirmation was sent before" in again.words
        plan = await page.preview("produce", topic=queue.topic, value="2")
        async with another_browser(page) as other:
            form = (await other.get("/act-produce", topic=queue.topic)).fields
            stolen = {"plan": plan.fields["plan"], "token": form["token"]}
            await other.post("/confirm", stolen, status=409)
        assert [record.value for record in await at(shoal, queue.records())] == [b"1"]

    run(call, shoal)


def test_two_people_who_act_at_once(shoal: Cluster) -> None:
    queue = Letters(shoal)
    queue.produce([1])
    shoal.client.run(queue.reject(1))
    name = "share.partition.max.record.locks"

    async def call(page: Console) -> None:
        async with another_browser(page) as other:
            mine = await page.preview("limit", group=queue.group, config=name, value=3000)
            theirs = await other.preview("limit", group=queue.group, config=name, value=2500)
            assert f"{name} of group {queue.group} changes from 2000" in theirs.words
            await page.confirm(mine)
            changed = await other.confirm(theirs)
            assert "The cluster has changed since the page was opened" in changed.words
            assert f"{name} of group {queue.group} changes from 3000" in changed.words
            assert await config(shoal, queue.group, name) == "3000"
            await other.confirm(changed)
            assert await config(shoal, queue.group, name) == "2500"

            mine = await page.preview("purge", topic=queue.letters)
            theirs = await other.preview("purge", topic=queue.letters)
            done = await page.confirm(mine, typed=queue.letters)
            assert f"Deleted 1 record of {queue.letters}." in done.words
            late = await other.confirm(theirs, typed=queue.letters, status=409)
            assert f"{queue.letters} has no letters." in late.words

    run(call, shoal)


def test_send_letters_back(shoal: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "shoal.console.audit")
    queue = Letters(shoal)
    queue.produce([0, 1, 2, 3, 4])
    shoal.client.run(queue.reject(5))

    async def call(page: Console) -> None:
        listed = await page.get("/letters", topic=queue.letters)
        assert listed.text.count('name="letter"') == 5
        none = await page.get("/act-redrive", topic=queue.letters, only="chosen", status=409)
        assert "No letter is chosen." in none.words
        chosen = {"topic": queue.letters, "letter": ["0@1", "0@3"]}
        plan = await page.preview("redrive", **chosen, note="after the fix")
        assert f"2 letters of {queue.letters} are sent back" in plan.words
        assert f"{queue.topic} {queue.group} rejected 2" in plan.words
        done = await page.confirm(plan)
        assert f"Sent 2 letters of {queue.letters} back." in done.words
        records = (await at(shoal, queue.records()))[5:]
        assert [record.value for record in records] == [b"1", b"3"]
        assert dict(records[0].headers)["__dlq.redrive.note"] == b"after the fix"
        rest = await page.preview("redrive", topic=queue.letters, reason="rejected", rate=1000)
        assert f"3 letters of {queue.letters} are sent back" in rest.words
        assert "2 letters left out: sent back before." in rest.words
        await page.confirm(rest)
        nothing = await page.preview("redrive", topic=queue.letters)
        assert "5 letters" in nothing.words
        assert "check that box" in nothing.words
        again = await page.preview("redrive", topic=queue.letters, again=1)
        assert f"5 letters of {queue.letters} are sent back" in again.words
        for fields, sentence in (
            ({"letter": "x"}, "A letter must be PARTITION@OFFSET"),
            ({"reason": "no"}, "The reason must be one of rejected, limit, corrupt"),
            ({"rate": "0"}, "The rate must be a number from 1 to 10,000"),
        ):
            if "letter" in fields:
                found = await page.get("/act-redrive", topic=queue.letters, status=409, **fields)
            else:
                found = await page.preview("redrive", topic=queue.letters, **fields)
            assert sentence in found.words

    run(call, shoal)
    assert audited(caplog)[0]["target"] == {"topic": queue.letters, "letter": "0@1,0@3"}
    assert "after the fix" not in caplog.text


def test_letters_of_one_key(shoal: Cluster) -> None:
    """A letter stands for its key in addresses: they have no key of a record."""
    queue = Letters(shoal)
    for value, key in ((0, b"red"), (1, b"blue"), (2, b"red"), (3, None)):
        queue.produce([value], key=key)
    shoal.client.run(queue.reject(4))

    async def call(page: Console) -> None:
        every = await page.get("/letters", topic=queue.letters)
        assert "Key red 2 blue 1 null 1" in every.words
        assert not re.search(r'(href|action)="[^"]*(red|blue)\b', every.text.replace("redrive", ""))
        red = await page.get("/letters", topic=queue.letters, same="0@0")
        assert red.text.count('name="letter"') == 2
        plan = await page.preview("redrive", topic=queue.letters, same="0@0")
        assert f"2 letters of {queue.letters} are sent back" in plan.words
        await page.confirm(plan)
        assert [one.value for one in (await at(shoal, queue.records()))[4:]] == [b"0", b"2"]
        null = await page.get("/letters", topic=queue.letters, same="0@3")
        assert null.text.count('name="letter"') == 1
        wrong = await page.get("/letters", topic=queue.letters, same="x", status=400)
        assert "A letter must be PARTITION@OFFSET" in wrong.words
        wrong = await page.get("/letters", topic=queue.letters, same="0@99", status=404)
        assert "OFFSET_OUT_OF_RANGE" in wrong.words
        record = await page.get("/record", topic=queue.topic, partition=0, offset=0)
        assert f"/letters?topic={queue.letters}&amp;group={queue.group}" in record.text

    run(call, shoal)


def test_letters_that_arrive_after_the_plan_stay(shoal: Cluster) -> None:
    queue = Letters(shoal)
    queue.produce([0, 1, 2])
    shoal.client.run(queue.reject(1))

    async def call(page: Console) -> None:
        redrive = await page.preview("redrive", topic=queue.letters)
        purge = await page.preview("purge", topic=queue.letters)
        await at(shoal, queue.reject(2))
        assert "Sent 1 letter of" in (await page.confirm(redrive)).words
        done = await page.confirm(purge, typed=queue.letters)
        assert f"Deleted 1 record of {queue.letters}." in done.words
        assert [r.offset for r in await at(shoal, queue.records(queue.letters))] == [1, 2]

    run(call, shoal)


def test_a_slow_redrive_is_stopped_and_continued(shoal: Cluster) -> None:
    queue = Letters(shoal)
    queue.produce(range(12))
    shoal.client.run(queue.reject(12))

    async def call(page: Console) -> None:
        running = await page.act("redrive", topic=queue.letters, rate=1)
        assert "Running" in running.words
        assert "Stop" in running.words
        stopped = await page.post("/stop", running.fields)
        assert "Stopped by 127.0.0.1. What was done stays done." in stopped.words
        sent = await at(shoal, queue.records())
        assert 12 < len(sent) < 24
        await page.act("redrive", topic=queue.letters, rate=10_000)
        records = (await at(shoal, queue.records()))[12:]
        assert sorted(int(record.value or b"") for record in records) == list(range(12))

    run(call, shoal)


def test_edit_a_letter(shoal: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "shoal.console.audit")
    queue = Letters(shoal)
    text = '{"n": "<script>alert(1)</script>",\n "ü": 1}'
    queue.produce([text, b"\xff\x00", "plain"], key=b"k")
    shoal.client.run(queue.reject(3))

    async def call(page: Console) -> None:
        place = {"topic": queue.letters, "partition": 0, "offset": 0}
        form = await page.get("/act-edit", **place)
        assert form.fields["value"] == text
        assert "<script>alert" not in form.text
        same = await page.preview("edit", **place)
        assert "Nothing was edited." in same.words
        # A browser sends line breaks as CR LF.
        edited = text.replace("alert", "fixed").replace("\n", "\r\n")
        plan = await page.preview("edit", **place, value=edited)
        assert f"Letter {queue.letters}-0@0 is sent back to topic {queue.topic}" in plan.words
        assert "Key 1 B 1 B as it was" in plan.words
        await page.confirm(plan)
        (record,) = (await at(shoal, queue.records()))[3:]
        assert record.value == text.replace("alert", "fixed").encode()
        assert record.key == b"k"
        assert dict(record.headers)["__dlq.redrive.edited"] == b"true"
        assert get_redrive_source(record.headers) == f"{queue.letters}-0@0"

        place["offset"] = 1
        assert (await page.get("/act-edit", **place)).fields["value"] == "ff 00"
        wrong = await page.preview("edit", **place, value="f")
        assert "The value is not hexadecimal." in wrong.words
        assert wrong.fields["value"] == "f", "what was typed stays"
        hexed = {"value": "fe0", "key": "", "key-format": "null"}
        await page.confirm(await page.preview("edit", **place, **{**hexed, "value": "fe 00 01"}))
        (_, record) = (await at(shoal, queue.records()))[3:]
        assert (record.key, record.value) == (None, b"\xfe\x00\x01")
        again = await page.preview("edit", **place, value="00")
        assert "sent back before" in again.words

    run(call, shoal)
    assert "fixed" not in caplog.text


def test_purge_needs_the_topics_name(shoal: Cluster) -> None:
    queue = Letters(shoal)
    queue.produce([0, 1])
    shoal.client.run(queue.reject(2))

    async def call(page: Console) -> None:
        await page.act("redrive", topic=queue.letters, letter="0@0")
        plan = await page.preview("purge", topic=queue.letters)
        assert f"2 records of {queue.letters} are deleted permanently" in plan.words
        assert "1 letter of them was sent back before" in plan.words
        wrong = await page.confirm(plan, typed="no")
        assert f"Type {queue.letters} to confirm." in wrong.words
        assert await at(shoal, queue.written()) == 2
        await page.confirm(wrong, typed=queue.letters)
        assert await at(shoal, queue.written()) == 0
        other = await page.get("/act-purge", topic=queue.topic, status=409)
        assert f"{queue.topic} is not a topic of dead letters." in other.words

    run(call, shoal)


def test_skip_a_held_key(shoal: Cluster) -> None:
    queue = Letters(shoal, **HOLD)
    queue.produce([0, 1], key=b"k\x1b")
    queue.produce([2, 3], key=b"l")
    shoal.client.run(_reject_first_of_each_key(queue))

    async def call(page: Console) -> None:
        found = await page.get("/group", id=queue.group)
        assert "2 records. Later records of the same keys wait." in found.words
        place = {"topic": queue.topic, "partition": 0, "offset": 0}
        plan = await page.preview("skip", group=queue.group, **place)
        assert f"The key of 1 dead-lettered record of group {queue.group} is released" in plan.words
        assert "k\u241b" in plan.words
        assert "Skipped 1 record" in (await page.confirm(plan)).words
        gone = await page.get("/act-skip", group=queue.group, **place, status=409)
        assert "No such record" in gone.words
        await page.act("skip", group=queue.group)
        assert not any(p.key_holder_offsets for p in queue.positions().values())

    run(call, shoal)


async def _reject_first_of_each_key(queue: Letters) -> None:
    session = await queue.client.client.share(queue.group, [queue.topic])
    left = 2
    async with asyncio.timeout(120):
        while left:
            for batch in await session.acquire(max_wait_ms=1_000):
                for record in batch.records():
                    place = (record.topic, record.partition, record.offset, record.offset)
                    await session.acknowledge([Acknowledgement(*place, AcknowledgeType.REJECT)])
                    left -= 1
        while await queue.written() < 2:
            await session.acquire(max_wait_ms=100)
    await session.close()


def test_reset_offsets(cluster: Cluster) -> None:
    queue = Letters(cluster) if cluster.is_shoal else Queue(cluster.client, cluster.bootstrap)
    queue.produce(range(5))
    session = cluster.client.run(cluster.client.client.share(queue.group, [queue.topic]))
    cluster.client.run(_accept(session, 5))

    async def call(page: Console) -> None:
        busy = await page.get("/act-reset", group=queue.group, status=409)
        assert f"Group {queue.group} has 1 consumer. Stop them first" in busy.words
        await at(cluster, session.close())
        plan = await page.preview("reset", group=queue.group, to="offset", value=2)
        assert f"1 position of group {queue.group} in topic {queue.topic} moves." in plan.words
        if cluster.is_shoal:
            assert "Up to 3 records are delivered again" in plan.words
            assert "0 5 2 -3" in plan.words
        else:
            # Kafka stores a start offset only with the next acknowledgement.
            assert "0 0 2 2" in plan.words
        assert "Moved 1 position" in (await page.confirm(plan)).words
        (position,) = (await asyncio.to_thread(queue.positions)).values()
        assert position.start_offset == 2
        plan = await page.preview("reset", group=queue.group, to="latest")
        assert "Up to 3 records are skipped" in plan.words
        shift = await page.preview("reset", group=queue.group, to="shift", value="-1")
        assert "0 2 1 -1" in shift.words
        for fields, sentence in (
            ({"to": "offset", "value": "x"}, "The offset must be a number from 0 to"),
            ({"to": "time", "value": "soon"}, "'soon' is not a time."),
            ({"to": "there"}, "The way must be one of earliest"),
            ({"to": "offset", "value": "2"}, "Nothing is to move."),
            ({"partition": "7"}, "no partition 7"),
        ):
            status = {"status": 404} if "partition" in fields else {}
            found = await page.preview("reset", group=queue.group, **fields, **status)
            assert sentence in found.words

    run(call, cluster)


async def _accept(session: Any, count: int) -> None:
    async with asyncio.timeout(120):
        while count:
            acquired = await session.acquire(max_wait_ms=1_000)
            for batch in acquired:
                await session.acknowledge(batch.acknowledge(AcknowledgeType.ACCEPT))
                count -= batch.count


def test_produce_a_test_record(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "shoal.console.audit")
    queue = Queue(cluster.client, cluster.bootstrap, partitions=3)
    where = TopicPartition(queue.topic, 2)

    async def call(page: Console) -> None:
        fields = {
            "topic": queue.topic,
            "partition": 2,
            "key": "6b 00",
            "key-format": "hex",
            "value": "p4yload\r\nü<b>",
            "headers": "a=1\r\nb==",
        }
        plan = await page.preview("produce", **fields)
        assert f"One record goes to partition 2 of topic {queue.topic}" in plan.words
        assert "key 2 B, value 13 B, 2 headers" in plan.words
        assert "p4yload" not in plan.text
        done = await page.confirm(plan)
        assert f"Produced the record {queue.topic}-2@0." in done.words
        fetched = await at(cluster, cluster.client.client.fetch_range(*where, 0, 0))
        (record,) = fetched[0].records()
        assert (record.key, record.value) == (b"k\0", "p4yload\nü<b>".encode())
        assert record.headers == (("a", b"1"), ("b", b"="))
        for wrong, sentence in (
            ({"headers": "x"}, "Line 1 of the headers must be NAME=VALUE."),
            ({"value-format": "?"}, "The format of the value must be text, hex or null."),
        ):
            found = await page.preview("produce", **{**fields, **wrong})
            assert sentence in found.words
        await page.get("/act-produce", topic="none", status=404)
        await page.get("/act-none", status=404)
        large = {**fields, "value": "x" * (5 << 20)}
        token = (await page.get("/act-produce", topic=queue.topic)).fields
        refused = await page.post("/act-produce", {**token, **large}, status=413)
        assert "The form is too large: it may have 4 MiB." in refused.words

    run(call, cluster)
    assert "p4yload" not in caplog.text


def test_a_limit_keeps_to_the_brokers_bounds(shoal: Cluster) -> None:
    queue = Letters(shoal)
    shoal.client.run(queue.reject(0))
    name = "share.partition.max.record.locks"

    async def call(page: Console) -> None:
        found = await page.preview("limit", group=queue.group, config=name, value=7)
        assert name in found.words
        assert found.fields["value"] == "7", "what was typed stays"
        assert 'id="mistake"' in found.text
        same = await page.preview("limit", group=queue.group, config=name, value=2000)
        assert "is 2000 already" in same.words
        odd = await page.preview("limit", group=queue.group, config=name, value="x")
        assert "The new value must be a number" in odd.words
        form = await page.get("/act-limit", group=queue.group)
        fields = {**form.fields, "config": "share.delivery.paused", "value": "1"}
        other = await page.post("/act-limit", fields)
        assert "is not among the limits" in other.words

    run(call, shoal)


def test_repair_the_dead_letter_topic(shoal: Cluster) -> None:
    queue = Letters(shoal)
    shoal.client.run(queue.reject(0))
    missing = f"dlq.missing-{queue.topic}"
    queue.configure(errors_deadletterqueue_topic_name=missing)

    async def call(page: Console) -> None:
        plan = await page.preview("letter-topic", group=queue.group)
        assert f"Topic {missing} is created" in plan.words
        await page.confirm(plan)
        fine = await page.preview("letter-topic", group=queue.group)
        assert "which exists and permits them" in fine.words
        plain = await page.preview("letter-topic", group=queue.group, topic=queue.topic)
        assert f"errors.deadletterqueue.group.enable of topic {queue.topic}" in plain.words

    run(call, shoal)


def test_what_each_consumer_holds(shoal: Cluster) -> None:
    queue = Letters(shoal)
    queue.produce(range(7))

    async def call(page: Console) -> None:
        session = await page.client.share(queue.group, [queue.topic])
        count, mode = 0, AcquireMode.RECORD_LIMIT
        async with asyncio.timeout(60):
            while not count:
                count = (await session.acquire(max_records=3, max_wait_ms=1_000, mode=mode)).count
        await page.sample()
        found = (await page.get("/group", id=queue.group)).words
        assert "Holds, records First lock ends in" in found
        assert f"127.0.0.1 {count} " in found
        assert f"{session.member_id} {queue.topic}-0 @0–{count - 1} 1 " in found
        assert "Deliveries of the records in flight" in found
        assert f" Deliveries Records Share 1 {count} " in found
        record = await page.get("/record", topic=queue.topic, partition=0, offset=0)
        assert f"{queue.group} : held by {session.member_id}, the lock ends in" in record.words
        assert "; delivered once; the start offset is 0" in record.words
        record = await page.get("/record", topic=queue.topic, partition=0, offset=count)
        assert "available to the next consumer; not delivered yet" in record.words
        await session.close()

    run(call, shoal)


@pytest.mark.parametrize(
    "secured",
    ["shoal", pytest.param("kafka", marks=[pytest.mark.java, pytest.mark.nightly])],
    indirect=True,
)
def test_actions_of_users_have_their_rights(
    secured: Secured, caplog: pytest.LogCaptureFixture
) -> None:
    """Each user acts by a delegation token, so the brokers check the rights of that user."""
    caplog.set_level(logging.INFO, "shoal.console.audit")
    mechanism = "SCRAM-SHA-256"
    settings = Settings.from_bootstrap(
        secured.addresses["SASL"], secured.properties("SASL", mechanism)
    )
    other = secured.new_user()
    users = parse_users(f"admin:a\n{other}:b\n", "users")
    topic = f"t-{other}"

    async def owners(page: Console) -> set[str]:
        return {one.owner for one in await page.client.admin.tokens.describe()}

    async def whole() -> None:
        async with console(settings, ConsoleAccess(users=users, allow_actions=True)) as page:
            expect(await page.client.admin.topics.create([NewTopic(topic, 1, 1)]))
            for user, password, status in (("admin", "a", 200), (other, "b", 403)):
                headers = {"Authorization": encode_basic_auth(user, password)}
                page.browser.session.headers.update(headers)
                if status == 403:
                    refused = await page.get("/act-produce", topic=topic, status=403)
                    assert "Ask an administrator for access to the topic." in refused.words
                    continue
                plan = await page.preview("produce", topic=topic, value="1")
                assert f"You act as {user}." in plan.words
                assert "Produced the record" in (await page.confirm(plan)).words
            assert await owners(page) >= {"User:admin", f"User:{other}"}
        async with console(settings) as page:
            assert not await owners(page) & {"User:admin", f"User:{other}"}

    asyncio.run(whole())
    found = [(one["user"], one["action"], one["result"]) for one in audited(caplog)]
    assert found == [("admin", "produce", "done")]


@pytest.mark.parametrize(
    ("access", "sentence"),
    [
        (
            ConsoleAccess("0.0.0.0", allow_actions=True),
            "Actions are off: other hosts reach this console",
        ),
        (
            ConsoleAccess(users=parse_users("a:1\nb:2\n", "u"), allow_actions=True),
            "Actions are off: each user acts by a delegation token",
        ),
    ],
)
def test_where_nobody_can_be_held_responsible_actions_are_off(
    shoal: Cluster, access: ConsoleAccess, sentence: str
) -> None:
    queue = Queue(shoal.client, shoal.bootstrap)

    async def call(page: Console) -> None:
        if access.users:
            login = {"Authorization": encode_basic_auth("a", "1")}
            page.browser.session.headers.update(login)
        found = await page.get("/topic", name=queue.topic)
        assert sentence in found.words
        assert "/act-" not in found.text
        refused = await page.get("/act-produce", topic=queue.topic, status=403)
        assert sentence in refused.words

    run(call, shoal, access)


def test_a_single_user_acts_with_the_consoles_connection(
    shoal: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "shoal.console.audit")
    queue = Queue(shoal.client, shoal.bootstrap)

    async def call(page: Console) -> None:
        login = {"Authorization": encode_basic_auth("ann", "1")}
        page.browser.session.headers.update(login)
        await page.act("produce", topic=queue.topic, value="1")

    run(call, shoal, ConsoleAccess(users=parse_users("ann:1\n", "u"), allow_actions=True))
    assert [one["user"] for one in audited(caplog)] == ["ann"]


def test_the_command_writes_audit_lines(shoal: Cluster) -> None:
    queue = Queue(shoal.client, shoal.bootstrap)
    words = ["--allow-actions", "--listen=127.0.0.1:0", f"--bootstrap-server={shoal.bootstrap}"]

    async def act(url: str) -> None:
        fields: dict[str, str] | None = None
        async with ClientSession(url, cookie_jar=CookieJar(unsafe=True)) as browser:
            for path in (f"/act-produce?topic={queue.topic}", "/act-produce", "/confirm"):
                method = "GET" if fields is None else "POST"
                async with browser.request(method, path, data=fields) as response:
                    text = await response.text()
                    assert response.status == 200, text
                fields = Opened(response.status, response.headers, text).fields

    process = subprocess.Popen(
        [*SHOAL, "console", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        found = re.search(r"http://\S+/", process.stdout.readline())
        assert found is not None
        asyncio.run(act(found[0]))
        process.terminate()
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    (line,) = errors.splitlines()
    assert json.loads(line)["detail"] == f"Produced the record {queue.topic}-0@0."
    assert process.returncode == 0
