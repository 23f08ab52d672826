"""Redrives against a real broker, with an API server in memory."""

from __future__ import annotations

import asyncio
import copy
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from kube.api_server import ApiServer, CrashPoint
from kube.structural import errors
from shoal.client.admin.configs import ConfigChange, ConfigResource, ConfigResourceType
from shoal.client.admin.topics import NewTopic
from shoal.client.client import Client
from shoal.client.errors import expect
from shoal.dead_letters.dead_letter_topics import TOPIC
from shoal.dead_letters.records import ERRORS, NOTE
from shoal.dead_letters.redrive import Redrive
from shoal_operator.brokers.calls import Brokers
from shoal_operator.kube.reconcile_loop import ReconcileLoop
from shoal_operator.kube.store import Store
from shoal_operator.queues import redrives as module
from shoal_operator.queues.redrives import RedriveReconciler
from support.brokers.queues import read_records
from support.runs.conditions import eventually_async

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from shoal.record.records import Record
    from support.brokers.servers import ShoalProcess

Manifest = dict[str, Any]
LETTERS = 30
ANYONE = {"name": "plain", "port": 9092, "type": "internal"}
LOGGED_IN = {
    "name": "scram",
    "port": 9093,
    "type": "internal",
    "tls": {},
    "authentication": {"type": "scram-sha-512"},
}


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RETRY_SECONDS", 0.01)
    monkeypatch.setattr(module, "PROGRESS_SECONDS", 0.01)


class World:
    """A broker with the topics `NAME` and `NAME.dlq`, and an operator's Redrives."""

    def __init__(self, broker: ShoalProcess, name: str) -> None:
        self.bootstrap, self.name = broker.bootstrap, name
        self.kube, self.store = ApiServer(CrashPoint()), Store()
        self.kube.add(_resource("QueueCluster", "main", {"listeners": [ANYONE]}))

    async def prepare(self) -> None:
        """Create the topics, and let the group `NAME` have its dead letters in `NAME.dlq`."""
        group = ConfigResource(ConfigResourceType.GROUP, self.name)
        async with Client(self.bootstrap) as client:
            await client.admin.topics.create([NewTopic(self.name, 2), NewTopic(self.dlq, 1)])
            expect(await client.admin.configs.alter({group: [ConfigChange(TOPIC, self.dlq)]}))

    @property
    def dlq(self) -> str:
        return f"{self.name}.dlq"

    async def write_letters(
        self, count: int, first: int = 0, message: str = "", group: str = "", exception: str = ""
    ) -> None:
        async with Client(self.bootstrap) as client, client.producer() as producer:
            for number in range(first, first + count):
                about = {
                    "topic": self.name,
                    "partition": number % 2,
                    "offset": number,
                    "group": group or self.name,
                    "message": message or "Offset rejected by client",
                    "exception.class": exception,
                }
                headers = [(f"{ERRORS}{k}", str(v).encode()) for k, v in about.items()]
                await producer.send(self.dlq, b"%d" % number, headers=headers)

    async def redriven(self) -> list[Record]:
        async with Client(self.bootstrap) as client:
            return await read_records(client, self.name)

    def add(self, **spec: Any) -> None:
        self.kube.add(_resource("Redrive", "r", {"cluster": "main", "topic": self.dlq, **spec}))

    @property
    def resource(self) -> Manifest:
        return self.kube.find("Redrive", "r")

    @property
    def status(self) -> Manifest:
        return self.resource["status"]

    def change(self, **spec: Any) -> None:
        self.resource["spec"] |= spec
        self.resource["metadata"]["generation"] += 1

    @asynccontextmanager
    async def operator(self, cluster: str = "main") -> AsyncIterator[RedriveReconciler]:
        """A new operator, which ends without a word at the end of the block."""
        brokers = Brokers(self.bootstrap)
        self.store = Store()
        redrives = RedriveReconciler(self.kube, self.store, brokers, "n", cluster)
        try:
            yield redrives
        finally:
            await redrives.close()
            await brokers.close()

    def watch(self) -> None:
        """Pass all objects to the operator's store."""
        for found in self.kube.objects.values():
            self.store.put(copy.deepcopy(found))

    async def pass_until(self, redrives: RedriveReconciler, *reasons: str, sent: int = 0) -> None:
        """Reconcile until `Ready` has one of these reasons, and `sent` letters are sent."""

        async def one_pass(names: list[str]) -> float | None:
            self.watch()
            return await redrives.reconcile(names)

        def is_there() -> bool:
            return self.condition()["reason"] in reasons and self.status.get("sent", 0) >= sent

        loop = asyncio.create_task(
            ReconcileLoop("Redrive", one_pass, lambda: ["r"], 0.02).run(), name="reconcile"
        )
        try:
            # At least one pass has seen what the test has changed.
            generation = self.resource["metadata"]["generation"]
            await eventually_async(
                lambda: self.status["observedGeneration"] == generation and is_there()
            )
        finally:
            loop.cancel()
            await asyncio.gather(loop, return_exceptions=True)

    def condition(self, kind: str = "Ready") -> Manifest:
        return next(c for c in self.status["conditions"] if c["type"] == kind)

    def run(self, *reasons: str) -> None:
        """Run a new operator until `Ready` has one of these reasons."""

        async def run() -> None:
            async with self.operator() as redrives:
                await self.pass_until(redrives, *reasons)

        asyncio.run(run())

    def values(self) -> list[int]:
        return sorted(int(r.value or b"") for r in asyncio.run(self.redriven()))


