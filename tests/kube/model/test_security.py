"""What the operator renders for clusters with TLS and logins, and what it refuses."""

from __future__ import annotations

import asyncio
import base64
import copy
import re
from pathlib import Path
from typing import Any

import pytest
from kube import rendered
from kube.api_server import ApiServer, CrashPoint
from kube.secured_pods import NOW, OWN, OWN_CA, LocalBrokers, tls_secret
from shoal.client.properties import parse_properties
from shoal.server.cluster_config import Listeners, make_cluster_config
from shoal.server.config import check_exposure, resolve
from shoal_operator.brokers import roller
from shoal_operator.cluster import decision
from shoal_operator.cluster.decision import find_refusal
from shoal_operator.cluster.observation import Observation
from shoal_operator.cluster.reconciler import QueueClusterReconciler
from shoal_operator.cluster.user_secrets import ListenerSecretReconciler, NoListenerCertificate
from shoal_operator.model import certificates, cluster, names, reserved_fields, security, users
from shoal_operator.model.certificates import KeyPair
from shoal_operator.model.security import InternalTls

PLAIN = {"name": "plain", "port": 9092, "type": "Internal"}
TLS = {"name": "tls", "port": 9094, "type": "Internal", "tls": {}}
MTLS = {**TLS, "name": "mtls", "port": 9095, "authentication": {"type": "tls"}}
SCRAM = {**TLS, "name": "scram", "port": 9096, "authentication": {"type": "scram-sha-512"}}
BEARER = {
    **TLS,
    "name": "bearer",
    "port": 9097,
    "authentication": {
        "type": "oauthbearer",
        "jwksEndpointUrl": "https://idp.example/keys",
        "validIssuer": "https://idp.example",
        "audience": "queues",
        "userNameClaim": "name",
    },
}
#: The Secret with the key of delegation tokens, and where it is mounted.
KEY, KEY_DIR = "main-delegation-token-key", "/etc/shoal-delegation-token"
#: The StatefulSets of clusters that were created without TLS and with it.
OLD: dict[str, Any] = {"metadata": {}}
SECURE = {"metadata": {"annotations": {names.GROUP + "/internal-tls": "true"}}}


def queue_cluster(*listeners: Any, stateful_set: Any = None, **spec: Any) -> Any:
    made = copy.deepcopy(rendered.clusters()["least"])
    made["spec"] |= {"listeners": list(listeners), **spec}
    return security.resolve(made, security.get_stage(made, stateful_set))


def find(resource: Any, kind: str, namespace: str = "") -> dict[str, Any]:
    made = cluster.build_manifests(resource, "i:1", operator_namespace=namespace)
    return next(m for m in made if m["kind"] == kind)


def configs(resource: Any, file: str = "broker-0.properties") -> dict[str, str]:
    return dict(parse_properties(find(resource, "ConfigMap")["data"][file]))


def container(resource: Any, slot: int = 0) -> dict[str, Any]:
    pod = find(resource, "StatefulSet")["spec"]["template"]["spec"]
    return pod["containers"][slot]


def said(resource: Any) -> tuple[str, str]:
    verdict = find_refusal(resource)
    return (verdict.reason, verdict.message) if verdict else ("", "")


# What is rendered.


@pytest.mark.parametrize(
    ("listener", "protocol"),
    [(PLAIN, "PLAINTEXT"), (TLS, "SSL"), (MTLS, "SSL"), (SCRAM, "SASL_SSL"), (BEARER, "SASL_SSL")],
)
def test_tls_and_authentication_choose_the_protocol(listener: Any, protocol: str) -> None:
    found = configs(queue_cluster(listener, stateful_set=SECURE))
    name = listener["name"].upper()
    assert found["listener.security.protocol.map"] == (
        f"REPLICATION:SSL,{name}:{protocol},CONTROLLER:SSL"
    )
    assert found["listeners"] == (
        f"REPLICATION://:9091,{name}://:{listener['port']},CONTROLLER://:9093"
    )
    assert found["inter.broker.listener.name"] == "REPLICATION"
    assert found["advertised.listeners"].startswith(
        "REPLICATION://${env:POD_NAME}.main-brokers.n.svc:9091,"
    )
    assert found.get("shoal.insecure.listeners.enable") == (
        "true" if protocol == "PLAINTEXT" else None
    )


