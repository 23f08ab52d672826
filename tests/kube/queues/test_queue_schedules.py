"""QueueSchedules against a real broker, with an API server in memory and a clock of the test."""

from __future__ import annotations

import asyncio
import base64
import copy
import datetime
from collections import Counter
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from kube.api_server import ApiServer, Crash, CrashPoint
from kube.structural import errors
from shoal.client.admin.configs import ConfigChange, ConfigResource, ConfigResourceType
from shoal.client.admin.topics import NewTopic
from shoal.client.client import Client
from shoal.client.errors import KafkaError, expect
from shoal.client.net.cluster import TopicPartition
from shoal.client.queues import queue_settings
from shoal.schedules import specs
from shoal_operator.brokers.calls import Brokers
from shoal_operator.kube.kube import KubeError
from shoal_operator.kube.store import Store
from shoal_operator.local.definitions import load_definitions
from shoal_operator.queues.queue_schedules import QueueScheduleReconciler
from shoal_operator.runtime import Operator
from shoal_operator.settings import ChartSettings
from support.brokers.queues import read_records
from support.runs.conditions import eventually_async

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from shoal.record.records import Record
    from support.brokers.servers import ShoalProcess

Manifest = dict[str, Any]
WINDOW = "shoal.deduplication.window.ms"
CREATED = "2026-03-01T00:30:00Z"
ANYONE = {"name": "plain", "port": 9092, "type": "internal"}
LOGGED_IN = {
    "name": "scram",
    "port": 9093,
    "type": "internal",
    "tls": {},
    "authentication": {"type": "scram-sha-512"},
}


class ForgetfulApiServer(ApiServer):
    """An API server that does not answer while a test says so, when a tick is noted as produced."""

    fails = False

    async def merge(self, resource: Any, patch: Manifest, *, status: bool = False) -> Any:
        if self.fails and "lastScheduleTime" in patch.get("status", {}):
            raise KubeError(0, "the API server did not answer")
        return await super().merge(resource, patch, status=status)


class World:
    """A broker with the topic `name`, and operators whose clock the test moves."""

    def __init__(self, broker: ShoalProcess, name: str) -> None:
        self.bootstrap, self.name = broker.bootstrap, name
        self.kube = ForgetfulApiServer(CrashPoint())
        self.kube.add(_resource("QueueCluster", "main", {"listeners": [ANYONE]}))
        self.now = datetime.datetime.fromisoformat(CREATED)

    async def prepare(self) -> None:
        async with Client(self.bootstrap) as client:
            await client.admin.topics.create([NewTopic(self.name, 2)])

    def add(self, **spec: Any) -> None:
        """Add the schedule `s`, by default one of each hour."""
        filled = {"cluster": "main", "topic": self.name, "schedule": "0 * * * *", **spec}
        self.kube.add(_resource("QueueSchedule", "s", filled))

    def change(self, **spec: Any) -> None:
        self.kube.add(
            {**self.resource, "spec": {**self.resource["spec"], **spec}}  # As `kubectl apply` does.
        )

    @property
    def resource(self) -> Manifest:
        return self.kube.find("QueueSchedule", "s")

    @property
    def status(self) -> Manifest:
        return self.resource["status"]

    def condition(self, kind: str = "Ready") -> Manifest:
        return next(c for c in self.status["conditions"] if c["type"] == kind)

    def events(self) -> list[str]:
        return [e["reason"] for e in self.kube.all("Event")]

    @asynccontextmanager
    async def operator(self, cluster: str = "main") -> AsyncIterator[QueueScheduleReconciler]:
        """A new operator, which ends without a word at the end of the block."""
        brokers, self.store = Brokers(self.bootstrap), Store()
        try:
            yield QueueScheduleReconciler(
                self.kube,
                self.store,
                brokers,
                "n",
                cluster,
                epoch_ms=lambda: int(self.now.timestamp() * 1000),
            )
        finally:
            await brokers.close()

    def watch(self) -> None:
        """Pass all objects to the operator's store."""
        for found in self.kube.objects.values():
            self.store.put(copy.deepcopy(found))

    async def run_at(self, time: str, operator: QueueScheduleReconciler) -> float | None:
        """Move the clock to a time of that March day, and let an operator make one pass."""
        self.now = datetime.datetime.fromisoformat(f"2026-03-01T{time}+00:00")
        self.watch()
        return await operator.reconcile(["s"])

    def run(self, *times: str, cluster: str = "main") -> float | None:
        """Run a new operator that makes a pass at each of these times."""

        async def run() -> float | None:
            again = None
            async with self.operator(cluster) as operator:
                for time in times:
                    again = await self.run_at(time, operator)
            return again

        return asyncio.run(run())

    async def read(self) -> list[Record]:
        async with Client(self.bootstrap) as client:
            return await read_records(client, self.name)

    def records(self) -> list[Record]:
        return asyncio.run(self.read())

    def ticks(self) -> Counter[str]:
        """Return the ticks of all records: hours and minutes of that day."""
        return Counter(
            header(record, "shoal.scheduled.time").removeprefix("2026-03-01T")[:5]
            for record in self.records()
        )


