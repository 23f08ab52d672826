"""The addresses that brokers advertise to clients inside and outside of Kubernetes."""

from typing import Any

from shoal.server.cluster_config import Listeners, make_cluster_config
from shoal.server.config import resolve
from shoal_operator.model import broker_pod, cluster, listeners

INSIDE = {"name": "plain", "port": 9092, "type": "Internal"}
NODES: Any = {"name": "outside", "port": 9094, "type": "NodePort"}
BALANCED: Any = {"name": "world", "port": 9095, "type": "LoadBalancer"}


def queue_cluster(*every, replicas=2):
    return {
        "kind": "QueueCluster",
        "metadata": {"name": "main", "namespace": "n", "uid": "u"},
        "spec": {
            "replicas": replicas,
            "storage": {"size": "1Gi"},
            "listeners": list(every),
            "metrics": {"port": 9404},
        },
    }


def service(name, port, node_port=None, **ingress):
    ports = [{"port": port, **({"nodePort": node_port} if node_port else {})}]
    status = {"loadBalancer": {"ingress": [ingress]}} if ingress else {}
    return {name: {"metadata": {"name": name}, "spec": {"ports": ports}, "status": status}}


def files(made):
    config_map = next(m for m in made if m["kind"] == "ConfigMap")
    return config_map["data"]


def test_inside_a_broker_is_its_pod() -> None:
    advertised = listeners.format_advertised(queue_cluster(INSIDE), 1, {})
    assert advertised == "PLAIN://${env:POD_NAME}.main-brokers.n.svc:9092"
    pod = {"metadata": {"name": "main-broker-1"}, "status": {"hostIP": "10.0.0.9"}}
    assert listeners.resolve_env(pod, advertised) == "PLAIN://main-broker-1.main-brokers.n.svc:9092"


def test_a_node_port_is_the_brokers_own() -> None:
    wanted = queue_cluster(INSIDE, NODES)
    made = {one.name for one in listeners.build_services(wanted)}
    own = {"main-outside-bootstrap", "main-outside-0", "main-outside-1"}
    assert made == {"main-brokers", "main-bootstrap", *own}
    assert set(listeners.list_pending(wanted, {})) == own
    have = service("main-outside-bootstrap", 9094, 31000)
    have |= service("main-outside-0", 9094, 31001) | service("main-outside-1", 9094, 31002)
    assert listeners.list_pending(wanted, have) == []
    assert listeners.format_advertised(wanted, 1, have).endswith(",OUTSIDE://${env:NODE_IP}:31002")
    assert listeners.find_external_servers(wanted, NODES, have, ["10.0.0.8", "10.0.0.9"]) == (
        "10.0.0.8:31000,10.0.0.9:31000"
    )
    named = queue_cluster(INSIDE, {**NODES, "host": "nodes.example"})
    assert listeners.format_advertised(named, 0, have).endswith("OUTSIDE://nodes.example:31001")


def test_a_load_balancer_is_waited_for() -> None:
    wanted = queue_cluster(INSIDE, BALANCED, replicas=1)
    have = service("main-world-bootstrap", 9095, 31000, ip="1.2.3.4")
    assert listeners.list_pending(wanted, have) == ["main-world-0"]
    have |= service("main-world-0", 9095, 31001, hostname="b0.example")
    assert listeners.format_advertised(wanted, 0, have).endswith("WORLD://b0.example:9095")
    assert listeners.find_external_servers(wanted, BALANCED, have, []) == "1.2.3.4:9095"


def test_an_address_outside_changes_no_template() -> None:
    """A new broker, or a port that changes, must not roll running brokers."""
    have = service("main-outside-bootstrap", 9094, 31000) | service("main-outside-0", 9094, 31001)
    other = have | service("main-outside-0", 9094, 31009)
    one, two = (
        cluster.build_manifests(queue_cluster(INSIDE, NODES, replicas=1), "i:1", h)
        for h in (have, other)
    )
    assert one[-1] == two[-1]
    assert files(one) != files(two)


