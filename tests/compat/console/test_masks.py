"""What rules mask is in no page of the console: browse, record, letters, edit, download, keys."""

from __future__ import annotations

import asyncio
import json
import re
import uuid
from typing import TYPE_CHECKING, NamedTuple

import pytest
from shoal.client.client import SyncClient
from shoal.client.share.acquired import AcknowledgeType
from shoal.console.access.security import ConsoleAccess
from shoal.console.reading.masks import OFF, MaskRule, Masks
from shoal.console.reading.registries import RegistrySettings
from shoal.protocol.reasons import FailureReason
from support.brokers.commands import Shoal
from support.brokers.queues import Queue
from support.brokers.servers import ShoalProcess
from support.console.console_letters import Letters
from support.console.consoles import Console, console
from support.console.schema_registries import schema_registry
from support.runs.conditions import eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator
    from pathlib import Path

SECRET = "4111-2222"
VALUE = json.dumps({"card": {"number": SECRET}, "n": 1})


class Cluster(NamedTuple):
    bootstrap: str
    client: SyncClient


@pytest.fixture(scope="module")
def shoal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    broker = ShoalProcess(tmp_path_factory.mktemp("masks") / "data").start()
    try:
        with SyncClient(broker.bootstrap) as client:
            yield Cluster(broker.bootstrap, client)
    finally:
        broker.kill9()


@pytest.fixture(scope="module")
def letters(shoal: Cluster) -> Letters:
    """Two records, which are dead letters that hold their keys. The reason quotes them."""
    queue = Letters(shoal, share_ordering="key", share_ordering_key_dead_letter="hold")
    queue.produce([VALUE], key=b"plain", headers=(("auth", SECRET.encode()), ("n", b"1")))
    queue.produce([VALUE], key=f'{{"card": "{SECRET}"}}'.encode())
    why = FailureReason("app.CardError", f"no such card: {SECRET}", f"line 7\n  card = {SECRET}")
    shoal.client.run(queue.reject(2, why))
    return queue


@pytest.fixture(scope="module")
def failing_queue(shoal: Cluster) -> Letters:
    """A record that a member released for a minute with a reason that quotes it."""
    queue = Letters(shoal)
    queue.produce([VALUE], key=b"plain")
    why = FailureReason("app.CardError", f"no such card: {SECRET}")

    async def release() -> None:
        session = await shoal.client.client.share(queue.group, [queue.topic])
        (acquired,) = await session.acquire(max_wait_ms=20_000)
        acks = acquired.acknowledge(AcknowledgeType.RELEASE, delay_ms=60_000, reason=why)
        assert await session.acknowledge(acks) == ()
        await session.close()

    shoal.client.run(release())
    return queue


def run(
    call: Callable[[Console], Coroutine[None, None, None]], shoal: Cluster, masks: Masks
) -> None:
    async def whole() -> None:
        async with console(shoal.bootstrap, ConsoleAccess(allow_actions=True, masks=masks)) as page:
            await page.sample()
            await call(page)

    asyncio.run(whole())


def rules(queue: Letters) -> Masks:
    """Rules for the source topic only: its letters have them, too."""
    return Masks((MaskRule((queue.topic,), fields=("card",), headers=("auth",)),))


def pages(queue: Letters) -> list[tuple[str, dict[str, object]]]:
    """Return every page that shows something of the two records."""
    found: list[tuple[str, dict[str, object]]] = [
        ("/topic", {"name": queue.topic}),
        ("/topic", {"name": queue.letters}),
        ("/letters", {"topic": queue.letters}),
        ("/group", {"id": queue.group}),
        ("/act-skip", {"group": queue.group}),
    ]
    for offset in (0, 1):
        for topic in (queue.topic, queue.letters):
            place = {"topic": topic, "partition": 0, "offset": offset}
            for wanted in ("auto", "text", "json", "hex"):
                found.append(("/record", {**place, "as": wanted}))
                found.append(("/payload", place))
        found.append(("/letter", {"topic": queue.letters, "partition": 0, "offset": offset}))
    return found


def forms_of(secret: str) -> list[str]:
    return [secret, secret.encode().hex(), secret.encode().hex(" "), secret[:4] + "&#"]


