"""`spec.template` and the Services of listeners on a real Kubernetes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from e2e.cluster import images
from e2e.resources import PAUSE, Resources, queue_cluster
from support.runs.conditions import eventually

if TYPE_CHECKING:
    from collections.abc import Mapping

Manifest = dict[str, Any]
SECURE = {"tls": {}, "authentication": {"type": "tls"}}
INSIDE = {"name": "tls", "port": 9092, "type": "Internal", **SECURE}
OUTSIDE = {"name": "outside", "port": 9094, "type": "NodePort", **SECURE}
ROUTED = {
    "name": "outside",
    "port": 9094,
    "type": "Ingress",
    "bootstrap": {"host": "queues.example.com"},
    "hostTemplate": "broker-{nodeId}.queues.example.com",
    **SECURE,
}


def routed(*without: str, **fields: Any) -> Manifest:
    """Return a spec with a routed listener, without some fields and with others."""
    outside = {key: value for key, value in ROUTED.items() if key not in without}
    return {"listeners": [INSIDE, outside | fields]}


def container(name: str, code: str = PAUSE) -> Manifest:
    image = {"image": images.tag("broker"), "imagePullPolicy": "Never"}
    return {"name": name, **image, "command": ["python3", "-c", code]}


def pods(**pod: Any) -> Manifest:
    return {"template": {"pod": pod}}


def in_broker(queue: Resources, code: str) -> str:
    run = ("exec", "main-broker-0", "--", "python3", "-c", code)
    return queue.kubectl(*run).stdout.strip()


def test_a_pod_has_volumes_containers_and_a_security_context(resources: Resources) -> None:
    settings = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "mine"}}
    resources.apply({**settings, "data": {"key": "value"}})
    copy = "open('/mine/out', 'w').write(open('/mine/in/key').read())"
    mounts = [
        {"name": "given", "mountPath": "/mine/in"},
        {"name": "shared", "mountPath": "/mine"},
    ]
    first = {**container("copy", copy), "volumeMounts": mounts}
    template = pods(
        volumes=[
            {"name": "given", "configMap": {"name": "mine"}},
            {"name": "shared", "emptyDir": {}},
        ],
        volumeMounts=[mounts[1]],
        initContainers=[first],
        containers=[container("sidecar")],
        # The sidecar ignores the signal to stop.
        terminationGracePeriodSeconds=5,
        hostAliases=[{"ip": "127.0.0.9", "hostnames": ["idp.example"]}],
        securityContext={"runAsUser": 4321, "runAsNonRoot": True, "fsGroup": 1000},
        containerSecurityContext={"allowPrivilegeEscalation": False},
    )
    resources.apply(queue_cluster(**template))
    resources.wait("queuecluster/main", timeout_s=120)
    code = "import os, socket; print(os.getuid(), open('/mine/out').read(), "
    found = in_broker(resources, code + "socket.gethostbyname('idp.example'))")
    assert found == "4321 value 127.0.0.9"
    before = resources.uid("pod/main-broker-0")
    # Without the sidecar, and nothing else.
    del template["template"]["pod"]["containers"]
    resources.apply(queue_cluster(**template))
    resources.wait_replaced("pod/main-broker-0", before)
    resources.wait("queuecluster/main", timeout_s=90)
    names = [c["name"] for c in resources.get("pod/main-broker-0")["spec"]["containers"]]
    assert names == ["broker"]


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (pods(volumes=[{"name": "data1"}]), "spec.template.pod.volumes[0].name"),
        (pods(containers=[{"name": "broker"}]), "spec.template.pod.containers[0].name"),
        (pods(initContainers=[{"name": "broker2"}]), "spec.template.pod.initContainers[0].name"),
        (
            pods(volumeMounts=[{"name": "x", "mountPath": "/etc/shoal-tls/x"}]),
            "spec.template.pod.volumeMounts[0].mountPath",
        ),
        (
            {"listeners": [INSIDE | {"externalTrafficPolicy": "Local"}]},
            "require type NodePort or LoadBalancer",
        ),
        (
            {"listeners": [INSIDE, OUTSIDE | {"loadBalancerSourceRanges": ["10.0.0.0/8"]}]},
            "loadBalancerSourceRanges requires type LoadBalancer",
        ),
        (routed("tls", "authentication"), "type Ingress and TLSRoute require tls"),
        (routed(bootstrap={}), "type Ingress and TLSRoute require bootstrap.host"),
        (routed("hostTemplate"), "require a host for each broker"),
        (routed("hostTemplate", brokers=[{"broker": 0}]), "require a host for each broker"),
        (routed(hostTemplate="broker.example.com"), "spec.listeners[1].hostTemplate"),
        (routed(parentRefs=[{"name": "x"}]), "type TLSRoute requires parentRefs"),
        (routed(type="TLSRoute"), "type TLSRoute requires parentRefs"),
        (routed(externalTrafficPolicy="Local"), "require type NodePort or LoadBalancer"),
        (
            {"listeners": [INSIDE, OUTSIDE | {"advertisedPort": 1}]},
            "advertisedPort, bootstrap.host",
        ),
        ({"listeners": [INSIDE, OUTSIDE | {"class": "nginx"}]}, "class requires type Ingress"),
    ],
)
def test_the_api_server_refuses_what_the_operator_owns(
    resources: Resources, spec: Manifest, words: str
) -> None:
    assert words in resources.refusal(queue_cluster(**spec))


def test_what_a_schema_cannot_refuse_is_a_condition(resources: Resources) -> None:
    resources.apply(queue_cluster(**pods(labels={"shoal.dev/cluster": "other"})))
    said = resources.wait_reason("queuecluster/main", "TemplateNotAllowed")
    assert "spec.template.pod.labels shoal.dev/cluster is not allowed" in said
    assert resources.find_all("statefulsets") == []


def metadata(queue: Resources, what: str, field: str) -> Mapping[str, str]:
    return queue.get(what)["metadata"].get(field, {})


def test_objects_beside_the_pods_change_without_a_restart(queue: Resources) -> None:
    listener = OUTSIDE | {
        "externalTrafficPolicy": "Local",
        "annotations": {"lb": "internal"},
        "bootstrap": {"nodePort": 32100},
        "brokers": [{"broker": 0, "nodePort": 32101, "annotations": {"dns": "0.example"}}],
    }
    queue.apply(queue_cluster(listeners=[INSIDE, listener]))
    queue.wait("queuecluster/main", timeout_s=120)
    rows = queue.status("queuecluster/main")["listeners"]
    assert rows[1]["bootstrapServers"].endswith(":32100")
    service = queue.get("service/main-outside-0")
    assert service["spec"]["ports"][0]["nodePort"] == 32101
    assert service["spec"]["externalTrafficPolicy"] == "Local"
    before = queue.uid("pod/main-broker-0")
    listener["annotations"] = {"lb": "public"}
    del listener["externalTrafficPolicy"]
    template = {
        "serviceAccount": {"annotations": {"role": "r"}},
        "persistentVolumeClaim": {"labels": {"team": "a"}, "annotations": {"backup": "daily"}},
    }
    queue.apply(queue_cluster(listeners=[INSIDE, listener], template=template))

    def changed() -> bool:
        service = queue.get("service/main-outside-0")
        notes = service["metadata"]["annotations"]
        assert (notes["lb"], notes["dns"]) == ("public", "0.example")
        assert service["spec"]["externalTrafficPolicy"] == "Cluster"
        claim = "persistentvolumeclaim/data-main-broker-0"
        assert metadata(queue, claim, "labels")["team"] == "a"
        assert metadata(queue, claim, "annotations")["backup"] == "daily"
        assert metadata(queue, "serviceaccount/main-broker", "annotations")["role"] == "r"
        return True

    eventually(changed, timeout_s=30)
    queue.apply(queue_cluster(listeners=[INSIDE, listener]))

    def removed() -> bool:
        claim = "persistentvolumeclaim/data-main-broker-0"
        assert "team" not in metadata(queue, claim, "labels")
        assert "backup" not in metadata(queue, claim, "annotations")
        assert "role" not in metadata(queue, "serviceaccount/main-broker", "annotations")
        return True

    eventually(removed, timeout_s=30)
    queue.wait("queuecluster/main")
    assert queue.uid("pod/main-broker-0") == before
    listener["brokers"] = [{"broker": 0, "nodePort": 32102}]
    queue.apply(queue_cluster(listeners=[INSIDE, listener]))
    queue.wait_event("QueueCluster", "main", "BrokerRestart", "external address")
    queue.wait_replaced("pod/main-broker-0", before)
    queue.wait("queuecluster/main", timeout_s=90)


def test_a_node_port_that_is_taken_is_reported(queue: Resources) -> None:
    taken = OUTSIDE | {
        "bootstrap": {"nodePort": 32110},
        "brokers": [{"broker": 0, "nodePort": 32110}],
    }
    queue.apply(queue_cluster(listeners=[INSIDE, taken]))
    said = queue.wait_reason("queuecluster/main", "ApplyFailed")
    assert "32110" in said
    assert "already allocated" in said
    queue.apply(queue_cluster())
    queue.wait("queuecluster/main", timeout_s=90)
