"""Listeners behind a proxy that routes by SNI: Ingresses, and TLSRoutes of the Gateway API."""

from __future__ import annotations

import asyncio
import copy
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from e2e.cluster.programs import downloaded
from kube.api_server import ApiServer, Crash, CrashPoint, Manifest, resource
from kube.structural import errors
from shoal_operator.brokers import pods
from shoal_operator.brokers.broker_states import ClusterState
from shoal_operator.brokers.calls import Brokers
from shoal_operator.cluster.decision import find_refusal, make_no_address_verdict
from shoal_operator.cluster.observation import ClusterObserver
from shoal_operator.cluster.reconciler import QueueClusterReconciler
from shoal_operator.cluster.routes import RouteReconciler
from shoal_operator.model import cluster as model
from shoal_operator.model import listeners, names, routes, security
from shoal_operator.settings import LISTENER_TYPES

if TYPE_CHECKING:
    from shoal_operator.brokers.diagnostics import Diagnosis

#: The first version with TLSRoute v1; its experimental channel also serves the versions before.
GATEWAY_API = "sigs.k8s.io/gateway-api@v1.5.1"
ROOT = Path(__file__).parents[3]
EXAMPLE, CHART = ROOT / "examples/outside", ROOT / "helm/shoal"
V1, V1ALPHA3, V1ALPHA2 = (f"gateway.networking.k8s.io/{v}" for v in ("v1", "v1alpha3", "v1alpha2"))
INSIDE: Manifest = {"name": "plain", "port": 9092, "type": "Internal"}
INGRESS: Manifest = {
    "name": "outside",
    "port": 9094,
    "type": "Ingress",
    "class": "nginx",
    "tls": {},
    "bootstrap": {"host": "kafka.example.com", "annotations": {"dns": "yes"}},
    "hostTemplate": "broker-{nodeId}.example.com",
    "brokers": [{"broker": 1, "host": "special.example.com", "labels": {"b": "1"}}],
    "annotations": {"team": "a"},
}
TLS_ROUTE: Manifest = {
    **{key: value for key, value in INGRESS.items() if key != "class"},
    "name": "world",
    "port": 9095,
    "type": "TLSRoute",
    "parentRefs": [{"name": "gate", "namespace": "edge", "sectionName": "kafka"}],
    "hostTemplate": "b{nodeId}.world.example.com",
    "bootstrap": {"host": "world.example.com"},
    "brokers": [],
}
NAMES = ["main-outside-bootstrap", "main-outside-0", "main-outside-1", "main-outside-2"]
HOSTS = ["kafka.example.com", "broker-0.example.com", "special.example.com", "broker-2.example.com"]
CHANGES_MAX = 30


def queue_cluster(*given: Manifest, replicas: int = 3, **spec: Any) -> Any:
    """Return a QueueCluster with an internal listener and these."""
    made = resource(
        "QueueCluster",
        "main",
        replicas=replicas,
        storage={"size": "1Gi"},
        listeners=[INSIDE, *copy.deepcopy(given)],
        metrics={"port": 9404},
        **spec,
    )
    made["metadata"]["uid"] = "u"
    return made


def changed(listener: Manifest, **fields: Any) -> Any:
    """Return a listener with other fields; None removes one."""
    every = {**listener, **fields}
    return {key: value for key, value in every.items() if value is not None}


def test_brokers_advertise_their_hosts_at_the_port_of_the_proxy() -> None:
    wanted = queue_cluster(INGRESS, changed(TLS_ROUTE, advertisedPort=9443))
    assert listeners.list_pending(wanted, {}) == []
    inside = "PLAIN://${env:POD_NAME}.main-brokers.n.svc:9092,"
    assert [listeners.format_advertised(wanted, broker, {}) for broker in range(3)] == [
        f"{inside}OUTSIDE://{host}:443,WORLD://b{broker}.world.example.com:9443"
        for broker, host in enumerate(HOSTS[1:])
    ]
    servers = [
        listeners.find_external_servers(wanted, one, {}, ["10.0.0.1"])
        for one in listeners.list_external(wanted)
    ]
    assert servers == ["kafka.example.com:443", "world.example.com:9443"]