def _resource(kind: str, name: str, spec: Manifest) -> Manifest:
    meta = {"name": name, "namespace": "n", "uid": f"{kind}-{name}", "generation": 1}
    return {"apiVersion": "shoal.dev/v1beta1", "kind": kind, "metadata": meta, "spec": spec}


@pytest.fixture
def world(shared_broker: ShoalProcess, request: pytest.FixtureRequest) -> World:
    world = World(shared_broker, request.node.name.replace("[", ".").replace("]", ""))
    asyncio.run(world.prepare())
    return world


def test_all_letters_are_sent_once(world: World) -> None:
    asyncio.run(world.write_letters(LETTERS))
    world.add(note="after the fix")
    world.run("Reconciled")
    assert world.values() == list(range(LETTERS))
    notes = {dict(r.headers)[NOTE] for r in asyncio.run(world.redriven())}
    assert notes == {b"after the fix"}
    assert world.condition()["status"] == "True"
    assert (world.status["total"], world.status["lookedAt"], world.status["sent"]) == (LETTERS,) * 3
    assert world.status["completionTime"]
    # Later letters wait for another id.
    asyncio.run(world.write_letters(5, LETTERS))
    world.run("Reconciled")
    assert len(world.values()) == LETTERS
    world.change(id="second")
    world.run("Reconciled")
    assert world.values() == list(range(LETTERS + 5))
    assert (world.status["id"], world.status["sent"]) == ("second", 5)


def test_letters_are_selected_by_exception(world: World) -> None:
    asyncio.run(world.write_letters(2, exception="app.AmountError"))
    asyncio.run(world.write_letters(3, 2, exception="OtherError"))
    world.add(letters={"exceptions": ["AmountError"]})
    assert errors(world.resource) == []
    world.run("Reconciled")
    assert (world.status["lookedAt"], world.status["sent"]) == (5, 2)
    assert world.values() == [0, 1]


def test_an_operator_that_ends_is_followed_by_one_that_continues(world: World) -> None:
    asyncio.run(world.write_letters(LETTERS))
    world.add(lettersPerSecond=10)

    async def begin() -> None:
        async with world.operator() as redrives:
            await world.pass_until(redrives, "Redriving", sent=1)

    asyncio.run(begin())
    sent = world.status["sent"]
    assert 0 < sent < LETTERS
    # A letter that comes later, such as one of a record that failed again, is not part of it.
    start = world.status["startTime"]
    world.change(lettersPerSecond=10_000)
    world.run("Reconciled")
    assert world.values() == list(range(LETTERS))
    assert world.status["startTime"] == start
    assert world.status["lookedAt"] == LETTERS


def test_a_pause_stops_it(world: World) -> None:
    asyncio.run(world.write_letters(LETTERS))
    world.add(lettersPerSecond=10)

    async def stop_and_go() -> int:
        async with world.operator() as redrives:
            await world.pass_until(redrives, "Redriving", sent=1)
            world.change(paused=True)
            await world.pass_until(redrives, "Paused")
            paused_at = len(await world.redriven())
            world.change(paused=False, lettersPerSecond=10_000)
            await world.pass_until(redrives, "Reconciled")
            return paused_at

    assert 0 < asyncio.run(stop_and_go()) < LETTERS
    assert world.values() == list(range(LETTERS))


def test_a_dry_run_is_followed_by_the_real_one(world: World) -> None:
    asyncio.run(world.write_letters(3))
    asyncio.run(world.write_letters(2, 3, "Offset delivery count exceeded"))
    world.add(dryRun=True, letters={"reasons": ["limit"]})
    world.run("Reconciled")
    assert world.condition()["message"] == "5 of 5 records looked at, 2 letters would be sent."
    assert world.values() == []
    world.change(dryRun=False)
    world.run("Reconciled")
    assert world.values() == [3, 4]