def properties_of(resource: dict[str, Any], file: str, folder: Path) -> str:
    """Return a broker's file, whose Secret with the key of delegation tokens is in `folder`."""
    (folder / "secret.key").write_text("key")
    text: str = find(resource, "ConfigMap")["data"][file]
    return text.replace(KEY_DIR, str(folder))


def test_each_listener_has_its_stores_and_mechanisms(tmp_path: Path) -> None:
    own = {**TLS, "name": "own", "port": 9098, "tls": {"secretName": "theirs"}}
    resource = queue_cluster(TLS, MTLS, SCRAM, BEARER, own)
    environment = {"POD_NAME": "main-broker-0", "SHOAL_NODE_ID": "0"}
    text = properties_of(resource, "broker-0.properties", tmp_path)
    config = resolve({}, environment, text, "f")
    assert config["delegation.token.secret.key"] == "key"
    check_exposure(config)
    of = make_cluster_config(config).security
    assert set(of) == {"REPLICATION", "CONTROLLER", "TLS", "MTLS", "SCRAM", "BEARER", "OWN"}
    client_auth = {name: one.get_value("ssl.client.auth") for name, one in of.items()}
    needed = {name for name, wanted in client_auth.items() if wanted == "required"}
    assert needed == {"REPLICATION", "CONTROLLER", "MTLS"}
    trusted = {name: one.get_value("ssl.truststore.location") for name, one in of.items()}
    assert trusted["REPLICATION"] == trusted["CONTROLLER"] == "/etc/shoal-tls/cluster-ca.crt"
    assert trusted["MTLS"] == "/etc/shoal-tls/clients-ca.crt"
    shown = {name: one.get_value("ssl.keystore.location") for name, one in of.items()}
    assert shown.pop("OWN") == "/etc/shoal-listeners/own.pem"
    assert set(shown.values()) == {"/etc/shoal-tls/broker.pem"}
    assert of["SCRAM"].get_value("sasl.enabled.mechanisms") == ("SCRAM-SHA-512",)
    bearer = of["BEARER"]
    assert bearer.get_value("sasl.enabled.mechanisms") == ("OAUTHBEARER",)
    tokens = ("jwks.endpoint.url", "expected.issuer", "expected.audience", "sub.claim.name")
    assert [bearer.get_value(f"sasl.oauthbearer.{one}", "OAUTHBEARER") for one in tokens] == [
        "https://idp.example/keys",
        "https://idp.example",
        ("queues",),
        "name",
    ]


def test_a_broker_that_is_no_controller_connects_to_controllers_with_its_certificate(
    tmp_path: Path,
) -> None:
    resource = queue_cluster(MTLS, replicas=4)
    environment = {"POD_NAME": "main-broker-3", "SHOAL_NODE_ID": "3"}
    text = properties_of(resource, "broker-3.properties", tmp_path)
    found = make_cluster_config(resolve({"node.id": "3"}, environment, text, "f"))
    assert found.kinds == {"REPLICATION": Listeners.BROKER, "MTLS": Listeners.BROKER}
    links = found.security["CONTROLLER"]
    assert links.protocol.name == "SSL"
    assert links.get_value("ssl.keystore.location") == "/etc/shoal-tls/broker.pem"