def test_the_brokers_certificate_is_for_the_hosts() -> None:
    """Clients check the host to which they connect, and the proxy does not end the TLS."""
    api = ApiServer(CrashPoint())
    observer = ClusterObserver(api.store(), Brokers("none:1"), "n", "main", lambda: None)
    wanted = queue_cluster(INGRESS)
    dns, ips = security.list_addresses(wanted, observer.list_external_hosts(wanted))
    assert set(HOSTS) < set(dns)
    assert ips == ["127.0.0.1"]


@pytest.mark.parametrize("listener", [INGRESS, TLS_ROUTE])
def test_a_route_leads_to_the_service_of_its_name(listener: Manifest) -> None:
    wanted = queue_cluster(listener, template={"service": {"annotations": {"mesh": "off"}}})
    services = {one["metadata"]["name"]: one for one in model.build_service_manifests(wanted)}
    version = routes.VERSIONS[listener["type"]][0]
    made = routes.build_manifests(wanted, listener["type"], version)
    assert len(made) == 4
    for route in made:
        service = services[route["metadata"]["name"]]
        (port,) = service["spec"]["ports"]
        assert backend(route) == (service["metadata"]["name"], port["port"])
        assert service["spec"]["type"] == "ClusterIP"
        # Annotations of the listener are for what controllers of proxies and of DNS read.
        assert service["metadata"]["annotations"] == {"mesh": "off"}
        assert route["metadata"]["annotations"]["team"] == "a"
        assert "mesh" not in route["metadata"]["annotations"]
        assert route["metadata"]["ownerReferences"] == [names.build_owner_reference(wanted)]
    assert routes.build_manifests(wanted, "Other", "v1") == []


def backend(route: Manifest) -> tuple[str, int]:
    """Return the Service and the port to which a route leads."""
    (rule,) = route["spec"]["rules"]
    if route["kind"] == "Ingress":
        (path,) = rule["http"]["paths"]
        service = path["backend"]["service"]
        return service["name"], service["port"]["number"]
    (ref,) = rule["backendRefs"]
    return ref["name"], ref["port"]


def test_an_ingress_passes_tls_through_for_its_host() -> None:
    made = routes.build_manifests(queue_cluster(INGRESS), "Ingress", "networking.k8s.io/v1")
    assert [one["metadata"]["name"] for one in made] == NAMES
    for route, host in zip(made, HOSTS, strict=True):
        assert route["spec"]["ingressClassName"] == "nginx"
        assert route["spec"]["tls"] == [{"hosts": [host]}]
        assert [rule["host"] for rule in route["spec"]["rules"]] == [host]
        assert routes.PASSTHROUGH.items() <= route["metadata"]["annotations"].items()
    assert made[0]["metadata"]["annotations"]["dns"] == "yes"
    assert [one["metadata"]["labels"].get("b") for one in made] == [None, None, "1", None]


def test_only_the_class_nginx_gets_its_annotations_and_users_may_replace_them() -> None:
    others = changed(INGRESS, **{"class": "haproxy"}), changed(INGRESS, **{"class": None})
    for one in others:
        made = routes.build_manifests(queue_cluster(one), "Ingress", "networking.k8s.io/v1")
        assert made[1]["metadata"]["annotations"] == {"team": "a"}
        assert made[1]["spec"].get("ingressClassName") == one.get("class")
    key = "nginx.ingress.kubernetes.io/backend-protocol"
    own = changed(INGRESS, annotations={key: "GRPCS"})
    made = routes.build_manifests(queue_cluster(own), "Ingress", "networking.k8s.io/v1")
    assert {one["metadata"]["annotations"][key] for one in made} == {"GRPCS"}


