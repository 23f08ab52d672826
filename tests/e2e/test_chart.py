"""The chart without a cluster: drawn combinations of its values render, with the right roles."""

from __future__ import annotations

import base64
import itertools
import json
import random
import re
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from e2e.cluster.backend import tool
from e2e.cluster.commands import run
from e2e.cluster.layout import ClusterError
from e2e.release import CHART, KUBE
from shoal.console.reading.masks import parse_masks
from shoal.console.sampling.kubernetes import PLURALS
from sim.seeds import draw_by_day
from support.runs.seeding import SEED

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

Manifest = dict[str, Any]
BOTH = (True, False)
#: Values of which combinations are rendered, by the path of the value.
VALUES: dict[str, tuple[Any, ...]] = {
    "openshift": ("auto", "enabled", "disabled"),
    "watchNamespaces": ([], ["one", "two"]),
    "workloads.deployment": BOTH,
    "workloads.spark": BOTH,
    "racks.enabled": BOTH,
    "listeners.ingress": BOTH,
    "listeners.tlsRoute": BOTH,
    "aggregatedRoles.enabled": BOTH,
    "networkPolicy": ({"enabled": True, "from": [{"podSelector": {}}]}, {"enabled": False}),
    "replicas": (1, 2),
}


#: The number of combinations that a run draws, and how many of them by day.
DRAWN, BY_DAY = 40, 10


def template(**values: Any) -> list[Manifest]:
    """Return the rendered objects, among them the hook of `helm test`."""
    return render("shoal", "shoal-system", values)


def render(release: str, namespace: str, values: Mapping[str, Any]) -> list[Manifest]:
    words = [f"--set-json={name}={json.dumps(value)}" for name, value in values.items()]
    where = (f"--namespace={namespace}", KUBE)
    text = run(tool("helm"), "template", release, CHART, *where, *words).stdout
    return [made for made in yaml.safe_load_all(text) if made]


def named(manifests: list[Manifest]) -> dict[tuple[str, str, str], Manifest]:
    found = {}
    for made in manifests:
        meta = made["metadata"]
        key = (made["kind"], meta.get("namespace", ""), meta["name"])
        assert key not in found, f"{key} is rendered twice"
        found[key] = made
    return found


