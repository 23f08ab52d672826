"""Node pools as the operator renders them, run by real processes: brokers of two pools, and
dedicated controllers. The operator reports them, and drains a broker."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from kube.api_server import resource
from kube.secured_pods import LISTENERS, METRICS, SecuredPods
from shoal.client.admin.configs import ConfigResource, ConfigResourceType
from shoal.client.admin.topics import NewTopic
from shoal.client.client import SyncClient
from shoal.client.errors import KafkaError, expect
from shoal_operator.brokers.log_levels import ControllerLevels
from shoal_operator.model import names, security
from support.runs.conditions import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

LARGE, QUORUM = "main-pool-large", "main-pool-quorum"
CONTROLLERS = [900, 901, 902]
#: A broker is unregistered once its session has ended.
SESSION = {"broker.session.timeout.ms": "5000", "broker.heartbeat.interval.ms": "1000"}


def queue_cluster(large: int = 2, **spec: Any) -> dict[str, Any]:
    return resource(
        "QueueCluster",
        "main",
        replicas=1,
        storage={"size": "1Gi"},
        config=SESSION,
        listeners=LISTENERS[:1],
        metrics={"port": METRICS},
        nodePools=[
            {"name": "large", "firstNodeId": 100, "replicas": large, "storage": {"size": "2Gi"}},
            {"name": "quorum", "firstNodeId": 900, "replicas": 3, "roles": ["controller"]},
        ],
        **spec,
    )


@pytest.fixture(scope="module")
def pods(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredPods]:
    found = SecuredPods(tmp_path_factory.mktemp("pools"), queue_cluster())
    try:
        yield found.start()
    finally:
        found.stop()


@pytest.fixture(scope="module")
def admin(pods: SecuredPods) -> Iterator[SyncClient]:
    """A client with the operator's certificate, and topics on the brokers of both pools."""
    times = {"default.api.timeout.ms": "30000", "request.timeout.ms": "20000"}
    servers = pods.bootstrap(security.REPLICATION_PORT)
    with SyncClient(servers, {**times, **pods.operator()}) as client:
        wide = NewTopic("wide", 1, 3)
        jobs = NewTopic("jobs", assignments={0: [101, 0], 1: [0, 100]})
        made = client.run(client.admin.topics.create([wide, jobs]))
        assert not [one for one in made.values() if isinstance(one, KafkaError)], made
        yield client


def replicas(admin: SyncClient, topic: str) -> dict[int, list[int]]:
    found = admin.run(admin.admin.topics.describe([topic]))[topic]
    assert not isinstance(found, KafkaError)
    return {one.index: sorted(one.replicas) for one in found.partitions}


def registered(admin: SyncClient) -> list[int]:
    about = admin.run(admin.admin.describe_cluster(fenced=True))
    return sorted(one.node_id for one in about.brokers)


def read_cordon(admin: SyncClient, id: int) -> str | None:
    broker, name = ConfigResource(ConfigResourceType.BROKER, str(id)), "cordoned.log.dirs"
    found = admin.run(admin.admin.configs.describe([broker], keys=[name]))
    return expect(found)[broker][name].value


def condition(pods: SecuredPods, kind: str) -> tuple[str, str, str]:
    (found,) = (c for c in pods.resource["status"]["conditions"] if c["type"] == kind)
    return found["status"], found["reason"], found["message"]


def with_restart(metadata: dict[str, Any]) -> dict[str, Any]:
    return {**metadata, "annotations": {names.RESTART: "1"}}


def test_brokers_and_controllers_have_roles_of_their_own(
    pods: SecuredPods, admin: SyncClient
) -> None:
    assert registered(admin) == [0, 100, 101]
    quorum = admin.run(admin.admin.describe_quorum())
    assert sorted(one.node_id for one in quorum.voters) == CONTROLLERS
    assert replicas(admin, "wide") == {0: [0, 100, 101]}

    async def send() -> None:
        async with admin.client.producer() as producer:
            for partition in (0, 1):
                await (await producer.send("jobs", b"x", partition=partition))

    admin.run(send())
    asyncio.run(pods.reconcile(2))
    assert condition(pods, "Ready")[:2] == ("True", "Reconciled"), condition(pods, "Ready")
    assert condition(pods, "Degraded")[0] == "False", condition(pods, "Degraded")
    status = pods.resource["status"]
    assert status["quorumVoters"] == CONTROLLERS
    assert status["controllerId"] == quorum.leader_id
    assert status["brokersReady"] == "3/3"
    assert (status["replicas"], [row["id"] for row in status["brokers"]]) == (1, [0, 100, 101])
    rows = [*status["brokers"], *status["controllers"]]
    assert {row["id"] for row in rows if row["version"]} == {0, 100, 101, *CONTROLLERS}
    assert {
        row["name"]: (row["roles"], row["replicas"], row["readyReplicas"])
        for row in status["nodePools"]
    } == {"large": (["broker"], 2, 2), "quorum": (["controller"], 3, 3)}