@pytest.mark.parametrize(
    ("listeners", "given", "simple"),
    [
        ([MTLS, SCRAM], None, True),
        # One login is enough: others would open the topics of those that log in.
        ([MTLS, TLS], None, True),
        ([MTLS, PLAIN], None, True),
        ([MTLS, PLAIN], "none", False),
        ([TLS], None, False),
        ([MTLS, PLAIN], "simple", True),
        ([MTLS, SCRAM], "none", False),
        ([PLAIN], None, False),
    ],
)
def test_requests_need_permissions_if_any_clients_log_in_or_the_spec_says_so(
    listeners: Any, given: str | None, simple: bool
) -> None:
    spec = {"authorization": {"type": given}} if given else {}
    resource = queue_cluster(*listeners, superUsers=["User:root"], **spec)
    assert said(resource) == ("", "")
    found = configs(resource)
    assert found.get("authorizer.class.name") == (security.AUTHORIZER if simple else None)
    users = "User:CN=main-broker,O=shoal.dev;User:CN=shoal-operator,O=shoal.dev;User:root"
    assert found.get("super.users") == (users if simple else None)


def test_the_principals_are_the_subjects_of_the_certificates() -> None:
    made = certificates.issue(
        OWN_CA, "main-broker", now=NOW, validity_days=1, organization="shoal.dev"
    )
    resource = queue_cluster(MTLS)
    assert (
        security.list_super_users(resource)[0]
        == f"User:{certificates.format_subject(made.certificate)}"
    )


def test_a_cluster_keeps_the_links_that_it_was_created_with() -> None:
    """Only the annotation of its StatefulSet decides; without one, the listeners do."""
    assert (
        find(queue_cluster(MTLS), "StatefulSet")["metadata"]["annotations"]
        == (SECURE["metadata"]["annotations"])
    )
    plain = queue_cluster(PLAIN, stateful_set=SECURE)
    assert configs(plain)["inter.broker.listener.name"] == "REPLICATION"
    for name, resource in rendered.clusters().items():
        before = rendered.rendered(resource)
        again = security.resolve(resource, security.get_stage(resource, OLD))
        assert rendered.rendered(again) == before, name
        assert "annotations" not in before[-1]["metadata"]
    reason, message = said(queue_cluster(MTLS, stateful_set=OLD))
    assert reason == "SecurityNotSupported"
    assert "Add the previous listener again" in message


def at(stage: InternalTls, *listeners: Any, **spec: Any) -> Any:
    """Return a cluster that began without TLS, at a stage of its migration."""
    annotations = {names.GROUP + "/internal-tls": str(stage)}
    return queue_cluster(
        *listeners, stateful_set={"metadata": {"annotations": annotations}}, **spec
    )


@pytest.mark.parametrize(
    ("stage", "inter_broker", "controllers", "port"),
    [
        (InternalTls.OFFERED, "PLAIN", "CONTROLLER,CONTROLLERTLS", 9093),
        (InternalTls.USED, "REPLICATION", "CONTROLLERTLS,CONTROLLER", 9090),
        (InternalTls.MIGRATED, "REPLICATION", "CONTROLLERTLS", 9090),
    ],
)
def test_a_migration_offers_listeners_uses_them_and_drops_the_others(
    stage: InternalTls, inter_broker: str, controllers: str, port: int
) -> None:
    resource = at(stage, MTLS, PLAIN, replicas=3, authorization={"type": "simple"})
    assert said(resource) == ("", "")
    found = configs(resource)
    assert found["inter.broker.listener.name"] == inter_broker
    assert found["controller.listener.names"] == controllers
    listening = {one.partition(":")[0] for one in found["listeners"].split(",")}
    assert listening == {"REPLICATION", "PLAIN", "MTLS", *controllers.split(",")}
    assert {one.rpartition(":")[2] for one in found["controller.quorum.voters"].split(",")} == {
        str(port)
    }
    protocols = dict(one.split(":") for one in found["listener.security.protocol.map"].split(","))
    assert protocols["CONTROLLERTLS"] == protocols["REPLICATION"] == protocols["MTLS"] == "SSL"
    assert protocols.get("CONTROLLER", "PLAINTEXT") == protocols["PLAIN"] == "PLAINTEXT"
    assert found["listener.name.controllertls.ssl.client.auth"] == "required"
    # Until all brokers log in to each other, permissions would stop them.
    assert ("authorizer.class.name" in found) == (stage is InternalTls.MIGRATED)
    note = find(resource, "StatefulSet")["metadata"]["annotations"][names.GROUP + "/internal-tls"]
    assert note == stage
    in_use = cluster.get_bootstrap_servers(resource).rpartition(":")[2]
    assert in_use == ("9092" if stage is InternalTls.OFFERED else "9091")


