"""Definitions and manifests under the API server's own rules: types in CEL, values that an item of
a list leaves out, and two managers of one manifest."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from kube.custom_resources import refusals, take
from kube.gitops.test_gitops_example import patches
from kube.structural import CRDS
from shoal_operator.model.names import API_VERSION

if TYPE_CHECKING:
    from collections.abc import Iterator

Manifest = dict[str, Any]
ROOT = Path(__file__).parents[3]
META = {"name": "main", "namespace": "n"}
Case = Manifest | tuple[Manifest, Manifest]


def examples() -> Iterator[tuple[str, Manifest]]:
    """Yield our resources in the examples, each with its file and name."""
    for path in sorted((ROOT / "examples").rglob("*.yaml")):
        if path in patches():
            continue
        for one in yaml.safe_load_all(path.read_text()):
            if one and str(one.get("apiVersion", "")).startswith("shoal.dev/"):
                yield f"{path.relative_to(ROOT)}: {one['kind']} {one['metadata']['name']}", one


def test_the_api_server_accepts_the_definitions() -> None:
    assert refusals(sorted(CRDS.glob("*.yaml"))) == []


def test_a_rule_of_the_wrong_type_is_found(tmp_path: Path) -> None:
    text = (CRDS / "queueclusters.shoal.dev.yaml").read_text()
    wrong = text.replace("!has(self.class) || has(self.type)", "self.class > 3 || has(self.type)")
    assert wrong != text
    (tmp_path / "wrong.yaml").write_text(wrong)
    assert "compilation failed" in refusals([tmp_path / "wrong.yaml"])[0]


def test_no_example_is_refused_or_conflicts_with_another_manager() -> None:
    """Applied by kubectl, then server-side by a GitOps tool, as it is."""
    names, manifests = zip(*examples(), strict=True)
    wrong = {
        name: (taken.errors, taken.conflict)
        for name, taken in zip(names, take(manifests), strict=True)
        if taken.errors or taken.conflict
    }
    assert len(names) > 30
    assert wrong == {}


def test_the_lists_of_a_stored_object_are_those_of_its_manifest() -> None:
    every = dict(examples())
    for (name, manifest), taken in zip(every.items(), take(every.values()), strict=True):
        for path, items in lists(manifest["spec"], "spec"):
            assert dict(lists(taken.stored["spec"], "spec"))[path] == items, f"{name}: {path}"


def lists(value: Any, path: str) -> Iterator[tuple[str, list[Any]]]:
    """Yield the lists at or under a value that are in no other list, by path."""
    if isinstance(value, list):
        yield path, value
    elif isinstance(value, dict):
        for name, field in value.items():
            yield from lists(field, f"{path}.{name}")


def queue_cluster(*, listener: Manifest | None = None, pools: Any = ()) -> Manifest:
    inside = {"name": "tls", "port": 9092, "tls": {}, "authentication": {"type": "tls"}}
    also = [{**inside, "name": "also", "port": 9095, **listener}] if listener is not None else []
    spec: Manifest = {"replicas": 3, "storage": {"size": "1Gi"}, "listeners": [inside, *also]}
    if pools:
        spec["nodePools"] = list(pools)
    return {"apiVersion": API_VERSION, "kind": "QueueCluster", "metadata": META, "spec": spec}


def pool(**fields: Any) -> Manifest:
    return {"name": "large", "firstNodeId": 100, **fields}


def assert_answers(cases: list[tuple[Case, str]]) -> None:
    """Check the answer to each manifest, or to one after another: an empty text if the API server
    takes it, and otherwise a part of an error."""
    for (case, refusal), taken in zip(cases, take(case for case, _ in cases), strict=True):
        found = any(refusal in error for error in taken.errors)
        assert found == bool(refusal), f"{case}: {refusal!r}, not {taken.errors}"
        assert bool(taken.errors) == bool(refusal), f"{case}: {taken.errors}"


HOSTS = {"bootstrap": {"host": "b.example"}, "hostTemplate": "b-{nodeId}.example"}
LISTENERS: list[tuple[Manifest, str]] = [
    ({}, ""),
    ({"type": "Internal"}, ""),
    ({"type": "NodePort", "host": "node.example"}, ""),
    ({"type": "Ingress", "class": "nginx", **HOSTS}, ""),
    ({"host": "node.example"}, "host requires type NodePort"),
    ({"labels": {"a": "b"}}, "require another type than Internal"),
    ({"class": "nginx"}, "class requires type Ingress"),
    ({"parentRefs": [{"name": "g"}]}, "TLSRoute requires parentRefs"),
    ({"externalTrafficPolicy": "Local"}, "require type NodePort or LoadBalancer"),
    ({"loadBalancerSourceRanges": ["10.0.0.0/8"]}, "requires type LoadBalancer"),
    ({"hostTemplate": "b-{nodeId}.example"}, "require type Ingress or TLSRoute"),
]


def test_a_listener_without_type_is_internal() -> None:
    cases = [(queue_cluster(listener=one), refusal) for one, refusal in LISTENERS]
    outside = queue_cluster()
    outside["spec"]["listeners"][0]["type"] = "NodePort"
    assert_answers([*cases, (outside, "one listener must be Internal")])


CONTROLLERS = pool(roles=["controller"])
ALSO_CONTROLLERS = {**CONTROLLERS, "name": "b", "firstNodeId": 200}
POOLS = [
    ([pool()], ""),
    ([CONTROLLERS], ""),
    ([{**CONTROLLERS, "replicas": 3}], ""),
    ([{**CONTROLLERS, "replicas": 2}], "controllers has 1, 3 or 5 replicas"),
    ([CONTROLLERS, ALSO_CONTROLLERS], "one node pool can have"),
]


def test_a_pool_without_replicas_or_roles_is_one_broker() -> None:
    assert_answers([(queue_cluster(pools=pools), refusal) for pools, refusal in POOLS])


ROLES, GROWS, REMOVED = "roles cannot change", "can only grow", "cannot be removed"
BROKERS = pool(replicas=1, roles=["broker"])
OTHER = {"name": "other", "firstNodeId": 200}
#: A pool before and after a change. Objects that an earlier release stored have all values.
CHANGES = [
    (BROKERS, pool(), ""),
    (pool(), BROKERS, ""),
    (pool(replicas=0), OTHER, ""),
    (pool(), OTHER, REMOVED),
    (BROKERS, OTHER, REMOVED),
    (CONTROLLERS, {**CONTROLLERS, "replicas": 3}, ""),
    ({**CONTROLLERS, "replicas": 3}, CONTROLLERS, GROWS),
    ({**CONTROLLERS, "replicas": 3}, {**CONTROLLERS, "replicas": 1}, GROWS),
    (pool(), CONTROLLERS, ROLES),
    (BROKERS, CONTROLLERS, ROLES),
    (CONTROLLERS, pool(), ROLES),
    (CONTROLLERS, BROKERS, ROLES),
]


def test_a_change_of_a_pool_compares_what_is_left_out() -> None:
    befores = take(queue_cluster(pools=[before]) for before, _, _ in CHANGES)
    cases: list[tuple[Case, str]] = [
        ((before.stored, queue_cluster(pools=[after])), refusal)
        for before, (_, after, refusal) in zip(befores, CHANGES, strict=True)
    ]
    assert_answers(cases)


def queue_schedule(**fields: Any) -> Manifest:
    spec = {"cluster": "main", "topic": "jobs", "schedule": "0 3 * * *", **fields}
    return {"apiVersion": API_VERSION, "kind": "QueueSchedule", "metadata": META, "spec": spec}


SOURCE = {"name": "texts", "key": "job"}
SCHEDULES: list[tuple[Case, str]] = [
    (queue_schedule(), ""),
    (queue_schedule(payload={"secretKeyRef": SOURCE}), ""),
    (queue_schedule(payload={}), "name one source"),
    (queue_schedule(payload={"inline": "", "configMapKeyRef": SOURCE}), "name one source"),
    (queue_schedule(concurrencyPolicy="Forbid", shareGroup="workers"), ""),
    (queue_schedule(concurrencyPolicy="Forbid"), "Forbid and Replace need shareGroup"),
    (queue_schedule(concurrencyPolicy="Replace", shareGroup="workers"), ""),
    (queue_schedule(concurrencyPolicy="Replace"), "Forbid and Replace need shareGroup"),
    (queue_schedule(concurrencyPolicy="Never", shareGroup="workers"), "Never"),
    (queue_schedule(schedule="@daily"), "schedule"),
    ((queue_schedule(), queue_schedule(cluster="other")), "cannot move to another cluster"),
]


def test_a_schedule_names_one_payload_and_the_group_that_it_waits_for() -> None:
    assert_answers(SCHEDULES)


def share_group(**fields: Any) -> Manifest:
    spec = {"cluster": "main", **fields}
    return {"apiVersion": API_VERSION, "kind": "ShareGroup", "metadata": META, "spec": spec}


def fair(limits: Manifest | None = None, **fairness: Any) -> Manifest:
    by_key = {"by": "Key", **fairness}
    return share_group(fairness=by_key, **({} if limits is None else {"limits": limits}))


NAME, OUT_OF_BOUNDS = "the name of a tenant has up to 128 bytes, no comma", "in body should"
HEADER = "header goes with by Header"
SHARE_GROUPS: list[tuple[Manifest, str]] = [
    (fair(), ""),
    (fair(by="Header", header="customer"), ""),
    (fair(by="Header"), HEADER),
    (fair(header="customer"), HEADER),
    (fair(by="Header", header=" customer"), OUT_OF_BOUNDS),
    (share_group(fairness={}), "Required value"),
    (share_group(groupId="redrive.dlq"), "begin with redrive. are reserved"),
    ({**share_group(), "metadata": {**META, "name": "redrive.dlq"}}, "are reserved"),
    ({**share_group(groupId="mine"), "metadata": {**META, "name": "redrive.dlq"}}, ""),
    (share_group(groupId="redrives"), ""),
    (share_group(limits={"maxInFlight": 1}), "limits requires fairness"),
    (fair(weights={"a:b": 1000, "free tier": "0.001", "": "0.05", "x": "4.5"}), ""),
    (fair(weights={"a": 0}), OUT_OF_BOUNDS),
    (fair(weights={"a": 1001}), OUT_OF_BOUNDS),
    (fair(weights={"a": "0.000"}), OUT_OF_BOUNDS),
    (fair(weights={"a": "many"}), OUT_OF_BOUNDS),
    (fair(weights={"a": 2.5}), "must be of type integer,string"),
    (fair(weights={"a,b": 2}), NAME),
    (fair(weights={"a ": 2}), NAME),
    (fair(weights={"ä" * 64: 2}), ""),
    (fair(weights={"ä" * 65: 2}), NAME),
    (fair({"maxPerSecond": 5}), ""),
    (fair({"maxPerSecond": "0.5", "burst": 1}), ""),
    (fair({"maxPerSecond": 0}), OUT_OF_BOUNDS),
    (fair({"maxPerSecond": "-1"}), OUT_OF_BOUNDS),
    (fair({"burst": 1}), "burst requires maxPerSecond"),
    (fair({"maxInFlight": 0}), OUT_OF_BOUNDS),
    (fair({"maxInFlightOverrides": {"a": 0}, "maxPerSecondOverrides": {"a": 0, "b": "2.5"}}), ""),
    (fair({"maxInFlightOverrides": {"a,b": 1}}), NAME),
    (fair({"maxPerSecondOverrides": {"a": -1}}), OUT_OF_BOUNDS),
    (fair({"maxPerSecondOverrides": {",": 1}}), NAME),
    (fair({"pausedTenants": ["a", "b c"]}), ""),
    (fair({"pausedTenants": ["a,b"]}), NAME),
    (fair({"pausedTenants": [""]}), OUT_OF_BOUNDS),
]


def test_tenants_have_names_that_a_config_can_list_and_limits_need_tenants() -> None:
    assert_answers([*SHARE_GROUPS])