@pytest.mark.parametrize("channel", ["standard", "experimental"])
def test_tls_routes_fit_the_definitions_of_the_gateway_api(channel: str, tmp_path: Path) -> None:
    file = "gateway.networking.k8s.io_tlsroutes.yaml"
    shutil.copy(downloaded(GATEWAY_API) / "config/crd" / channel / file, tmp_path)
    for version in routes.VERSIONS["TLSRoute"]:
        made = routes.build_manifests(queue_cluster(TLS_ROUTE), "TLSRoute", version)
        hosts = [one["spec"]["hostnames"] for one in made]
        assert hosts == [["world.example.com"], *([f"b{n}.world.example.com"] for n in range(3))]
        for route in made:
            assert errors(route, tmp_path) == []
            assert route["spec"]["parentRefs"] == TLS_ROUTE["parentRefs"]
            wrong = copy.deepcopy(route)
            wrong["spec"]["rules"][0]["backendRefs"][0]["port"] = 0
            assert errors(wrong, tmp_path), version


def test_the_example_fits_its_gateway(tmp_path: Path) -> None:
    (cluster, gateway) = (yaml.safe_load(file.read_text()) for file in sorted(EXAMPLE.iterdir()))
    assert errors(cluster) == []
    file = "gateway.networking.k8s.io_gateways.yaml"
    shutil.copy(downloaded(GATEWAY_API) / "config/crd/standard" / file, tmp_path)
    assert errors(gateway, tmp_path) == []
    cluster["metadata"] |= {"namespace": "n", "uid": "u"}
    cluster["spec"]["metrics"] = {"port": 9404}
    (entry,) = gateway["spec"]["listeners"]
    assert entry["tls"] == {"mode": "Passthrough"}
    for route in routes.build_manifests(cluster, "TLSRoute", V1):
        (parent,) = route["spec"]["parentRefs"]
        assert parent == {"name": gateway["metadata"]["name"], "sectionName": entry["name"]}
        (host,) = route["spec"]["hostnames"]
        assert "*." + host.partition(".")[2] == entry["hostname"]


# -- what is refused


def test_each_broker_needs_a_host_of_its_own() -> None:
    few = changed(INGRESS, hostTemplate=None)
    said = find_refusal(queue_cluster(few))
    assert said
    assert (said.reason, said.is_stalled) == ("ListenerNotAllowed", True)
    assert "'outside' has no host for broker 0. Set hostTemplate, or add" in said.message
    said = find_refusal(queue_cluster(changed(INGRESS, bootstrap={})))
    assert said
    assert "no host for bootstrap. Set bootstrap.host." in said.message
    same = changed(INGRESS, bootstrap={"host": "broker-2.example.com"})
    said = find_refusal(queue_cluster(same))
    assert said
    assert said.message.startswith("Bootstrap of listener 'outside' and broker 2 of listener 'ou")
    assert "have the same host 'broker-2.example.com'" in said.message
    # Another listener may have the same host at another port.
    twin = changed(INGRESS, name="twin", port=9096)
    assert find_refusal(queue_cluster(INGRESS, twin))
    assert routes.find_problem(queue_cluster(INGRESS, changed(twin, advertisedPort=8443))) == ""


def test_a_broker_that_is_drained_keeps_its_host() -> None:
    """Its entry must stay until then. A Service without an address is not the problem."""
    listed = [{"broker": n, "host": f"b{n}.example.com"} for n in range(2)]
    few = changed(INGRESS, hostTemplate=None, brokers=listed)
    assert routes.find_problem(queue_cluster(few, replicas=1)) == ""
    draining = queue_cluster(few, replicas=3)
    said = make_no_address_verdict(draining, listeners.list_pending(draining, {}))
    assert said.reason == "ListenerNotAllowed"
    assert "has no host for broker 2" in said.message


@pytest.mark.parametrize("listener", [INGRESS, TLS_ROUTE])
def test_a_listener_without_tls_or_permissions_is_refused(listener: Manifest) -> None:
    kind, value = listener["type"], routes.VALUES[listener["type"]]
    said = find_refusal(queue_cluster(changed(listener, tls=None)))
    assert said
    assert said.reason == "ListenerNotAllowed"
    assert said.message.endswith("Add tls: {}.")
    others = frozenset(listeners.ROUTED) - {kind}
    said = find_refusal(queue_cluster(listener), routed=others)
    assert said
    assert (said.reason, said.is_stalled) == ("ListenerTypeDisabled", True)
    assert f"type {kind}" in said.message
    assert f"chart's value {value} to true" in said.message
    assert find_refusal(queue_cluster(), routed=frozenset()) is None


# -- restarts