def test_a_migration_goes_from_stage_to_stage_when_all_brokers_are_there() -> None:
    resource = queue_cluster(PLAIN, stateful_set=OLD)
    assert security.choose_next_stage(resource, InternalTls.NONE, rolled=True) is InternalTls.NONE
    resource["spec"]["listeners"] = [MTLS]
    assert security.choose_next_stage(resource, InternalTls.NONE, rolled=True) is InternalTls.NONE
    resource["spec"]["listeners"] = [PLAIN, MTLS]
    stage, seen = InternalTls.NONE, []
    for rolled in (False, False, True, False, True, True):
        stage = security.choose_next_stage(resource, stage, rolled=rolled)
        seen.append(stage.name)
    assert seen == ["OFFERED", "OFFERED", "USED", "USED", "MIGRATED", "MIGRATED"]
    assert security.choose_next_stage(resource, InternalTls.FULL, rolled=True) is InternalTls.FULL


def test_the_listener_without_tls_may_go_when_brokers_no_longer_use_it() -> None:
    reason, message = said(at(InternalTls.OFFERED, MTLS))
    assert reason == "SecurityNotSupported"
    assert "remove it when the QueueCluster is Ready" in message
    assert said(at(InternalTls.USED, MTLS)) == said(at(InternalTls.MIGRATED, MTLS)) == ("", "")
    taken = at(InternalTls.MIGRATED, {**MTLS, "port": 9090})
    assert said(taken)[0] == "ListenerNotAllowed"


def test_only_brokers_and_the_operator_reach_the_brokers_own_listeners() -> None:
    resource = queue_cluster(MTLS, networkPolicy={"from": [{"podSelector": {}}]})
    ingress = find(resource, "NetworkPolicy", "shoal-system")["spec"]["ingress"]
    peers: dict[int, list[Any]] = {}
    for rule in ingress:
        for port in rule["ports"]:
            peers.setdefault(port["port"], []).append(rule.get("from"))
    brokers = {"podSelector": {"matchLabels": names.build_selector("main")}}
    operator = {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "shoal-system"}},
        "podSelector": {"matchLabels": {"app.kubernetes.io/name": "shoal-operator"}},
    }
    assert peers[9091] == [[brokers, operator]]
    assert peers[9093] == [[brokers]]
    assert peers[9095] == [[{"podSelector": {}}, brokers]]
    assert 9091 not in [
        p["port"]
        for rule in find(queue_cluster(PLAIN), "NetworkPolicy")["spec"]["ingress"]
        for p in rule["ports"]
    ]


def test_the_port_of_metrics_may_be_for_some_pods_only() -> None:
    prometheus = {"namespaceSelector": {"matchLabels": {"name": "monitoring"}}}

    def peers(**policy: Any) -> Any:
        resource = queue_cluster(MTLS, networkPolicy=policy)
        ingress = find(resource, "NetworkPolicy", "shoal-system")["spec"]["ingress"]
        (found,) = [one for one in ingress if one["ports"][0]["port"] == 9404]
        return found.get("from")

    assert peers() is None
    assert peers(**{"from": [prometheus]}) is None
    given, brokers, operator = peers(metricsFrom=[prometheus])
    assert given == prometheus
    assert brokers["podSelector"]["matchLabels"] == names.build_selector("main")
    assert operator["podSelector"]["matchLabels"] == names.OPERATOR_LABELS