def permissions(manifests: list[Manifest], kind: str) -> set[tuple[str, str]]:
    """Return the resources and verbs of the operator's roles of this kind."""
    aggregated = ("-view", "-edit", "-admin", "-spark-driver")
    return {
        (resource, verb)
        for made in manifests
        if made["kind"] == kind and not made["metadata"]["name"].endswith(aggregated)
        for rule in made["rules"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def test_readers_of_the_metrics_show_certificates() -> None:
    """The operator gets the authorities, and Prometheus and `helm test` the certificate."""
    tls, readers = {"secretName": "http"}, {"secretKeyRef": {"name": "readers"}}
    made = named(
        template(
            **{
                "metrics.tls": tls,
                "metrics.clientCa": readers,
                "metrics.podMonitor": {"enabled": True, "clientSecretName": "prometheus"},
            }
        )
    )
    pod = made["Deployment", "shoal-system", "shoal-operator"]["spec"]["template"]["spec"]
    (operator,) = pod["containers"]
    env = {e["name"]: e.get("value") for e in operator["env"]}
    assert env["SHOAL_HTTP_CLIENT_CA_FILE"] == "/etc/shoal/http-client-ca/ca.crt"
    assert "SHOAL_HTTP_TOKEN_FILE" not in env
    mounts = {m["name"]: m["mountPath"] for m in operator["volumeMounts"]}
    assert mounts["http-client-ca"] == "/etc/shoal/http-client-ca"
    (volume,) = (v["secret"] for v in pod["volumes"] if v["name"] == "http-client-ca")
    assert volume == {"secretName": "readers", "items": [{"key": "ca.crt", "path": "ca.crt"}]}
    monitor = made["PodMonitor", "shoal-system", "shoal-operator-metrics"]
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    assert endpoint["tlsConfig"]["cert"] == {"secret": {"name": "prometheus", "key": "tls.crt"}}
    assert endpoint["tlsConfig"]["keySecret"] == {"name": "prometheus", "key": "tls.key"}
    hook = made["Pod", "shoal-system", "shoal-operator-test"]["spec"]
    assert "load_cert_chain" in hook["containers"][0]["args"][0]
    assert {v["secret"]["secretName"] for v in hook["volumes"]} == {"http", "prometheus"}


class Replicas(BaseHTTPRequestHandler):
    """The operator's Service, which reaches the replica that acts at the third connection."""

    connections = 0

    def do_GET(self) -> None:
        type(self).connections += 1
        self.send_response(200)
        self.end_headers()
        self.wfile.write(f"shoal_operator_leader {float(self.connections == 3)}\n".encode())

    def log_message(self, *_: object) -> None:
        """Be silent."""


def test_helm_test_asks_until_the_replica_answers_that_acts() -> None:
    """It pauses for half a second after each answer of another one."""
    made = named(template(replicas=2, networkPolicy={"enabled": True, "from": [{"x": {}}]}))
    pod = made["Pod", "shoal-system", "shoal-operator-test"]
    (script,) = pod["spec"]["containers"][0]["args"]
    address = "shoal-operator.shoal-system.svc:8080"
    assert address in script
    with ThreadingHTTPServer(("127.0.0.1", 0), Replicas) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        local = script.replace(address, f"127.0.0.1:{server.server_port}")
        subprocess.run([sys.executable, "-c", local], check=True)
        server.shutdown()
    assert Replicas.connections == 3
    # The pod is none of the operator's for its Service, budget and policy, which admits it.
    own = made["Service", "shoal-system", "shoal-operator"]["spec"]["selector"]
    labels = pod["metadata"]["labels"]
    assert not own.items() <= labels.items()
    policy = made["NetworkPolicy", "shoal-system", "shoal-operator"]["spec"]["ingress"][0]
    assert {"podSelector": {"matchLabels": labels}} in policy["from"]


COMBINATIONS = list(itertools.product(*VALUES.values()))


@pytest.mark.parametrize(
    "values", draw_by_day(random.Random(SEED).sample(COMBINATIONS, DRAWN), BY_DAY)
)
def test_combinations_render(values: tuple[Any, ...]) -> None:
    given = dict(zip(VALUES, values, strict=True))
    made = template(**given)
    kinds = named(made)
    (operator,) = (m for m in made if m["kind"] == "Deployment")
    pod = operator["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert ("runAsUser" in pod["securityContext"]) == (given["openshift"] != "enabled")
    assert pod["securityContext"]["runAsNonRoot"]
    assert f"--openshift={given['openshift']}" in container["args"]
    namespaced, everywhere = permissions(made, "Role"), permissions(made, "ClusterRole")
    granted = namespaced | everywhere
    for workload, resource in (("deployment", "deployments"), ("spark", "sparkapplications")):
        on = given[f"workloads.{workload}"]
        assert ((resource, "create") in granted) == on
        assert (f"--without={workload}" in container["args"]) == (not on)
    bound = "roles" if given["watchNamespaces"] else "clusterroles"
    for resource in ("rolebindings", bound, "resourcequotas", "limitranges"):
        assert any(r == resource for r, _ in granted) == given["workloads.spark"]
    definitions_are_read = given["workloads.spark"] or not given["watchNamespaces"]
    assert (("customresourcedefinitions", "get") in granted) == definitions_are_read
    migrates = ("customresourcedefinitions/status", "patch") in granted
    assert migrates != bool(given["watchNamespaces"])
    assert (("nodes", "get") in granted) == given["racks.enabled"]
    assert ("--without=racks" in container["args"]) == (not given["racks.enabled"])
    for name, resource in (("ingress", "ingresses"), ("tlsRoute", "tlsroutes")):
        verbs = {verb for r, verb in granted if r == resource}
        on = given[f"listeners.{name}"]
        assert verbs == ({"get", "list", "create", "patch", "delete"} if on else set())
        assert (f"--without={name}" in container["args"]) == (not on)
    if given["watchNamespaces"]:
        definitions = {("customresourcedefinitions", v) for v in ("get", "list", "watch")}
        assert everywhere <= {*definitions, ("nodes", "get"), ("leases", "list")}
        roles = {n for kind, n, _ in kinds if kind == "Role"}
        assert roles == {"one", "two", "shoal-system"}
    deleted = {"pods", "services", "networkpolicies", "jobs", "statefulsets"}
    deleted |= {"rolebindings", "sparkapplications"} if given["workloads.spark"] else set()
    routes = {"ingresses", "tlsroutes"}
    assert {r for r, verb in granted if verb == "delete"} - routes == deleted
    assert any(m["kind"] == "NetworkPolicy" for m in made) == given["networkPolicy"]["enabled"]
    shared = [m for m in made if "aggregat" in str(m["metadata"].get("labels", {}))]
    assert len(shared) == 3 * given["aggregatedRoles.enabled"]


def test_the_namespace_of_the_release_is_watched_by_default() -> None:
    made = template(**{"racks.enabled": False, "workloads.spark": False})
    (operator,) = (m for m in made if m["kind"] == "Deployment")
    (container,) = operator["spec"]["template"]["spec"]["containers"]
    assert "--namespace=shoal-system" in container["args"]
    assert "--all-namespaces" not in container["args"]
    bound = [m["roleRef"]["name"] for m in made if m["kind"] == "ClusterRoleBinding"]
    leases = "shoal-system-shoal-operator-leases"
    assert bound == [leases], "outside of its namespace, it only looks for other operators"


@pytest.mark.parametrize("on", BOTH)
def test_jobs_are_started_and_deleted_if_they_are_on(on: bool) -> None:
    made = template(**{"workloads.job": on})
    verbs = {verb for resource, verb in permissions(made, "Role") if resource == "jobs"}
    assert verbs == ({"get", "list", "watch", "create", "delete"} if on else set())
    (operator,) = (m for m in made if m["kind"] == "Deployment")
    (container,) = operator["spec"]["template"]["spec"]["containers"]
    assert ("--without=job" in container["args"]) == (not on)


@pytest.mark.parametrize("on", BOTH)
def test_workloads_of_others_are_scaled_and_not_changed(on: bool) -> None:
    workloads = {"workloads.deployment": False, "workloads.scaleTargetRef": on}
    workloads["racks.enabled"] = False
    granted = permissions(template(**workloads), "Role")
    of_deployments = {(r, verb) for r, verb in granted if r.startswith("deployments")}
    expected = {("deployments/scale", verb) for verb in ("get", "patch")} if on else set()
    assert of_deployments == expected
    assert (("statefulsets/scale", "patch") in granted) == on
    assert {verb for r, verb in granted if r == "workloads"} == {"list"}, "Kueue's"
    assert (("pods", "patch") in granted) == on


USER = {"console.enabled": True, "console.userSecret": "console"}
OPEN = {"console.login.secretName": "users", "console.tls.secretName": "page"}


def console_of(
    made: list[Manifest], *, reads_kubernetes: bool = False
) -> tuple[list[str], dict[str, Manifest]]:
    """Return the arguments of the console's container, and its objects by kind."""
    mine = {m["kind"]: m for m in made if m["metadata"]["name"] == "shoal-console"}
    pod = mine["Deployment"]["spec"]["template"]["spec"]
    assert pod["automountServiceAccountToken"] is reads_kubernetes
    (container,) = pod["containers"]
    assert container["securityContext"]["readOnlyRootFilesystem"]
    return container["args"], mine


def test_a_console_without_login_listens_in_its_pod_only() -> None:
    assert not any("console" in m["metadata"]["name"] for m in template())
    args, mine = console_of(template(**USER))
    assert "--listen=127.0.0.1:9080" in args
    assert "--allow-actions" not in args
    assert mine.keys() == {"Deployment", "NetworkPolicy"}
    assert mine["NetworkPolicy"]["spec"]["ingress"] == []
    (container,) = mine["Deployment"]["spec"]["template"]["spec"]["containers"]
    assert "127.0.0.1" in str(container["startupProbe"]["exec"])  # As `kubectl port-forward` does.
    args, _ = console_of(template(**USER, **{"console.allowActions": True}))
    assert "--allow-actions" in args


def test_a_console_with_login_and_tls_has_a_service_and_an_ingress() -> None:
    ingress = {"enabled": True, "host": "queues.example", "tlsSecretName": "public"}
    peers = [{"podSelector": {"matchLabels": {"app": "ingress"}}}]
    more = {"console.ingress": ingress, "console.from": peers, "console.namespace": "team"}
    args, mine = console_of(template(**USER, **OPEN, **more))
    assert {"--listen=0.0.0.0:9080", "--login=/etc/shoal/login/users"} < set(args)
    assert {"--certificate=/etc/shoal/tls/tls.crt", "--key=/etc/shoal/tls/tls.key"} < set(args)
    assert mine.keys() == {"Deployment", "Service", "Ingress", "NetworkPolicy"}
    assert {m["metadata"]["namespace"] for m in mine.values()} == {"team"}
    assert mine["NetworkPolicy"]["spec"]["ingress"][0]["from"] == peers
    (rule,) = mine["Ingress"]["spec"]["rules"]
    assert rule["host"] == "queues.example"


def test_a_console_with_other_logins() -> None:
    tls = {"console.tls.secretName": "page"}
    openid = {"console.openid.secretName": "provider", "console.url": "https://queues.example"}
    args, mine = console_of(template(**USER, **tls, **openid))
    assert "--openid=/etc/shoal/openid/openid.json" in args
    assert "--url=https://queues.example" in args
    assert "Service" in mine
    proxy = {"userHeader": "X-Forwarded-User", "trusted": ["10.1.0.0/16", "10.2.0.7"]}
    args, _ = console_of(template(**USER, **{"console.proxy": proxy, "console.insecure": True}))
    assert {"--trusted-proxy=10.1.0.0/16", "--trusted-proxy=10.2.0.7", "--insecure"} < set(args)
    args, _ = console_of(template(**USER, **tls, **{"console.clientCa.secretName": "users"}))
    assert "--client-ca=/etc/shoal/client-ca/ca.crt" in args


def test_a_console_that_reads_kubernetes_may_list_only() -> None:
    values = {"console.kubernetes": {"enabled": True, "namespaces": ["one", "two"]}}
    made = template(**USER, **values)
    args, mine = console_of(made, reads_kubernetes=True)
    assert {"--kubernetes", "--kubernetes-namespace=one", "--kubernetes-namespace=two"} < set(args)
    assert mine["Deployment"]["spec"]["template"]["spec"]["serviceAccountName"] == "shoal-console"
    own = [m for m in made if m["metadata"]["name"] == "shoal-console"]
    roles = [m for m in own if m["kind"] == "Role"]
    assert {m["metadata"]["namespace"] for m in roles} == {"one", "two"}
    assert {verb for m in roles for rule in m["rules"] for verb in rule["verbs"]} == {"list"}
    listed = {one for m in roles for rule in m["rules"] for one in rule["resources"]}
    assert listed == {*PLURALS.values(), "events"}
    bindings = [m for m in own if m["kind"] == "RoleBinding"]
    assert {m["metadata"]["namespace"] for m in bindings} == {"one", "two"}
    (role,) = [
        m
        for m in template(**USER, **{"console.kubernetes": {"enabled": True}})
        if m["kind"] == "Role" and m["metadata"]["name"] == "shoal-console"
    ]
    assert role["metadata"]["namespace"] == "shoal-system"


def test_a_console_masks_by_rule_or_shows_no_payloads() -> None:
    rules = [{"topics": "orders*", "fields": ["card"]}]
    args, mine = console_of(template(**USER, **{"console.masks": rules}))
    assert "--mask=/etc/shoal/masks/masks.json" in args
    text = mine["ConfigMap"]["data"]["masks.json"]
    (rule,) = parse_masks(text, "masks.json").rules
    assert (rule.topics, rule.fields) == (("orders*",), ("card",))
    registry = {"url": "https://registry.example", "secretName": "registry"}
    args, _ = console_of(template(**USER, **{"console.schemaRegistry": registry}))
    assert "--schema-registry=https://registry.example" in args
    assert "--schema-registry-login=/etc/shoal/registry/login" in args
    args, mine = console_of(template(**USER, **{"console.payloads": False}))
    assert "--no-payloads" in args
    assert "ConfigMap" not in mine


def test_a_console_with_history_from_prometheus() -> None:
    labels = 'namespace="shop",shoal_dev_cluster="main"'
    prometheus = {
        "url": "https://prometheus.monitoring.svc:9090",
        "labels": labels,
        "token": {"secretName": "reader"},
        "ca": {"secretName": "authority"},
    }
    args, mine = console_of(template(**USER, **{"console.prometheus": prometheus}))
    mounted = {
        "--prometheus-url=https://prometheus.monitoring.svc:9090",
        f"--prometheus-labels={labels}",
        "--prometheus-token=/etc/shoal/prometheus-token/token",
        "--prometheus-ca=/etc/shoal/prometheus-ca/ca.crt",
    }
    assert {one for one in args if one.startswith("--prometheus")} == mounted
    pod = mine["Deployment"]["spec"]["template"]["spec"]
    secrets = {one["name"]: one["secret"]["secretName"] for one in pod["volumes"]}
    assert secrets == {
        "user": "console",
        "prometheus-token": "reader",
        "prometheus-ca": "authority",
    }
    (container,) = pod["containers"]
    paths = {one["name"]: one["mountPath"] for one in container["volumeMounts"]}
    assert paths["prometheus-token"] == "/etc/shoal/prometheus-token"
    assert paths["prometheus-ca"] == "/etc/shoal/prometheus-ca"


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"console.enabled": True}, "console.userSecret is missing"),
        (
            {**USER, "console.prometheus.login.secretName": "p"},
            "console.prometheus.url is missing",
        ),
        (
            {
                **USER,
                "console.prometheus": {
                    "url": "http://p:9090",
                    "login": {"secretName": "l"},
                    "token": {"secretName": "t"},
                },
            },
            "are different logins",
        ),
        ({**USER, "console.login.secretName": "users"}, "console.tls.secretName, or"),
        ({**USER, "console.ingress.enabled": True}, "console.tls.secretName, or"),
        ({**USER, **OPEN, "console.ingress.enabled": True}, "console.ingress.host is missing"),
        (
            {**USER, "console.insecure": True, "console.proxy.userHeader": "X"},
            "console.proxy.trusted is missing",
        ),
        (
            {**USER, "console.insecure": True, "console.openid.secretName": "p"},
            "console.url is missing",
        ),
        (
            {**USER, "console.insecure": True, "console.clientCa.secretName": "c"},
            "console.clientCa needs",
        ),
    ],
)
def test_a_console_that_nobody_could_trust_is_refused(
    values: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ClusterError, match=sentence):
        template(**values)


