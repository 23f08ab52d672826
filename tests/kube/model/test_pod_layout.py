"""Several brokers in a pod: rendered objects, restarts, and placement of replicas."""

from __future__ import annotations

import copy
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kube import rendered
from shoal.server.cluster_config import make_cluster_config
from shoal.server.config import resolve
from shoal_operator.brokers import pods
from shoal_operator.brokers.diagnostics import diagnose_pods
from shoal_operator.brokers.placement import drain
from shoal_operator.brokers.roller import (
    BrokerPod,
    ControllerQuorum,
    DoneStep,
    PartitionState,
    RestartStep,
    WaitStep,
    choose_next_step,
    format_brokers,
)
from shoal_operator.model import cluster, listeners, pod_layout

BEFORE = json.loads(Path(__file__).parents[1].joinpath("rendered.json").read_text())


def wanted(per_pod: int, replicas: int = 4) -> Any:
    """Return the cluster with every field, and this number of brokers in each pod."""
    resource = copy.deepcopy(rendered.clusters()["whole"])
    resource["spec"] |= {"brokersPerPod": per_pod, "replicas": replicas}
    del resource["spec"]["rack"]
    return resource


def objects(resource: dict, kind: str) -> list[dict]:
    return [made for made in rendered.rendered(resource) if made["kind"] == kind]


def files(resource: dict) -> dict[str, str]:
    (found,) = objects(resource, "ConfigMap")
    return found["data"]


def template(resource: dict) -> dict:
    (found,) = objects(resource, "StatefulSet")
    return found["spec"]["template"]


@pytest.mark.parametrize("name", sorted(BEFORE))
def test_with_one_broker_in_a_pod_nothing_rendered_changes(name: str) -> None:
    """An operator that is upgraded must not roll existing clusters, unless docs/install.md says
    why."""
    resource = rendered.clusters()[name]
    assert rendered.rendered(resource) == BEFORE[name]
    resource["spec"]["brokersPerPod"] = 1
    assert rendered.rendered(resource) == BEFORE[name]


def test_ids_identify_pods_and_do_not_change_with_their_number() -> None:
    assert pod_layout.list_brokers(wanted(1, 3)) == [0, 1, 2]
    assert pod_layout.list_brokers(wanted(3, 2)) == [0, 1, 1000, 1001, 2000, 2001]
    assert set(pod_layout.list_brokers(wanted(2, 3))) < set(pod_layout.list_brokers(wanted(2, 5)))
    ids = pod_layout.list_brokers(wanted(16, 100))
    assert len(set(ids)) == 1600
    assert Counter(map(pod_layout.get_pod, ids)) == dict.fromkeys(range(100), 16)
    assert pod_layout.list_brokers(wanted(2, 3))[:3] == pod_layout.list_brokers(wanted(1, 3))


def test_the_first_broker_of_a_pod_stops_last() -> None:
    """The others shut down through a controller, which may be in the same pod."""
    first, *others = template(wanted(3))["spec"]["containers"][:3]
    assert first["lifecycle"]["preStop"]["exec"]["command"] == [
        "python3",
        "-m",
        "shoal.server.host.pre_stop",
        "10404",
        "11404",
    ]
    ready = {port["containerPort"] for one in others for port in one["ports"]}
    assert {10404, 11404} <= ready
    assert not any("lifecycle" in one for one in others)


def broker_config(resource: dict, pod: int, container: dict):
    """Return the settings of a broker as its container starts it in that pod."""
    env = {
        "metadata.name": f"main-broker-{pod}",
        "status.hostIP": "10.0.0.9",
        "metadata.labels['apps.kubernetes.io/pod-index']": str(pod),
    }
    own_env = {e["name"]: env[e["valueFrom"]["fieldRef"]["fieldPath"]] for e in container["env"]}
    path = re.sub(r"\$\((\w+)\)", lambda m: own_env[m[1]], container["args"][-1])
    return resolve({}, own_env, files(resource)[path.rpartition("/")[2]], path)


@pytest.mark.parametrize("per_pod", [1, 2, 16])
def test_every_broker_starts_with_settings_of_its_own(per_pod: int) -> None:
    resource = wanted(per_pod)
    containers = template(resource)["spec"]["containers"]
    assert len(containers) == per_pod
    found = {}
    for pod in range(4):
        ports: list[int] = []
        for slot, container in enumerate(containers):
            config = broker_config(resource, pod, container)
            whole = make_cluster_config(config)
            found[config.node_id] = config
            assert config.node_id == pod_layout.compute_broker_id(pod, slot)
            assert whole.is_controller == (pod < 3 and slot == 0)
            assert whole.voters is not None
            assert sorted(whole.voters.voters) == [0, 1, 2]
            mine = [one.port for one in config.listeners] + [config.metrics_listener.port]
            declared = {p["name"]: p["containerPort"] for p in container["ports"]}
            assert sorted(declared.values()) == sorted(mine)
            ports += mine
            inside = config.advertised["PLAIN"]
            assert inside.host == f"main-broker-{pod}.main-brokers.n.svc"
            assert inside.port == config.listeners[0].port == 9092 + 1000 * slot
            assert (config["broker.rack"] or "") == ("" if per_pod == 1 else f"main-broker-{pod}")
            assert config["default.replication.factor"] == 3
            for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
                assert declared[container[probe]["httpGet"]["port"]] == 9404 + 1000 * slot
            url = cluster.build_http_url(resource, config.node_id)
            assert (
                url == f"http://main-broker-{pod}.main-brokers.n.svc:{9404 + 1000 * slot}/metrics"
            )
        assert len(set(ports)) == len(ports)
    assert sorted(found) == sorted(pod_layout.list_brokers(resource))
    names = [p["name"] for c in containers for p in c["ports"]]
    assert len(set(names)) == len(names)
    assert max(map(len, names)) <= 15