def header(record: Record, name: str) -> str:
    return (dict(record.headers)[name] or b"").decode()


def _resource(kind: str, name: str, spec: Manifest) -> Manifest:
    meta = {"name": name, "namespace": "n", "uid": f"{kind}-{name}", "creationTimestamp": CREATED}
    return {"apiVersion": "shoal.dev/v1beta1", "kind": kind, "metadata": meta, "spec": spec}


@pytest.fixture
def world(shared_broker: ShoalProcess, request: pytest.FixtureRequest) -> World:
    world = World(shared_broker, request.node.name.replace("[", ".").replace("]", ""))
    asyncio.run(world.prepare())
    return world


def test_a_tick_has_one_record(world: World) -> None:
    world.add(
        key="report",
        headers=[{"name": "content-type", "value": "text/plain"}],
        payload={"inline": "grüße"},
    )
    assert errors(world.resource) == []
    assert world.run("00:59:59") == pytest.approx(1)
    assert world.records() == []
    assert world.status["nextScheduleTime"] == "2026-03-01T01:00:00Z"
    # A pass wakes the loop for the next tick, and other passes produce nothing.
    assert world.run("01:00:00", "01:00:00", "01:20:00") == pytest.approx(2_400)
    assert world.run("01:59:59") == pytest.approx(1)
    (record,) = world.records()
    assert (record.key, record.value) == (b"report", "grüße".encode())
    assert dict(record.headers) == {
        "content-type": b"text/plain",
        "shoal.dedup.id": b"QueueSchedule-s/2026-03-01T01:00:00Z",
        "shoal.scheduled.time": b"2026-03-01T01:00:00Z",
    }
    assert world.condition()["status"] == "True"
    assert world.status["lastScheduleTime"] == "2026-03-01T01:00:00Z"
    assert world.status["nextScheduleTime"] == "2026-03-01T02:00:00Z"
    assert world.status["lastRecord"]["topic"] == world.name
    assert "activeScheduleTime" not in world.status
    assert errors(world.resource) == []


def test_a_time_zone_decides_about_the_tick(world: World) -> None:
    world.add(schedule="0 3 * * *", timeZone="Europe/Berlin")
    world.run("01:59", "02:00")
    assert world.ticks() == {"02:00": 1}


def test_jitter_delays_a_record_and_not_its_tick(world: World) -> None:
    world.add(jitterSeconds=1_800)
    again = world.run("01:00:00")
    assert again is not None
    assert 0 < again < 1_800
    assert world.records() == []
    world.run("01:30:00")
    assert world.ticks() == {"01:00": 1}


def test_only_the_latest_of_several_missed_ticks_has_a_record(world: World) -> None:
    world.add()
    world.run("05:10")
    assert world.ticks() == {"05:00": 1}
    assert world.events() == []


def test_more_than_a_hundred_missed_ticks_are_an_event(world: World) -> None:
    world.add(schedule="* * * * *")
    world.run("02:11:30", "02:12")
    assert world.ticks() == {"02:11": 1, "02:12": 1}
    assert world.events() == ["TooManyMissedTimes"]


def test_a_tick_whose_deadline_is_over_has_no_record(world: World) -> None:
    world.add(startingDeadlineSeconds=60)
    world.run("01:01:01", "01:01:30")
    assert world.records() == []
    assert world.events() == ["MissSchedule"]
    assert world.condition()["status"] == "True"
    world.run("02:01:00")
    assert world.ticks() == {"02:00": 1}


