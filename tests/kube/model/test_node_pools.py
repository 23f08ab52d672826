"""Node pools (`spec.nodePools`): ids, rendered objects, what is refused, rolls, and removal."""

from __future__ import annotations

import asyncio
import copy
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from kube import rendered
from kube.api_server import ApiServer, CrashPoint, resource
from kube.model.test_pod_layout import broker_config, files, objects
from kube.structural import errors
from shoal.server.cluster_config import Listeners, make_cluster_config
from shoal_operator.brokers.broker_certificates import OWN, TRUSTED, parse_certificates
from shoal_operator.brokers.calls import Brokers
from shoal_operator.brokers.roller import (
    BrokerPod,
    ControllerQuorum,
    PartitionState,
    RestartStep,
    WaitStep,
    choose_next_step,
)
from shoal_operator.cluster import decision
from shoal_operator.cluster.reconciler import QueueClusterReconciler
from shoal_operator.model import cluster as model
from shoal_operator.model import names, node_pools, pod_layout, security
from shoal_operator.model.broker_config import get_controller_addresses

Manifest = dict[str, Any]
EXAMPLES = Path(__file__).parents[3] / "examples/node-pools"
LARGE = {
    "name": "large",
    "firstNodeId": 100,
    "replicas": 2,
    "resources": {"requests": {"cpu": "2"}},
    "storage": {"size": "20Gi", "storageClassName": "dense"},
    "template": {
        "pod": {"nodeSelector": {"disk": "large"}},
        "persistentVolumeClaim": {"labels": {"backup": "weekly"}},
    },
}
QUORUM = {
    "name": "quorum",
    "firstNodeId": 900,
    "replicas": 3,
    "roles": ["controller"],
    "storage": {"size": "1Gi"},
}


def queue_cluster(*pools: Manifest, **spec: Any) -> Any:
    """Return the cluster with every field, and these pools."""
    made = copy.deepcopy(rendered.clusters()["whole"])
    del made["spec"]["rack"]
    made["spec"] |= {"nodePools": [copy.deepcopy(pool) for pool in pools], **spec}
    if any("controller" in pool.get("roles", ()) for pool in pools):
        del made["status"]["quorumVoters"]
    return made


def stateful(made: Manifest, name: str) -> Manifest:
    (found,) = [one for one in objects(made, "StatefulSet") if one["metadata"]["name"] == name]
    return found


# -- ids


#: A few, or all that a pool may have.
REPLICAS = st.integers(0, 4) | st.sampled_from([99, 100])


def name_pods(made: Any, ids: list[int]) -> dict[int, str]:
    """Return the names of the pods of these brokers and controllers, by their numbers."""
    pods = {pod_layout.get_pod(id) for id in ids}
    return {pod: node_pools.format_pod_name(made, pod) for pod in pods}


@st.composite
def specs(draw: st.DrawFn) -> Any:
    """Draw a cluster with pools that the schema allows."""
    firsts = draw(st.lists(st.integers(1, 9), unique=True, max_size=4))
    pools: list[Manifest] = [
        {"name": f"p{first}", "firstNodeId": 100 * first, "replicas": draw(REPLICAS)}
        for first in firsts
    ]
    if draw(st.booleans()) and pools:
        pools[0] |= {"roles": ["controller"], "replicas": draw(st.sampled_from([1, 3, 5]))}
    spec = {"replicas": draw(REPLICAS.filter(bool)), "brokersPerPod": draw(st.integers(1, 16))}
    return {"metadata": {"name": "main"}, "spec": {**spec, "nodePools": pools}}


