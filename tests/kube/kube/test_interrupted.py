"""An operator that dies after any of its changes: the next one reaches the same state, and no
action or event is repeated. A real broker, and an API server in memory."""

from __future__ import annotations

import asyncio
import inspect
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from kube.api_server import STAMP, ApiServer, Crash, CrashPoint, resource
from shoal.client.admin.configs import ConfigChange, ConfigResource, ConfigResourceType
from shoal.client.admin.topics import NewTopic
from shoal.client.client import Client, SyncClient
from shoal.client.errors import KafkaError, expect
from shoal.client.net.connection import Connection
from shoal.client.settings import Settings
from shoal.protocol import codec
from shoal.protocol.api import ApiKey
from shoal_operator.brokers.broker_states import TopicState
from shoal_operator.brokers.calls import Brokers
from shoal_operator.brokers.first_requests import FIRST_REQUESTS, prepare_first_requests
from shoal_operator.cluster import decision
from shoal_operator.cluster.reconciler import QueueClusterReconciler
from shoal_operator.kube import kube as kube_module
from shoal_operator.queues import topics
from shoal_operator.queues.group_monitor import GroupMonitor
from shoal_operator.queues.groups import ShareGroupReconciler
from shoal_operator.queues.topics import QueueTopicReconciler
from support.brokers.servers import ShoalProcess

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence

#: Far more changes than any of the scenarios makes.
CHANGES_MAX, ROUNDS_MAX = 60, 30
CHANGES = (
    "alter_broker_config",
    "create_topics",
    "create_partitions",
    "alter_topic_configs",
    "delete_topics",
    "alter_group_configs",
    "set_share_offsets",
    "delete_groups",
)
CLUSTER = resource(
    "QueueCluster",
    "main",
    replicas=1,
    storage={"size": "1Gi"},
    config={},
    listeners=[{"name": "plain", "port": 9092}],
    metrics={"port": 9404},
)


class CrashingBrokers(Brokers):
    """Admin calls after each of which the operator may die."""

    def __init__(self, bootstrap: str, crash_point: CrashPoint) -> None:
        super().__init__(bootstrap)
        self.calls: Counter[str] = Counter()
        for name in CHANGES:
            setattr(self, name, self._crashing(name, getattr(self, name), crash_point))

    async def set_addresses(self, *_: object) -> None:
        """Do nothing: the test's broker keeps its address."""

    def _crashing(
        self, name: str, call: Any, crash_point: CrashPoint
    ) -> Callable[..., Awaitable[Any]]:
        async def crashing(*arguments: Any) -> Any:
            crash_point.check()
            answer = await call(*arguments)
            self.calls[name] += 1
            crash_point.count()
            return answer

        assert inspect.iscoroutinefunction(call)
        return crashing


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ShoalProcess]:
    process = ShoalProcess(tmp_path_factory.mktemp("broker") / "data").start()
    yield process
    process.stop()


@pytest.fixture(autouse=True)
def one_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kubernetes' times are whole seconds; make a whole scenario happen within one."""
    monkeypatch.setattr(kube_module, "format_now", lambda: STAMP)


class ObservedBrokers(Brokers):
    """Notes what is read, in order."""

    def __init__(self, bootstrap: str, *urls: str) -> None:
        super().__init__(bootstrap, dict(enumerate(urls)))
        self.read: list[str] = []

    def _count(self, api: str) -> None:
        self.read.append(api)

    async def _scrape(self) -> bool:
        self.read.append("metrics")
        return await super()._scrape()


def test_delayed_records_are_counted_after_the_lag(broker: ShoalProcess) -> None:
    """Records that are produced between both reads must not count as work."""

    async def read() -> list[str]:
        brokers = ObservedBrokers(broker.bootstrap)
        try:
            await brokers.describe_share_groups(["some group"], of_any_type=True)
        finally:
            await brokers.close()
        return brokers.read

    found = asyncio.run(read())
    assert found[-1] == "metrics"
    assert found.count("metrics") == 1


