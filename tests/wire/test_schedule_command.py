"""`shoal schedule run` with a real broker, and a clock of the test."""

from __future__ import annotations

import asyncio
import base64
import datetime
import os
import signal
import uuid
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from shoal.cli.commands import schedule as module
from shoal.client.admin.topics import NewTopic, OffsetSpec
from shoal.client.client import Client
from shoal.client.errors import expect
from shoal.client.net.cluster import TopicPartition
from shoal.client.net.environment import Environment
from shoal.client.queues import queue_settings
from shoal.schedules import runner
from support.brokers.commands import Shoal
from support.runs.conditions import eventually_async

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from shoal.record.records import Record
    from support.brokers.servers import ShoalProcess

#: A moment before a tick of each hour.
START = datetime.datetime(2026, 7, 1, 0, 59, 59, tzinfo=datetime.UTC)


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    # The clock of the test moves by hours, and waits are real seconds.
    monkeypatch.setattr(runner, "WAIT_S_MAX", 0.02)
    monkeypatch.setattr(runner, "RETRY_S", 0.02)


def make_object(kind: str, name: str, **fields: Any) -> dict[str, Any]:
    return {"kind": kind, "metadata": {"name": name}, **fields}


def make_schedule(name: str, topic: str, **spec: Any) -> dict[str, Any]:
    filled = {"cluster": "main", "topic": topic, "schedule": "0 * * * *", **spec}
    return make_object("QueueSchedule", name, apiVersion="shoal.dev/v1beta1", spec=filled)