def test_the_readme_describes_every_value() -> None:
    text = (CHART / "README.md").read_text()
    rows = re.findall(r"^\| (`.*?) \|", text.partition("## Permissions")[0], re.MULTILINE)
    described = {name for row in rows for name in re.findall(r"`([^`]+)`", row)}
    values = yaml.safe_load((CHART / "values.yaml").read_text())

    def leaves(value: Any, path: str) -> Iterator[str]:
        if isinstance(value, dict) and value:
            for key, inner in value.items():
                yield from leaves(inner, f"{path}.{key}" if path else key)
        else:
            yield path

    every = set(leaves(values, ""))
    missing = {
        leaf
        for leaf in every
        if not any(leaf == name or leaf.startswith(f"{name}.") for name in described)
    }
    assert missing == set()
    stale = {n for n in described if not any(leaf.startswith(n) for leaf in every)}
    assert stale == set()


def test_artifact_hub_shows_the_icon_and_the_definitions() -> None:
    about = yaml.safe_load((CHART / "Chart.yaml").read_text())
    head, _, encoded = about["icon"].partition(",")
    assert head == "data:image/svg+xml;base64"
    assert base64.b64decode(encoded) == (CHART / "icon.svg").read_bytes()
    shown = yaml.safe_load(about["annotations"]["artifacthub.io/crds"])
    crds = [yaml.safe_load(f.read_text()) for f in (CHART / "crds").glob("*.yaml")]
    made = {(c["metadata"]["name"], c["spec"]["names"]["kind"]) for c in crds}
    assert {(c["name"], c["kind"]) for c in shown} == made
    examples = yaml.safe_load(about["annotations"]["artifacthub.io/crdsExamples"])
    assert {e["kind"] for e in examples} <= {kind for _, kind in made}