def restarts(spec: Any, before: Any) -> list[int]:
    """Return the brokers that restart if the cluster had the spec `before`."""
    made = model.build_manifests(before, "i:1")[-1]
    made["status"] = {"updateRevision": "r", "observedGeneration": 0}
    meta = made["spec"]["template"]["metadata"]
    labels = {**meta["labels"], "controller-revision-hash": "r"}
    found = [
        {"metadata": {"name": f"main-broker-{n}", "labels": labels, "annotations": {}}, "spec": {}}
        for n in range(3)
    ]
    shown = {
        n: listeners.resolve_env(pod, listeners.format_advertised(before, n, {}))
        for n, pod in enumerate(found)
    }
    state = ClusterState("id", 0, {}, frozenset(range(3)), advertised=shown)
    every = pods.build_broker_pods(spec, found, {"main-broker": made}, state, {})
    return [one.id for one in every if one.restart_reason]


def test_only_brokers_whose_address_changes_restart() -> None:
    before = queue_cluster(INGRESS)
    assert restarts(before, before) == []
    other = [{"broker": 1, "host": "other.example.com"}]
    assert restarts(queue_cluster(changed(INGRESS, brokers=other)), before) == [1]
    assert restarts(queue_cluster(changed(INGRESS, advertisedPort=444)), before) == [0, 1, 2]
    for fields in ({"class": "haproxy"}, {"bootstrap": {"host": "b.example.com"}}):
        after = queue_cluster(changed(INGRESS, **fields))
        assert restarts(after, before) == []
        rendered = [
            model.build_manifests(one, "i:1")[-1]["spec"]["template"] for one in (before, after)
        ]
        assert rendered[0] == rendered[1]


# -- the objects in the API server


class World:
    """An API server, and the routes of one QueueCluster in it."""

    def __init__(self, *given: Manifest, kinds: tuple[str, ...] = listeners.ROUTED) -> None:
        self.api = ApiServer(CrashPoint())
        self.cluster = queue_cluster(*given)
        self.kinds = frozenset(kinds)
        self.routes = RouteReconciler(self.api, self.kinds)

    def reconcile(self) -> Diagnosis | None:
        return asyncio.run(self.routes.reconcile(self.cluster))

    def install(self, *versions: str) -> None:
        self.api.installed = {version: ["Gateway", "TLSRoute"] for version in versions}

    def listen(self, *given: Manifest, **spec: Any) -> None:
        self.cluster = queue_cluster(*given, **spec)

    def made(self, kind: str) -> list[str]:
        return sorted(one["metadata"]["name"] for one in self.api.all(kind))

    def answer(self, name: str, *conditions: Manifest) -> None:
        """Let a Gateway's controller answer."""
        parent = {"parentRef": TLS_ROUTE["parentRefs"][0], "conditions": list(conditions)}
        self.api.objects["TLSRoute", name]["status"] = {"parents": [parent]}


def reason(found: Diagnosis | None) -> str:
    return found.reason if found else ""


def test_routes_follow_the_listener() -> None:
    world = World(INGRESS)
    assert world.reconcile() is None
    assert world.made("Ingress") == sorted(NAMES)
    changes = world.api.crash_point.changes
    assert world.reconcile() is None
    assert world.api.crash_point.changes == changes
    # What somebody changed by hand, and an Ingress of somebody else.
    world.api.objects["Ingress", NAMES[1]]["spec"]["rules"][0]["host"] = "wrong"
    foreign = {
        "metadata": {"name": "other", "namespace": "n", "labels": names.build_labels("main")}
    }
    world.api.add({"apiVersion": "networking.k8s.io/v1", "kind": "Ingress", **foreign})
    world.listen(INGRESS, replicas=1)
    assert world.reconcile() is None
    assert world.made("Ingress") == ["main-outside-0", "main-outside-bootstrap", "other"]
    assert world.api.find("Ingress", NAMES[1])["spec"]["rules"][0]["host"] == HOSTS[1]
    world.install(V1)
    world.listen(changed(TLS_ROUTE, name="outside"))
    world.reconcile()
    assert world.made("Ingress") == ["other"]
    assert world.made("TLSRoute") == sorted(NAMES)
    world.listen()
    assert world.reconcile() is None
    assert world.made("TLSRoute") == []