def test_ticks_of_a_changed_schedule_count_from_the_last_record_on(world: World) -> None:
    """As for a CronJob: the latest of its new times is missed if it was after the last record."""
    world.add(schedule="0 1 * * *")
    world.run("01:00", "04:00")
    world.change(schedule="0 3 * * *")
    world.run("05:00")
    assert world.ticks() == {"01:00": 1, "03:00": 1}
    world.change(timeZone="America/Sao_Paulo")
    world.run("05:30", "06:00")
    assert world.ticks() == {"01:00": 1, "03:00": 1, "06:00": 1}
    world.change(schedule="0 0 30 2 *")
    world.run("07:00")
    assert world.condition()["reason"] == "ScheduleNotValid"
    assert "nextScheduleTime" not in world.status


def test_a_suspended_schedule_has_no_records(world: World) -> None:
    world.add(suspend=True)
    assert world.run("01:10") is None
    assert world.records() == []
    assert world.condition()["reason"] == "Paused"
    assert world.condition("Paused")["status"] == "True"
    assert "nextScheduleTime" not in world.status
    # As for a CronJob, the ticks in the meantime count as missed.
    world.change(suspend=False)
    world.run("03:10")
    assert world.ticks() == {"03:00": 1}


async def set_window(bootstrap: str, topic: str) -> None:
    """Let a topic know the ids of an hour."""
    resource = ConfigResource(ConfigResourceType.TOPIC, topic)
    async with Client(bootstrap) as client:
        expect(await client.admin.configs.alter({resource: [ConfigChange(WINDOW, "3600000")]}))


@pytest.mark.parametrize("changes", [1, 2])
def test_an_operator_that_dies_at_a_tick_is_followed_by_one_that_produces_it(
    world: World, changes: int
) -> None:
    """It dies once the tick is noted before the record, or once it is noted after it; the answer
    of the API server does not arrive."""
    world.add()
    world.run("00:50")
    point = world.kube.crash_point
    point.last = point.changes + changes
    with pytest.raises(Crash):
        world.run("01:00")
    assert world.status.get("lastScheduleTime") == (
        None if changes == 1 else "2026-03-01T01:00:00Z"
    )
    point.last = None
    world.run("01:00:10", "02:00")
    assert world.ticks() == {"01:00": 1, "02:00": 1}


@pytest.mark.parametrize("has_window", [True, False])
def test_a_record_that_was_not_noted_is_produced_again_with_its_id(
    world: World, has_window: bool
) -> None:
    """The topic decides whether there are two: only one with the window knows the first."""
    if has_window:
        asyncio.run(set_window(world.bootstrap, world.name))
    world.add()
    world.kube.fails = True
    world.run("01:00")
    assert world.condition()["reason"] == "ApplyFailed"
    assert world.status["activeScheduleTime"] == "2026-03-01T01:00:00Z"
    world.kube.fails = False
    world.run("01:00:10")
    ids = [header(record, "shoal.dedup.id") for record in world.records()]
    assert ids == ["QueueSchedule-s/2026-03-01T01:00:00Z"] * (1 if has_window else 2)
    assert "activeScheduleTime" not in world.status
    deduplicated = world.condition("Deduplicated")
    assert (deduplicated["status"] == "True") is has_window
    assert WINDOW in deduplicated["message"]


def test_an_operator_that_could_not_note_a_record_does_not_repeat_it(world: World) -> None:
    """The same operator knows what it has produced."""
    world.add()

    async def run() -> None:
        async with world.operator() as operator:
            world.kube.fails = True
            for _ in range(2):
                await world.run_at("01:00", operator)
                assert world.condition()["reason"] == "ApplyFailed"
            world.kube.fails = False
            await world.run_at("01:00:10", operator)

    asyncio.run(run())
    assert world.ticks() == {"01:00": 1}
    assert world.status["lastScheduleTime"] == "2026-03-01T01:00:00Z"


def test_an_operator_that_no_longer_leads_produces_nothing(world: World) -> None:
    """Its store is old, and it does not know that another one has produced the tick."""
    world.add()

    async def run() -> float | None:
        async with world.operator() as old:
            await world.run_at("00:50", old)
            async with world.operator() as new:
                await world.run_at("01:00", new)
            return await old.reconcile(["s"])

    again = asyncio.run(run())
    assert world.ticks() == {"01:00": 1}
    assert again is not None
    assert again <= 1