def test_letters_that_come_after_the_start_are_left_out(world: World) -> None:
    """An operator that continues does not redrive in circles."""
    asyncio.run(world.write_letters(2))
    world.add()
    world.resource["status"] |= {"startTime": "2026-01-01T00:00:00Z", "id": "", "sent": 7}
    world.run("Reconciled")
    assert world.values() == []
    assert world.status["sent"] == 7


@pytest.mark.parametrize(
    ("spec", "reason", "words"),
    [
        ({"topic": "no.such.topic"}, "TopicNotFound", "no.such.topic"),
        ({"to": "no.such.topic"}, "TopicNotFound", "spec.to"),
        ({"letters": {"partitions": [9]}}, "TopicNotFound", "partition"),
        ({"cluster": "other"}, "ClusterNotFound", "other"),
    ],
)
def test_a_mistake_is_named(world: World, spec: Manifest, reason: str, words: str) -> None:
    world.add(**spec)

    async def run() -> None:
        async with world.operator(spec.get("cluster", "main")) as redrives:
            await world.pass_until(redrives, reason)

    asyncio.run(run())
    assert words in world.condition()["message"]
    assert world.condition()["status"] == "False"


@pytest.mark.parametrize(
    ("name", "kind", "reason", "words"),
    [
        ("", "tls", "UserRequired", "names no QueueUser"),
        ("nobody", "tls", "UserNotFound", "does not exist"),
        ("ann", "oauth", "UserWithoutCredentials", "of the type oauth"),
    ],
    ids=["required", "unknown", "without"],
)
def test_a_redrive_where_requests_are_authorized_has_a_user(
    world: World, name: str, kind: str, reason: str, words: str
) -> None:
    """It ran as the operator, which may do everything."""
    asyncio.run(world.write_letters(1))
    world.kube.find("QueueCluster", "main")["spec"]["listeners"] = [LOGGED_IN]
    user = _resource("QueueUser", "ann", {"cluster": "main", "authentication": {"type": kind}})
    ready = {"type": "Ready", "status": "True", "reason": "Reconciled", "message": ""}
    user["status"] = {"secret": "ann", "conditions": [ready]}
    world.kube.add(user)
    world.add(**({"user": name} if name else {}))
    world.run(reason)
    assert words in world.condition()["message"]
    assert world.values() == []


def test_letters_of_other_groups_are_a_warning(world: World) -> None:
    asyncio.run(world.write_letters(1))
    asyncio.run(world.write_letters(2, 1, group="of-nobody"))
    world.add()
    world.run("Reconciled")
    assert world.values() == [0]
    assert "2 letters are of a group with another" in world.condition("Degraded")["message"]


def test_letters_that_stay_are_a_warning(world: World) -> None:
    asyncio.run(world.write_letters(2))

    async def drop() -> None:
        async with Client(world.bootstrap) as client:
            await client.admin.topics.delete([world.name])

    asyncio.run(drop())
    world.add()
    world.run("Reconciled")
    assert world.condition("Degraded")["reason"] == "DeadLettersRemaining"
    assert "2 letters have lost their topic" in world.condition("Degraded")["message"]


def test_an_operator_may_end_while_a_redrive_ends(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop of the Redrives used to continue after another replica had become leader."""
    begun, stopping, ended = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def run(_: Redrive, *__: object) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopping.set()
            await ended.wait()

    monkeypatch.setattr(Redrive, "run", run)
    world.add()

    async def stop() -> None:
        async with world.operator() as redrives:
            await world.pass_until(redrives, "Redriving")
            # The status is written first, so that pass may have been cancelled before the run.
            await redrives.reconcile([])
            await begun.wait()
            world.change(paused=True)
            world.watch()
            one_pass = asyncio.create_task(redrives.reconcile([]))
            await stopping.wait()
            one_pass.cancel()
            await asyncio.wait((one_pass,))
            assert one_pass.cancelled()
            assert world.condition()["reason"] == "Redriving"
            ended.set()

    asyncio.run(stop())


def test_it_ends_with_its_resource(world: World) -> None:
    asyncio.run(world.write_letters(LETTERS))
    world.add(lettersPerSecond=1)

    async def delete() -> None:
        async with world.operator() as redrives:
            await world.pass_until(redrives, "Redriving")
            sent = world.status["sent"]
            world.store.drop(world.resource)
            assert await redrives.reconcile([]) is None
            # The run has left the group of redrives, so another one starts at once.
            world.store.put(copy.deepcopy(world.resource))
            world.change(lettersPerSecond=10_000, id="again")
            await world.pass_until(redrives, "Reconciled")
            assert sent < LETTERS

    asyncio.run(delete())