def test_each_broker_has_a_volume_of_its_own() -> None:
    (stateful,) = objects(wanted(3), "StatefulSet")
    assert stateful["spec"]["replicas"] == 4
    claims = [c["metadata"]["name"] for c in stateful["spec"]["volumeClaimTemplates"]]
    mounted = [
        next(m["name"] for m in c["volumeMounts"] if m["mountPath"] == "/var/lib/shoal")
        for c in stateful["spec"]["template"]["spec"]["containers"]
    ]
    assert claims == mounted == ["data", "data1", "data2"]


def test_each_broker_is_reached_from_outside_by_a_service_of_its_own() -> None:
    resource = wanted(2, 3)
    own = {s["metadata"]["name"]: s["spec"] for s in objects(resource, "Service")}
    containers = template(resource)["spec"]["containers"]
    where = {p["name"]: p["containerPort"] for c in containers for p in c["ports"]}
    addresses = []
    for broker in pod_layout.list_brokers(resource):
        spec = own[f"main-outside-{broker}"]
        pod = spec["selector"]["statefulset.kubernetes.io/pod-name"]
        assert pod == f"main-broker-{broker % 1000}"
        (port,) = spec["ports"]
        assert (port["port"], where[port["targetPort"]]) == (9094, 9094 + broker // 1000 * 1000)
        addresses.append(listeners.format_advertised(resource, broker, rendered.services(resource)))
    assert len(set(addresses)) == 6
    (bootstrap,) = own["main-bootstrap"]["ports"][:1]
    assert where[bootstrap["targetPort"]] == 9092


def test_clients_may_connect_to_every_broker_of_a_pod() -> None:
    (policy,) = objects(wanted(2), "NetworkPolicy")
    ports = [[p["port"] for p in rule["ports"]] for rule in policy["spec"]["ingress"]]
    assert ports == [[9092, 9094, 9095, 10092, 10094, 10095], [9404, 10404], [9093]]


def test_more_pods_change_nothing_for_those_that_run() -> None:
    three, five = wanted(2, 3), wanted(2, 5)
    assert template(three) == template(five)
    have = rendered.services(five)
    files = [
        next(m["data"] for m in cluster.build_manifests(r, "i:1", have) if m["kind"] == "ConfigMap")
        for r in (three, five)
    ]
    assert files[0].items() <= files[1].items()
    assert (len(files[0]), len(files[1])) == (6, 10)


# -- status of pods


def pod(ready: dict[str, bool], **meta: str) -> dict:
    every = "True" if all(ready.values()) else "False"
    return {
        "metadata": {"name": "main-broker-2", **meta},
        "spec": {"containers": [{"name": n} for n in [*ready, "mesh-proxy"]]},
        "status": {
            "conditions": [{"type": "Ready", "status": every}],
            "containerStatuses": [{"name": n, "ready": r, "state": {}} for n, r in ready.items()],
        },
    }


def test_a_pod_shows_which_of_its_brokers_serve() -> None:
    assert pods.get_broker_readiness(pod({"broker": True})) == {2: True}
    assert pods.get_broker_readiness(pod({"broker": True, "broker1": False})) == {
        2: True,
        1002: False,
    }
    ending = pod({"broker": True, "broker1": True}, deletionTimestamp="now")
    assert pods.get_broker_readiness(ending) == {2: False, 1002: False}


def test_of_several_containers_the_one_in_trouble_is_named() -> None:
    seen = pod({"broker": True, "broker1": False})
    seen["status"]["containerStatuses"][1] |= {
        "state": {"waiting": {"reason": "CrashLoopBackOff"}},
        "lastState": {"terminated": {"message": "bad num.partitions"}},
    }
    found = diagnose_pods([seen], [])
    assert found
    assert found.reason == "BrokerFails"
    assert "main-broker-2, container broker1: CrashLoopBackOff bad num" in found.message


# -- rolls


WHY = "a setting changed"


def three_pods(stale: tuple[int, ...] = (), unready: tuple[int, ...] = ()) -> list[BrokerPod]:
    return [
        BrokerPod(p, p not in unready, WHY if p in stale else "", other_brokers=(p + 1000,))
        for p in range(3)
    ]


def partition(isr: tuple[int, ...], replicas: tuple[int, ...], isr_min: int = 2):
    return PartitionState("jobs-0", replicas, isr, isr_min)


def test_a_pod_is_restarted_with_all_its_brokers() -> None:
    full = [partition((0, 1001, 2), (0, 1001, 2))]
    assert choose_next_step(three_pods(), full, 0) == DoneStep()
    step = choose_next_step(three_pods(stale=(0, 1, 2)), full, 1000)
    assert step == RestartStep(1, WHY, (1001,)), "the pod of the controller goes last"
    assert format_brokers(step.broker_id, step.other_brokers) == "brokers 1, 1001"


def test_the_isr_is_kept_without_all_brokers_of_the_pod() -> None:
    """Pod 0's first broker could stop, its second one could not."""
    behind = [partition((0, 1, 2), (0, 1, 2)), partition((1000, 1), (1000, 1, 2))]
    assert choose_next_step(three_pods(stale=(0, 2)), behind, 0) == RestartStep(2, WHY, (1002,))
    step = choose_next_step(three_pods(stale=(0,)), behind, 2)
    assert isinstance(step, WaitStep)
    assert step.serving
    assert "without brokers 0, 1000 jobs-0 would fall below its min ISR" in step.reason


def test_replicas_that_share_a_pod_hold_its_restart_up_until_they_are_spread() -> None:
    shared = [partition((0, 1000, 1), (0, 1000, 1))]
    step = choose_next_step(three_pods(stale=(0,)), shared, 2)
    assert isinstance(step, WaitStep)
    assert "2 of its replicas share that pod" in step.reason
    assert "a QueueRebalance with mode Racks spreads them" in step.reason


def test_more_replicas_than_pods_cannot_be_waited_for() -> None:
    every = (0, 1, 2, 1000)
    four = [partition(every, every, 3)]
    assert choose_next_step(three_pods(stale=(0,)), four, 2) == RestartStep(0, WHY, (1000,))
    assert isinstance(
        choose_next_step(three_pods(stale=(0,)), [partition((0, 1), every, 2)], 2), WaitStep
    )


def test_a_pod_with_one_broken_broker_still_serves_by_the_other() -> None:
    """It restarts first, but not before the replicas of its other broker are in sync elsewhere."""
    stale = three_pods(stale=(0, 1, 2), unready=(0,))
    healthy = [partition((0, 1, 2), (0, 1, 2)), partition((1, 2), (1000, 1, 2))]
    assert choose_next_step(stale, healthy, 0) == RestartStep(0, WHY, (1000,))
    needed = [partition((0, 1), (0, 1, 2))]
    step = choose_next_step(stale, needed, 0)
    assert isinstance(step, WaitStep)
    assert not step.serving
    assert choose_next_step(stale, None, -1) == RestartStep(0, WHY, (1000,)), "no broker answers"
    other = three_pods(stale=(0, 1), unready=(0, 2))
    assert isinstance(choose_next_step(other, needed, 0), WaitStep)


def test_a_pod_takes_its_voter_along() -> None:
    quorum = ControllerQuorum(frozenset({0, 1, 2}), frozenset({0, 1}))
    step = choose_next_step(three_pods(stale=(1,)), [], 0, quorum=quorum)
    assert isinstance(step, WaitStep)
    assert "1 of 3 controllers" in step.reason


def test_one_that_is_not_ready_stops_the_roll() -> None:
    step = choose_next_step(three_pods(stale=(1,), unready=(0,)), [], 2)
    assert isinstance(step, WaitStep)
    assert step.reason == "one of brokers 0, 1000 is not ready"


# -- placement of replicas


@st.composite
def layouts(draw: st.DrawFn):
    """Draw partitions whose replicas share no pod, over pods of one to three brokers."""
    count, per_pod = draw(st.integers(4, 6)), draw(st.integers(1, 3))
    rows = []
    for number in range(draw(st.integers(0, 20))):
        on = draw(st.lists(st.integers(0, count - 1), min_size=1, max_size=3, unique=True))
        ids = tuple(
            pod_layout.compute_broker_id(pod, draw(st.integers(0, per_pod - 1))) for pod in on
        )
        rows.append(PartitionState(f"t-{number}", ids, ids, 1))
    return count, per_pod, rows


def brokers(count: int, per_pod: int) -> list[int]:
    return [
        pod_layout.compute_broker_id(pod, slot) for slot in range(per_pod) for pod in range(count)
    ]


@given(layouts())
def test_a_pod_that_leaves_is_drained_and_the_rest_stay_apart(layout) -> None:
    count, per_pod, rows = layout
    plan = drain(rows, brokers(count - 1, per_pod))
    assert not plan.unplaceable
    for row in rows:
        after = {pod_layout.get_pod(broker) for broker in plan.moves.get(row.name, row.replicas)}
        assert len(after) == len(row.replicas)
        assert count - 1 not in after


def test_as_many_replicas_as_pods_keep_the_pods() -> None:
    four = PartitionState("t-0", (0, 1, 2, 3), (0, 1, 2, 3), 2)
    assert drain([four], brokers(3, 2)).unplaceable == ("t-0",)