@given(specs(), st.data())
def test_an_id_always_belongs_to_the_same_node(made: Any, data: st.DataObject) -> None:
    ids = pod_layout.list_nodes(made)
    assert len(set(ids)) == len(ids)
    where = name_pods(made, ids)
    ids_by_pod: dict[int, set[int]] = {}
    for id in ids:
        ids_by_pod.setdefault(pod_layout.get_pod(id), set()).add(id)
    for pool in node_pools.list_pools(made):
        for pod in pool.pods:
            assert node_pools.find_pool(made, pod) == pool
            mine = ids_by_pod[pod]
            assert mine == {
                pod_layout.compute_broker_id(pod, s) for s in pod_layout.list_slots(made, pod)
            }
            assert where[pod] == f"{pool.stateful_set}-{pod}"
    # Another order, other numbers of replicas, and one pool less.
    other = copy.deepcopy(made)
    kept = data.draw(st.permutations(other["spec"]["nodePools"]))
    other["spec"]["nodePools"] = kept[1:]
    for pool in other["spec"]["nodePools"]:
        if "roles" not in pool:
            pool["replicas"] = data.draw(REPLICAS)
    other["spec"]["replicas"] = data.draw(REPLICAS.filter(bool))
    after = name_pods(other, pod_layout.list_nodes(other))
    assert all(where[pod] == after[pod] for pod in where.keys() & after.keys())
    assert set(pod_layout.list_brokers(made)).isdisjoint(
        pod for pool in node_pools.list_pools(made) if pool.is_controller for pod in pool.pods
    )


@given(specs())
def test_pods_that_run_are_all_within_the_numbers_of_their_pools(made: Any) -> None:
    counts = node_pools.count_replicas(made)
    assert node_pools.with_replicas(made, counts) == made
    more = node_pools.count_replicas(made, [99])
    assert more == counts | {"": 100}
    for pool in node_pools.list_pools(made):
        last = pool.first_id + node_pools.IDS - 1
        grown = node_pools.with_replicas(made, node_pools.count_replicas(made, [last]))
        assert node_pools.count_replicas(grown) == counts | {pool.name: 100}


# -- rendered objects


def test_every_node_starts_with_the_settings_of_its_role() -> None:
    made = queue_cluster(LARGE, QUORUM, replicas=2)
    found = {}
    for pool in node_pools.list_pools(made):
        template = stateful(made, pool.stateful_set)["spec"]["template"]
        (container,) = template["spec"]["containers"]
        for pod in pool.pods:
            config = broker_config(made, pod, container)
            whole = make_cluster_config(config)
            found[config.node_id] = set(whole.kinds.values())
            assert config.node_id == pod
            assert whole.is_controller == pool.is_controller
            assert whole.is_broker != pool.is_controller
            assert whole.voters is not None
            assert sorted(whole.voters.voters) == [900, 901, 902]
            for id, voter in whole.voters.voters.items():
                assert voter.endpoints[0].host == f"main-pool-quorum-{id}.main-brokers.n.svc"
            mine = [one.port for one in config.listeners if one.name in whole.kinds]
            declared = {p["name"]: p["containerPort"] for p in container["ports"]}
            assert {*mine, config.metrics_listener.port} <= set(declared.values())
            assert config["default.replication.factor"] == 3
    of_brokers = {id: {Listeners.BROKER} for id in (0, 1, 100, 101)}
    assert found == of_brokers | {id: {Listeners.CONTROLLER} for id in (900, 901, 902)}


def test_controllers_have_no_ports_for_clients() -> None:
    made = queue_cluster(QUORUM, brokersPerPod=2, replicas=3)
    (container,) = stateful(made, "main-pool-quorum")["spec"]["template"]["spec"]["containers"]
    assert {p["name"]: p["containerPort"] for p in container["ports"]} == {
        "controller": 9093,
        "metrics": 9404,
    }
    assert sorted(files(made)) == sorted(
        [f"broker-{pod}{slot}.properties" for pod in range(3) for slot in ("", "-1")]
        + [f"broker-{id}.properties" for id in (900, 901, 902)]
    )
    reached = [one for one in objects(made, "Service") if one["spec"]["selector"]]
    names_of = {one["metadata"]["name"] for one in reached}
    assert not any(f"-{id}" in name for name in names_of for id in (900, 901, 902))


