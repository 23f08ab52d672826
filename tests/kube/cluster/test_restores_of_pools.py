"""`spec.restoreFrom` of a cluster with node pools: the nodes of all pools restore before any
starts, and dedicated controllers get the metadata of the brokers."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest
from compat.tiered.test_restore import (
    COMMITTED,
    COUNT,
    commit,
    committed,
    configs_of,
    copied_to,
    saved_positions,
)
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient
from kube import structural
from kube.api_server import STAMP
from kube.cluster.test_restores import RESTORED, S3, World, claim
from kube.kube.test_interrupted import CHANGES_MAX
from kube.restoring_pods import command, failing, is_restoring, succeed
from shoal.client.client import SyncClient
from shoal_operator.kube import kube as kube_module
from shoal_operator.model import cluster as model
from shoal_operator.model import names, node_pools, restore
from support.brokers.ports import free_ports
from support.brokers.servers import ShoalProcess
from support.runs.conditions import eventually
from support.storage.tiered_topics import TIMEOUT_S, Tiered, consume, create, produce

if TYPE_CHECKING:
    from pathlib import Path

    from kube.restoring_pods import Run

LARGE = {"name": "large", "firstNodeId": 100, "replicas": 1, "storage": {"size": "2Gi"}}
QUORUM = {"name": "quorum", "firstNodeId": 900, "replicas": 1, "roles": ["controller"]}
NODES = ["main-broker-0", "main-broker-1", "main-pool-large-100", "main-pool-quorum-900"]
SETS = ["main-broker", "main-pool-large", "main-pool-quorum"]


class Pools(World):
    """Two brokers, one in a pool, and a controller. After each change: as long as the status does
    not say that all nodes are restored, every StatefulSet restores."""

    def __init__(self, *pools: dict[str, Any], **spec: Any) -> None:
        super().__init__(**{"replicas": 2, "nodePools": [*(pools or (LARGE, QUORUM))], **spec})
        count = self.crash_point.count

        def checked() -> None:
            self.check()
            count()

        self.crash_point.count = checked  # type: ignore[method-assign]

    def check(self) -> None:
        found = self.kube.find("QueueCluster", "main")
        done = found["status"].get("restore", {}).get("phase") == restore.RESTORED
        if "restoreFrom" in found["spec"] and not done:
            sets = self.kube.all("StatefulSet")
            assert all(annotation(one) for one in sets if owner(one) == found["metadata"]["uid"])

    def nodes(self) -> dict[str, bool]:
        return dict(self.pods())


def annotation(manifest: dict[str, Any]) -> str:
    return str(manifest["metadata"].get("annotations", {}).get(names.RESTORE, ""))


def owner(manifest: dict[str, Any]) -> str:
    return str(manifest["metadata"]["ownerReferences"][0]["uid"])


def but(pod: str, kind: str) -> Run:
    """Return containers that all succeed, except that of one pod."""

    def run(found: dict[str, Any], container: dict[str, Any]) -> tuple[int, str]:
        one = failing(kind) if found["metadata"]["name"] == pod else succeed
        return one(found, container)

    return run


@pytest.fixture(autouse=True)
def one_second(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kube_module, "format_now", lambda: STAMP)


def test_it_happens_once_in_all_pools_wherever_the_operator_dies() -> None:
    for crash_after in range(1, CHANGES_MAX):
        world = Pools()
        died = world.settle(crash_after=crash_after)
        assert world.nodes() == dict.fromkeys(NODES, False)
        assert world.status()["restore"] == {**RESTORED, "brokersRestored": "4/4"}
        assert not structural.errors(world.kube.find("QueueCluster", "main"))
        deleted = [one for one in world.kube.deleted if one.startswith("Pod/")]
        assert sorted(deleted) == [f"Pod/{name}" for name in NODES]
        for found in world.kube.all("StatefulSet"):
            assert "initContainers" not in found["spec"]["template"]["spec"]
        if not died:
            break
    else:
        raise AssertionError("the operator always dies")
    assert crash_after > 20


@pytest.mark.parametrize("last", NODES[1:])
def test_no_node_starts_before_the_last_one_of_any_pool_has_its_data(last: str) -> None:
    world = Pools()
    world.settle(but(last, "StoreFailed"))
    assert world.nodes() == dict.fromkeys(NODES, True)
    assert world.status()["restore"] == {"phase": "Restoring", "brokersRestored": "3/4"}
    assert world.ready() == (
        "RestoreWaits",
        f"{last}: The text of the command. The pod tries again.",
    )
    (found,) = {annotation(one) for one in world.kube.all("StatefulSet")}
    assert found
    # The kubelet runs the container again.
    del world.kube.find("Pod", last)["status"]["initContainerStatuses"]
    world.settle()
    assert world.nodes() == dict.fromkeys(NODES, False)


@pytest.mark.parametrize("pool", ["pool-large-100", "pool-quorum-902", "pool-gone-300"])
def test_volumes_of_the_pools_of_an_earlier_cluster_are_not_touched(pool: str) -> None:
    """Nor those of a pool that the spec does not have."""
    world = Pools()
    world.kube.add(claim(f"data-main-{pool}"))
    world.settle()
    reason, message = world.ready()
    assert reason == "RestoreRefused"
    assert f"delete these volume claims: data-main-{pool}." in message
    assert world.nodes() == {}


@pytest.mark.parametrize("pool", ["large", "gone"])
def test_it_waits_until_the_pools_of_an_earlier_resource_are_gone(pool: str) -> None:
    world = Pools({**LARGE, "name": pool}, QUORUM, restoreFrom=None)
    world.settle()
    for kind in ("StatefulSet", "Pod"):
        for name in [one["metadata"]["name"] for one in world.kube.all(kind)]:
            if not name.startswith(f"main-pool-{pool}"):
                world.kube.objects.pop((kind, name))
    found = world.kube.find("StatefulSet", f"main-pool-{pool}")
    found["metadata"]["ownerReferences"][0]["uid"] = "earlier"
    world.kube.find("QueueCluster", "main")["status"] = {"conditions": []}
    world.edit(nodePools=[LARGE, QUORUM], restoreFrom={})
    world.settle(failing("Unknown", "it runs"))
    assert world.ready()[0] == "RestoreWaits"
    assert f"main-pool-{pool} of an earlier QueueCluster" in world.ready()[1]
    assert [one["metadata"]["name"] for one in world.kube.all("StatefulSet")] == [
        f"main-pool-{pool}"
    ]


def test_a_pool_that_is_added_changes_the_request() -> None:
    """The metadata names all brokers, so every node restores again."""
    world = Pools()
    world.settle(but("main-pool-quorum-900", "StoreFailed"))
    (before,) = {annotation(one) for one in world.kube.all("StatefulSet")}
    world.edit(nodePools=[LARGE, QUORUM, {"name": "more", "firstNodeId": 200}])
    seen = {}

    def look(pod: dict[str, Any], container: dict[str, Any]) -> tuple[int, str]:
        seen[pod["metadata"]["name"]] = container["args"]
        return succeed(pod, container)

    world.settle(look)
    more = "main-pool-more-200"
    assert sorted(seen) == sorted([*NODES, more])
    for args in seen.values():
        assert "--brokers=0,1,100,200" in args
        assert f"--id={before}" not in args
    assert world.nodes() == dict.fromkeys([*NODES, more], False)
    assert world.status()["restore"]["brokersRestored"] == "5/5"


def test_more_controllers_change_the_request() -> None:
    world = Pools()
    world.settle(failing("StoreFailed"))
    before = annotation(world.stateful_set())
    world.edit(nodePools=[LARGE, {**QUORUM, "replicas": 3}])
    world.settle(failing("StoreFailed"))
    found = {annotation(one) for one in world.kube.all("StatefulSet")}
    assert len(found) == 1
    assert before not in found


def test_the_order_of_pools_is_no_other_request() -> None:
    made = Pools().kube.find("QueueCluster", "main")
    first = restore.compute_restore_id(made, [])
    made["spec"]["nodePools"].reverse()
    assert restore.compute_restore_id(made, []) == first != ""


def test_it_waits_until_kubernetes_has_seen_each_statefulset() -> None:
    world = Pools()
    world.settle(failing("StoreFailed"))
    world.kube.controllers_paused = True
    world.edit(restoreFrom={"topics": ["orders"]})
    world.settle()
    for name in ("main-broker", "main-pool-large"):
        found = world.kube.find("StatefulSet", name)
        found["status"]["observedGeneration"] = found["metadata"]["generation"]
    world.settle()
    assert world.ready() == ("Restoring", "Kubernetes has not created the pods yet.")
    world.kube.resume_controllers()
    world.settle()
    assert world.nodes() == dict.fromkeys(NODES, False)


@pytest.mark.parametrize("first", ["main-pool-large-100", "main-pool-quorum-900"])
def test_restored_nodes_of_pools_do_not_run_beside_others(first: str) -> None:
    world = Pools()
    world.settle(
        lambda pod, container: (
            succeed if pod["metadata"]["name"] == first else failing("StoreFailed")
        )(pod, container)
    )
    world.edit(restoreFrom=None)
    world.settle()
    assert world.ready()[0] == "RestoreRefused"
    assert "removed before all nodes were restored" in world.ready()[1]
    assert world.nodes() == dict.fromkeys(NODES, True)


def test_volumes_of_nodes_that_leave_before_the_end_are_named() -> None:
    """Their metadata has other brokers than that of the nodes that stay."""
    world = Pools()
    world.settle(but("main-pool-quorum-900", "StoreFailed"))
    for name in NODES:
        world.kube.add(claim(f"data-{name}"))
    world.edit(nodePools=[{**LARGE, "replicas": 0}, QUORUM])
    world.settle()
    assert world.ready()[0] == "RestoreRefused"
    assert "Delete these volume claims: data-main-pool-large-100." in world.ready()[1]
    stay = [name for name in NODES if "large" not in name]
    assert world.nodes() == dict.fromkeys(stay, True)
    world.kube.find("PersistentVolumeClaim", "data-main-pool-large-100")["metadata"][
        "deletionTimestamp"
    ] = STAMP
    world.settle()
    assert world.ready()[0] == "RestoreWaits"
    world.kube.objects.pop(("PersistentVolumeClaim", "data-main-pool-large-100"))
    world.settle()
    assert world.nodes() == dict.fromkeys(stay, False)
    assert world.status()["restore"]["brokersRestored"] == "3/3"
    # The entry can go, now that the pool is empty.
    world.edit(nodePools=[QUORUM])
    world.settle()
    assert [one["metadata"]["name"] for one in world.kube.all("StatefulSet")] == [
        "main-broker",
        "main-pool-quorum",
    ]


def test_a_pool_without_its_entry_is_refused_during_a_restore() -> None:
    world = Pools()
    world.settle(failing("StoreFailed"))
    world.edit(nodePools=[QUORUM])
    world.settle()
    assert world.ready()[0] == "NodePoolRemoved"
    assert world.nodes() == dict.fromkeys(NODES, True)


@pytest.mark.parametrize("bare", SETS)
def test_a_statefulset_of_any_pool_that_runs_nodes_ends_restores(bare: str) -> None:
    """Also after the status and the other StatefulSets are lost."""
    world = Pools()
    made = world.kube.find("QueueCluster", "main")
    noted = {"metadata": {"annotations": {names.RESTORE: "a"}}}
    sets = {name: noted for name in SETS if name != bare}
    assert restore.compute_restore_id(made, sets.values())
    assert not restore.compute_restore_id(made, [*sets.values(), {"metadata": {}}])
    assert not restore.compute_restore_id(made, [{"metadata": {}}])


def template(pool: str, *pools: dict[str, Any], **spec: Any) -> dict[str, Any]:
    made = Pools(*pools, **spec).kube.find("QueueCluster", "main")
    given = restore.with_restore(made, "abc")
    (found,) = [
        one
        for one in model.build_manifests(given, "image:1")
        if one["kind"] == "StatefulSet" and one["metadata"]["name"] == pool
    ]
    assert annotation(found) == "abc"
    assert annotation(found["spec"]["template"]) == "abc"
    return dict(found["spec"]["template"]["spec"])


def test_controllers_reach_the_store_while_they_restore() -> None:
    """They have its credentials and keys, one container, and the ids of all brokers."""
    secrets = {**S3, "credentials": {"secretName": "s"}, "encryption": {"secretName": "keys"}}
    spec = {"brokersPerPod": 2, "tieredStorage": secrets}
    found = template("main-pool-quorum", **spec)
    (container,) = found["initContainers"]
    assert container["name"] == "shoal-restore"
    assert "--brokers=0,1,100,1000,1001,1100" in container["args"]
    assert container["args"][2] == "--config=/etc/shoal/broker-$(SHOAL_NODE_ID).properties"
    variables = {e["name"] for e in container["env"]}
    assert {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "SHOAL_NODE_ID"} <= variables
    assert "remote-keys" in {mount["name"] for mount in container["volumeMounts"]}
    assert {"remote-keys", "config"} <= {one["name"] for one in found["volumes"]}
    large = template("main-pool-large", **spec)
    assert [one["name"] for one in large["initContainers"]] == ["shoal-restore", "shoal-restore1"]
    assert all("--brokers=0,1,100,1000,1001,1100" in one["args"] for one in large["initContainers"])
    # Afterwards, controllers have neither.
    made = Pools(**spec).kube.find("QueueCluster", "main")
    after = [one for one in model.build_manifests(made, "image:1") if one["kind"] == "StatefulSet"]
    (pod,) = [
        one["spec"]["template"]["spec"]
        for one in after
        if one["metadata"]["name"] == "main-pool-quorum"
    ]
    assert "initContainers" not in pod
    assert "remote-keys" not in {one["name"] for one in pod["volumes"]}
    (started,) = pod["containers"]
    assert not [e for e in started["env"] if e["name"].startswith("AWS_")]


def test_a_pools_own_init_containers_run_first() -> None:
    own = {"initContainers": [{"name": "own", "image": "i:1"}]}
    found = template("main-pool-large", {**LARGE, "template": {"pod": own}}, QUORUM)
    assert [one["name"] for one in found["initContainers"]] == ["own", "shoal-restore"]


def test_nodes_are_counted_by_slots_also_without_their_pods() -> None:
    world = Pools(brokersPerPod=2)
    made = restore.with_restore(world.kube.find("QueueCluster", "main"), "abc")
    assert restore.build_status(restore.parse_results(made, []), STAMP)["brokersRestored"] == "0/7"
    assert node_pools.find_controller_pool(made) is not None
    world.settle()
    assert world.status()["restore"]["brokersRestored"] == "7/7"
    assert not any(map(is_restoring, world.kube.all("Pod")))


def started(folder: Path, ports: dict[int, int]) -> dict[int, ShoalProcess]:
    """Return the nodes, with the files and volumes that the containers of the restore had."""
    found = {}
    voters = ",".join(f"{id}@127.0.0.1:{port}" for id, port in ports.items() if id >= 900)
    for id, port in ports.items():
        name = "CONTROLLER" if id >= 900 else "PLAIN"
        own = {"controller.quorum.voters": voters}
        if name == "PLAIN":
            own["advertised.listeners"] = f"{name}://127.0.0.1:{port}"
        node = ShoalProcess(
            folder / f"data-{id}",
            configs=own,
            environment={"SHOAL_NODE_ID": str(id), "POD_NAME": "replaced"},
            flags=[f"--config={folder / f'broker-{id}.properties'}"],
            listener=name,
        )
        node.bootstrap = f"127.0.0.1:{port}"
        found[id] = node
    return found


def folders(data_dir: Path) -> set[str]:
    return {path.name for path in data_dir.iterdir() if path.is_dir()}


def saved_logs(store: Path) -> set[str]:
    """Return the partitions of `__consumer_offsets` that have a backup."""
    found = store.rglob("backup/__consumer_offsets/*")
    return {path.name for path in found if path.name.isdigit()}


@pytest.mark.nightly
@pytest.mark.parametrize("controllers", [1, 3])
def test_a_lost_cluster_comes_back_with_pools_and_dedicated_controllers(
    controllers: int, tmp_path: Path
) -> None:
    """The command is a process in the pods of all pools, and real nodes start on what it left. By
    day, `test_restores.py` has a cluster of one pool."""
    pytest.importorskip("obstore")
    store = tmp_path / "store"
    lost = ShoalProcess(tmp_path / "lost", configs=configs_of(store)).start()
    tiered = Tiered(lost, store, AdminClient({"bootstrap.servers": lost.bootstrap}))
    create(tiered.admin)
    produce(lost.bootstrap, COUNT)
    commit(lost.bootstrap, COMMITTED)
    end = copied_to(tiered)
    eventually(lambda: saved_positions(store).get("readers") == COMMITTED, timeout_s=TIMEOUT_S)
    # The positions are in partition 0. A log is restored if its own backup was written.
    eventually(lambda: saved_logs(store) == {"0", "1"}, timeout_s=TIMEOUT_S)
    lost.kill9()
    lease = next(store.rglob("backup/lease"))
    os.utime(lease, (lease.stat().st_mtime - 61,) * 2)
    config = {"remote.log.manager.task.interval.ms": "100"}
    pool = {**QUORUM, "replicas": controllers}
    given = {"clusterId": lease.parts[-3]}
    world = Pools(LARGE, pool, replicas=1, config=config, restoreFrom=given)
    world.settle(command(world.kube, tmp_path, {"shoal.remote.store.url": f"file://{store}"}))
    voters = [900, 901, 902][:controllers]
    ids = [0, 100, *voters]
    assert [pod.rpartition("-")[2] for pod in world.nodes()] == list(map(str, ids)), world.ready()
    found = world.status()["restore"]
    assert (found["phase"], found["brokersRestored"]) == ("Restored", f"{len(ids)}/{len(ids)}")
    assert found["endOffsets"] == [{"topic": "t", "partitions": [end]}]
    for id in voters:
        assert folders(tmp_path / f"data-{id}") == {"__cluster_metadata-0"}
    assert "t-0" in folders(tmp_path / "data-0")
    assert "__consumer_offsets-1" in folders(tmp_path / "data-100")

    processes = started(tmp_path, dict(zip(ids, free_ports(len(ids)), strict=True)))
    try:
        for node in processes.values():
            node.launch()
        for node in processes.values():
            node.wait()
        servers = ",".join(processes[id].bootstrap for id in (0, 100))
        with SyncClient(servers) as client:
            quorum = client.run(client.admin.describe_quorum())
            about = client.run(client.admin.describe_cluster())
        assert sorted(one.node_id for one in quorum.voters) == voters
        assert quorum.leader_id in voters
        assert sorted(one.node_id for one in about.brokers) == [0, 100]
        consume(servers, end)
        assert committed(servers) == COMMITTED
        produce(servers, 10, start=end)
        reader = Consumer({"bootstrap.servers": servers, "group.id": "g"})
        assert reader.get_watermark_offsets(TopicPartition("t", 0), TIMEOUT_S) == (0, end + 10)
        reader.close()
        if controllers > 1:
            # The others elect another one.
            processes[quorum.leader_id].kill9()
            create(AdminClient({"bootstrap.servers": servers}), "later")
    finally:
        for node in processes.values():
            node.kill9()