def test_no_page_has_what_is_masked(shoal: Cluster, letters: Letters) -> None:
    async def without(page: Console) -> None:
        shown = 0
        for path, fields in pages(letters):
            shown += SECRET in (await page.get(path, **fields)).text
        assert shown > 8, "without rules, these pages show it"

    async def call(page: Console) -> None:
        for path, fields in pages(letters):
            found = await page.get(path, **fields)
            for form in forms_of(SECRET):
                assert form not in found.text, (path, fields)
        record = {"topic": letters.topic, "partition": 0, "offset": 0}
        found = await page.get("/record", **record)
        assert '{ "card": "[masked]", "n": 1 }' in found.words
        assert "1 field masked" in found.words
        assert "auth masked n 1" in found.words
        assert (await page.get("/payload", **record)).text == '{"card": "[masked]", "n": 1}'
        topic = await page.get("/topic", name=letters.topic)
        assert "Rules of this console mask parts of these records." in topic.words
        held = await page.get("/group", id=letters.group)
        assert "plain" in held.words, "a key that no rule masks"

    run(without, shoal, Masks())
    run(call, shoal, rules(letters))


@pytest.mark.parametrize(
    ("masks", "shown"),
    [
        (lambda _queue: Masks(), f"it last failed with app.CardError: no such card: {SECRET}"),
        (lambda queue: Masks((MaskRule((queue.topic,), fields=("other",)),)), "[masked]"),
        (lambda queue: Masks((MaskRule((queue.letters,), headers=("*.class",)),)), "[masked]"),
        (lambda _queue: Masks((MaskRule(("none",), key=True),)), f"no such card: {SECRET}"),
    ],
    ids=["none", "field of the topic", "header of the letters", "other topic"],
)
def test_the_reason_of_a_record_in_flight(
    failing_queue: Letters, shoal: Cluster, masks: Callable[[Letters], Masks], shown: str
) -> None:
    async def call(page: Console) -> None:
        found = await page.get("/record", topic=failing_queue.topic, partition=0, offset=0)
        assert f"{shown}; the start offset is 0" in found.words

    run(call, shoal, masks(failing_queue))


def test_a_filter_does_not_find_what_is_masked(shoal: Cluster, letters: Letters) -> None:
    async def call(page: Console) -> None:
        for topic in (letters.topic, letters.letters):
            for field, text, count in (
                ("value", SECRET, 0),
                ("value", "4111", 0),
                ("value", '"n": 1', 2),
                ("header", f"auth={SECRET}", 0),
                ("header", "auth=4", 0),
                ("header", "auth", 1),
                ("key", "4111", 0),
                ("key", "plain", 1),
            ):
                found = await page.get("/topic", name=topic, **{field: text})
                assert found.text.count('data-label="Time"') == count, (field, text)

    run(call, shoal, rules(letters))


def test_letters_are_not_chosen_by_a_masked_key(shoal: Cluster, letters: Letters) -> None:
    masks = Masks((MaskRule((letters.topic,), key=True),))

    async def call(page: Console) -> None:
        found = await page.get("/letters", topic=letters.letters)
        assert 'id="by-key"' not in found.text
        refused = await page.get("/letters", topic=letters.letters, same="0@0", status=400)
        assert "A rule of this console masks it." in refused.words
        refused = await page.preview("redrive", topic=letters.letters, same="0@0")
        assert "A rule of this console masks it." in refused.words

    run(call, shoal, masks)


def test_no_payloads(shoal: Cluster, letters: Letters) -> None:
    async def call(page: Console) -> None:
        for path, fields in pages(letters):
            refused = path == "/payload"
            found = await page.get(path, status=403 if refused else 200, **fields)
            for form in (*forms_of(SECRET), "&#34;n&#34;"):
                assert form not in found.text, (path, fields)
            assert ">plain<" not in found.text
        found = await page.get("/record", topic=letters.topic, partition=0, offset=0)
        assert "The value is masked" in found.words
        assert "This console shows no payloads." in found.words
        assert "/payload" not in found.text
        topic = await page.get("/topic", name=letters.topic)
        assert "This console shows no payloads. Filters do not find" in topic.words

    run(call, shoal, OFF)


def test_an_edit_keeps_what_is_masked(shoal: Cluster) -> None:
    queue = Letters(shoal)
    queue.produce([VALUE], key=b"plain")
    shoal.client.run(queue.reject(1))
    place = {"topic": queue.letters, "partition": 0, "offset": 0}

    async def call(page: Console) -> None:
        form = await page.get("/act-edit", **place)
        assert SECRET not in form.text
        assert "value" not in form.fields
        assert form.fields["key"] == "plain"
        # The same answer as for the right value: a guess of it finds nothing out.
        for guess in (VALUE, "other"):
            fields = {**form.fields, "value": guess, "value-format": "text"}
            same = await page.post("/act-edit", fields)
            assert "Nothing was edited." in same.words
        edited = {**form.fields, "key": "changed", "value": "forged", "value-format": "text"}
        plan = await page.post("/act-edit", edited)
        assert SECRET not in plan.text
        await page.confirm(plan)

    async def refused(page: Console) -> None:
        found = await page.get("/act-edit", status=409, **place)
        assert "Key and value of letter" in found.words
        assert "are masked, so they cannot be edited here" in found.words

    run(call, shoal, rules(queue))
    (_, record) = shoal.client.run(queue.records())
    assert (record.key, record.value) == (b"changed", VALUE.encode())
    run(refused, shoal, OFF)


