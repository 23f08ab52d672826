"""`shoal.worker` with a real broker: outcomes, locks, time, order, and the end of a worker."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
import uuid
from collections import defaultdict
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from shoal.client.admin.configs import ConfigChange, ConfigResource, ConfigResourceType
from shoal.client.admin.topics import NewTopic
from shoal.client.client import Client
from shoal.client.errors import KafkaError, expect
from shoal.client.net.cluster import TopicPartition
from shoal.client.share.acquired import Acknowledgement, AcquireMode, RejectedAcknowledgement
from shoal.protocol.errors import ErrorCode
from shoal.worker import Job, Queue, Reject, Retry, Worker
from shoal.worker.jobs import Hold
from shoal.worker.settlements import Settlement, resend
from support.runs.conditions import eventually_async
from support.workers.worker_runs import count, serve_until, serving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable

    from support.brokers.servers import ShoalProcess

#: A lock's shortest duration, for tests in which locks end or are renewed.
BROKER_CONFIG = {"group.share.min.record.lock.duration.ms": "1000"}
LOCK_MS = 1_000


class Bench:
    """A client, and topics and groups of one test."""

    def __init__(self, client: Client, bootstrap: str) -> None:
        self.client = client
        self.bootstrap = bootstrap
        self.group = f"g-{uuid.uuid4().hex[:8]}"

    async def make_topic(self, values: Iterable[Any] = (), **options: Any) -> str:
        """Create a topic with one partition and some jobs."""
        topic = f"t-{uuid.uuid4().hex[:8]}"
        configs = options.pop("configs", {})
        expect(await self.client.admin.topics.create([NewTopic(topic, 1, 1, configs=configs)]))
        await self.put(topic, values, **options)
        return topic

    async def put(self, topic: str, values: Iterable[Any], **options: Any) -> None:
        async with Queue(topic, settings=self.bootstrap) as queue:
            await queue.put_many(values, **options)

    async def configure(self, **configs: str) -> None:
        """Set group configs; underscores stand for dots."""
        changes = [ConfigChange(name.replace("_", "."), value) for name, value in configs.items()]
        resource = ConfigResource(ConfigResourceType.GROUP, self.group)
        expect(await self.client.admin.configs.alter({resource: changes}))

    async def read_lag(self) -> int:
        """Return the records of the group that are not settled."""
        found = (await self.client.admin.share_groups.offsets([self.group]))[self.group]
        assert not isinstance(found, KafkaError)
        return sum(expect(found)[where].lag for where in found)

    async def read_dead_letters(self, topic: str, number: int) -> list[dict[str, str]]:
        """Wait for dead letters; return their headers."""
        partition = (await self.client.cluster.get_topic(topic)).get_partition(0)
        letters: list[dict[str, str]] = []
        async with asyncio.timeout(30):
            while len(letters) < number:
                async for fetched in self.client.fetcher.fetch_range(
                    topic, partition.index, 0, 10**6
                ):
                    letters += [
                        {name: (text or b"").decode() for name, text in record.headers}
                        for record in fetched.records()
                    ]
                    if len(letters) >= number:
                        break
        return letters


@asynccontextmanager
async def bench(broker: ShoalProcess) -> AsyncIterator[Bench]:
    async with Client(broker.bootstrap) as client:
        yield Bench(client, broker.bootstrap)


def test_outcomes_decide_over_records(
    shared_broker: ShoalProcess, caplog: pytest.LogCaptureFixture
) -> None:
    """The records were there before the group: it starts at the earliest one."""
    caplog.set_level(logging.INFO)

    async def scenario() -> None:
        async with bench(shared_broker) as b:
            topic = await b.make_topic(["good", "twice", "bad", "later", "always", b"\xff"])
            worker, seen = Worker(b.group), defaultdict[str, list[int]](list)

            @worker.handler(topic, backoff="50ms", retries=2)
            async def handle(text: str, job: Job) -> None:
                seen[text].append(job.delivery_count)
                if text == "bad":
                    raise Reject("the image is empty")
                if text == "later" and job.delivery_count == 1:
                    raise Retry(after="100ms")
                if text == "always" or (text == "twice" and job.delivery_count == 1):
                    raise KeyError(text)

            await serve_until(worker, lambda: count(worker, "rejected") == 3, b.client)
            assert seen == {
                "good": [1],
                "bad": [1],
                "twice": [1, 2],
                "later": [1, 2],
                "always": [1, 2, 3],
            }
            assert await b.read_lag() == 0
            assert (count(worker, "accepted"), count(worker, "released")) == (3, 4)

    asyncio.run(scenario())
    log = caplog.text
    assert "@2 rejected at delivery 1: shoal.worker.Reject: the image is empty" in log
    assert "@4 rejected at delivery 3: KeyError: 'always'" in log
    assert "@5 rejected at delivery 1: shoal.worker.PayloadError: the payload is not UTF-8" in log
    assert "has no dead-letter topic" in log
    reason = next(r.reason for r in caplog.records if "'always'" in r.message)  # type: ignore[attr-defined]
    assert "raise KeyError(text)" in reason["stacktrace"]


def test_a_dead_letter_names_the_exception(shared_broker: ShoalProcess) -> None:
    async def scenario() -> None:
        async with bench(shared_broker) as b:
            topic = await b.make_topic(["bad", "always", b"\xff"])
            letters = f"dlq.{topic}"
            new = NewTopic(letters, 1, 1, configs={"errors.deadletterqueue.group.enable": "true"})
            expect(await b.client.admin.topics.create([new]))
            await b.configure(
                errors_deadletterqueue_topic_name=letters, share_auto_offset_reset="earliest"
            )
            worker = Worker(b.group)

            @worker.handler(topic, backoff="50ms", retries=1)
            async def handle(text: str) -> None:
                if text == "bad":
                    raise Reject("the image is empty", code="E42")
                raise KeyError(text)

            await serve_until(worker, lambda: count(worker, "rejected") == 3, b.client)
            found = await b.read_dead_letters(letters, 3)
            reasons = {
                headers["__dlq.errors.offset"]: {
                    name.removeprefix("__dlq.errors."): text for name, text in headers.items()
                }
                for headers in found
            }
            assert reasons["0"]["exception.class"] == "shoal.worker.Reject"
            assert reasons["0"]["exception.message"] == "the image is empty"
            assert "exception.stacktrace" not in reasons["0"]
            assert reasons["0"]["code"] == "E42"
            assert reasons["1"]["exception.class"] == "KeyError"
            assert "raise KeyError(text)" in reasons["1"]["exception.stacktrace"]
            assert reasons["2"]["exception.class"] == "shoal.worker.PayloadError"
            assert {each["worker"] for each in reasons.values()} == {socket.gethostname()}

    asyncio.run(scenario())


def test_a_configured_group_keeps_its_settings(
    shared_broker: ShoalProcess, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with bench(shared_broker) as b:
            topic = await b.make_topic(["old"])
            await b.configure(share_auto_offset_reset="latest", share_delivery_count_limit="2")
            worker, seen = Worker(b.group), []

            @worker.handler(topic, retries=7)
            async def handle(text: str) -> None:
                seen.append(text)

            async with serving(worker, b.client):
                # The group has its position once the member has partitions.
                await eventually_async(lambda: (b.group and seen) or worker.is_ready)
                while not (await b.client.admin.share_groups.offsets([b.group]))[b.group]:
                    await asyncio.sleep(0)
                await b.put(topic, ["new"])
                await eventually_async(lambda: seen)
            assert seen == ["new"]

    asyncio.run(scenario())
    assert "retries=7, but group" in caplog.text
    assert "ends records after 2 deliveries" in caplog.text


def test_a_missing_topic_warns_and_is_served_once_it_exists(
    shared_broker: ShoalProcess, caplog: pytest.LogCaptureFixture
) -> None:
    """The member learns of the topic by a heartbeat, which takes seconds. A topic for results
    warns as well."""

    async def scenario() -> None:
        async with bench(shared_broker) as b:
            worker, seen, topic = Worker(b.group), [], f"t-{uuid.uuid4().hex[:8]}"

            @worker.handler(topic, results=f"{topic}-done")
            async def handle(text: str) -> None:
                seen.append(text)

            async with serving(worker, b.client):
                assert f"create it with `shoal topics create {topic}`" in caplog.text
                assert f"handle writes results to topic {topic}-done, which does not" in caplog.text
                expect(await b.client.admin.topics.create([NewTopic(topic, 1, 1)]))
                await b.put(topic, ["here"])
                await eventually_async(lambda: seen)

    asyncio.run(scenario())


def test_a_long_job_keeps_its_lock(shared_broker: ShoalProcess) -> None:
    """It must last longer than the shortest lock, which is a second."""

    async def scenario() -> None:
        async with bench(shared_broker) as b:
            topic = await b.make_topic(["long", "behind"])
            await b.configure(
                share_record_lock_duration_ms=str(LOCK_MS), share_auto_offset_reset="earliest"
            )
            worker, counts = Worker(b.group), []
            loop = asyncio.get_running_loop()

            @worker.handler(topic, concurrency=1, prefetch=1)
            async def handle(text: str, job: Job) -> None:
                counts.append((text, job.delivery_count))
                end_s = loop.time() + 2.5 * LOCK_MS / 1000
                if text == "long":
                    await eventually_async(lambda: loop.time() > end_s)

            await serve_until(worker, lambda: count(worker, "accepted") == 2, b.client)
            assert counts == [("long", 1), ("behind", 1)]
            assert await b.read_lag() == 0

    asyncio.run(scenario())


def test_an_async_handler_that_takes_too_long_is_cancelled(shared_broker: ShoalProcess) -> None:
    async def scenario() -> None:
        async with bench(shared_broker) as b:
            topic = await b.make_topic(["slow"])
            worker, ends = Worker(b.group), list[Any]()

            @worker.handler(topic, timeout="200ms", backoff="10ms", concurrency=1)
            async def handle(job: Job) -> None:
                if job.delivery_count == 1:
                    try:
                        await asyncio.Event().wait()
                    finally:
                        ends.append(job.cancelled)
                if job.delivery_count == 2:
                    raise asyncio.CancelledError  # Of a task that the handler awaits, for example.
                ends.append(job.delivery_count)

            await serve_until(worker, lambda: count(worker, "accepted") == 1, b.client)
            assert ends == [True, 3]
            assert (count(worker, "timed_out"), count(worker, "released")) == (1, 1)

    asyncio.run(scenario())


def test_a_job_ends_before_a_lock_that_may_not_be_renewed(
    shared_broker: ShoalProcess, caplog: pytest.LogCaptureFixture
) -> None:
    """The shortest lock is a second."""

    async def scenario() -> None:
        async with bench(shared_broker) as b:
            topic = await b.make_topic(["slow"])
            await b.configure(
                share_renew_acknowledge_enable="false",
                share_record_lock_duration_ms=str(LOCK_MS),
                share_auto_offset_reset="earliest",
            )
            worker = Worker(b.group)

            @worker.handler(topic, backoff="10ms")
            async def handle(job: Job) -> None:
                if job.delivery_count == 1:
                    await asyncio.Event().wait()

            await serve_until(worker, lambda: count(worker, "accepted") == 1, b.client)
            assert (count(worker, "timed_out"), count(worker, "lost")) == (1, 0)

    asyncio.run(scenario())
    assert "does not allow its members to renew locks" in caplog.text


def test_a_job_that_renews_its_time_is_not_cancelled(shared_broker: ShoalProcess) -> None:
    async def scenario() -> None:
        async with bench(shared_broker) as b:
            topic = await b.make_topic(["slow"])
            worker, counts = Worker(b.group), []
            loop = asyncio.get_running_loop()

            @worker.handler(topic, timeout="300ms")
            async def handle(job: Job) -> None:
                end_s = loop.time() + 0.9
                while loop.time() < end_s:
                    job.renew()
                    await asyncio.sleep(0)
                counts.append(job.delivery_count)

            await serve_until(worker, lambda: count(worker, "accepted") == 1, b.client)
            assert counts == [1]

    asyncio.run(scenario())


def test_a_thread_that_takes_too_long_loses_its_record_but_keeps_its_slot(
    shared_broker: ShoalProcess, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with bench(shared_broker) as b:
            topic = await b.make_topic(["slow"])
            worker, ended = Worker(b.group), threading.Event()
            flags: list[Any] = []

            @worker.handler(topic, timeout="200ms", backoff="10ms", concurrency=1)
            def handle(job: Job) -> None:
                if job.delivery_count == 1:
                    ended.wait()
                    flags.append(job.cancelled)
                    return
                flags.append(job.delivery_count)

            async with serving(worker, b.client):
                await eventually_async(lambda: count(worker, "timed_out") == 1)
                await eventually_async(lambda: not worker.is_healthy)
                assert flags == []
                ended.set()
                await eventually_async(lambda: count(worker, "accepted") == 1)
                assert worker.is_healthy
            assert flags == [True, 2]
            assert await b.read_lag() == 0

    asyncio.run(scenario())
    assert "does not end. Its record is released" in caplog.text
    assert "the handler returned after its time; this has no effect" in caplog.text


def work_forever(job: Job) -> None:
    if job.delivery_count == 1:
        threading.Event().wait()


def test_a_process_that_takes_too_long_is_killed(shared_broker: ShoalProcess) -> None:
    """Two processes start and import this file, which takes a second."""

    async def scenario() -> None:
        async with bench(shared_broker) as b:
            topic = await b.make_topic(["slow"])
            worker = Worker(b.group)
            worker.handler(topic, timeout="5s", backoff="10ms", executor="process", concurrency=1)(
                work_forever
            )
            await serve_until(worker, lambda: count(worker, "accepted") == 1, b.client)
            assert count(worker, "timed_out") == 1

    asyncio.run(scenario())


@pytest.mark.parametrize("executor", ["async", "thread"])
def test_a_worker_that_stops_returns_its_records_undelivered(
    shared_broker: ShoalProcess, executor: str
) -> None:
    async def scenario() -> None:
        async with bench(shared_broker) as b:
            topic = await b.make_topic(["done", "long", "waiting"])
            first, ended = Worker(b.group, shutdown_timeout="100ms"), threading.Event()
            started: list[str] = []

            def work(text: str) -> None:
                started.append(text)
                if text == "long":
                    ended.wait()

            async def work_async(text: str) -> None:
                started.append(text)
                if text == "long":
                    await asyncio.Event().wait()

            function = work if executor == "thread" else work_async
            first.handler(topic, concurrency=1, prefetch=2)(function)
            await serve_until(first, lambda: "long" in started, b.client)
            assert count(first, "returned") == 2
            second, counts = Worker(b.group), []

            @second.handler(topic)
            async def handle(text: str, job: Job) -> None:
                counts.append((text, job.delivery_count))

            await serve_until(second, lambda: len(counts) == 2, b.client)
            assert sorted(counts) == [("long", 1), ("waiting", 1)]
            ended.set()

    asyncio.run(scenario())


def test_a_worker_that_stops_runs_nothing_that_arrives_later(shared_broker: ShoalProcess) -> None:
    """Its last request may be under way, and bring records, for up to half a second."""

    async def scenario() -> None:
        async with bench(shared_broker) as b:
            topic = await b.make_topic()
            first, second = Worker(b.group), Worker(b.group)
            values: list[str] = []
            counts: list[tuple[str, int]] = []

            @first.handler(topic)
            async def note(text: str) -> None:
                values.append(text)

            @second.handler(topic)
            async def handle(text: str, job: Job) -> None:
                counts.append((text, job.delivery_count))

            async with Queue(topic, settings=b.bootstrap) as queue, serving(first, b.client):
                await queue.put("before")
                await eventually_async(lambda: count(first, "accepted") == 1)
                first.stop()
                await queue.put("after")
            assert values == ["before"]
            await serve_until(second, lambda: counts, b.client)
            assert counts == [("after", 1)]

    asyncio.run(scenario())


def test_running_jobs_may_end_before_the_worker_stops(shared_broker: ShoalProcess) -> None:
    async def scenario() -> None:
        async with bench(shared_broker) as b:
            topic = await b.make_topic(["a"])
            worker, started, may_end = Worker(b.group), asyncio.Event(), asyncio.Event()

            @worker.handler(topic)
            async def handle(_job: Job) -> None:
                started.set()
                await may_end.wait()

            async with serving(worker, b.client):
                await started.wait()
                worker.stop()
                # Later than the fetch that the stop waits for, which takes 0.2 s at most.
                asyncio.get_running_loop().call_later(0.7, may_end.set)
            assert count(worker, "accepted") == 1
            assert await b.read_lag() == 0

    asyncio.run(scenario())


def test_a_worker_without_a_broker_stops_at_once() -> None:
    """Nobody answers at the address. Otherwise the worker would wait for ten seconds, and fail."""

    async def scenario(address: str) -> None:
        worker = Worker("g", settings=address)

        @worker.handler("t")
        async def handle(job: Job) -> None: ...

        serving = asyncio.create_task(worker.serve())
        await asyncio.sleep(0)
        worker.stop()
        async with asyncio.timeout(20):
            await serving

    with socket.create_server(("127.0.0.1", 0)) as silent:
        asyncio.run(scenario(f"127.0.0.1:{silent.getsockname()[1]}"))


def test_a_lost_broker_cancels_its_jobs(
    start_broker: Callable[..., ShoalProcess], caplog: pytest.LogCaptureFixture
) -> None:
    """The broker restarts, which takes a second; so the test has one of its own."""
    broker = start_broker(configs=BROKER_CONFIG)

    async def scenario() -> None:
        async with bench(broker) as b:
            topic = await b.make_topic(["a"])
            worker, ends = Worker(b.group), list[Any]()
            started, restarted = asyncio.Event(), threading.Event()

            @worker.handler(topic)
            async def handle(_job: Job) -> None:
                if not restarted.is_set():
                    started.set()
                    try:
                        await asyncio.Event().wait()
                    finally:
                        ends.append("cancelled")
                ends.append("done")

            async with serving(worker, b.client):
                await started.wait()
                await asyncio.to_thread(broker.restart)
                restarted.set()
                await eventually_async(lambda: count(worker, "accepted") == 1)
            assert ends == ["cancelled", "done"]
            assert count(worker, "lost") == 1
            assert await b.read_lag() == 0

    asyncio.run(scenario())
    assert "its lock has ended while its handler ran" in caplog.text


def test_a_flood_in_one_topic_leaves_room_for_another(shared_broker: ShoalProcess) -> None:
    async def scenario() -> None:
        async with bench(shared_broker) as b:
            flood = await b.make_topic(range(500))
            few = await b.make_topic(["a", "b"])
            worker, may_end, quick = Worker(b.group, shutdown_timeout=0), asyncio.Event(), []

            @worker.handler(flood, concurrency=2)
            async def handle_flood(_job: Job) -> None:
                await may_end.wait()

            @worker.handler(few)
            async def handle_few(text: str) -> None:
                quick.append(text)

            await serve_until(worker, lambda: quick == ["a", "b"], b.client)
            assert count(worker, "accepted") == 2

    asyncio.run(scenario())


def test_keys_keep_their_order_also_after_failures(shared_broker: ShoalProcess) -> None:
    """The group lets a member have ten records of a key at once."""

    async def scenario() -> None:
        async with bench(shared_broker) as b:
            await b.configure(
                share_ordering="key",
                share_ordering_key_batch="10",
                share_auto_offset_reset="earliest",
                share_delivery_count_limit="10",
            )
            topic = await b.make_topic(
                [f"{key}{n}" for n in range(6) for key in "abc"], key=lambda text: text[0]
            )
            worker, done = Worker(b.group), defaultdict[str, list[str]](list)
            running, overlaps = set[str](), list[str]()

            @worker.handler(topic, backoff="10ms", retries=9, prefetch=20)
            async def handle(text: str, job: Job) -> None:
                overlaps.extend(text[0] for each in running if each == text[0])
                running.add(text[0])
                await asyncio.sleep(0)
                running.discard(text[0])
                if text in ("a1", "b3") and job.delivery_count == 1:
                    raise ValueError(text)
                done[text[0]].append(text)

            await serve_until(worker, lambda: count(worker, "accepted") == 18, b.client)
            assert overlaps == []
            assert dict(done) == {key: [f"{key}{n}" for n in range(6)] for key in "abc"}

    asyncio.run(scenario())


def test_each_record_of_a_batch_has_its_outcome(shared_broker: ShoalProcess) -> None:
    async def scenario() -> None:
        async with bench(shared_broker) as b:
            topic = await b.make_topic([0, 1, 2, "x", 4, 5])
            worker, batches = Worker(b.group), []

            @worker.handler(topic, batch=6, linger="500ms", backoff="10ms", concurrency=1)
            async def handle(numbers: list[int], jobs: list[Job]) -> list[Exception | None]:
                batches.append([(n, job.delivery_count) for n, job in zip(numbers, jobs)])  # noqa: B905
                if len(numbers) == 1:
                    return [None]
                return [
                    Reject("odd") if n == 1 else ValueError() if n == 2 else None for n in numbers
                ]

            await serve_until(worker, lambda: count(worker, "accepted") == 4, b.client)
            # JSON has text in place of the number 3: that record alone is rejected.
            assert batches[0] == [(0, 1), (1, 1), (2, 1), (4, 1), (5, 1)]
            assert batches[1] == [(2, 2)]
            assert (count(worker, "rejected"), count(worker, "released")) == (2, 1)
            assert await b.read_lag() == 0

    asyncio.run(scenario())


def test_results_go_to_a_topic_with_the_id_of_their_job(shared_broker: ShoalProcess) -> None:
    async def scenario() -> None:
        async with bench(shared_broker) as b:
            topic, results = await b.make_topic(["a"], key="k"), await b.make_topic()
            worker = Worker(b.group)

            @worker.handler(topic, results=results)
            async def handle(text: str) -> dict[str, str]:
                return {"upper": text.upper()}

            await serve_until(worker, lambda: count(worker, "accepted") == 1, b.client)
            found = [
                r async for f in b.client.fetcher.fetch_range(results, 0, 0, 0) for r in f.records()
            ]
            assert [(r.key, r.value) for r in found] == [(b"k", b'{"upper":"A"}')]
            assert found[0].headers == (("shoal.job.id", f"{topic}-0@0".encode()),)

    asyncio.run(scenario())


def test_a_wait_above_the_maximum_of_the_group_is_cut(shared_broker: ShoalProcess) -> None:
    """The broker refuses a longer one, and with it all outcomes of the partition."""

    async def scenario() -> None:
        async with bench(shared_broker) as b:
            topic = await b.make_topic(["a", "b"])
            await b.configure(
                share_redelivery_backoff_max_ms="50", share_auto_offset_reset="earliest"
            )
            worker, counts = Worker(b.group), []

            @worker.handler(topic)
            async def handle(job: Job) -> None:
                counts.append(job.delivery_count)
                if job.offset == 0 and job.delivery_count == 1:
                    raise Retry(after="1h")

            await serve_until(worker, lambda: count(worker, "accepted") == 2, b.client)
            assert sorted(counts) == [1, 1, 2]
            assert count(worker, "lost") == 0

    asyncio.run(scenario())


def test_an_outcome_that_is_too_late_takes_no_other_with_it(shared_broker: ShoalProcess) -> None:
    async def scenario() -> None:
        async with bench(shared_broker) as b:
            topic = await b.make_topic(range(11))
            await b.configure(share_auto_offset_reset="earliest")
            async with await b.client.share(b.group, [topic]) as session:
                found = await session.acquire(
                    max_records=11, max_wait_ms=5_000, mode=AcquireMode.RECORD_LIMIT
                )
                held = session.hold_of(found.acquired[0].leader_id)
                await session.acknowledge([Acknowledgement(topic, 0, 3, 3)])
                acks = [Acknowledgement(topic, 0, 0, 6), Acknowledgement(topic, 0, 8, 8)]
                refusals = await session.acknowledge(acks)
                assert {r.acknowledgement for r in refusals} == set(acks)
                hold = Hold(topic, 0, found.acquired[0].leader_id, held)
                result = await resend(session, [Settlement(a, hold) for a in acks], refusals)
                assert [r.acknowledgement for r in result.lost] == [Acknowledgement(topic, 0, 3, 3)]
                assert await b.read_lag() == 3
                # Once the session is another one, nothing is sent again.
                other = Hold(topic, 0, hold.leader_id, object())
                late = RejectedAcknowledgement(Acknowledgement(topic, 0, 9, 10), refusals[0].error)
                result = await resend(session, [Settlement(late[0], other)], [late])
                assert result.lost == [late]
                assert await b.read_lag() == 3
                # What the broker could not store is sent again later, and a wait only without it.
                busy = KafkaError(ErrorCode.coordinator_not_available)
                old = KafkaError(ErrorCode.unsupported_version)
                waits = late[0]._replace(delay_ms=5)
                again = [
                    RejectedAcknowledgement(late[0], busy),
                    RejectedAcknowledgement(waits, old),
                ]
                settlements = [Settlement(late[0], hold), Settlement(waits, hold)]
                result = await resend(session, settlements, again)
                assert [s.acknowledgement for s in result.later] == [late[0], late[0]]

    asyncio.run(scenario())


def test_a_worker_without_permission_ends_with_the_reason(shared_broker: ShoalProcess) -> None:
    """A group of another type ends a member in the same way, and needs no users."""

    async def scenario() -> None:
        async with bench(shared_broker) as b:
            topic = await b.make_topic(["a"])
            from shoal.client.net.cluster import TopicPartition

            where = {TopicPartition(topic, 0): 0}
            expect(await b.client.admin.groups.alter_offsets(b.group, where))
            worker = Worker(b.group)

            @worker.handler(topic)
            async def handle(text: str) -> None: ...

            with pytest.raises(KafkaError, match=r"GROUP_ID_NOT_FOUND|not a share group"):
                await worker.serve(b.client)

    asyncio.run(scenario())


async def cancel_records(b: Bench, topic: str, last: int) -> None:
    """Cancel the records up to an offset."""
    place = TopicPartition(topic, 0)
    expect(await b.client.admin.share_groups.cancel(b.group, {place: [(0, last)]}))


def test_a_coroutine_is_ended_and_what_waits_does_not_begin(shared_broker: ShoalProcess) -> None:
    async def scenario() -> None:
        async with bench(shared_broker) as b:
            topic = await b.make_topic(["running", "waiting"], key="a")
            await b.configure(share_record_lock_duration_ms=str(LOCK_MS))
            worker = Worker(b.group)
            begun: list[str] = []
            ended: list[bool] = []

            @worker.handler(topic, concurrency=1, prefetch=1)
            async def handle(text: str, job: Job) -> None:
                begun.append(text)
                if text == "next":
                    return
                try:
                    await asyncio.Event().wait()
                finally:
                    ended.append(job.cancelled)

            async with serving(worker, b.client):
                await eventually_async(lambda: begun == ["running"])
                await cancel_records(b, topic, 1)
                await eventually_async(lambda: count(worker, "cancelled") == 2)
                await b.put(topic, ["next"])
                await eventually_async(lambda: count(worker, "accepted") == 1)
            assert (begun, ended) == (["running", "next"], [True])
            assert await b.read_lag() == 0

    asyncio.run(scenario())


@pytest.mark.parametrize(("raises", "outcome"), [(False, "accepted"), (True, "cancelled")])
def test_a_thread_looks_and_its_outcome_counts(
    shared_broker: ShoalProcess, raises: bool, outcome: str
) -> None:
    async def scenario() -> None:
        async with bench(shared_broker) as b:
            topic = await b.make_topic(["running"])
            await b.configure(share_record_lock_duration_ms=str(LOCK_MS))
            worker, begun = Worker(b.group), threading.Event()
            deliveries: list[int] = []

            @worker.handler(topic)
            def handle(job: Job) -> None:
                deliveries.append(job.delivery_count)
                begun.set()
                while not job.cancelled:
                    threading.Event().wait(0.01)
                if raises:
                    raise RuntimeError("ended early")

            async with serving(worker, b.client):
                await eventually_async(begun.is_set)
                await cancel_records(b, topic, 0)
                await eventually_async(lambda: count(worker, outcome) == 1)
            assert deliveries == [1]
            assert await b.read_lag() == 0

    asyncio.run(scenario())