def test_pods_mount_the_secrets_that_their_files_name() -> None:
    own = {**SCRAM, "tls": {"secretName": "theirs"}}
    for listeners, wanted in (
        ([PLAIN], {}),
        ([MTLS], {"/etc/shoal-tls": "main-broker-tls", KEY_DIR: KEY}),
        (
            [MTLS, own],
            {
                "/etc/shoal-tls": "main-broker-tls",
                "/etc/shoal-listeners": "main-listener-tls",
                KEY_DIR: KEY,
            },
        ),
    ):
        resource = queue_cluster(*listeners)
        pod = find(resource, "StatefulSet")["spec"]["template"]["spec"]
        secrets = {v["name"]: v["secret"] for v in pod["volumes"] if "secret" in v}
        mounts = {m["mountPath"]: m for m in container(resource)["volumeMounts"]}
        assert {v["defaultMode"] for v in secrets.values()} <= {0o440}
        assert {
            path: secrets[m["name"]]["secretName"]
            for path, m in mounts.items()
            if m["name"] in secrets
        } == wanted
        assert all(mounts[path]["readOnly"] for path in wanted)


def test_volumes_of_security_are_the_operators() -> None:
    """In the schema and in the operator."""
    own = {**SCRAM, "tls": {"secretName": "theirs"}}
    token = {"secretKeyRef": {"name": "scrape", "key": "token"}}
    resource = queue_cluster(own, metrics={"port": 9404, "tls": {}, "token": token})
    found = security.list_volumes(resource)
    assert len(found) == 4
    text = (Path(__file__).parents[3] / "crds" / "queueclusters.shoal.dev.yaml").read_text()
    refused = [re.compile(one) for one in re.findall(r"!self\.matches\('(\^.*?\$)'\)", text)]
    for volume, _, path in found:
        for pod in (
            {"volumes": [{"name": volume}]},
            {"volumeMounts": [{"name": "mine", "mountPath": path}]},
        ):
            assert reserved_fields.find_first(queue_cluster(own, template={"pod": pod})), pod
        for name in (volume, path):
            assert any(one.match(name) for one in refused), name


def test_each_broker_of_a_pod_has_its_own_listener_for_brokers() -> None:
    resource = queue_cluster(MTLS, replicas=3, brokersPerPod=2)
    second = configs(resource, "broker-1-1.properties")
    assert second["listeners"] == "REPLICATION://:10091,MTLS://:10095"
    assert (
        "REPLICATION://${env:POD_NAME}.main-brokers.n.svc:10091" in (second["advertised.listeners"])
    )
    for slot, port in ((0, 9091), (1, 10091)):
        env = {e["name"]: e.get("value") for e in container(resource, slot)["env"]}
        assert env["SHOAL_BOOTSTRAP_SERVERS"] == f"localhost:{port}"
        ports = [p["containerPort"] for p in container(resource, slot)["ports"]]
        assert port in ports


def test_the_operator_connects_to_the_brokers_own_listener_and_clients_to_theirs() -> None:
    resource = queue_cluster(MTLS)
    assert cluster.get_bootstrap_servers(resource) == "main-bootstrap.n.svc:9091"
    spec = {**resource["spec"], "listeners": [MTLS]}
    assert cluster.get_bootstrap_servers(resource | {"spec": spec}) == "main-bootstrap.n.svc:9095"
    services = {
        m["metadata"]["name"]: [p["port"] for p in m["spec"]["ports"]]
        for m in cluster.build_service_manifests(resource)
    }
    assert 9091 in services["main-bootstrap"]


def test_the_certificate_has_the_names_that_brokers_and_clients_use() -> None:
    dns, ips = security.list_addresses(
        queue_cluster(MTLS), ["nodes.example", "192.0.2.7", "fd00::1"]
    )
    assert {"*.main-brokers.n.svc", "*.main-brokers.n.svc.cluster.local", "localhost"} < set(dns)
    assert {"main-bootstrap.n.svc", "main-bootstrap", "main-brokers.n.svc"} < set(dns)
    assert "nodes.example" in dns
    assert ips == ["127.0.0.1", "192.0.2.7", "fd00::1"]


# What is refused.