def test_names_accounts_and_roles_may_come_from_elsewhere() -> None:
    made = template(fullnameOverride="queues", **{"serviceAccount.annotations": {"cloud": "role"}})
    of_operator = [m for m in made if m["kind"] in ("Deployment", "Service", "NetworkPolicy")]
    assert {m["metadata"]["name"] for m in of_operator} == {"queues"}
    (account,) = (m for m in made if m["kind"] == "ServiceAccount")
    assert account["metadata"]["annotations"] == {"cloud": "role"}
    assert account["metadata"]["name"] == "queues"
    made = template(nameOverride="broker-operator", **{"rbac.create": False})
    assert ("Deployment", "shoal-system", "shoal-broker-operator") in named(made)
    assert not [m for m in made if "rbac" in m["apiVersion"]]
    made = template(serviceAccount={"create": False, "name": "given"})
    assert not [m for m in made if m["kind"] == "ServiceAccount"]
    bindings = [m for m in made if m["kind"].endswith("Binding")]
    assert {s["name"] for m in bindings for s in m["subjects"]} == {"given"}
    (operator,) = (m for m in made if m["kind"] == "Deployment")
    assert operator["spec"]["template"]["spec"]["serviceAccountName"] == "given"
    with pytest.raises(ClusterError, match=r"serviceAccount\.name is missing"):
        template(**{"serviceAccount.create": False})