def test_metrics_are_read_seldom_while_groups_have_no_lag(
    broker: ShoalProcess, pass_time: Callable[[int], None]
) -> None:
    """Nothing happens in a group whose offsets are the same as before, and whose lag is 0 as
    before. Ten seconds later, it may have been paused."""

    async def run() -> None:
        brokers = ObservedBrokers(broker.bootstrap, f"{broker.metrics_url}/")

        async def count_scrapes() -> int:
            brokers.read.clear()
            state = (await brokers.describe_share_groups(["quiet"]))["quiet"]
            assert state.lag_known
            assert state.in_flight == 0
            return brokers.read.count("metrics")

        try:
            expect(await brokers.create_topics([NewTopic("quiet", 1, 1)]))
            await brokers.set_share_offsets("quiet", {("quiet", 0): 0})
            assert [await count_scrapes() for _ in range(3)] == [1, 0, 0]
            pass_time(10_000)
            assert [await count_scrapes() for _ in range(2)] == [1, 0]
            async with (
                Client(Settings.from_bootstrap(broker.bootstrap)) as client,
                client.producer() as producer,
            ):
                await (await producer.send("quiet", b"one"))
            assert [await count_scrapes() for _ in range(2)] == [1, 1]
        finally:
            await brokers.close()

    asyncio.run(run())


class LaggingBrokers(Brokers):
    """The first `lag` answers about topics are those of a broker that lags behind."""

    lag, stale = 0, dict[str, TopicState]()

    async def describe_topics(self, topic_names: Sequence[str]) -> dict[str, TopicState]:
        if self.lag:
            self.lag -= 1
            return dict(self.stale)
        return await super().describe_topics(topic_names)