@pytest.mark.parametrize(
    ("listener", "remedy"),
    [
        *(
            ({**PLAIN, "authentication": {"type": kind}}, "Add tls: {}")
            for kind in ("tls", "scram-sha-512", "oauthbearer")
        ),
        ({**BEARER, "authentication": {"type": "oauthbearer"}}, "Set authentication.jwksEndpoint"),
    ],
)
def test_logins_without_encryption_or_keys_are_refused(listener: Any, remedy: str) -> None:
    for others in ([], [MTLS]):
        reason, message = said(queue_cluster(listener, *others))
        assert reason == "SecurityNotSupported"
        assert listener["name"] in message
        assert remedy in message
    for accepted in (TLS, MTLS, SCRAM, BEARER):
        assert said(queue_cluster(accepted)) == ("", "")


def test_authorization_needs_brokers_with_tls() -> None:
    reason, message = said(queue_cluster(PLAIN, authorization={"type": "simple"}))
    assert reason == "SecurityNotSupported"
    assert "Add a listener that has tls" in message


@pytest.mark.parametrize(
    "spec",
    [
        {"listeners": [MTLS, {**PLAIN, "name": "replication"}]},
        {"listeners": [MTLS, {**PLAIN, "port": 9091}]},
        {"listeners": [MTLS], "metrics": {"port": 9091}},
        {"listeners": [MTLS, {**PLAIN, "port": 10091}], "brokersPerPod": 2},
        {"listeners": [MTLS, {**PLAIN, "port": 8091}], "brokersPerPod": 2},
    ],
)
def test_names_and_ports_of_the_brokers_own_listener_are_refused(spec: Any) -> None:
    resource = copy.deepcopy(rendered.clusters()["least"])
    resource["spec"] |= spec
    reason, message = said(security.resolve(resource, security.get_stage(resource, None)))
    assert reason == "ListenerNotAllowed"
    assert "Choose another" in message
    # A cluster of an earlier release, which has no such listener, may have them.
    resource["spec"]["listeners"] = [n for n in spec["listeners"] if n is not MTLS] or [PLAIN]
    assert said(security.resolve(resource, security.get_stage(resource, OLD))) == ("", "")


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("ssl.keystore.location", "spec.listeners[].tls"),
        ("ssl.client.auth", "spec.listeners[].tls"),
        ("shoal.ssl.crl.location", "spec.listeners[].tls"),
        ("sasl.enabled.mechanisms", "spec.listeners[].authentication"),
        ("sasl.oauthbearer.jwks.endpoint.url", "spec.listeners[].authentication"),
        ("shoal.metrics.security.protocol", "spec.metrics"),
        ("shoal.metrics.token.file", "spec.metrics"),
        ("super.users", "spec.superUsers"),
        ("authorizer.class.name", "spec.authorization"),
    ],
)
def test_settings_of_security_are_refused_in_config_and_variables(name: str, remedy: str) -> None:
    variable = "SHOAL_" + name.removeprefix("shoal.").replace(".", "_").upper()
    of_pod = {"pod": {"env": [{"name": variable, "value": "x"}]}}
    for spec in ({"config": {name: "x"}}, {"template": of_pod}):
        reason, message = said(queue_cluster(PLAIN, **spec))
        assert reason == "ConfigNotAllowed"
        assert remedy in message


@pytest.mark.parametrize(
    "name", ["ssl.cipher.suites", "ssl.protocol", "allow.everyone.if.no.acl.found"]
)
def test_settings_that_weaken_nothing_of_the_operators_are_allowed(name: str) -> None:
    variable = "SHOAL_" + name.replace(".", "_").upper()
    of_pod = {"pod": {"env": [{"name": variable, "value": "x"}]}}
    for spec in ({"config": {name: "x"}}, {"template": of_pod}):
        assert said(queue_cluster(MTLS, **spec)) == ("", "")


