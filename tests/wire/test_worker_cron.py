"""`@worker.cron` with a real broker, and a clock of the test that stands just before a tick."""

from __future__ import annotations

import asyncio
import datetime
import logging
import uuid
from typing import TYPE_CHECKING, Any

import pytest
from shoal.client.admin.configs import ConfigChange, ConfigResource, ConfigResourceType
from shoal.client.admin.topics import NewTopic, OffsetSpec
from shoal.client.client import Client
from shoal.client.errors import expect
from shoal.client.net.cluster import TopicPartition
from shoal.client.net.environment import Environment
from shoal.schedules import runner
from shoal.worker import Worker
from support.runs.conditions import eventually_async

if TYPE_CHECKING:
    from collections.abc import Callable

    from shoal.record.records import Record
    from support.brokers.servers import ShoalProcess

#: Three o'clock in Berlin, in a summer.
TICK = datetime.datetime(2026, 7, 1, 1, tzinfo=datetime.UTC)
BEFORE = TICK - datetime.timedelta(milliseconds=100)
WINDOW = "shoal.deduplication.window.ms"


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    # The clock of the test moves by a minute, and waits are real seconds.
    monkeypatch.setattr(runner, "WAIT_S_MAX", 0.02)
    monkeypatch.setattr(runner, "RETRY_S", 0.02)


class Clock:
    """A wall clock that the test sets."""

    def __init__(self, now: datetime.datetime) -> None:
        self.now = now

    def read_ns(self) -> int:
        return int(self.now.timestamp() * 1_000) * 1_000_000


async def make_topic(client: Client) -> str:
    topic = f"t-{uuid.uuid4().hex[:8]}"
    expect(await client.admin.topics.create([NewTopic(topic, 1, 1)]))
    return topic


async def set_window(client: Client, topic: str, window_ms: int) -> None:
    resource = ConfigResource(ConfigResourceType.TOPIC, topic)
    expect(await client.admin.configs.alter({resource: [ConfigChange(WINDOW, str(window_ms))]}))


async def read(client: Client, topic: str) -> list[Record]:
    where = TopicPartition(topic, 0)
    (end,) = expect(await client.admin.topics.offsets({where: OffsetSpec.LATEST})).values()
    if not end.offset:
        return []
    fetched = await client.fetch_range(*where, 0, end.offset - 1)
    return [record for batches in fetched for record in batches.records()]


async def serve_until(
    worker: Worker,
    bootstrap: str,
    start: datetime.datetime,
    now: datetime.datetime,
    is_done: Callable[[], bool],
) -> None:
    """Run a worker whose clock shows `start` at first, and `now` once it is ready."""
    clock = Clock(start)
    async with Client(bootstrap, Environment(wall_ns=clock.read_ns)) as client:
        serving = asyncio.create_task(worker.serve(client))
        try:
            await eventually_async(lambda: worker.is_ready)
            clock.now = now
            await eventually_async(is_done)
        finally:
            worker.stop()
            await serving


@pytest.mark.parametrize("has_window", [True, False])
def test_a_tick_is_a_job_of_the_handler(shared_broker: ShoalProcess, has_window: bool) -> None:
    """Of each process of the worker, with one id: the topic decides whether there is one job."""
    bootstrap = shared_broker.bootstrap

    async def run() -> tuple[list[str], list[Record]]:
        async with Client(bootstrap) as client:
            topic = await make_topic(client)
            if has_window:
                await set_window(client, topic, 3_600_000)
            done: list[str] = []
            workers = [Worker(f"g-{topic}", settings=bootstrap) for _ in range(2)]
            for worker in workers:

                @worker.cron(
                    "0 3 * * *",
                    tz="Europe/Berlin",
                    value=lambda tick: f"report of {tick:%H:%M}",
                    key="k",
                    headers={"a": "b"},
                )
                @worker.handler(topic)
                async def handle(text: str) -> None:
                    done.append(text)

            jobs = 1 if has_window else 2
            runs = (
                serve_until(one, bootstrap, BEFORE, TICK, lambda: len(done) >= jobs)
                for one in workers
            )
            await asyncio.gather(*runs)
            return done, await read(client, topic)

    done, records = asyncio.run(run())
    number = 1 if has_window else 2
    assert done == ["report of 01:00"] * number
    assert len(records) == number
    for record in records:
        headers = dict(record.headers)
        assert (record.key, headers["a"]) == (b"k", b"b")
        assert headers["shoal.scheduled.time"] == b"2026-07-01T01:00:00Z"
        assert (headers["shoal.dedup.id"] or b"").endswith(b"/2026-07-01T01:00:00Z")
    assert len({dict(record.headers)["shoal.dedup.id"] for record in records}) == 1