@pytest.mark.parametrize(
    ("lag", "found"),
    [
        # In the answer before the change, in that after it, and also in the further ones.
        (1, (4, "True", "Reconciled")),
        (2, (4, "True", "Reconciled")),
        (20, (2, "False", "Creating")),
    ],
)
def test_a_topic_grows_though_a_broker_lags(
    broker: ShoalProcess, lag: int, found: tuple[int, str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ready is not true before the partitions are seen: nothing would look again for a minute."""
    monkeypatch.setattr(topics, "VISIBLE_PAUSES_SECONDS", (0, 0))

    async def run() -> None:
        world, brokers, name = World(broker), LaggingBrokers(broker.bootstrap), f"grows-{lag}"
        world.kube.add(CLUSTER)

        async def reconcile(partitions: int) -> float | None:
            spec = {"cluster": "main", "partitions": partitions}
            world.kube.add(resource("QueueTopic", name, **spec))
            place = (world.kube, world.kube.store(), brokers, "n", "main")
            return await QueueTopicReconciler(*place).reconcile([name])

        try:
            assert await reconcile(2) is None
            brokers.stale = await brokers.describe_topics([name])
            # Another operator has added them just now.
            await brokers.create_partitions({name: 4} if lag < 20 else {})
            brokers.lag = lag
            again = await reconcile(4)
            status = world.kube.find("QueueTopic", name)["status"]
            assert (status["partitions"], *world.ready("QueueTopic", name)[:2]) == found
            assert (again is None) == (found[1] == "True")
        finally:
            await brokers.close()

    asyncio.run(run())


class World:
    """Consecutive operators with the same API server and broker."""

    def __init__(self, broker: ShoalProcess) -> None:
        self.crash_point = CrashPoint()
        self.kube = ApiServer(self.crash_point)
        self.bootstrap = broker.bootstrap
        self.calls: Counter[str] = Counter()

    async def run(self) -> bool:
        """Run a new operator until nothing is left to do; return whether it survived."""
        brokers = CrashingBrokers(self.bootstrap, self.crash_point)
        try:
            for _ in range(ROUNDS_MAX):
                before = self.crash_point.changes
                await self._round(brokers)
                if self.crash_point.changes == before:
                    return True
            raise AssertionError("the operator comes to no end")
        except Crash:
            return False
        finally:
            self.calls += brokers.calls
            await brokers.close()

    async def _round(self, brokers: Brokers) -> None:
        store = self.kube.store()
        place = (self.kube, store, brokers, "n", "main")
        loops = (
            QueueClusterReconciler(*place, "image:1", on_reachable=lambda: None),
            QueueTopicReconciler(*place),
            ShareGroupReconciler(*place, monitor=GroupMonitor(*place)),
        )
        for loop in loops:
            await loop.reconcile(loop.list_names())

    async def settle(self, crash_after: int | None = None) -> bool:
        """Run operators, one of which dies after `crash_after` changes; return whether it died."""
        self.crash_point.last = (
            None if crash_after is None else self.crash_point.changes + crash_after
        )
        crashed = not await self.run()
        self.crash_point.last = None
        if crashed:
            assert await self.run()
        return crashed

    def ready(self, kind: str = "QueueCluster", name: str = "main") -> tuple[str, str, bool]:
        """Return status and reason of Ready, and whether it is of the present generation."""
        found = self.kube.find(kind, name)
        (said,) = (c for c in found["status"]["conditions"] if c["type"] == "Ready")
        present = said["observedGeneration"] == found["metadata"]["generation"]
        return said["status"], said["reason"], present

    def event_messages(self, reason: str) -> list[str]:
        """Return the messages of the events with this reason."""
        return [e["message"] for e in self.kube.all("Event") if e["reason"] == reason]

    def snapshot(self) -> dict[str, Any]:
        """Return everything that must be equal with and without a crash."""
        ready = {}
        for kind in ("QueueCluster", "QueueTopic", "ShareGroup"):
            for found in self.kube.all(kind):
                status = found.get("status", {})
                said = {c["type"]: (c["status"], c["reason"]) for c in status["conditions"]}
                kept = {k: status.get(k) for k in ("appliedConfig", "pendingReset")}
                reset = status.get("lastReset", {}).get("id")
                generation = status["observedGeneration"] == found["metadata"]["generation"]
                ready[kind, found["metadata"]["name"][:1]] = (said, kept, reset, generation)
        events = [(e["reason"], e["involvedObject"]["kind"]) for e in self.kube.all("Event")]
        return {
            "resources": ready,
            "deleted": sorted(self.kube.deleted),
            "events": sorted(events),
        }


def each_crash(
    broker: ShoalProcess,
    prepare: Callable[[World, int], None],
    change: Callable[[World, int], None],
    look: Callable[[World, int], Awaitable[Any]],
) -> None:
    """Run a scenario without a crash, then again with a crash after each of its changes."""

    async def scenario(number: int, crash_after: int | None) -> tuple[bool, Any]:
        world = World(broker)
        prepare(world, number)
        await world.settle()
        change(world, number)
        crashed = await world.settle(crash_after)
        return crashed, (world.snapshot(), await look(world, number))

    _, whole = asyncio.run(scenario(0, None))
    for crash_after in range(1, CHANGES_MAX):
        crashed, seen = asyncio.run(scenario(crash_after, crash_after))
        assert seen == whole, f"crashed after {crash_after} changes"
        if not crashed:
            assert crash_after > 3
            return
    raise AssertionError("the scenario takes more changes than expected")


async def nothing(world: World, number: int) -> None:
    """The snapshot is sufficient."""


def test_a_roll_restarts_each_broker_once(broker: ShoalProcess) -> None:
    def prepare(world: World, _: int) -> None:
        world.kube.add(CLUSTER)

    def change(world: World, number: int) -> None:
        config = {"num.partitions": "3", "log.retention.ms": f"{1000 + number}"}
        world.kube.add({**CLUSTER, "spec": {**CLUSTER["spec"], "config": config}})

    async def look(world: World, _: int) -> Any:
        assert world.kube.deleted == ["Pod/main-broker-0"]
        return world.calls["alter_broker_config"]

    each_crash(broker, prepare, change, look)


def test_a_roll_in_which_the_cluster_stays_ready_has_an_event_at_its_end(
    broker: ShoalProcess,
) -> None:
    async def scenario() -> None:
        world = World(broker)
        three = {**CLUSTER["spec"], "replicas": 3}
        world.kube.add({**CLUSTER, "spec": three})
        await world.settle()
        assert len(world.event_messages("Ready")) == 1
        world.kube.add({**CLUSTER, "spec": {**three, "config": {"num.partitions": "3"}}})
        await world.settle()
        assert world.ready() == ("True", "Reconciled", True)
        assert len(world.event_messages("BrokerRestart")) == 3
        assert len(world.event_messages("Ready")) == 2

    asyncio.run(scenario())


def test_a_dynamic_config_that_somebody_else_changes_is_set_again(broker: ShoalProcess) -> None:
    world = World(broker)
    world.kube.add({**CLUSTER, "spec": {**CLUSTER["spec"], "config": {"log.retention.ms": "1234"}}})
    asyncio.run(world.settle())
    assert len(world.event_messages("ConfigChanged")) == 1
    with SyncClient(broker.bootstrap) as client:
        everyone = ConfigResource(ConfigResourceType.BROKER, "")
        change = [ConfigChange("log.retention.ms", "99")]
        expect(client.run(client.admin.configs.alter({everyone: change})))
    asyncio.run(world.settle())
    text = "Somebody else had changed this: log.retention.ms is 1234 again, and was 99."
    assert world.event_messages("DriftReverted") == [text]
    assert len(world.event_messages("ConfigChanged")) == 1
    world.kube.add(CLUSTER)
    asyncio.run(world.settle())


def test_a_cluster_always_has_a_min_insync_replicas(broker: ShoalProcess) -> None:
    """The brokers refuse to unset it, and the stored one hides those of their files."""
    world, everyone = World(broker), ConfigResource(ConfigResourceType.BROKER, "")

    def read_value(config: Mapping[str, str]) -> str | None:
        world.kube.add({**CLUSTER, "spec": {**CLUSTER["spec"], "config": config}})
        asyncio.run(world.settle())
        with SyncClient(broker.bootstrap) as client:
            configs = expect(client.run(client.admin.configs.describe([everyone])))[everyone]
        return configs["min.insync.replicas"].value

    assert [read_value(c) for c in ({}, {"min.insync.replicas": "2"}, {})] == ["1", "2", "1"]
    assert not world.event_messages("ConfigRefused")


def test_a_refused_dynamic_config_keeps_no_other_from_taking_effect(broker: ShoalProcess) -> None:
    """Drift is repaired beside it, too."""
    world = World(broker)
    world.kube.add(CLUSTER)
    asyncio.run(world.settle())
    everyone = ConfigResource(ConfigResourceType.BROKER, "")

    def apply(config: Mapping[str, str]) -> str | None:
        """Apply these configs; return the retention that the broker has after one pass."""
        world.kube.add({**CLUSTER, "spec": {**CLUSTER["spec"], "config": config}})

        async def run() -> None:
            brokers = CrashingBrokers(broker.bootstrap, world.crash_point)
            place = (world.kube, world.kube.store(), brokers, "n", "main")
            try:
                cluster = QueueClusterReconciler(*place, "image:1", on_reachable=lambda: None)
                await cluster.reconcile(["main"])
            finally:
                await brokers.close()

        asyncio.run(run())
        with SyncClient(broker.bootstrap) as client:
            found = client.run(client.admin.configs.describe([everyone]))[everyone]
        assert not isinstance(found, KafkaError)
        return found["log.retention.ms"].value if "log.retention.ms" in found else None

    bad = {"log.cleanup.policy": "shred"}
    assert apply({"log.retention.ms": "4321"} | bad) == "4321"
    assert world.ready()[:2] == ("False", "ConfigRefused")
    conditions = world.kube.find("QueueCluster", "main")["status"]["conditions"]
    (said,) = (one["message"] for one in conditions if one["type"] == "Ready")
    assert "spec.config log.cleanup.policy: " in said
    assert "log.retention.ms" not in said
    assert apply({"log.retention.ms": "1234"} | bad) == "1234"
    with SyncClient(broker.bootstrap) as client:
        change = [ConfigChange("log.retention.ms", "99")]
        expect(client.run(client.admin.configs.alter({everyone: change})))
    assert apply({"log.retention.ms": "1234"} | bad) == "1234"
    apply({})
    assert world.ready()[:2] == ("True", "Reconciled")


def test_a_template_that_kubernetes_has_not_observed_is_not_judged(
    broker: ShoalProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        world = World(broker)
        world.kube.controllers_paused = True
        world.kube.add(CLUSTER)
        await world.settle()
        assert world.ready() == ("False", "Starting", True)
        world.kube.resume_controllers()
        await world.settle()
        assert world.ready() == ("True", "Reconciled", True)
        world.kube.controllers_paused = True
        config = {"num.partitions": "7"}
        world.kube.add({**CLUSTER, "spec": {**CLUSTER["spec"], "config": config}})
        await world.settle()
        assert world.ready() == ("True", "Reconciled", False)
        monkeypatch.setattr(decision, "OBSERVED_SECONDS_MAX", -1.0)
        await world.settle()
        assert world.ready() == ("False", "StatefulSetNotObserved", True)
        world.kube.resume_controllers()
        await world.settle()
        assert world.ready() == ("True", "Reconciled", True)
        assert world.kube.deleted == ["Pod/main-broker-0"]

    asyncio.run(scenario())


def test_a_broker_that_was_never_ready_raises_no_alarm(broker: ShoalProcess) -> None:
    """A broker registers before it is ready. Only its pod shows which brokers are not ready."""
    three = {**CLUSTER, "spec": {**CLUSTER["spec"], "replicas": 3}}

    async def scenario() -> None:
        world = World(broker)
        world.kube.unready = {f"main-broker-{n}" for n in range(3)}
        world.kube.add(three)
        await world.settle()
        assert world.ready() == ("False", "Starting", True)
        world.kube.probe("main-broker-0", succeeds=True)
        world.kube.probe("main-broker-2", succeeds=True)
        await world.settle()
        assert world.ready() == ("False", "Starting", True)
        world.kube.probe("main-broker-1", succeeds=True)
        await world.settle()
        assert world.ready() == ("True", "Reconciled", True)
        world.kube.unready = {"main-broker-3"}
        world.kube.add({**three, "spec": {**three["spec"], "replicas": 4}})
        await world.settle()
        assert world.ready() == ("False", "Starting", True)
        assert world.event_messages("BrokerNotReady") == []
        world.kube.probe("main-broker-1", succeeds=False)
        await world.settle()
        await world.settle()
        assert world.ready() == ("False", "BrokerNotReady", True)
        assert len(world.event_messages("BrokerNotReady")) == 1

    asyncio.run(scenario())


def test_ready_means_that_new_connections_succeed(
    broker: ShoalProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The operator may have a connection, or use the pods, before the Service routes there."""
    reached = False

    async def is_reachable(_: Brokers) -> bool:
        return reached

    async def scenario() -> None:
        nonlocal reached
        world = World(broker)
        brokers = Brokers(world.bootstrap), Brokers("127.0.0.1:1")
        assert [await one.is_reachable() for one in brokers] == [True, False]
        monkeypatch.setattr(Brokers, "is_reachable", is_reachable)
        world.kube.add(CLUSTER)
        await world.settle()
        assert world.ready() == ("False", "BrokersUnreachable", True)  # All times are in the past.
        reached = True
        await world.settle()
        assert world.ready() == ("True", "Reconciled", True)

    asyncio.run(scenario())


def test_refused_start_offsets_are_reported(
    broker: ShoalProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The topic is deleted while the group is created, after it was found."""
    resolved, goes = Brokers.resolve_offsets, True

    async def then_goes(brokers: Brokers, starts: Any) -> Any:
        offsets = await resolved(brokers, starts)
        if goes:
            await brokers.delete_topics(["passing"])
        return offsets

    async def scenario() -> None:
        nonlocal goes
        world = World(broker)
        monkeypatch.setattr(Brokers, "resolve_offsets", then_goes)
        world.kube.add(CLUSTER)
        await world.settle()
        topic = resource(
            "QueueTopic",
            "passing",
            cluster="main",
            partitions=1,
            config={},
            deletionPolicy="Retain",
        )
        group = resource(
            "ShareGroup",
            "passing",
            cluster="main",
            topics=["passing"],
            lockDuration="20s",
            deliveryLimit=4,
            maxRecordLocks=300,
            renewal=True,
            startOffset="Latest",
            isolation="ReadUncommitted",
            deletionPolicy="Retain",
        )
        world.kube.add(topic)
        world.kube.add(group)
        with pytest.raises(AssertionError, match="no end"):
            await world.settle()
        assert world.ready("ShareGroup", "passing") == ("False", "PositionsRefused", True)
        goes = False
        await world.settle()
        assert world.ready("ShareGroup", "passing") == ("True", "Reconciled", True)

    asyncio.run(scenario())


def test_a_roll_restarts_a_pod_of_two_brokers_once(broker: ShoalProcess) -> None:
    two = {**CLUSTER, "spec": {**CLUSTER["spec"], "brokersPerPod": 2}}

    def change(world: World, number: int) -> None:
        config = {"num.partitions": f"{number + 3}"}
        world.kube.add({**two, "spec": {**two["spec"], "config": config}})

    async def look(world: World, _: int) -> Any:
        assert world.kube.deleted == ["Pod/main-broker-0"]
        status = world.kube.find("QueueCluster", "main")["status"]
        assert (status["brokersReady"], status["replicas"], status["readyReplicas"]) == (
            "2/2",
            1,
            1,
        )
        assert [(b["id"], b["pod"], b["ready"]) for b in status["brokers"]] == [
            (0, "main-broker-0", True),
            (1000, "main-broker-0", True),
        ]

    each_crash(broker, lambda world, _: world.kube.add(two), change, look)


def test_topics_and_groups_are_made_once(broker: ShoalProcess) -> None:
    def change(world: World, number: int) -> None:
        topic = {"cluster": "main", "partitions": 2, "config": {"retention.ms": "5000"}}
        world.kube.add(resource("QueueTopic", f"t{number}", **topic, deletionPolicy="Delete"))
        world.kube.add(
            resource(
                "ShareGroup",
                f"g{number}",
                cluster="main",
                topics=[f"t{number}"],
                lockDuration="20s",
                deliveryLimit=4,
                maxRecordLocks=300,
                startOffset="Latest",
                isolation="ReadUncommitted",
                renewal=True,
                deletionPolicy="Delete",
                reset={"id": "first", "to": "Earliest"},
            )
        )

    async def look(world: World, number: int) -> Any:
        brokers = Brokers(world.bootstrap)
        try:
            topics = await brokers.describe_topics([f"t{number}"])
            configs = await brokers.describe_group_configs([f"g{number}"])
            state = (await brokers.describe_share_groups([f"g{number}"]))[f"g{number}"]
        finally:
            await brokers.close()
        (topic,), (config,) = topics.values(), configs.values()
        positions = [(p.partition, p.start_offset) for p in state.partitions]
        return topic.partitions, topic.config, config, positions, world.calls["create_topics"]

    each_crash(broker, lambda world, _: world.kube.add(CLUSTER), change, look)


def test_the_requests_of_a_start_are_prepared(
    broker: ShoalProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is not would wait for its messages to be compiled, after the brokers have started."""
    sent: set[tuple[int, int]] = set()
    write = Connection._write  # noqa: SLF001

    def note(self: Connection, api_key: ApiKey, version: int, *words: Any) -> Any:
        sent.add((api_key, version))
        return write(self, api_key, version, *words)

    async def run() -> None:
        world = World(broker)
        world.kube.add(CLUSTER)
        world.kube.add(resource("QueueTopic", "first", cluster="main", partitions=1))
        group = {
            "cluster": "main",
            "topics": ["first"],
            "lockDuration": "20s",
            "deliveryLimit": 4,
            "maxRecordLocks": 300,
            "startOffset": "Latest",
            "isolation": "ReadUncommitted",
            "renewal": True,
        }
        world.kube.add(resource("ShareGroup", "first", **group))
        await prepare_first_requests()
        compiled = codec.build_struct.cache_info().misses
        await world.settle()
        assert codec.build_struct.cache_info().misses == compiled
        assert world.ready("ShareGroup", "first") == ("True", "Reconciled", True)

    monkeypatch.setattr(Connection, "_write", note)
    asyncio.run(run())
    # The disks of other brokers are not asked for here: this one has another id than the pod.
    assert {(ApiKey.DESCRIBE_LOG_DIRS, 5), *sent} == set(FIRST_REQUESTS)