@pytest.mark.parametrize(
    ("listeners", "chosen"),
    [
        ([SCRAM, MTLS], "scram"),
        ([{**SCRAM, "name": "own", "tls": {"secretName": "theirs"}}, SCRAM], "scram"),
        ([{**SCRAM, "name": "outside", "type": "NodePort"}, SCRAM], "scram"),
        ([{**SCRAM, "name": "own", "tls": {"secretName": "theirs"}}], "own"),
        ([MTLS], None),
    ],
)
def test_a_queue_users_properties_name_a_listener_that_its_secret_can_verify(
    listeners: Any, chosen: str | None
) -> None:
    user: Any = {"spec": {"authentication": {"type": "scram-sha-512"}}}
    cluster: Any = {"spec": {"listeners": listeners}}
    found = users.find_listener(cluster, user)
    assert (found and found["name"]) == chosen


# Users' own certificates.

OWN_LISTENER = {**SCRAM, "tls": {"secretName": "theirs"}}


def joined(kube: ApiServer) -> bytes:
    data = kube.find("Secret", "main-listener-tls")["data"]
    return base64.b64decode(data["scram.pem"])


async def copied(kube: ApiServer) -> str:
    """Copy the certificates as a new operator; return the reason of a problem."""
    secrets = ListenerSecretReconciler(kube, kube.store(), "n", "main")
    problem = await secrets.reconcile(queue_cluster(OWN_LISTENER))
    return problem.message if problem else ""


def test_a_listeners_certificate_follows_the_users_secret() -> None:
    kube = ApiServer(CrashPoint())
    with pytest.raises(NoListenerCertificate, match="'theirs' does not exist"):
        asyncio.run(copied(kube))
    kube.add(tls_secret(OWN))
    assert asyncio.run(copied(kube)) == ""
    assert joined(kube) == OWN.key.rstrip() + b"\n" + OWN.certificate
    other = certificates.issue(OWN_CA, "own", now=NOW, validity_days=1, server=True)
    kube.add(tls_secret(KeyPair(other.certificate, OWN.key)))
    changes = kube.crash_point.changes
    assert "key belongs to another certificate" in asyncio.run(copied(kube))
    assert kube.crash_point.changes == changes
    assert joined(kube).endswith(OWN.certificate), "the last good one stays"
    kube.add(tls_secret(other))
    assert asyncio.run(copied(kube)) == ""
    assert joined(kube).endswith(other.certificate)
    changes = kube.crash_point.changes
    assert asyncio.run(copied(kube)) == ""
    assert kube.crash_point.changes == changes


@pytest.mark.parametrize(
    ("pair", "problem"),
    [
        (OWN._replace(key=b""), "no tls.key"),
        (OWN._replace(certificate=b""), "no tls.crt"),
        (OWN._replace(key=b"x"), "key cannot be read"),
        (OWN._replace(certificate=b"x"), "no certificate in PEM"),
    ],
)
def test_a_certificate_that_cannot_be_used_is_named(pair: KeyPair, problem: str) -> None:
    kube = ApiServer(CrashPoint())
    kube.add(tls_secret(pair))
    with pytest.raises(NoListenerCertificate, match=problem):
        asyncio.run(copied(kube))


def reconciled(*listeners: Any, kube: ApiServer, **spec: Any) -> dict[str, Any]:
    """Run an operator for one pass; return the condition Ready."""
    made = copy.deepcopy(rendered.clusters()["least"])
    del made["metadata"]["uid"]
    made["spec"] |= {"listeners": list(listeners), **spec}
    kube.controllers_paused = True
    kube.add({**made, "apiVersion": names.API_VERSION})

    async def run() -> None:
        brokers = LocalBrokers("127.0.0.1:1")
        clusters = QueueClusterReconciler(
            kube,
            kube.store(),
            brokers,
            "n",
            "main",
            "i",
            on_reachable=lambda: None,
            operator_namespace="ops",
        )
        await clusters.reconcile(["main"])
        await brokers.close()

    asyncio.run(run())
    every = kube.find("QueueCluster", "main")["status"]["conditions"]
    return next(c for c in every if c["type"] == "Ready")


