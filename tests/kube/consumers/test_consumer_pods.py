"""The pods of ShareConsumers under Pod Security `restricted`, with requests and without a token."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml
from kube import rendered
from shoal_operator.model import cluster
from shoal_operator.model.consumers import deployment, job
from shoal_operator.model.consumers.consumer_pod import PodContext

ROOT = Path(__file__).parents[3]
PLACE = {"name": "eaters", "namespace": "n", "uid": "u"}
DROPPED = {"drop": ["ALL"]}
Manifest = dict[str, Any]


def pod(spec: Manifest, rack_key: str = "", form: str = "deployment") -> Manifest:
    """Return the spec of the pods that the operator makes of a template."""
    template = {"template": {"spec": copy.deepcopy(spec)}}
    consumer: Any = {"kind": "ShareConsumer", "metadata": PLACE, "spec": {form: template}}
    about = PodContext("main", "b:1", "g", ["t"], "r/broker:1", "Always", "worker", rack_key)
    if form == "job":
        made = job.build_manifest(consumer, about)
    else:
        made = deployment.build_manifest(consumer, about, 1)
    found: Manifest = made["spec"]["template"]["spec"]
    return found


def problems(pod: Manifest) -> list[str]:
    """Return what the pod security standard `restricted` forbids (Kubernetes' documentation, "Pod
    Security Standards")."""
    own, found = pod.get("securityContext", {}), []
    for one in [*pod.get("initContainers", []), *pod["containers"]]:
        context = own | one.get("securityContext", {})
        wanted = {
            "allowPrivilegeEscalation": False,
            "runAsNonRoot": True,
            "capabilities": DROPPED,
            "seccompProfile": {"type": "RuntimeDefault"},
        }
        found += [f"{one['name']}: {k}" for k, v in wanted.items() if context.get(k) != v]
    return found


@pytest.mark.parametrize("form", ["deployment", "job"])
@pytest.mark.parametrize("rack_key", ["", "topology.kubernetes.io/zone"])
def test_a_template_without_a_security_context_is_restricted(form: str, rack_key: str) -> None:
    given = {"containers": [{"name": "a"}, {"name": "b"}], "initContainers": [{"name": "i"}]}
    made = pod(given, rack_key, form)
    assert problems(made) == []
    assert made["automountServiceAccountToken"] is False
    asked = [one["resources"] for one in made["containers"]]
    assert asked == [{"requests": {"cpu": "50m", "memory": "64Mi"}}] * 2


def test_the_example_is_restricted() -> None:
    consumer = yaml.safe_load((ROOT / "examples" / "05-share-consumer.yaml").read_text())
    assert problems(pod(consumer["spec"]["deployment"]["template"]["spec"])) == []


def test_what_the_template_says_counts() -> None:
    one: Manifest = {
        "name": "a",
        "resources": {},
        "securityContext": {"runAsNonRoot": False, "capabilities": {"add": ["NET_ADMIN"]}},
    }
    own = {"seccompProfile": {"type": "Unconfined"}, "fsGroup": 7}
    spec = {"containers": [one], "securityContext": own, "automountServiceAccountToken": True}
    made = pod(spec)
    (container,) = made["containers"]
    assert container["resources"] == {}
    assert container["securityContext"] == one["securityContext"] | {
        "allowPrivilegeEscalation": False
    }
    assert made["securityContext"] == own | {"runAsNonRoot": True}
    assert made["automountServiceAccountToken"] is True


@pytest.mark.parametrize(
    "context",
    [{"privileged": True}, {"capabilities": {"drop": ["ALL"], "add": ["SYS_ADMIN"]}}],
)
def test_what_the_api_server_would_refuse_is_not_added(context: Manifest) -> None:
    made = pod({"containers": [{"name": "a", "securityContext": context}]})
    assert "allowPrivilegeEscalation" not in made["containers"][0]["securityContext"]


def test_what_the_kubelet_would_not_start_is_not_added() -> None:
    root = {"name": "a", "securityContext": {"runAsUser": 0}}
    assert "runAsNonRoot" not in pod({"containers": [root]})["securityContext"]
    empty = {"name": "a", "securityContext": None}
    assert problems(pod({"containers": [empty], "securityContext": None})) == []
    windows = pod({"containers": [{"name": "a"}], "os": {"name": "windows"}})
    assert "securityContext" not in windows
    assert windows["automountServiceAccountToken"] is False


def test_a_pod_with_an_account_of_its_own_has_its_token() -> None:
    made = pod({"containers": [{"name": "a"}], "serviceAccountName": "thumbnailer"})
    assert "automountServiceAccountToken" not in made


def test_brokers_have_requests_unless_the_spec_has_resources() -> None:
    resource = rendered.clusters()["least"]

    def resources(**spec: Any) -> Manifest:
        resource["spec"] |= spec
        (container,) = cluster.build_manifests(resource, "i:1")[-1]["spec"]["template"]["spec"][
            "containers"
        ]
        found: Manifest = container["resources"]
        return found

    resource["spec"].pop("resources", None)
    assert resources() == {"requests": {"cpu": "100m", "memory": "256Mi"}}
    assert resources(resources={}) == {"requests": {"cpu": "100m", "memory": "256Mi"}}
    limited = {"limits": {"memory": "1Gi"}}
    assert resources(resources=limited) == limited