def test_a_pool_has_its_own_size_volumes_and_template() -> None:
    made = queue_cluster(LARGE)
    own, large = (stateful(made, f"main-{name}")["spec"] for name in ("broker", "pool-large"))
    assert (large["replicas"], large["ordinals"]) == (2, {"start": 100})
    (claim,) = large["volumeClaimTemplates"]
    assert claim["spec"]["storageClassName"] == "dense"
    assert claim["spec"]["resources"]["requests"]["storage"] == "20Gi"
    assert claim["metadata"]["labels"]["backup"] == "weekly"
    pod = large["template"]["spec"]
    assert pod["nodeSelector"] == {"disk": "large"}
    assert pod["containers"][0]["resources"] == {"requests": {"cpu": "2"}}
    # What the pool does not set is the cluster's; deletionPolicy is for all.
    assert large["persistentVolumeClaimRetentionPolicy"]["whenDeleted"] == "Delete"
    assert own["template"]["spec"]["containers"][0]["resources"] != {"requests": {"cpu": "2"}}
    plain = stateful(queue_cluster({"name": "large", "firstNodeId": 100}), "main-pool-large")
    assert plain["spec"]["template"]["spec"]["containers"] == own["template"]["spec"]["containers"]
    (mine,) = own["volumeClaimTemplates"]
    (same,) = plain["spec"]["volumeClaimTemplates"]
    assert same["spec"] == mine["spec"]


def test_stateful_sets_select_their_own_pods_and_the_rest_selects_all() -> None:
    made = queue_cluster(LARGE, QUORUM)
    labels = {}
    for pool in node_pools.list_pools(made):
        spec = stateful(made, pool.stateful_set)["spec"]
        labels[pool.name] = spec["template"]["metadata"]["labels"]
        assert spec["selector"]["matchLabels"].items() <= labels[pool.name].items()
        assert spec["serviceName"] == "main-brokers"
    for name in ("large", "quorum"):
        selector = stateful(made, f"main-pool-{name}")["spec"]["selector"]["matchLabels"]
        mine = [pool for pool, of in labels.items() if selector.items() <= of.items()]
        assert mine == [name]
    (budget,) = objects(made, "PodDisruptionBudget")
    (policy,) = objects(made, "NetworkPolicy")
    headless = next(s for s in objects(made, "Service") if s["metadata"]["name"] == "main-brokers")
    for selector in (
        budget["spec"]["selector"]["matchLabels"],
        policy["spec"]["podSelector"]["matchLabels"],
        headless["spec"]["selector"],
    ):
        assert all(selector.items() <= of.items() for of in labels.values())


def test_the_operator_reaches_the_listener_of_dedicated_controllers() -> None:
    """Only theirs: clusters whose brokers are the controllers keep their NetworkPolicy."""
    every = [names.build_selector("main"), names.OPERATOR_LABELS]
    for pools, wanted in (((LARGE, QUORUM), every), ((LARGE,), every[:1])):
        (policy,) = objects(queue_cluster(*pools), "NetworkPolicy")
        (quorum,) = (
            rule
            for rule in policy["spec"]["ingress"]
            if security.CONTROLLER_PORT in [one["port"] for one in rule["ports"]]
        )
        assert [one["podSelector"]["matchLabels"] for one in quorum["from"]] == wanted
    addresses = get_controller_addresses(queue_cluster(LARGE, QUORUM))
    assert addresses[900] == "main-pool-quorum-900.main-brokers.n.svc:9093"
    assert get_controller_addresses(queue_cluster(LARGE)) == {}


def test_each_broker_of_a_pool_is_reached_from_outside() -> None:
    made = queue_cluster(LARGE, brokersPerPod=2)
    own = {s["metadata"]["name"]: s["spec"] for s in objects(made, "Service")}
    for id in (100, 101, 1100, 1101):
        selector = own[f"main-outside-{id}"]["selector"]
        assert selector["statefulset.kubernetes.io/pod-name"] == f"main-pool-large-{id % 1000}"
    assert "broker.rack=main-pool-large-101\n" in files(made)["broker-101-1.properties"]


