"""What of a resource has no meaning on one machine.

A field that needs Kubernetes is left out where it would keep the operator from serving the
resource, and listed in any case: nothing is dropped silently. Every field of the definitions is in
a table here, or has its meaning; the definitions do not know the fields of pods, so for these the
tables have the fields with a meaning.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from shoal_operator.local.definitions import fill_defaults, load_definitions
from shoal_operator.model import field_defaults, names
from shoal_operator.model.consumers import spark
from shoal_operator.model.listeners import INTERNAL

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from shoal_operator.model.names import Manifest

#: The annotation with the fields of a resource that have no meaning on one machine.
NOTE = f"{names.GROUP}/not-on-one-machine"
_OF_BROKER_PODS = (
    "affinity",
    "containerSecurityContext",
    "dnsConfig",
    "dnsPolicy",
    "hostAliases",
    "initContainers",
    "nodeSelector",
    "priorityClassName",
    "runtimeClassName",
    "schedulerName",
    "securityContext",
    "tolerations",
    "topologySpreadConstraints",
)
_OF_SPARK = ("image", "imagePullPolicy", "serviceAccountName", "sparkVersion", "checkpoint.size")
_OF_ROLES = ("coreRequest", "coreLimit", "memory", "memoryOverhead", "nodeSelector", "tolerations")
#: Paths of specs that are kept and have no effect.
NO_EFFECT: Mapping[str, tuple[str, ...]] = {
    "QueueCluster": (
        "image",
        "imagePullPolicy",
        "imagePullSecrets",
        "networkPolicy",
        "nodePools[].resources",
        "nodePools[].storage",
        "nodePools[].template.persistentVolumeClaim",
        *(f"nodePools[].template.pod.{name}" for name in _OF_BROKER_PODS),
        "resources",
        "storage.size",
        "storage.storageClassName",
        "storage.volumeAttributesClassName",
        "template.persistentVolumeClaim",
        *(f"template.pod.{name}" for name in _OF_BROKER_PODS),
        "template.service",
        "template.serviceAccount",
        "version",
    ),
    "ShareConsumer": (
        "scaleTargetRef",
        *(f"spark.{name}" for name in _OF_SPARK),
        *(f"spark.{role}.{name}" for role in spark.CONTAINERS for name in _OF_ROLES),
    ),
}
#: Paths that are left out: with them, the operator would wait for what only Kubernetes has, or for
#: the object store of `tieredStorage`.
LEFT_OUT: Mapping[str, tuple[str, ...]] = {
    "QueueCluster": (
        "clientsCa.issuerRef",
        "clientsCa.type",
        "clusterCa.issuerRef",
        "clusterCa.type",
        "nodePools[].template.pod.containers",
        "rack",
        "restoreFrom",
        "storage.type",
        "template.pod.containers",
        "tieredStorage",
    ),
    "QueueTopic": ("localRetention", "tiered"),
}
#: The config that `tiered` of a QueueTopic sets.
_TIERED = "remote.storage.enable"
#: Where the specs of a ShareConsumer's pods are, and the fields of a pod, of its container and
#: within these that have their meaning. Executors have no process: the driver runs their tasks.
_WORKLOADS = ("deployment.template.spec", "job.template.spec", "spark.driver.template.spec")
_EXECUTORS = "spark.executor.template.spec"
_POD = ("containers", "restartPolicy", "terminationGracePeriodSeconds", "volumes")
_CONTAINER = (
    "args",
    "command",
    "env",
    "envFrom",
    "image",
    "lifecycle",
    "name",
    "readinessProbe",
    "startupProbe",
    "terminationMessagePolicy",
    "volumeMounts",
    "workingDir",
)
_OF_EXECUTORS = ("env", "name", "volumeMounts")
_PROBE = ("exec", "httpGet", "tcpSocket", "timeoutSeconds")
_WITHIN: Mapping[str, tuple[str, ...]] = {
    "lifecycle": ("preStop",),
    "lifecycle.preStop": ("exec",),
    "readinessProbe": (*_PROBE, "failureThreshold", "periodSeconds"),
    "startupProbe": _PROBE,
}
_VARIABLE = ("configMapKeyRef", "fieldRef", "secretKeyRef")


def adapt(manifest: Manifest, *, runs_images: bool = False) -> tuple[Manifest, list[str]]:
    """Return a valid resource as it is served here, and its fields without meaning here."""
    manifest, kind = copy.deepcopy(manifest), manifest["kind"]
    spec = manifest.get("spec", {})
    listed = []
    for path in (*NO_EFFECT.get(kind, ()), *LEFT_OUT.get(kind, ())):
        for parent, name, shown in list(_find(spec, path)):
            if not _is_said(kind, path, parent[name]):
                continue
            listed.append(f"spec.{shown}")
            if path in LEFT_OUT.get(kind, ()):
                del parent[name]
    if kind == "QueueCluster":
        listed += _adapt_listeners(spec)
    if kind == "QueueTopic" and spec.get("config", {}).get(_TIERED) == "true":
        del spec["config"][_TIERED]
        listed.append(f"spec.config[{_TIERED}]")
    if kind == "ShareConsumer":
        listed += _adapt_consumer(spec, runs_images=runs_images)
    listed.sort()
    if listed:
        notes = manifest["metadata"].setdefault("annotations", {})
        notes[NOTE] = ", ".join(listed)
    return manifest, listed


def put_back(old: Manifest, manifest: Manifest) -> Manifest:
    """Return the stored version of a resource with what was left out of it, as far as `manifest`
    still has it: rules about changes compare the two."""
    old, kind = copy.deepcopy(old), manifest["kind"]
    listed = old["metadata"].get("annotations", {}).get(NOTE, "").split(", ")
    for path in LEFT_OUT.get(kind, ()):
        if f"spec.{path}" in listed:
            for parent, name, _ in _find(manifest.get("spec"), path):
                section = old["spec"]
                for step in path.split(".")[:-1]:
                    section = section.setdefault(step, {})
                section[name] = copy.deepcopy(parent[name])
    return old


def _adapt_listeners(spec: Manifest) -> list[str]:
    """Leave out the listeners for clients outside of Kubernetes: brokers would advertise addresses
    that only a load balancer, a proxy or a node has."""
    outside = [
        listener
        for listener in spec.get("listeners", [])
        if listener.get("type", INTERNAL) != INTERNAL
    ]
    if outside:
        spec["listeners"] = [listener for listener in spec["listeners"] if listener not in outside]
    return [f"spec.listeners[{listener['name']}]" for listener in outside]


def _adapt_consumer(spec: Manifest, *, runs_images: bool) -> Iterator[str]:
    """Let a Spark application be of Kubeflow's form, whose part `local.spark` plays; yield this
    and what pods have without effect."""
    for path in (*_WORKLOADS, _EXECUTORS):
        for parent, name, _ in _find(spec, path):
            for shown in _list_of_pod(parent[name], path, runs_images=runs_images):
                yield f"spec.{path}.{shown}"
    if spec.get("spark", {}).get("operator") == "apache":
        spec["spark"]["operator"] = "kubeflow"
        yield "spec.spark.operator"


def _list_of_pod(pod: Manifest, path: str, *, runs_images: bool) -> Iterator[str]:
    """Yield the fields of a pod without effect."""
    yield from _list_others(pod, _POD)
    containers = pod.get("containers", [])
    used = _OF_EXECUTORS if path == _EXECUTORS else _CONTAINER
    if path.startswith("spark."):
        own = [
            container for container in containers if container["name"] in spark.CONTAINERS.values()
        ]
        yield from (
            f"containers[{container['name']}]" for container in containers if container not in own
        )
        containers = own
    for container in containers:
        prefix = f"containers[{container['name']}]"
        yield from (f"{prefix}.{name}" for name in _list_others(container, used))
        if container.get("image") and not runs_images:
            yield f"{prefix}.image"
        for path_within, fields in _WITHIN.items():
            for parent, name, _ in _find(container, path_within):
                others = _list_others(parent[name], fields)
                yield from (f"{prefix}.{path_within}.{other}" for other in others)
        for variable in container.get("env", []):
            others = _list_others(variable.get("valueFrom", {}), _VARIABLE)
            yield from (f"{prefix}.env[{variable['name']}].valueFrom.{other}" for other in others)


def _list_others(value: Any, used: Collection[str]) -> Iterator[str]:
    """Yield the fields of an object that say something and are not used."""
    for name, item in value.items() if isinstance(value, dict) else ():
        if name not in used and item not in ("", None, {}, []):
            yield name


def _find(spec: Any, path: str) -> Iterator[tuple[Manifest, str, str]]:
    """Yield the objects that have the field of a path, its name there, and the path as it is shown:
    `pools[].size` is `pools[big].size` in the item of that name."""
    first, _, rest = path.partition(".")
    name = first.removesuffix("[]")
    if not isinstance(spec, dict) or name not in spec:
        return
    if not rest:
        yield spec, name, name
        return
    is_list = name != first
    for item in spec[name] if is_list else [spec[name]]:
        shown = f"{name}[{item['name']}]" if is_list else name
        yield from ((parent, last, f"{shown}.{inner}") for parent, last, inner in _find(item, rest))


def _is_said(kind: str, path: str, value: Any) -> bool:
    """Return whether a field says something: more than its default does."""
    schema = load_definitions()[kind].schema["properties"]["spec"]
    for step in path.split("."):
        schema = schema["properties"][step.removesuffix("[]")]
        schema = schema["items"] if step.endswith("[]") else schema
    default = fill_defaults(schema.get("default", {}), schema)
    if path.endswith("Ca.type"):
        default = field_defaults.AUTHORITY["type"]
    return value not in ("", None, False, [], {}, default)