@pytest.mark.parametrize(
    ("watched", "kind", "places"),
    [(["a", "b"], "Role", ["a", "b"]), ([], "ClusterRole", [None])],
)
def test_the_role_of_drivers_outlives_the_release(
    watched: list[str], kind: str, places: list[str | None]
) -> None:
    """A RoleBinding refers to it, which cannot change."""
    for made in (
        render("one", "here", {"watchNamespaces": watched}),
        render("two", "there", {"watchNamespaces": watched, "fullnameOverride": "queues"}),
    ):
        roles = [m for m in made if m["metadata"]["name"] == "shoal-spark-driver"]
        assert {role["kind"] for role in roles} == {kind}
        assert [role["metadata"].get("namespace") for role in roles] == places
        (operator,) = (m for m in made if m["kind"] == "Deployment")
        (container,) = operator["spec"]["template"]["spec"]["containers"]
        assert {"name": "SHOAL_DRIVER_ROLE_KIND", "value": kind} in container["env"]
        bound = [
            (m["kind"], rule["resources"], rule["resourceNames"])
            for m in made
            for rule in m.get("rules", [])
            if "bind" in rule["verbs"]
        ]
        assert bound == [(kind, [f"{kind.lower()}s"], ["shoal-spark-driver"])] * len(places)