def test_a_new_pool_changes_nothing_for_brokers_that_run() -> None:
    """With three brokers or more: the replication of topics stays the same."""
    before, after = queue_cluster(), queue_cluster(LARGE)
    have = rendered.services(after)
    was, now = (model.build_manifests(made, "i:1", have) for made in (before, after))
    by_name = {(one["kind"], one["metadata"]["name"]): one for one in now}
    for one in was:
        same = by_name[one["kind"], one["metadata"]["name"]]
        if one["kind"] == "ConfigMap":
            assert one["data"].items() <= same["data"].items()
        else:
            assert one == same
    removed = queue_cluster()
    del removed["spec"]["nodePools"]
    assert model.build_manifests(removed, "i:1", have) == was


def test_a_pools_cache_is_a_part_of_its_own_volume() -> None:
    store = {"type": "S3", "bucket": "b"}
    text = files(queue_cluster(LARGE, tieredStorage=store))
    caches = [
        int(line.rpartition("=")[2])
        for id in (0, 100)
        for line in text[f"broker-{id}.properties"].splitlines()
        if line.startswith("shoal.remote.chunk.cache.bytes=")
    ]
    assert caches == [(2 << 30) // 10, (20 << 30) // 10]


def test_controllers_have_no_key_of_the_object_store() -> None:
    store = {
        "type": "S3",
        "bucket": "b",
        "credentials": {"secretName": "keys"},
        "encryption": {"secretName": "ring", "keyId": "1"},
    }
    made = queue_cluster(LARGE, QUORUM, tieredStorage=store)
    for name, has in (("main-pool-large", True), ("main-pool-quorum", False)):
        template = stateful(made, name)["spec"]["template"]
        text = repr(template)
        assert ("AWS_SECRET_ACCESS_KEY" in text, "ring" in text) == (has, has)
    (container,) = template["spec"]["containers"]
    # They decide whether a topic may be tiered.
    assert broker_config(made, 900, container)["remote.log.storage.system.enable"]


def test_pools_beside_racks_ask_for_the_rack_of_their_node() -> None:
    made = queue_cluster(LARGE, rack={"topologyKey": "topology.kubernetes.io/zone"})
    template = stateful(made, "main-pool-large")["spec"]["template"]
    assert template["metadata"]["annotations"][names.RACK_KEY] == "topology.kubernetes.io/zone"
    assert template["metadata"]["labels"][names.CLUSTER_LABEL] == "main"


# -- what is refused


def refusal(made: Any) -> tuple[str, str]:
    found = decision.find_refusal(security.resolve(made, security.get_stage(made, None)))
    assert found is not None
    return found.reason, found.message


def with_status(made: Manifest, **fields: Any) -> Any:
    return {**made, "status": {**made["status"], **fields}}


ROWS = [{"name": "large", "roles": ["broker"], "firstNodeId": 100}]


LOSING_DATA: list[tuple[Manifest, list[str]]] = [
    (queue_cluster(LARGE, {**LARGE, "name": "b"}), ["firstNodeId is 100", "multiple of 100"]),
    (queue_cluster({**LARGE, "roles": ["broker", "controller"]}), ["both roles"]),
    (queue_cluster(QUORUM, {**QUORUM, "name": "b", "firstNodeId": 800}), ["2 pools", "b, qu"]),
    (
        with_status(queue_cluster({**LARGE, "firstNodeId": 200}), nodePools=ROWS),
        ["firstNodeId cannot change from 100 to 200", "another name"],
    ),
    (
        with_status(queue_cluster({**LARGE, "roles": ["controller"]}), nodePools=ROWS),
        ["roles cannot change"],
    ),
    (
        with_status(queue_cluster(QUORUM), quorumVoters=[0, 1, 2]),
        ["Node 0 is a controller", "created"],
    ),
    (with_status(queue_cluster(), quorumVoters=[900]), ["Node 900 is a controller"]),
    (
        with_status(queue_cluster({**QUORUM, "replicas": 1}), quorumVoters=[900, 901, 902]),
        ["replicas is 1", "node 901", "only grow"],
    ),
    (
        {
            **queue_cluster({**LARGE, "name": "largest"}),
            "metadata": {"name": "m" * 40, "namespace": "n", "uid": "u"},
        },
        ["too long", "46 characters"],
    ),
]


@pytest.mark.parametrize(("made", "words"), LOSING_DATA)
def test_what_would_lose_data_is_refused_by_name(made: Manifest, words: list[str]) -> None:
    reason, message = refusal(made)
    assert reason == "NodePoolNotAllowed"
    assert all(word in message for word in words), message


def test_two_brokers_need_controllers_of_their_own() -> None:
    assert refusal(queue_cluster(LARGE, replicas=2))[0] == "NoMajority"
    for controllers in (1, 3):
        made = queue_cluster({**QUORUM, "replicas": controllers}, replicas=2)
        assert decision.find_refusal(security.resolve(made, security.get_stage(made, None))) is None


OPERATORS_FIELDS: list[tuple[Manifest, list[str]]] = [
    ({"labels": {names.NODE_POOL: "other"}}, ["spec.nodePools[large].template.pod.labels"]),
    ({"volumes": [{"name": "data"}]}, ["spec.nodePools[large].template.pod.volumes data"]),
    (
        {"containers": [{"name": "proxy", "ports": [{"containerPort": 9092}]}]},
        ["spec.nodePools[large].template.pod.containers proxy, port 9092"],
    ),
    (
        {"annotations": {"prometheus.io/port": "1"}},
        ["spec.nodePools[large].template.pod.annotations", "spec.metrics"],
    ),
]


@pytest.mark.parametrize(("pod", "words"), OPERATORS_FIELDS)
def test_the_operators_fields_of_a_pools_pod_cannot_be_replaced(
    pod: Manifest, words: list[str]
) -> None:
    reason, message = refusal(queue_cluster({**LARGE, "template": {"pod": pod}}))
    assert reason == "TemplateNotAllowed"
    assert all(word in message for word in words), message


@pytest.mark.parametrize(
    ("name", "reason"),
    [("SHOAL_NODE_ID", "ConfigNotAllowed"), ("SHOAL_NUM_PARTITIONS", "ConfigTwice")],
)
def test_the_variables_of_a_pool_are_checked(name: str, reason: str) -> None:
    pod = {"env": [{"name": name, "value": "1"}]}
    found, message = refusal(queue_cluster({**LARGE, "template": {"pod": pod}}))
    assert found == reason
    assert "spec.nodePools[large].template.pod.env" in message


# -- rolls


WHY = "a setting changed"


def roll(controller: int, *stale: int) -> tuple[list[BrokerPod], int]:
    ids = (0, 1, 100, 900, 901, 902)
    every = [BrokerPod(i, True, WHY if i in stale else "", controller=i >= 900) for i in ids]
    return every, controller


FULL = [PartitionState("jobs-0", (0, 1, 100), (0, 1, 100), 2)]
VOTERS = frozenset({900, 901, 902})


@pytest.mark.parametrize(
    ("stale", "first"),
    [
        ((0, 1, 100, 900, 901, 902), 901),
        ((0, 1, 100, 900, 902), 902),
        ((0, 1, 100, 900), 900),
        ((0, 1, 100), 0),
        ((1, 100), 1),
    ],
)
def test_controllers_restart_before_brokers_and_the_active_one_last_of_them(
    stale: tuple[int, ...], first: int
) -> None:
    every, active = roll(900, *stale)
    step = choose_next_step(every, FULL, active, quorum=ControllerQuorum(VOTERS, VOTERS, 900))
    assert step == RestartStep(first, WHY, controller=first >= 900)


def test_a_controller_waits_for_the_others() -> None:
    every, active = roll(900, 901)
    step = choose_next_step(
        every, FULL, active, quorum=ControllerQuorum(VOTERS, frozenset({900, 901}), 900)
    )
    assert isinstance(step, WaitStep)
    assert step.reason == "without controller 901 only 1 of 3 controllers would keep up"


def test_controllers_are_no_place_for_replicas() -> None:
    """Two replicas in a pod wait for a third pod with brokers, not for one with a controller."""
    every = [
        BrokerPod(0, True, WHY, other_brokers=(1000,)),
        BrokerPod(1, True, other_brokers=(1001,)),
    ]
    shared = [PartitionState("jobs-0", (0, 1000, 1), (0, 1000, 1), 1)]
    quorum = [BrokerPod(id, True, controller=True) for id in sorted(VOTERS)]
    assert choose_next_step([*every, *quorum], shared, 900) == RestartStep(0, WHY, (1000,))


# -- the operator with an API server


class World:
    """An operator without brokers that answer, and its API server."""

    def __init__(self, made: Manifest) -> None:
        self.kube = ApiServer(CrashPoint())
        self.kube.add(made)

    def apply(self, made: Manifest) -> tuple[str, str]:
        """Apply a QueueCluster and run the operator; return status and reason of Ready."""
        self.kube.add(made)
        return self.reconcile()

    def reconcile(self) -> tuple[str, str]:
        async def run() -> None:
            brokers = Brokers("127.0.0.1:1")
            store = self.kube.store()
            one = QueueClusterReconciler(
                self.kube, store, brokers, "n", "main", "i:1", on_reachable=lambda: None
            )
            try:
                await one.reconcile(["main"])
            finally:
                await brokers.close()

        for _ in range(2):  # The second operator sees the pods that the first one has led to.
            asyncio.run(run())
        (ready,) = [c for c in self.status()["conditions"] if c["type"] == "Ready"]
        self.message = ready["message"]
        return ready["status"], ready["reason"]

    def status(self) -> Manifest:
        return self.kube.find("QueueCluster", "main")["status"]

    def stateful_sets(self) -> list[str]:
        return [one["metadata"]["name"] for one in self.kube.all("StatefulSet")]


def simple(*pools: Manifest, **spec: Any) -> Any:
    plain = [{"name": "plain", "port": 9092, "type": "Internal"}]
    more = {"nodePools": [copy.deepcopy(pool) for pool in pools]} if pools else {}
    fields = {"storage": {"size": "1Gi"}, "listeners": plain, "metrics": {"port": 9404}}
    return resource("QueueCluster", "main", replicas=3, **fields, **more, **spec)


def test_a_pool_is_removed_when_it_is_empty_and_keeps_its_volumes() -> None:
    world = World(simple(LARGE))
    world.reconcile()
    assert world.stateful_sets() == ["main-broker", "main-pool-large"]
    assert world.status()["nodePools"] == [
        {
            "name": "large",
            "roles": ["broker"],
            "firstNodeId": 100,
            "replicas": 2,
            "readyReplicas": 2,
        }
    ]
    assert world.status()["replicas"] == 3
    assert world.status()["brokersReady"] == "5/5"
    claim = {"metadata": {"name": "data-main-pool-large-100", "namespace": "n"}}
    world.kube.add({"apiVersion": "v1", "kind": "PersistentVolumeClaim", **claim})
    # The schema refuses this; an older definition would let it pass.
    assert world.apply(simple()) == ("False", "NodePoolRemoved")
    assert "Pool 'large'" in world.message
    assert "firstNodeId 100 and replicas 0" in world.message
    moved = {**LARGE, "firstNodeId": 200}
    assert world.apply(simple(moved)) == ("False", "NodePoolRemoved")
    assert len(world.kube.all("Pod")) == 5
    world.apply(simple())
    world.kube.find("StatefulSet", "main-pool-large")["spec"]["replicas"] = 0
    world.kube.resume_controllers()
    world.reconcile()
    assert world.stateful_sets() == ["main-broker"]
    assert world.kube.find("PersistentVolumeClaim", "data-main-pool-large-100")
    assert not [one for one in world.kube.deleted if "Persistent" in one]
    assert world.status()["nodePools"] == []


def test_the_volumes_of_a_pool_grow_to_its_own_size() -> None:
    world = World(simple(LARGE))
    world.reconcile()
    for pod, size in (("main-broker-0", "1Gi"), ("main-pool-large-100", "20Gi")):
        world.kube.add(
            {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "metadata": {"name": f"data-{pod}", "namespace": "n", "labels": {}},
                "spec": {"resources": {"requests": {"storage": size}}},
            }
        )
    grown = {**LARGE, "storage": {"size": "30Gi", "storageClassName": "dense"}}
    world.apply(simple(grown))
    claims = {one["metadata"]["name"]: one for one in world.kube.all("PersistentVolumeClaim")}
    sizes = {name: one["spec"]["resources"]["requests"]["storage"] for name, one in claims.items()}
    assert sizes == {"data-main-broker-0": "1Gi", "data-main-pool-large-100": "30Gi"}
    labels = claims["data-main-pool-large-100"]["metadata"]["labels"]
    assert (labels["backup"], labels[names.NODE_POOL]) == ("weekly", "large")
    assert names.NODE_POOL not in claims["data-main-broker-0"]["metadata"]["labels"]


def test_brokers_keep_running_while_the_cluster_does_not_answer() -> None:
    world = World(simple(LARGE))
    world.reconcile()
    world.apply(simple({**LARGE, "replicas": 0}))
    assert world.kube.find("StatefulSet", "main-pool-large")["spec"]["replicas"] == 2


def test_a_lost_controller_is_an_alarm() -> None:
    world = World(simple(QUORUM))
    world.reconcile()
    assert [row["id"] for row in world.status()["controllers"]] == [900, 901, 902]
    assert [row["id"] for row in world.status()["brokers"]] == [0, 1, 2]
    assert world.status()["brokersReady"] == "3/3"
    world.kube.probe("main-pool-quorum-901", succeeds=False)
    assert world.reconcile() == ("False", "BrokerNotReady")
    assert "controller 901 is not ready" in world.message


# -- certificates


def page(*listeners: str) -> str:
    """Return the metrics of a node with these listeners."""
    label = 'listener="{}",fingerprint="{}"'
    rows = [(OWN, name, "own") for name in listeners]
    rows += [(TRUSTED, name, f"ca-of-{name}") for name in listeners]
    return "".join(f"{kind}{{{label.format(name, found)}}} 1\n" for kind, name, found in rows)


def test_the_authority_of_clients_is_renewed_without_controllers() -> None:
    """They have no listener for clients, and would never trust the next authority."""
    pages = {0: page("REPLICATION", "MTLS"), 900: page("CONTROLLER"), 901: ""}
    found = parse_certificates(pages)
    assert sorted(found[security.CLIENTS]) == [0, 901]
    assert found[security.CLIENTS][0].trusted == {"ca-of-MTLS"}
    assert not found[security.CLIENTS][901].trusted, "it reports nothing yet"
    assert found[security.CLUSTER][900].trusted == {"ca-of-CONTROLLER"}


# -- examples


def test_the_examples_are_valid() -> None:
    found = [
        one
        for path in sorted(EXAMPLES.glob("*.yaml"))
        for one in yaml.safe_load_all(path.read_text())
    ]
    assert len(found) == 2
    for one in found:
        assert errors(one) == []
        one["metadata"] |= {"namespace": "n", "uid": "u"}
        one["spec"].setdefault("metrics", {"port": 9404})
        tls = {"name": "tls", "port": 9092, "tls": {}, "authentication": {"type": "tls"}}
        one["spec"].setdefault("listeners", [tls])
        made = security.resolve(one, security.get_stage(one, None))
        assert decision.find_refusal(made) is None
        assert (
            len([m for m in model.build_manifests(made, "i:1") if m["kind"] == "StatefulSet"]) > 1
        )