def test_controllers_follow_the_log_levels_of_the_spec(pods: SecuredPods) -> None:
    """As brokers do, by requests to the listener of each controller."""
    audit = "shoal.server.audit"

    async def levels() -> dict[int, dict[str, str]]:
        found = ControllerLevels(pods.controllers(), pods.operator)
        try:
            return await found.describe(["root", audit])
        finally:
            found.close()

    def apply(**loggers: str) -> dict[int, dict[str, str]]:
        given = {audit if name == "audit" else name: level for name, level in loggers.items()}
        pods.kube.add(queue_cluster(logging={"loggers": given}))
        # The first pass of an operator reads its certificate.
        asyncio.run(pods.reconcile(3))
        return asyncio.run(levels())

    def everywhere(root: str, of_audit: str) -> dict[int, dict[str, str]]:
        return {id: {"root": root, audit: of_audit} for id in CONTROLLERS}

    assert apply(root="WARN", audit="DEBUG") == everywhere("WARN", "DEBUG")
    assert condition(pods, "Ready")[:2] == ("True", "Reconciled"), condition(pods, "Ready")
    assert apply(audit="ERROR") == everywhere("INFO", "ERROR")
    assert apply() == everywhere("INFO", "INFO")
    assert pods.kube.deleted == []


def test_a_broker_of_a_pool_leaves_when_it_has_no_replicas(
    pods: SecuredPods, admin: SyncClient
) -> None:
    def size() -> int:
        return int(pods.kube.find("StatefulSet", LARGE)["spec"]["replicas"])

    # One broker would be left, and a topic has three replicas.
    pods.kube.add(queue_cluster(large=0))
    asyncio.run(pods.reconcile())
    assert condition(pods, "Degraded")[1] == "ScaleDownRefused", condition(pods, "Degraded")
    message = condition(pods, "Degraded")[2]
    assert message.startswith("1 broker would be left, but jobs-0, jobs-1, wide-0 have"), message
    assert size() == 2
    assert admin.run(admin.admin.topics.delete(["wide"])) == {"wide": None}
    # A broker that begins to leave, and stays after all, is cordoned in between only.
    for large, cordoned in ((1, [101]), (2, [])):
        pods.kube.add(queue_cluster(large=large))
        asyncio.run(pods.reconcile(2))
        assert (pods.resource["status"].get("cordonedBrokers") or []) == cordoned
        assert read_cordon(admin, 101) == "*" * len(cordoned)
    pods.kube.add(queue_cluster(large=1))

    def drained() -> bool:
        asyncio.run(pods.reconcile())
        return size() == 1

    eventually(drained)
    assert replicas(admin, "jobs") == {0: [0, 100], 1: [0, 100]}
    assert "main-pool-large-101" not in {p["metadata"]["name"] for p in pods.kube.all("Pod")}
    assert size() == 1
    (leaving,) = (one for id, one in zip(pods.ids, pods.brokers, strict=True) if id == 101)
    leaving.stop()
    pods.of_clients.remove(101)  # As the bootstrap Service leaves it out.

    def unregistered() -> bool:
        # The first pass of an operator finds brokers that the spec does not have.
        asyncio.run(pods.reconcile(2))
        return registered(admin) == [0, 100]

    eventually(unregistered)
    assert not pods.resource["status"].get("cordonedBrokers")
    # A broker that gets this id later is not cordoned.
    leaving.start()
    assert read_cordon(admin, 101) == ""
    leaving.stop()
    eventually(unregistered)
    # Two brokers have other defaults for the replication of topics than three: a roll may begin.

    def reconciled() -> bool:
        asyncio.run(pods.reconcile(2))
        return condition(pods, "Ready")[:2] == ("True", "Reconciled")

    eventually(reconciled)
    assert pods.kube.find("StatefulSet", QUORUM)["spec"]["replicas"] == 3
    assert all(one.startswith("Pod/") for one in pods.kube.deleted), pods.kube.deleted


def test_a_roll_begins_with_the_controllers(pods: SecuredPods, admin: SyncClient) -> None:
    """Pods restart in memory only, so that the active controller stays the same."""
    before = len(pods.kube.deleted)
    brokers = [f"main-broker-{id}" if id < 100 else f"{LARGE}-{id}" for id in registered(admin)]
    pods.kube.add({**pods.resource, "metadata": with_restart(pods.resource["metadata"])})

    def rolled() -> bool:
        asyncio.run(pods.reconcile(2))
        return len(pods.kube.deleted) == before + 3 + len(brokers)

    eventually(rolled)
    active = pods.resource["status"]["controllerId"]
    order = [*(id for id in CONTROLLERS if id != active), active]
    wanted = [*(f"{QUORUM}-{id}" for id in order), *brokers]
    assert pods.kube.deleted[before:] == [f"Pod/{name}" for name in wanted]