#: Values with which the chart has an object of each kind that it may have.
EVERYTHING: dict[str, Any] = {
    **USER,
    **OPEN,
    "replicas": 2,
    "demo.enabled": True,
    "console.ingress": {"enabled": True, "host": "queues.example", "annotations": {"a": "own"}},
    "console.kubernetes": {"enabled": True},
    "console.masks": [{"topics": "*", "fields": ["card"]}],
    "metrics.podMonitor.enabled": True,
    "metrics.prometheusRule.enabled": True,
    "metrics.grafanaDashboard": {"enabled": True, "annotations": {"a": "own"}},
}


@pytest.mark.parametrize("watched", [["one"], []])
def test_labels_and_annotations_are_added_and_replace_none_of_the_charts(
    watched: list[str],
) -> None:
    of_team = {"team": "queues", "app.kubernetes.io/name": "mine"}
    more = {"podLabels": {"mesh": "off"}, "annotations": {"a": "own"}}
    notes = {"owner": "queues", "a": "common", "helm.sh/hook": "pre-install"}
    values = {"commonLabels": of_team, "commonAnnotations": notes, "watchNamespaces": watched}
    made = template(**EVERYTHING, **more, **values)
    for manifest in made:
        meta, name = manifest["metadata"], manifest["metadata"]["name"]
        is_test = name.endswith("-test")
        assert is_test or meta["labels"]["team"] == "queues", name
        assert meta["labels"]["app.kubernetes.io/name"] != "mine"
        assert meta["annotations"]["owner"] == "queues", name
        has_own = manifest["kind"] == "Ingress" or name in ("shoal-operator-dashboard",)
        has_own |= (manifest["kind"], name) == ("Deployment", "shoal-operator")
        assert meta["annotations"]["a"] == ("own" if has_own else "common"), name
        assert not is_test or meta["annotations"]["helm.sh/hook"] == "test"
    operator = named(made)["Deployment", "shoal-system", "shoal-operator"]
    pod_labels = operator["spec"]["template"]["metadata"]["labels"]
    assert (pod_labels["team"], pod_labels["mesh"]) == ("queues", "off")
    assert operator["spec"]["selector"]["matchLabels"].items() <= pod_labels.items()
    assert "team" not in operator["spec"]["selector"]["matchLabels"]