def test_brokers_start_after_their_certificates_exist() -> None:
    kube = ApiServer(CrashPoint())
    ready = reconciled(OWN_LISTENER, kube=kube)
    assert ready["reason"] == "ListenerCertificateInvalid"
    assert kube.all("StatefulSet") == []
    kube.add(tls_secret(OWN))
    reconciled(OWN_LISTENER, kube=kube)
    assert [s["metadata"]["name"] for s in kube.all("StatefulSet")] == ["main-broker"]
    policy = kube.find("NetworkPolicy", "main-broker")
    assert (policy["spec"]["ingress"][-1]["from"][1]["namespaceSelector"]["matchLabels"]) == {
        "kubernetes.io/metadata.name": "ops"
    }
    owners = {
        s["metadata"]["name"]: bool(s["metadata"].get("ownerReferences"))
        for s in kube.all("Secret")
        if s["metadata"]["name"] != "theirs"
    }
    assert owners == {
        "main-cluster-ca": False,
        "main-cluster-ca-cert": False,
        "main-clients-ca": False,
        "main-clients-ca-cert": False,
        "main-broker-tls": True,
        "main-operator-tls": True,
        "main-listener-tls": True,
        KEY: False,
    }


def test_certificates_are_renewed_while_a_new_spec_is_refused() -> None:
    kube = ApiServer(CrashPoint())
    assert reconciled(MTLS, kube=kube)["reason"] == "Starting"
    del kube.objects["Secret", "main-broker-tls"]
    assert reconciled(MTLS, kube=kube, metrics={"port": 9091})["reason"] == "ListenerNotAllowed"
    assert kube.find("Secret", "main-broker-tls")


def test_a_spec_that_is_refused_from_the_start_gets_no_secrets() -> None:
    kube = ApiServer(CrashPoint())
    assert reconciled(MTLS, kube=kube, metrics={"port": 9091})["reason"] == "ListenerNotAllowed"
    assert kube.all("Secret") == []


def test_a_cluster_without_tls_gets_no_secrets() -> None:
    kube = ApiServer(CrashPoint())
    assert reconciled(PLAIN, kube=kube)["reason"] == "Starting"
    assert kube.all("Secret") == []


def test_a_cluster_that_anybody_may_change_is_degraded() -> None:
    """Its spec says that clients that log in need no permissions."""

    def degraded(*listeners: Any, **spec: Any) -> tuple[str, str] | None:
        made = queue_cluster(*listeners, **spec)
        seen = Observation(made, made, {}, (), (), {}, None)
        return decision.decide_verdict(seen, roller.DoneStep(), None, None).warning

    off = {"authorization": {"type": "none"}}
    found = degraded(MTLS, PLAIN, **off)
    assert found is not None
    assert found[0] == "AuthorizationOff"
    assert "every client that reaches a listener may do anything" in found[1]
    assert degraded(MTLS, SCRAM, **off) == found
    for listeners, spec in (([MTLS, PLAIN], {}), ([MTLS], {}), ([PLAIN], off), ([PLAIN], {})):
        assert degraded(*listeners, **spec) is None


def test_plaintext_in_words_is_what_leaving_it_out_was() -> None:
    """Clusters of earlier releases have listeners without these fields, and do not roll."""
    words = {"tls": {"enabled": False}, "authentication": {"type": "none"}}
    before, now = queue_cluster(PLAIN, stateful_set=OLD), queue_cluster(PLAIN | words)
    assert rendered.rendered(before) == rendered.rendered(now)
    assert find_refusal(now) is None
    assert not security.has_internal_tls(now)
    anybody = queue_cluster(TLS | {"authentication": {"type": "none"}})
    assert rendered.rendered(anybody) == rendered.rendered(queue_cluster(TLS))
    assert not security.is_authorized(anybody)
    mixed = queue_cluster(PLAIN | words, MTLS)
    assert find_refusal(mixed) is None
    assert security.is_authorized(mixed)
    named = queue_cluster(PLAIN | {"tls": {"enabled": False, "secretName": "theirs"}})
    assert security.get_secret_name(named["spec"]["listeners"][0]) == ""