def test_more_brokers_change_no_setting_of_those_that_run() -> None:
    three, five = (
        cluster.build_manifests(queue_cluster(INSIDE, replicas=n), "i:1") for n in (3, 5)
    )
    assert three[-1]["spec"]["template"] == five[-1]["spec"]["template"]
    three, five = files(three), files(five)
    assert three["broker-0.properties"] == five["broker-0.properties"]
    assert len(five) == 5
    voters = "controller.quorum.voters=" + ",".join(
        f"{n}@main-broker-{n}.main-brokers.n.svc:9093" for n in range(3)
    )
    assert voters in three["broker-2.properties"]
    assert voters in five["broker-4.properties"]
    assert "process.roles=broker\n" in five["broker-4.properties"]
    joining = [n for n in range(5) if "auto.join" in five[f"broker-{n}.properties"]]
    assert joining == [0, 1, 2]


def test_brokers_that_are_no_controllers_open_no_listener_for_them() -> None:
    """They share a file of settings with controllers; a NetworkPolicy keeps clients off."""
    five = files(cluster.build_manifests(queue_cluster(INSIDE, replicas=5), "i:1"))
    opened = []
    for number in range(5):
        environment = {"POD_NAME": f"main-broker-{number}"}
        text = five[f"broker-{number}.properties"]
        config = resolve({"node.id": str(number)}, environment, text, "f")
        opened.append(make_cluster_config(config).kinds)
    of_voters = {"PLAIN": Listeners.BROKER, "CONTROLLER": Listeners.CONTROLLER}
    assert opened == 3 * [of_voters] + 2 * [{"PLAIN": Listeners.BROKER}]


def test_a_lone_broker_grows_into_a_cluster_of_three() -> None:
    """The two new ones ask the voter to admit them; its log has no other voters yet."""
    alone = files(cluster.build_manifests(queue_cluster(INSIDE, replicas=1), "i:1"))
    only = "controller.quorum.voters=0@main-broker-0.main-brokers.n.svc:9093\n"
    assert only in alone["broker-0.properties"]
    grown = queue_cluster(INSIDE, replicas=3)
    grown["status"] = {"clusterId": "known-before", "quorumVoters": [0]}
    rendered = files(cluster.build_manifests(grown, "i:1"))
    assert all(only in text for text in rendered.values())
    assert all("shoal.cluster.id=known-before\n" in text for text in rendered.values())
    join = "controller.quorum.auto.join.enable=true"
    assert all(join in rendered[f"broker-{n}.properties"] for n in range(3))
    assert "auto.join" not in "".join(alone.values())


def test_a_cluster_that_comes_back_over_its_volumes_has_its_id() -> None:
    one, other = (files(cluster.build_manifests(queue_cluster(INSIDE), "i:1")) for _ in range(2))
    again = queue_cluster(INSIDE)
    again["metadata"]["uid"] = "another"
    assert one == other == files(cluster.build_manifests(again, "i:1"))
    elsewhere = queue_cluster(INSIDE)
    elsewhere["metadata"]["namespace"] = "m"
    key = "shoal.cluster.id="
    first, second = (
        next(line for line in f["broker-0.properties"].splitlines() if line.startswith(key))
        for f in (one, files(cluster.build_manifests(elsewhere, "i:1")))
    )
    assert first != second
    assert len(first) == len(key) + 22


def test_the_image_of_a_version() -> None:
    wanted = queue_cluster(INSIDE)
    wanted["spec"]["version"] = "0.2.0"
    for default in (
        "r:5000/shoal/broker:0.2.0",
        "r:5000/shoal/broker@sha256:12",
        "r:5000/shoal/broker",
    ):
        assert broker_pod.choose_image(wanted, default) == "r:5000/shoal/broker:0.2.0"
    wanted["spec"]["image"] = "mine:1"
    assert broker_pod.choose_image(wanted, "x") == "mine:1"


def test_brokers_spread_over_nodes_and_zones_and_may_have_a_rack() -> None:
    wanted = queue_cluster(INSIDE)
    wanted["spec"]["rack"] = {"topologyKey": "topology.kubernetes.io/zone"}
    pod = cluster.build_manifests(wanted, "i:1")[-1]["spec"]["template"]["spec"]
    keys = [c["topologyKey"] for c in pod["topologySpreadConstraints"]]
    assert keys == ["kubernetes.io/hostname", "topology.kubernetes.io/zone"]
    env = {e["name"]: e["valueFrom"]["fieldRef"]["fieldPath"] for e in pod["containers"][0]["env"]}
    assert env["SHOAL_BROKER_RACK"] == "metadata.annotations['shoal.dev/rack']"