def test_the_pods_are_placed_and_secured_as_the_values_say() -> None:
    spread = {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}
    own = {"labelSelector": {"matchLabels": {"a": "b"}}}
    values: dict[str, Any] = {
        "topologySpreadConstraints": [spread, {**spread, **own}],
        "dnsPolicy": "None",
        "dnsConfig": {"nameservers": ["192.0.2.1"]},
        "podSecurityContext": {"runAsUser": 2000, "fsGroup": 7},
        "containerSecurityContext": {"seccompProfile": {"type": "Localhost"}},
        "logLevel": "DEBUG",
        "extraEnv": [{"name": "HTTPS_PROXY", "value": "http://proxy:3128"}],
        "extraVolumes": [{"name": "authorities", "configMap": {"name": "company-ca"}}],
        "extraVolumeMounts": [{"name": "authorities", "mountPath": "/etc/company"}],
        "livenessProbe": {"timeoutSeconds": 9},
        "readinessProbe": {"periodSeconds": 9},
    }
    made = named(template(**values, **USER))
    operator = made["Deployment", "shoal-system", "shoal-operator"]["spec"]
    pod = operator["template"]["spec"]
    first, second = pod["topologySpreadConstraints"]
    assert first == {**spread, "labelSelector": operator["selector"]}
    assert second == {**spread, **own}
    assert (pod["dnsPolicy"], pod["dnsConfig"]) == ("None", {"nameservers": ["192.0.2.1"]})
    (container,) = pod["containers"]
    assert "--log-level=DEBUG" in container["args"]
    assert values["extraEnv"][0] in container["env"]
    assert pod["volumes"][-1:] == values["extraVolumes"]
    assert container["volumeMounts"][-1:] == values["extraVolumeMounts"]
    (usual,) = (m for m in template() if m["kind"] == "Deployment")
    (before,) = usual["spec"]["template"]["spec"]["containers"]
    for probe in ("livenessProbe", "readinessProbe"):
        assert container[probe] == before[probe] | values[probe]
    console = made["Deployment", "shoal-system", "shoal-console"]["spec"]["template"]["spec"]
    hook = made["Pod", "shoal-system", "shoal-operator-test"]["spec"]
    for each in (pod, console, hook):
        context = each["securityContext"]
        assert (context["runAsUser"], context["fsGroup"]) == (2000, 7)
        assert context["runAsNonRoot"] is True
        context = each["containers"][0]["securityContext"]
        assert context["seccompProfile"] == {"type": "Localhost"}
        assert context["readOnlyRootFilesystem"] is True


def test_the_operator_may_be_in_the_network_of_its_node() -> None:
    """Names of the cluster still resolve there, and a single node has room for one such pod."""
    values = {"hostNetwork": True, "updateStrategy": {"type": "Recreate"}}
    aliases = [{"ip": "192.0.2.7", "hostnames": ["api.example"]}]
    made = named(template(**values, hostAliases=aliases))
    operator = made["Deployment", "shoal-system", "shoal-operator"]["spec"]
    pod = operator["template"]["spec"]
    assert operator["strategy"] == {"type": "Recreate"}
    assert (pod["hostNetwork"], pod["dnsPolicy"]) == (True, "ClusterFirstWithHostNet")
    assert pod["hostAliases"] == aliases
    (own,) = (m for m in template(**values, dnsPolicy="Default") if m["kind"] == "Deployment")
    assert own["spec"]["template"]["spec"]["dnsPolicy"] == "Default"


@pytest.mark.parametrize("tls", ["", "http"])
def test_prometheus_relabels_what_it_scrapes(tls: str) -> None:
    rule = {"action": "labeldrop", "regex": "pod"}
    monitor: dict[str, Any] = {"enabled": True, "brokersPerPod": 2}
    monitor |= {"relabelings": [rule], "metricRelabelings": [rule]}
    values = {"metrics.podMonitor": monitor, "metrics.tls.secretName": tls}
    ends = [
        end
        for manifest in template(**values)
        if manifest["kind"] == "PodMonitor"
        for end in manifest["spec"]["podMetricsEndpoints"]
    ]
    assert [end["port"] for end in ends] == ["metrics", "metrics-1"] + ["metrics"] * bool(tls)
    for end in ends:
        assert end["relabelings"] == end["metricRelabelings"] == [rule]
        assert (end["path"], end["honorLabels"]) == ("/metrics", True)


def test_without_values_no_field_is_there_that_means_nothing() -> None:
    (operator,) = (m for m in template() if m["kind"] == "Deployment")
    assert "annotations" not in operator["metadata"]
    assert "strategy" not in operator["spec"]
    pod = operator["spec"]["template"]["spec"]
    absent = {"topologySpreadConstraints", "dnsPolicy", "dnsConfig", "hostNetwork", "hostAliases"}
    assert pod.keys().isdisjoint(absent)
    assert "--log-level=INFO" in pod["containers"][0]["args"]