def test_a_cluster_without_routes_asks_once() -> None:
    """Another operator may have written some before."""
    world = World(INGRESS)
    world.reconcile()
    world.routes = RouteReconciler(world.api, world.kinds)
    world.listen()
    world.reconcile()
    assert world.made("Ingress") == []
    # From now on, no request is made, not even one that a dead API server would refuse.
    world.api.crash_point.last = 0
    assert world.reconcile() is None


def test_the_chart_has_a_value_for_each_type() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())["listeners"]
    assert values == dict.fromkeys(LISTENER_TYPES, False)
    named = {kind: f"listeners.{name}" for name, kind in LISTENER_TYPES.items()}
    assert named == routes.VALUES


def test_a_crash_after_any_change_leaves_no_wrong_route() -> None:
    for crash_after in range(1, CHANGES_MAX):
        world = World(INGRESS)
        world.reconcile()
        world.install(V1)
        world.listen(changed(TLS_ROUTE, name="outside", brokers=INGRESS["brokers"]))
        world.api.crash_point.last = world.api.crash_point.changes + crash_after
        crashed = False
        try:
            world.reconcile()
        except Crash:
            crashed = True
        world.api.crash_point.last = None
        world.routes = RouteReconciler(world.api, world.kinds)
        world.reconcile()
        assert (world.made("Ingress"), world.made("TLSRoute")) == ([], sorted(NAMES)), crash_after
        if not crashed:
            assert crash_after == 9
            return
    pytest.fail("the routes are never complete")


@pytest.mark.parametrize(
    ("installed", "version"),
    [
        ((V1,), V1),
        ((V1, V1ALPHA2, V1ALPHA3), V1),
        ((V1ALPHA2, V1ALPHA3), V1ALPHA3),
        ((V1ALPHA2,), V1ALPHA2),
    ],
)
def test_the_best_version_is_written(installed: tuple[str, ...], version: str) -> None:
    world = World(TLS_ROUTE)
    world.install(*installed)
    world.reconcile()
    assert {one["apiVersion"] for one in world.api.all("TLSRoute")} == {version}
    assert len(world.made("TLSRoute")) == 4


def test_a_missing_gateway_api_is_a_warning_until_it_is_installed() -> None:
    world = World(INGRESS, TLS_ROUTE)
    # An older Gateway API without TLSRoutes has other kinds in this version.
    world.api.installed = {V1: ["Gateway", "HTTPRoute"]}
    found = world.reconcile()
    assert found
    assert found.reason == "GatewayApiMissing"
    assert "Install the definitions of the Gateway API 1.5 or later" in found.message
    assert world.made("Ingress") == sorted(NAMES)
    world.install(V1)
    assert reason(world.reconcile()) == "RouteNotAccepted"
    assert len(world.made("TLSRoute")) == 4
    # Its definitions are removed, and the routes with them.
    world.install()
    for name in world.made("TLSRoute"):
        del world.api.objects["TLSRoute", name]
    world.api.absent.add("TLSRoute")
    for _ in range(2):
        assert reason(world.reconcile()) == "GatewayApiMissing"
    # An earlier release is installed, and later replaced by a new one, which keeps the routes.
    world.api.absent.clear()
    world.install(V1ALPHA2)
    assert reason(world.reconcile()) == "RouteNotAccepted"
    assert [one["apiVersion"] for one in world.api.all("TLSRoute")] == 4 * [V1ALPHA2]
    world.install(V1)
    assert reason(world.reconcile()) == "RouteNotAccepted"
    assert [one["apiVersion"] for one in world.api.all("TLSRoute")] == 4 * [V1]


def test_a_refused_route_stops_no_other_one() -> None:
    world = World(INGRESS)
    message = 'admission webhook "x" denied the request: the host is taken'
    world.api.denied = {("Ingress", NAMES[1]): message}
    found = world.reconcile()
    assert found
    assert found.reason == "RouteNotWritten"
    assert found.message.startswith(f"Ingress main-outside-0 cannot be written: {message}. ")
    assert "listeners.ingress" in found.message
    assert world.made("Ingress") == sorted({*NAMES} - {NAMES[1]})
    world.api.denied = {}
    assert world.reconcile() is None