class Running:
    """The command in this process, with a clock that the test moves."""

    def __init__(
        self, broker: ShoalProcess, folder: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        self.bootstrap, self.now = broker.bootstrap, START
        self.topic, self.file = f"t-{uuid.uuid4().hex[:8]}", folder / "schedules.yaml"
        self.output = ""
        self._capsys = capsys

    def run(
        self, manifests: list[dict[str, Any]], steps: Callable[[Client], Awaitable[None]]
    ) -> None:
        """Run the command, do these steps once it runs, and end it by SIGTERM."""
        self.file.write_text(yaml.safe_dump_all(manifests))

        async def run() -> None:
            environment = Environment(wall_ns=lambda: int(self.now.timestamp() * 1_000) * 1_000_000)
            async with Client(self.bootstrap, environment) as client:
                await client.admin.topics.create([NewTopic(self.topic, 1, 1)])
                command = asyncio.ensure_future(module.run(client, self.file))
                await eventually_async(lambda: "SIGTERM ends them" in self.read_output())
                try:
                    await steps(client)
                finally:
                    os.kill(os.getpid(), signal.SIGTERM)
                    await command

        asyncio.run(run())

    def read_output(self) -> str:
        """Return what the command has printed."""
        self.output += "".join(self._capsys.readouterr())
        return self.output

    async def read(self, client: Client) -> list[Record]:
        where = TopicPartition(self.topic, 0)
        (end,) = expect(await client.admin.topics.offsets({where: OffsetSpec.LATEST})).values()
        if not end.offset:
            return []
        fetched = await client.fetch_range(*where, 0, end.offset - 1)
        return [record for batches in fetched for record in batches.records()]

    async def wait_for(self, client: Client, count: int) -> list[Record]:
        """Wait until the command has produced so many records, and return them."""
        await eventually_async(lambda: self.read_output().count(" at offset ") >= count)
        return await self.read(client)


@pytest.fixture
def running(
    shared_broker: ShoalProcess, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> Running:
    return Running(shared_broker, tmp_path, capsys)


def test_the_schedules_of_a_file_produce_until_a_signal(running: Running) -> None:
    def source(kind: str) -> dict[str, Any]:
        return {f"{kind}KeyRef": {"name": "texts", "key": "job"}}

    encoded = base64.b64encode(b"from a Secret").decode()
    manifests = [
        make_schedule("inline", running.topic, payload={"inline": "here"}),
        make_schedule("config", running.topic, payload=source("configMap"), key="k"),
        make_schedule("secret", running.topic, payload=source("secret")),
        make_schedule("off", running.topic, suspend=True),
        make_schedule("later", running.topic, schedule="0 12 * * *"),
        make_object("ConfigMap", "texts", data={"job": "from a ConfigMap"}),
        make_object("Secret", "texts", data={"job": encoded}),
    ]
    records: list[Record] = []

    async def pass_two_ticks(client: Client) -> None:
        for hour in (1, 2):
            running.now = START.replace(hour=hour, minute=0, second=0)
            records[:] = await running.wait_for(client, 3 * hour)

    running.run(manifests, pass_two_ticks)
    values = Counter(record.value for record in records)
    assert values == {b"here": 2, b"from a ConfigMap": 2, b"from a Secret": 2}
    assert {record.key for record in records} == {None, b"k"}
    ids = Counter(dict(record.headers)["shoal.dedup.id"] for record in records)
    assert len(ids) == 6
    assert ids[b"default/inline/2026-07-01T01:00:00Z"] == 1
    assert f"2026-07-01T02:00:00Z inline: {running.topic}-0 at offset" in running.read_output()


def test_forbid_waits_for_the_share_group(
    running: Running, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    group = f"g-{running.topic}"
    ticks: list[bytes | None] = []

    async def pass_two_ticks(client: Client) -> None:
        running.now = START.replace(hour=1, minute=0, second=0)
        await running.wait_for(client, 1)
        running.now = START.replace(hour=2, minute=30, second=0)
        await eventually_async(lambda: "waits, as group" in caplog.text)
        assert len(await running.read(client)) == 1
        resource = queue_settings.make_group(group)
        await queue_settings.set_configs(client.admin, resource, {queue_settings.RESET: "earliest"})
        async with await client.share_consumer(group, [running.topic]) as consumer:
            while not (acquired := await consumer.poll()):
                pass
            consumer.accept(*acquired)
            await consumer.commit()
        records = await running.wait_for(client, 2)
        ticks.extend(dict(record.headers)["shoal.scheduled.time"] for record in records)

    schedule = make_schedule("s", running.topic, concurrencyPolicy="Forbid", shareGroup=group)
    running.run([schedule], pass_two_ticks)
    assert ticks == [b"2026-07-01T01:00:00Z", b"2026-07-01T02:00:00Z"]


def test_replace_cancels_the_record_before_that_a_member_holds(running: Running) -> None:
    group = f"g-{running.topic}"
    again: list[bytes | None] = []

    async def pass_two_ticks(client: Client) -> None:
        resource = queue_settings.make_group(group)
        await queue_settings.set_configs(client.admin, resource, {queue_settings.RESET: "earliest"})
        async with await client.share_consumer(group, [running.topic]) as consumer:
            running.now = START.replace(hour=1, minute=0, second=0)
            while not (acquired := await consumer.poll()):
                pass
            running.now = START.replace(hour=2, minute=0, second=0)
            await running.wait_for(client, 2)
            consumer.release(*acquired)
            await consumer.commit()
            while not (acquired := await consumer.poll()):
                pass
            again.extend(dict(record.headers)["shoal.scheduled.time"] for record in acquired)

    schedule = make_schedule("s", running.topic, concurrencyPolicy="Replace", shareGroup=group)
    running.run([schedule], pass_two_ticks)
    assert again == [b"2026-07-01T02:00:00Z"]


@pytest.mark.parametrize(
    ("text", "status", "words"),
    [
        ("", 2, "has no QueueSchedule"),
        ("[", 2, "is not YAML"),
        ("just text", 2, "no manifest of Kubernetes"),
        ({"schedule": "0 3 * *"}, 2, "QueueSchedule 's': spec.schedule is '0 3 * *'"),
        ({"timeZone": "Mars/Olympus"}, 2, "spec.timeZone is 'Mars/Olympus'"),
        ({"topic": None}, 2, "lacks a field"),
        ({"timezone": "Asia/Tokyo"}, 2, "spec.timezone is no field"),
        ({"payload": {"value": "a"}}, 2, "spec.payload.value is no field"),
        ({"concurrencyPolicy": "Never"}, 2, "concurrencyPolicy is 'Never'"),
        ({"concurrencyPolicy": "Forbid"}, 2, "shareGroup names no share group"),
        ({"concurrencyPolicy": "Replace"}, 2, "shareGroup names no share group"),
        (
            {"payload": {"secretKeyRef": {"name": "a", "key": "b"}}},
            2,
            "Secret 'a' does not exist",
        ),
        ({"topic": "no.such.topic"}, 1, "no.such.topic"),
    ],
)
def test_a_mistake_is_named(
    shared_broker: ShoalProcess, tmp_path: Path, text: Any, status: int, words: str
) -> None:
    file = tmp_path / "schedules.yaml"
    if isinstance(text, dict):
        manifest = make_schedule("s", "jobs")
        manifest["spec"] = {k: v for k, v in {**manifest["spec"], **text}.items() if v is not None}
        text = yaml.safe_dump(manifest)
    file.write_text(text)
    said = Shoal(shared_broker.bootstrap).refusal("schedule", "run", str(file), status=status)
    assert words in said
