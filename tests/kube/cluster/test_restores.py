"""`spec.restoreFrom`: a cluster is restored from its bucket once, before its brokers start."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from compat.tiered.test_restore import (
    COMMITTED,
    COUNT,
    commit,
    committed,
    configs_of,
    copied_to,
    saved_positions,
)
from confluent_kafka.admin import AdminClient
from kube import structural
from kube.api_server import STAMP, ApiServer, Crash, CrashPoint, resource
from kube.kube.test_interrupted import CHANGES_MAX, ROUNDS_MAX
from kube.restoring_pods import command, failing, is_restoring, run_pods, succeed
from shoal.client.errors import Unreachable
from shoal_operator.brokers.calls import Brokers
from shoal_operator.cluster import decision
from shoal_operator.cluster.reconciler import QueueClusterReconciler
from shoal_operator.kube import kube as kube_module
from shoal_operator.model import broker_config, names, reserved_fields, restore
from shoal_operator.model import cluster as model
from support.brokers.servers import ShoalProcess
from support.runs.conditions import eventually
from support.storage.tiered_topics import TIMEOUT_S, Tiered, consume, create, produce

if TYPE_CHECKING:
    from pathlib import Path

    from kube.restoring_pods import Run

S3 = {"type": "S3", "bucket": "queues", "copyInterval": "1h"}


def cluster(replicas: int = 1, **spec: Any) -> Any:
    given = {
        "type": "managed",
        "replicas": replicas,
        "brokersPerPod": 1,
        "storage": {"size": "1Gi"},
        "config": {},
        "listeners": [{"name": "plain", "port": 9092}],
        "metrics": {"port": 9404},
        "tieredStorage": S3,
        "restoreFrom": {},
    }
    wanted = {k: v for k, v in {**given, **spec}.items() if v is not None}
    return resource("QueueCluster", "main", **wanted)


class NoBrokers(Brokers):
    """Brokers that do not answer."""

    async def set_addresses(self, *_: object) -> None:
        """Do nothing."""

    async def describe_cluster(self, *_: Any, **__: Any) -> Any:
        raise Unreachable("no broker")


class World:
    """Consecutive operators, and the pods of their cluster."""

    def __init__(self, **spec: Any) -> None:
        self.crash_point = CrashPoint()
        self.kube = ApiServer(self.crash_point)
        self.kube.add(cluster(**spec))

    def edit(self, **spec: Any) -> None:
        """Apply another spec; a field that is None is removed."""
        found = self.kube.find("QueueCluster", "main")
        wanted = {k: v for k, v in {**found["spec"], **spec}.items() if v is not None}
        self.kube.add({**cluster(), "spec": wanted})

    async def _run(self, run: Run) -> None:
        brokers = NoBrokers("127.0.0.1:1")
        for _ in range(ROUNDS_MAX):
            before = self.crash_point.changes
            place = (self.kube, self.kube.store(), brokers, "n", "main", "image:1")
            loop = QueueClusterReconciler(*place, on_reachable=lambda: None)
            await loop.reconcile(loop.list_names())
            if not run_pods(self.kube, run) and self.crash_point.changes == before:
                return
        raise AssertionError("the operator comes to no end")

    def settle(self, run: Run = succeed, crash_after: int | None = None) -> bool:
        """Run operators until nothing is left to do; one of them dies after `crash_after` changes.
        Return whether it died."""
        point, died = self.crash_point, False
        point.last = None if crash_after is None else point.changes + crash_after
        try:
            asyncio.run(self._run(run))
        except Crash:
            died = True
            point.last = None
            asyncio.run(self._run(run))
        point.last = None
        return died

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = self.kube.find("QueueCluster", "main")["status"]
        return found

    def ready(self) -> tuple[str, str]:
        (row,) = [row for row in self.status()["conditions"] if row["type"] == "Ready"]
        return row["reason"], row["message"]

    def pods(self) -> list[tuple[str, bool]]:
        """Return the pods, and whether each restores."""
        return [(pod["metadata"]["name"], is_restoring(pod)) for pod in self.kube.all("Pod")]

    def stateful_set(self) -> dict[str, Any]:
        return self.kube.find("StatefulSet", "main-broker")


@pytest.fixture(autouse=True)
def one_second(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kube_module, "format_now", lambda: STAMP)


BROKERS = [(f"main-broker-{n}", False) for n in range(3)]
RESTORED = {
    "phase": "Restored",
    "brokersRestored": "3/3",
    "clusterId": "the-lost-one",
    "completionTime": STAMP,
    "backupTime": "2023-11-14T22:13:20Z",
    "topics": 2,
    "partitions": 3,
    "missingSegments": 1,
    "abortedTransactions": 0,
    "endOffsets": [{"topic": "orders", "partitions": [7, 9]}],
    "topicsLeftOut": 0,
}


def test_it_happens_once_wherever_the_operator_dies() -> None:
    """`run_pods` fails if a pod restores after the status says that it is done."""
    for crash_after in range(1, CHANGES_MAX):
        world = World(replicas=3)
        died = world.settle(crash_after=crash_after)
        assert world.pods() == BROKERS
        assert world.status()["restore"] == RESTORED
        assert not structural.errors(world.kube.find("QueueCluster", "main"))
        deleted = [one for one in world.kube.deleted if one.startswith("Pod/")]
        assert sorted(deleted) == [f"Pod/main-broker-{n}" for n in range(3)]
        events = [e["message"] for e in world.kube.all("Event") if e["reason"] == "Restored"]
        assert events == ["2 topics with 3 partitions as of 2023-11-14T22:13:20Z."]
        assert "initContainers" not in world.stateful_set()["spec"]["template"]["spec"]
        if not died:
            break
    else:
        raise AssertionError("the operator always dies")
    assert crash_after > 15


def test_brokers_start_only_when_all_have_their_data() -> None:
    world = World(replicas=3)

    def slow(pod: dict[str, Any], container: dict[str, Any]) -> tuple[int, str]:
        if pod["metadata"]["name"] == "main-broker-2":
            return failing("StoreFailed", "The store hangs.")(pod, container)
        return succeed(pod, container)

    world.settle(slow)
    assert world.pods() == [(name, True) for name, _ in BROKERS]
    assert world.status()["restore"] == {"phase": "Restoring", "brokersRestored": "2/3"}
    assert world.ready() == (
        "RestoreWaits",
        "main-broker-2: The store hangs. The pod tries again.",
    )
    # The kubelet runs the container again.
    del world.kube.find("Pod", "main-broker-2")["status"]["initContainerStatuses"]
    world.settle()
    assert world.pods() == BROKERS


@pytest.mark.parametrize(
    ("kind", "reason", "remedy"),
    [
        ("DataNotEmpty", "RestoreRefused", "Delete the QueueCluster and its volume claims"),
        ("KeyUnavailable", "RestoreRefused", "spec.tieredStorage.encryption must have"),
        ("BackupInTheClear", "RestoreRefused", "remove spec.tieredStorage.encryption.keyId"),
        ("BackupNotFound", "RestoreRefused", "Check spec.restoreFrom.clusterId"),
        ("TopicNotFound", "RestoreRefused", "Change spec.restoreFrom.topics"),
        ("StoreInvalid", "RestoreRefused", "Change spec.tieredStorage"),
        ("ObjectDamaged", "RestoreRefused", "an older version"),
        ("ClusterAlive", "RestoreWaits", "tries again"),
        ("DiskFailed", "RestoreWaits", "tries again"),
    ],
)
def test_errors_have_a_reason_and_a_remedy(kind: str, reason: str, remedy: str) -> None:
    world = World()
    world.settle(failing(kind))
    found, message = world.ready()
    assert found == reason
    assert message.startswith("main-broker-0: The text of the command. ")
    assert remedy in message
    stalled = [row["type"] for row in world.status()["conditions"] if row["type"] == "Stalled"]
    assert bool(stalled) == (reason == "RestoreRefused")


def test_a_command_without_a_summary_shows_its_last_line() -> None:
    world = World()
    world.settle(lambda *_: (137, "first\nKilled\n"))
    assert world.ready() == ("RestoreWaits", "main-broker-0: Killed The pod tries again.")


def claim(name: str) -> dict[str, Any]:
    meta = {"name": name, "namespace": "n", "labels": names.build_labels("main")}
    spec = {"resources": {"requests": {"storage": "1Gi"}}}
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": meta, "spec": spec}


@pytest.mark.parametrize("broker", [0, 7])
def test_volumes_of_an_earlier_cluster_are_not_touched(broker: int) -> None:
    """Nor those of brokers that the cluster does not have yet."""
    world = World()
    world.kube.add(claim(f"data-main-broker-{broker}"))
    world.settle()
    reason, message = world.ready()
    assert reason == "RestoreRefused"
    assert f"delete these volume claims: data-main-broker-{broker}." in message
    assert world.pods() == []
    world.edit(restoreFrom=None)
    world.settle()
    assert world.pods() == BROKERS[:1]
    assert "restore" not in world.status()


@pytest.mark.parametrize("sign", ["deletionTimestamp", "ownerReferences"])
def test_it_waits_for_volumes_that_are_being_deleted(sign: str) -> None:
    world = World()
    leaving = claim("data-main-broker-0")
    leaving["metadata"][sign] = STAMP if sign == "deletionTimestamp" else [{"uid": "gone"}]
    world.kube.add(leaving)
    world.settle()
    assert world.ready()[0] == "RestoreWaits"
    assert "being deleted: data-main-broker-0" in world.ready()[1]
    world.kube.objects.pop(("PersistentVolumeClaim", "data-main-broker-0"))
    world.settle()
    assert world.status()["restore"]["phase"] == "Restored"


@pytest.mark.parametrize("after", ["edit", "lost StatefulSet", "lost status"])
def test_nothing_restores_over_data_later(after: str) -> None:
    world = World()
    world.settle()
    if after == "edit":
        world.edit(restoreFrom={"topics": ["orders"]})
    else:
        world.kube.objects.pop(("StatefulSet", "main-broker"))
        world.kube.objects.pop(("Pod", "main-broker-0"))
        world.kube.add(claim("data-main-broker-0"))
    if after == "lost status":
        world.kube.find("QueueCluster", "main")["status"].pop("restore")
    world.settle(failing("Unknown", "it runs again"))
    if after == "lost status":
        assert world.ready()[0] == "RestoreRefused"
    else:
        assert world.pods() == BROKERS[:1]


def test_a_running_cluster_is_not_restored_when_the_field_is_added() -> None:
    world = World(restoreFrom=None)
    world.settle()
    assert world.pods() == BROKERS[:1]
    world.edit(restoreFrom={})
    world.settle(failing("Unknown", "it runs"))
    assert world.pods() == BROKERS[:1]
    reported = cluster()
    reported["status"] = {"clusterId": "known"}
    assert restore.compute_restore_id(reported, []) == ""


@pytest.mark.parametrize("by", ["another owner", "its deletion"])
def test_it_waits_until_the_brokers_of_an_earlier_resource_are_gone(by: str) -> None:
    """A QueueCluster that is deleted and created again must not start without its data."""
    world = World(restoreFrom=None)
    world.settle()
    found, own = world.stateful_set(), world.kube.find("QueueCluster", "main")
    own["status"] = {"observedGeneration": -1, "conditions": []}
    if by == "another owner":
        found["metadata"]["ownerReferences"][0]["uid"] = "earlier"
    else:
        found["metadata"]["deletionTimestamp"] = STAMP
    world.edit(restoreFrom={})
    world.settle(failing("Unknown", "it runs"))
    assert world.ready()[0] == "RestoreWaits"
    assert "StatefulSet main-broker of an earlier QueueCluster" in world.ready()[1]
    assert world.pods() == BROKERS[:1]
    world.kube.objects.pop(("StatefulSet", "main-broker"))
    world.kube.objects.pop(("Pod", "main-broker-0"))
    world.settle()
    assert world.status()["restore"]["phase"] == "Restored"
    assert world.pods() == BROKERS[:1]


def test_another_request_replaces_one_that_has_not_ended() -> None:
    world = World()
    world.settle(failing("TopicNotFound"))
    before = world.stateful_set()["metadata"]["annotations"][names.RESTORE]
    world.edit(restoreFrom={"clusterId": "the-lost-one", "topics": ["orders"]}, replicas=3)
    seen = []

    def look(pod: dict[str, Any], container: dict[str, Any]) -> tuple[int, str]:
        seen.append(container["args"])
        return succeed(pod, container)

    world.settle(look)
    assert world.pods() == BROKERS
    assert len(seen) == 3
    for args in seen:
        assert {"--brokers=0,1,2", "--topic=orders"} <= set(args)
        assert f"--id={before}" not in args


def test_restored_brokers_do_not_run_beside_others() -> None:
    world = World(replicas=3)
    done = []

    def first(pod: dict[str, Any], container: dict[str, Any]) -> tuple[int, str]:
        done.append(pod)
        return (succeed if len(done) == 1 else failing("StoreFailed"))(pod, container)

    world.settle(first)
    world.edit(restoreFrom=None)
    world.settle()
    assert world.ready()[0] == "RestoreRefused"
    assert "removed before all nodes were restored" in world.ready()[1]
    assert all(restoring for _, restoring in world.pods())


def test_a_restore_that_has_restored_nothing_may_be_given_up() -> None:
    world = World()
    world.settle(failing("BackupNotFound"))
    world.edit(restoreFrom=None)
    world.settle()
    assert world.pods() == BROKERS[:1]


def template(**spec: Any) -> dict[str, Any]:
    made = cluster(**spec)
    made["metadata"]["uid"] = "u"
    given = restore.with_restore(made, "abc")
    made = model.build_manifests(given, "image:1")[-1]
    assert made["metadata"]["annotations"][names.RESTORE] == "abc"
    found: dict[str, Any] = made["spec"]["template"]
    return found


def test_the_pods() -> None:
    """They have the brokers' volumes and credentials; each slot restores its own broker."""
    secret = {**S3, "credentials": {"secretName": "s"}, "encryption": {"secretName": "keys"}}
    own = {"name": "own", "image": "i:1"}
    found = template(
        replicas=3,
        brokersPerPod=2,
        tieredStorage=secret,
        rack={"topologyKey": "zone"},
        resources={"limits": {"memory": "1Gi"}},
        template={"pod": {"initContainers": [own], "containers": [{"name": "s", "image": "s:1"}]}},
    )
    spec = found["spec"]
    assert [c["name"] for c in spec["initContainers"]] == [
        "own",
        "shoal-restore",
        "shoal-restore1",
    ]
    assert [c["name"] for c in spec["containers"]] == ["broker"]
    assert spec["readinessGates"] == [{"conditionType": "shoal.dev/restored"}]
    assert names.RACK_KEY not in found["metadata"]["annotations"], "it waits for no rack"
    for slot, container in enumerate(spec["initContainers"][1:]):
        args = container["args"]
        assert args[:2] == ["storage", "restore"]
        assert "--brokers=0,1,2,1000,1001,1002" in args
        mounts = {m["name"]: m["mountPath"] for m in container["volumeMounts"]}
        assert mounts[f"data{slot or ''}"] == names.DATA_DIR
        assert {"config", "tmp", "remote-keys"} <= mounts.keys()
        variables = {e["name"] for e in container["env"]}
        assert {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"} <= variables
        assert "SHOAL_BROKER_RACK" not in variables
        assert container["resources"] == {"limits": {"memory": "1Gi"}}
        assert container["securityContext"]["readOnlyRootFilesystem"]
        # The keys are there for old objects. None encrypts new ones, and so no backup.
        assert "--clear-backup" in args
    (first, second) = (c["args"][2] for c in spec["initContainers"][1:])
    assert first == "--config=/etc/shoal/broker-$(SHOAL_NODE_ID).properties"
    assert second == "--config=/etc/shoal/broker-$(POD_INDEX)-1.properties"


def test_the_cluster_id() -> None:
    """It is that of the lost cluster from the first start of the brokers on."""
    assert broker_config.derive_cluster_id(cluster()) == broker_config.derive_cluster_id(
        cluster(restoreFrom=None)
    )
    given = cluster(restoreFrom={"clusterId": "other"})
    assert "shoal.cluster.id=other\n" in broker_config.format_broker_properties(
        given, 0, "PLAINTEXT://h:1"
    )
    given["spec"].pop("restoreFrom")
    given["status"] = {"restore": {"clusterId": "other"}}
    assert broker_config.derive_cluster_id(given) == "other"


def test_a_restore_needs_the_store_and_its_names() -> None:
    verdict = decision.find_refusal(cluster(tieredStorage=None))
    assert verdict is not None
    assert verdict.reason == "RestoreRefused"
    pod = {"initContainers": [{"name": "shoal-restore1"}], "volumes": [{"name": "remote-keys"}]}
    taken = reserved_fields.find_first(cluster(template={"pod": pod}))
    assert taken is not None
    pod = {"volumeMounts": [{"mountPath": "/etc/shoal-remote-keys/x"}]}
    assert reserved_fields.find_first(cluster(template={"pod": pod})) is not None


def test_the_example_fits_its_schema() -> None:
    example = yaml.safe_load((structural.CRDS.parent / "examples" / "08-restore.yaml").read_text())
    assert not structural.errors(example)
    assert not structural.errors(cluster(restoreFrom={"clusterId": "a", "topics": ["t"]}))
    assert structural.errors(cluster(restoreFrom={"url": "s3://b"}))


def test_a_lost_cluster_comes_back_by_its_resource(tmp_path: Path) -> None:
    """The command is a process, and a broker serves what it left. Live clusters are refused."""
    pytest.importorskip("obstore")
    store = tmp_path / "store"
    lost = ShoalProcess(tmp_path / "lost", configs=configs_of(store)).start()
    tiered = Tiered(lost, store, AdminClient({"bootstrap.servers": lost.bootstrap}))
    create(tiered.admin)
    produce(lost.bootstrap, COUNT)
    commit(lost.bootstrap, COMMITTED)
    end = copied_to(tiered)
    eventually(lambda: saved_positions(store).get("readers") == COMMITTED, timeout_s=TIMEOUT_S)
    lost.kill9()
    lease = next(store.rglob("backup/lease"))
    cluster_id = lease.parts[-3]
    world = World(restoreFrom={"clusterId": cluster_id})
    run = command(world.kube, tmp_path, {"shoal.remote.store.url": f"file://{store}"})
    world.settle(run)
    reason, message = world.ready()
    assert reason == "RestoreWaits"
    assert "is alive: it wrote its lease" in message
    # A minute later, the kubelet runs the container again.
    os.utime(lease, (lease.stat().st_mtime - 61,) * 2)
    del world.kube.find("Pod", "main-broker-0")["status"]["initContainerStatuses"]
    world.settle(run)
    assert world.pods() == BROKERS[:1]
    found = world.status()["restore"]
    assert (found["phase"], found["clusterId"]) == ("Restored", cluster_id)
    assert found["endOffsets"] == [{"topic": "t", "partitions": [end]}]
    file = (tmp_path / "broker-0.properties").read_text()
    assert f"shoal.cluster.id={cluster_id}\n" in file
    environment = {"SHOAL_NODE_ID": "0", "SHOAL_CLUSTER_ID": cluster_id}
    again = ShoalProcess(tmp_path / "data-0", configs=configs_of(store), environment=environment)
    again.start()
    try:
        consume(again.bootstrap, end)
        assert committed(again.bootstrap) == COMMITTED
    finally:
        again.stop()