def test_what_a_gateway_answers_is_reported() -> None:
    world = World(TLS_ROUTE)
    world.install(V1)
    # The API server in memory gives all objects an old time stamp.
    found = world.reconcile()
    assert found
    assert found.reason == "RouteNotAccepted"
    assert "No Gateway has accepted it. Check parentRefs" in found.message
    accepted = {"type": "Accepted", "status": "True"}
    for name in world.made("TLSRoute"):
        world.answer(name, accepted, {"type": "ResolvedRefs", "status": "True"})
    assert world.reconcile() is None
    refused = {"type": "Accepted", "status": "False", "reason": "NoMatchingListenerHostname"}
    world.answer("main-world-1", {**refused, "message": "no listener has that host."})
    found = world.reconcile()
    assert found
    assert found.message == (
        "TLSRoute main-world-1 reaches no client. Gateway 'gate' does not serve it: no listener "
        "has that host."
    )
    world.answer("main-world-1", refused)
    found = world.reconcile()
    assert found
    assert found.message.endswith("does not serve it: NoMatchingListenerHostname.")
    # An answer to a previous version of the route is none.
    world.answer("main-world-1", {**refused, "observedGeneration": 0})
    assert world.reconcile() is None
    route = world.api.find("TLSRoute", "main-world-0")
    del route["status"]
    assert routes.describe_rejection(route, 5.0, 30.0) == ""


def test_an_operator_without_permissions_asks_for_nothing() -> None:
    world = World(INGRESS, kinds=())
    world.api.crash_point.last = 0
    assert world.reconcile() is None


# -- the condition of the cluster


class ServingBrokers(Brokers):
    """Brokers that serve clients, as far as the operator asks."""

    async def set_addresses(self, *_: object) -> None:
        """Keep the addresses."""

    async def describe_cluster(self, ids: Any, **_: Any) -> ClusterState:
        return ClusterState("id", 0, {}, frozenset(ids), serving=frozenset(ids))

    async def is_reachable(self) -> bool:
        return True


def status(api: ApiServer, **options: Any) -> tuple[dict[str, str], Manifest]:
    """Run two operators, of which the second finds the pods. Return the reasons of the conditions
    that are true, and the status."""

    async def run() -> None:
        brokers = ServingBrokers("none:1")
        place = (api, api.store(), brokers, "n", "main", "i:1")
        await QueueClusterReconciler(*place, on_reachable=lambda: None, **options).reconcile(
            ["main"]
        )
        await brokers.close()

    for _ in range(2):
        asyncio.run(run())
    found = api.find("QueueCluster", "main")["status"]
    true = {c["type"]: c["reason"] for c in found["conditions"] if c["status"] == "True"}
    return true, found


def test_everything_else_works_without_the_gateway_api() -> None:
    api = ApiServer(CrashPoint())
    wanted = queue_cluster(changed(TLS_ROUTE, authentication={"type": "tls"}))
    wanted["spec"]["listeners"][0] |= {"tls": {}, "authentication": {"type": "tls"}}
    api.add(wanted)
    assert status(api, routed=frozenset())[0] == dict.fromkeys(
        ("Degraded", "Stalled"), "ListenerTypeDisabled"
    )
    assert api.all("StatefulSet") == []
    true, found = status(api)
    assert true == {"Ready": "Reconciled", "Degraded": "GatewayApiMissing"}
    assert found["listeners"][-1] == {
        "name": "world",
        "type": "TLSRoute",
        "bootstrapServers": "world.example.com:443",
        "caCertificateSecret": "main-cluster-ca-cert",
    }
    api.installed = {V1: ["TLSRoute"]}
    assert status(api)[0] == {"Ready": "Reconciled", "Degraded": "RouteNotAccepted"}
    for route in api.all("TLSRoute"):
        accepted = [{"type": "Accepted", "status": "True"}]
        route["status"] = {"parents": [{"parentRef": {"name": "gate"}, "conditions": accepted}]}
    assert status(api)[0] == {"Ready": "Reconciled"}