@pytest.mark.parametrize("kind", ["ConfigMap", "Secret"])
def test_the_payload_of_another_object(world: World, kind: str) -> None:
    field = {"ConfigMap": "configMapKeyRef", "Secret": "secretKeyRef"}[kind]
    world.add(payload={field: {"name": "texts", "key": "job"}})
    assert errors(world.resource) == []
    # Long before the tick, as somebody is there to correct it.
    for time in ("00:40", "01:00"):
        world.run(time)
        assert world.condition()["reason"] == "PayloadNotFound"
    assert f"{kind} 'texts' does not exist" in world.condition()["message"]
    made = _resource(kind, "texts", {}) | {"apiVersion": "v1", "data": {"other": "x"}}
    world.kube.add(made)
    world.run("01:01")
    assert f"{kind} 'texts' has no key 'job'" in world.condition()["message"]
    encoded = base64.b64encode(b"later").decode()
    world.kube.add(made | {"data": {"job": encoded if kind == "Secret" else "later"}})
    world.run("01:02")
    (record,) = world.records()
    assert record.value == b"later"
    assert world.condition()["status"] == "True"


def test_a_payload_is_not_read_at_each_pass(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass comes to all schedules of a cluster, and a ConfigMap may have a megabyte."""
    world.add(payload={"configMapKeyRef": {"name": "texts", "key": "job"}})
    made = _resource("ConfigMap", "texts", {}) | {"apiVersion": "v1", "data": {"job": "x"}}
    world.kube.add(made)
    reads: list[str] = []
    get = world.kube.get

    async def count(version: str, kind: str, name: str, namespace: str) -> Manifest | None:
        reads.append(name)
        return await get(version, kind, name, namespace)

    monkeypatch.setattr(world.kube, "get", count)
    world.run("00:10", "00:20", "00:30")
    assert reads == ["texts"]
    assert world.condition()["status"] == "True"


async def complete(bootstrap: str, group: str, topic: str, records: int) -> None:
    """Accept so many records as a member of a share group."""
    async with Client(bootstrap) as client:
        resource = queue_settings.make_group(group)
        await queue_settings.set_configs(client.admin, resource, {queue_settings.RESET: "earliest"})
        consumer = await client.share_consumer(group, [topic])
        async with consumer:
            done = 0
            while done < records:
                for record in await consumer.poll():
                    consumer.accept(record)
                    done += 1
                await consumer.commit()


def test_forbid_waits_for_the_share_group(world: World) -> None:
    world.add(concurrencyPolicy="Forbid", shareGroup=world.name)
    assert errors(world.resource) == []
    world.run("01:00", "02:00", "03:10")
    assert world.ticks() == {"01:00": 1}
    assert world.condition()["reason"] == "PreviousUnfinished"
    assert world.name in world.condition()["message"]
    assert Counter(world.events()) == {"JobAlreadyActive": 2}
    asyncio.run(complete(world.bootstrap, world.name, world.name, 1))
    world.run("03:10:30")
    assert world.ticks() == {"01:00": 1, "03:00": 1}
    assert world.status["lastScheduleTime"] == "2026-03-01T03:00:00Z"
    world.change(concurrencyPolicy="Allow")
    world.run("04:00")
    assert world.ticks().total() == 3


def test_replace_cancels_the_record_before(world: World) -> None:
    """It waits for a group that has not begun to read: nothing can be cancelled for it."""
    world.add(concurrencyPolicy="Replace", shareGroup=world.name)
    assert errors(world.resource) == []
    world.run("01:00", "02:00")
    assert world.ticks() == {"01:00": 1}
    assert world.condition()["reason"] == "PreviousUnfinished"
    assert "has not begun to read" in world.condition()["message"]

    async def begin() -> None:
        async with Client(world.bootstrap) as client:
            starts = {TopicPartition(world.name, index): 0 for index in range(2)}
            expect(await client.admin.share_groups.alter_offsets(world.name, starts))

    async def count_lag() -> int:
        async with Client(world.bootstrap) as client:
            found = expect(await client.admin.share_groups.offsets([world.name]))[world.name]
            return sum(position.lag for position in expect(found).values())

    asyncio.run(begin())
    world.run("02:00:30", "03:00")
    assert world.ticks() == {"01:00": 1, "02:00": 1, "03:00": 1}
    assert world.condition()["status"] == "True"
    assert asyncio.run(count_lag()) == 1, "the first two are cancelled"
    asyncio.run(complete(world.bootstrap, world.name, world.name, 1))
    world.run("04:00")
    assert asyncio.run(count_lag()) == 1, "a complete one is none to cancel"


@pytest.mark.parametrize(
    ("spec", "cluster", "reason", "words"),
    [
        ({"topic": "no.such.topic"}, "main", "TopicNotFound", "no.such.topic"),
        ({"schedule": "0 0 30 2 *"}, "main", "ScheduleNotValid", "spec.schedule is '0 0 30 2 [*]'"),
        ({"timeZone": "Mars/Olympus"}, "main", "ScheduleNotValid", "spec.timeZone is 'Mars"),
        ({"cluster": "other"}, "other", "ClusterNotFound", "other"),
    ],
)
def test_a_mistake_is_named(
    world: World, spec: Manifest, cluster: str, reason: str, words: str
) -> None:
    world.add(**spec)
    world.run("01:00", cluster=cluster)
    assert world.condition()["reason"] == reason
    assert words.replace("[*]", "*") in world.condition()["message"]
    assert world.condition()["status"] == "False"


def test_the_brokers_of_others_get_no_records(world: World) -> None:
    external = {"bootstrapServers": world.bootstrap}
    world.kube.find("QueueCluster", "main")["spec"] |= {"type": "external", "external": external}
    world.add()
    assert world.run("01:00") is None
    assert world.condition()["reason"] == "NotForExternalCluster"
    assert world.records() == []


def test_events_of_a_resource_reach_its_reconciler(world: World) -> None:
    """In the whole operator: of a schedule, and of the cluster that it waits for."""
    world.add(cluster="absent")
    del world.kube.objects["QueueCluster", "main"]

    async def run() -> None:
        operator = Operator(world.kube, ChartSettings("b:1", "s:1", "role", "u"), ("n",))
        try:
            operator.set_leading(True)
            await eventually_async(lambda: world.condition()["reason"] == "ClusterNotFound")
            away = {"type": "external", "external": {"bootstrapServers": world.bootstrap}}
            world.kube.add(_resource("QueueCluster", "absent", away))
            operator.on_update(copy.deepcopy(world.kube.find("QueueCluster", "absent")))
            await eventually_async(lambda: world.condition()["reason"] == "NotForExternalCluster")
        finally:
            await operator.close()

    asyncio.run(run())


def test_a_schedule_where_requests_are_authorized_has_a_user(world: World) -> None:
    """It would produce as the operator, which may do everything."""
    world.kube.find("QueueCluster", "main")["spec"]["listeners"] = [LOGGED_IN]
    world.add()
    for time in ("00:40", "01:00"):
        world.run(time)
        assert world.condition()["reason"] == "UserRequired"
    assert "acls have producer" in world.condition()["message"]
    assert world.records() == []


def test_the_operator_has_other_turns_between_schedules_that_have_no_tick(world: World) -> None:
    """Somebody creates thousands that are suspended, or whose day never comes. To find that takes
    milliseconds for each, and the operator has to renew its lease."""
    for number in range(40):
        world.add(schedule=f"{number} 0 30 2 *", suspend=number % 2 == 0)
        one = copy.deepcopy(world.resource)
        one["metadata"] |= {"name": f"s-{number}", "uid": f"u-{number}"}
        world.kube.add(one)
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def run() -> None:
        async with world.operator() as operator:
            await world.run_at("01:00", operator)
            counting = asyncio.ensure_future(count_turns())
            # Now the statuses are written, and nothing else waits.
            await world.run_at("01:01", operator)
            counting.cancel()

    asyncio.run(run())
    assert turns > 40


def test_neighbours_of_a_bad_schedule_continue(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.add()
    bad = copy.deepcopy(world.resource)
    bad["metadata"] |= {"name": "a-bad", "uid": "bad"}
    bad["spec"]["payload"] = {"configMapKeyRef": {"name": "texts", "key": "job"}}
    world.kube.add(bad)

    async def get(*_: Any) -> Manifest:
        raise KafkaError(42, "no")

    monkeypatch.setattr(world.kube, "get", get)
    world.run("01:00")
    assert world.ticks() == {"01:00": 1}
    assert world.condition()["status"] == "True"
    conditions = world.kube.find("QueueSchedule", "a-bad")["status"]["conditions"]
    assert conditions[0]["reason"] == "RequestRefused"


def test_the_fields_that_a_file_may_have_are_those_of_the_definition() -> None:
    schema = load_definitions()["QueueSchedule"].schema
    fields = schema["properties"]["spec"]["properties"]
    assert fields.keys() == specs.SPEC_FIELDS
    assert fields["payload"]["properties"].keys() == specs.PAYLOAD_FIELDS