def test_the_command_names_what_is_wrong(shoal: Cluster, tmp_path: Path) -> None:
    command, rules = Shoal(shoal.bootstrap), tmp_path / "rules.json"
    rules.write_text('{"rules": [{"topics": "a"}]}')
    refused = command.mistake("console", "--mask", str(rules))
    assert "rule 1 of" in refused
    assert "masks nothing" in refused
    refused = command.mistake("console", "--mask", str(tmp_path / "none"))
    assert "No such file or directory" in refused
    refused = command.mistake("console", "--kubernetes")
    assert "--kubernetes works in a pod only" in refused
    words = ["--proxy-user-header", "X-User", "--trusted-proxy", "10.0.0.1", "--trusted-proxy", "x"]
    refused = command.mistake("console", *words)
    assert "--trusted-proxy must be an address or a network" in refused


def test_avro_of_a_schema_registry(shoal: Cluster) -> None:
    queue = Queue(shoal.client, shoal.bootstrap)
    payload = b"\0\0\0\0\7" + b"\x12" + SECRET.encode() + b"\x02"
    queue.produce([payload, payload[:-1]], key=payload)
    order = {
        "type": "record",
        "name": "Order",
        "fields": [{"name": "card", "type": "string"}, {"name": "n", "type": "int"}],
    }
    first = {"topic": queue.topic, "partition": "0", "offset": "0"}

    async def opened(page: Console, masked: bool) -> None:
        await page.sample()
        text = f'{{"card": "{"[masked]" if masked else SECRET}", "n": 1}}'
        topic = await page.get("/topic", name=queue.topic)
        assert text in topic.words
        found = await page.get("/record", **first)
        assert "JSON (Avro, schema 7), 16 B" in found.words
        assert " ".join(text.replace("{", "{ ").replace("}", " }").split()) in found.words
        for wanted in ("text", "hex"):
            found = await page.get("/record", **{**first, "as": wanted})
            assert (SECRET in found.text or SECRET.encode().hex(" ") in found.text) is not masked
        async with page.browser.get("/payload", params=first) as response:
            assert await response.read() == (text.encode() if masked else payload)
        broken = await page.get("/record", **{**first, "offset": 1})
        assert masked or "It is not Avro of schema 7: 1 bytes are expected at 10" in broken.words
        assert "The value is masked" in broken.words or not masked
        for value, count in ((SECRET, 0 if masked else 2), ("zzz", 0)):
            found = await page.get("/topic", name=queue.topic, value=value)
            assert found.text.count('data-label="Time"') == count

    async def whole() -> None:
        async with schema_registry() as served:
            served.add(7, order)
            for masks in (Masks(), Masks((MaskRule((queue.topic,), fields=("card",)),))):
                access = ConsoleAccess(masks=masks, registry=RegistrySettings(served.url))
                async with console(shoal.bootstrap, access) as page:
                    await opened(page, bool(masks.rules))

    asyncio.run(whole())


def test_exceptions_of_all_topics_are_counted_together_unless_masked(shoal: Cluster) -> None:
    """Three members join, which takes a second."""
    exception, queues = f"Error{uuid.uuid4().hex[:8]}", [Letters(shoal) for _ in range(3)]
    for queue in queues:
        queue.produce(["x"])
        shoal.client.run(queue.reject(1, FailureReason(exception, "m")))
    for queue in queues:
        eventually(lambda queue=queue: shoal.client.run(queue.written()) == 1)
    first, second, masked = (queue.letters for queue in queues)

    async def call(page: Console) -> None:
        assert "/letters?by=exception" in (await page.get("/letters")).text
        found = await page.get("/letters", by="exception")
        (row,) = re.findall(rf"<tr><th[^>]*>{exception}</th>.*</tr>", found.text)
        assert 'data-label="Letters">2<' in row
        assert 'data-label="Source">2 topics<' in row
        links = [f"/letters?topic={topic}&amp;exception={exception}" for topic in (first, second)]
        assert all(f'href="{link}"' in row for link in links)
        assert masked not in row
        letters = await page.get("/letters", topic=first, exception=exception)
        assert f'aria-current="true">{exception}</a>' in letters.text

    hidden = MaskRule((masked,), headers=("__dlq.errors.exception.*",))
    run(call, shoal, Masks((hidden,)))