@pytest.mark.parametrize(("late_s", "window_ms", "jobs"), [(10, 60_000, 1), (40, 60_000, 0)])
def test_a_worker_looks_back_by_half_the_window(
    shared_broker: ShoalProcess, late_s: int, window_ms: int, jobs: int
) -> None:
    """A topic that does not know the ids of the last minute would store a second job."""
    bootstrap = shared_broker.bootstrap

    async def run() -> None:
        async with Client(bootstrap) as client:
            topic = await make_topic(client)
            await set_window(client, topic, window_ms)
            worker = Worker(f"g-{topic}", settings=bootstrap)

            @worker.cron("0 3 * * *", tz="Europe/Berlin", value="late")
            @worker.cron("1 3 * * *", tz="Europe/Berlin", value="next")
            @worker.handler(topic)
            async def handle(text: str) -> None:
                done.append(text)

            start = TICK + datetime.timedelta(seconds=late_s)
            following = TICK + datetime.timedelta(minutes=1)
            await serve_until(worker, bootstrap, start, following, lambda: "next" in done)
            assert [record.value for record in await read(client, topic)] == [
                *[b"late"] * jobs,
                b"next",
            ]

    done: list[str] = []
    asyncio.run(run())


def test_a_topic_without_the_window_is_a_warning_and_no_reason_to_look_back(
    shared_broker: ShoalProcess, caplog: pytest.LogCaptureFixture
) -> None:
    """Another process may have enqueued the tick ten seconds ago."""
    caplog.set_level(logging.INFO)
    bootstrap = shared_broker.bootstrap

    async def run() -> list[Record]:
        async with Client(bootstrap) as client:
            topic = await make_topic(client)
            worker = Worker(f"g-{topic}", settings=bootstrap)

            @worker.cron("0 * * * *", value="late")
            @worker.cron("0 3 * * *", tz="Europe/Berlin", value="late")
            @worker.handler(topic)
            async def handle(text: str) -> None:
                raise AssertionError(text)

            after = TICK + datetime.timedelta(seconds=10)
            await serve_until(worker, bootstrap, after, after, lambda: WINDOW in caplog.text)
            return await read(client, topic)

    assert asyncio.run(run()) == []


def test_a_value_that_cannot_be_made_does_not_end_the_worker(
    shared_broker: ShoalProcess, caplog: pytest.LogCaptureFixture
) -> None:
    bootstrap = shared_broker.bootstrap
    done: list[str] = []

    def fail(_: datetime.datetime) -> str:
        raise LookupError("no report today")

    async def run() -> None:
        async with Client(bootstrap) as client:
            topic = await make_topic(client)
            worker = Worker(f"g-{topic}", settings=bootstrap)

            @worker.cron("0 3 * * *", tz="Europe/Berlin", value="fine")
            @worker.cron("0 3 * * *", tz="Europe/Berlin", value=fail)
            @worker.handler(topic)
            async def handle(text: str) -> None:
                done.append(text)

            await serve_until(
                worker,
                bootstrap,
                BEFORE,
                TICK,
                lambda: bool(done) and "no report today" in caplog.text,
            )

    asyncio.run(run())
    assert done == ["fine"]


@pytest.mark.parametrize(
    ("expression", "options", "words"),
    [
        ("0 3 * *", {}, "schedule is '0 3 [*] [*]'"),
        ("0 3 * * *", {"tz": "Mars/Olympus"}, "timeZone is 'Mars/Olympus'"),
        ("0 3 * * *", {"jitter": "soon"}, "'soon' is not a duration"),
    ],
)
def test_a_mistake_is_named(expression: str, options: dict[str, Any], words: str) -> None:
    worker = Worker("g")

    @worker.handler("t")
    async def handle(_: str) -> None: ...

    with pytest.raises(ValueError, match=words):
        worker.cron(expression, **options)(handle)


def test_only_a_handler_has_cron_jobs() -> None:
    worker = Worker("g")
    with pytest.raises(ValueError, match=r"Write @worker\.cron above @worker\.handler"):

        @worker.cron("0 3 * * *")
        async def handle(_: str) -> None: ...
