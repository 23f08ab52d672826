"""The template of the brokers' pods.

Pods meet the pod security standard `restricted`: no root, a read-only root file system, no
capabilities.
"""

from __future__ import annotations

import copy
import json
from typing import TYPE_CHECKING, Literal, cast, get_args

from shoal_operator.model import (
    broker_config,
    field_defaults,
    listeners,
    names,
    node_pools,
    pod_layout,
    rack,
    security,
    storage,
    tiered,
)

if TYPE_CHECKING:
    from shoal_operator.model.kubernetes import (
        Container,
        EnvVar,
        PodSecurityContext,
        PodSpec,
        PodTemplateSpec,
        Probe,
        SecretVolume,
        TopologySpreadConstraint,
        Volume,
        VolumeMount,
    )
    from shoal_operator.model.names import Manifest
    from shoal_operator.model.queue_cluster import PodTemplate, PodVariable, QueueCluster

#: User and group of the broker image.
USER_ID = 1000
READY_PORT_NAME = "metrics"
ZONE = "topology.kubernetes.io/zone"
#: The variable of `broker.rack`.
RACK = "SHOAL_BROKER_RACK"
#: Variables with the pod's number: in slot 0 it is the broker id.
NODE_ID, POD_INDEX = "SHOAL_NODE_ID", "POD_INDEX"
PULL_POLICY = "IfNotPresent"
#: Only the brokers' user and group read the certificates.
SECRET_MODE = 0o440
TMP_DIR = "/tmp"
CONTAINER_SECURITY_CONTEXT = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}
#: Fields of `template.pod` that the pod's spec has under the same name.
_PodField = Literal[
    "nodeSelector",
    "affinity",
    "tolerations",
    "priorityClassName",
    "schedulerName",
    "runtimeClassName",
    "hostAliases",
    "dnsPolicy",
    "dnsConfig",
    "initContainers",
]
FIELDS: tuple[_PodField, ...] = get_args(_PodField)


def choose_image(cluster: QueueCluster, default_image: str) -> str:
    """Return the image of the brokers."""
    spec = cluster["spec"]
    if spec.get("image"):
        return str(spec["image"])
    if spec.get("version"):
        # The default has a digest or a tag: `repository@sha256:…`, `registry:5000/repository:tag`.
        repository = default_image.partition("@")[0]
        path, slash, last = repository.rpartition("/")
        return f"{path}{slash}{last.partition(':')[0]}:{spec['version']}"
    return default_image


def format_config_file(pod: int | str, slot: int) -> str:
    """Return the name of a broker's file; `pod` may be a reference to a variable."""
    return f"broker-{pod}-{slot}.properties" if slot else f"broker-{pod}.properties"


def build_template(
    cluster: QueueCluster,
    default_image: str,
    pull_policy: str,
    *,
    pool: node_pools.NodePool,
    openshift: bool,
    restores: bool = False,
) -> PodTemplateSpec:
    """Return the template of a pool's pods. `cluster` is the pool's view.

    `pull_policy` belongs to `default_image`. With `openshift`, the platform assigns user, group and
    seccomp profile. Controllers reach the object store only if the pod `restores` them from it.
    """
    has_store = restores or not pool.is_controller
    name, spec = cluster["metadata"]["name"], cluster["spec"]
    over = field_defaults.fill(spec.get("template", {}).get("pod", {}), field_defaults.POD_TEMPLATE)
    annotations = _build_annotations(cluster, pool, over)
    containers = [
        _build_container(cluster, pool, default_image, pull_policy, slot, has_store=has_store)
        for slot in range(pod_layout.get_brokers_per_pod(cluster))
    ]
    own_volumes: list[Volume] = [
        {"name": "config", "configMap": {"name": names.format_stateful_set(name)}},
        {"name": "tmp", "emptyDir": {"sizeLimit": "64Mi"}},
        *storage.build_volumes(cluster),
        *_build_secret_volumes(cluster, has_store=has_store),
    ]
    pod: PodSpec = {
        "serviceAccountName": names.format_stateful_set(name),
        "automountServiceAccountToken": False,
        # The variable SHOAL_…_PORT of a Service named shoal-… would be read as a broker config.
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": over["terminationGracePeriodSeconds"],
        "securityContext": over.get(
            "securityContext", _build_security_context(openshift=openshift)
        ),
        "topologySpreadConstraints": over.get("topologySpreadConstraints")
        or _build_spread_constraints(cluster, pool),
        "containers": [*containers, *over.get("containers", [])],
        "volumes": [*own_volumes, *over.get("volumes", [])],
    }
    for field in FIELDS:
        if over.get(field):
            pod[field] = over[field]
    if key := rack.get_topology_key(cluster):
        annotations[names.RACK_KEY] = key
        pod["volumes"].append(rack.build_volume())
        first = rack.build_container(containers[0])
        pod["initContainers"] = [first, *pod.get("initContainers", [])]
    if spec.get("imagePullSecrets"):
        pod["imagePullSecrets"] = spec["imagePullSecrets"]
    labels = {**over.get("labels", {}), **names.build_labels(name), **node_pools.build_labels(pool)}
    template: PodTemplateSpec = {
        "metadata": {"labels": labels, "annotations": annotations},
        "spec": pod,
    }
    annotations[names.TEMPLATE] = _compute_digest(template)
    return template


def _compute_digest(template: PodTemplateSpec) -> str:
    """Return the digest of a pod template without the amounts of CPU and memory.

    Whether there is a request or a limit counts, because no running pod gains or loses one. The
    init container of racks has the brokers' resources, and has ended.
    """
    stripped = cast("Manifest", copy.deepcopy(template))
    spec = stripped["spec"]
    ended = [c for c in spec.get("initContainers", []) if c["name"] == rack.CONTAINER]
    for container in [*spec["containers"], *ended]:
        for kind in ("requests", "limits"):
            amounts = container.get("resources", {}).get(kind, {})
            amounts |= {name: "" for name in storage.RESIZED if name in amounts}
    return broker_config.compute_digest(json.dumps(stripped, sort_keys=True))


def _build_annotations(
    cluster: QueueCluster, pool: node_pools.NodePool, over: PodTemplate
) -> dict[str, str]:
    spec = cluster["spec"]
    annotations = {
        **over.get("annotations", {}),
        names.CONFIG_HASH: broker_config.compute_digest(
            broker_config.format_properties(cluster, pool=pool)
        ),
        "prometheus.io/scrape": str(spec["metrics"].get("enabled", True)).lower(),
        "prometheus.io/port": str(spec["metrics"]["port"]),
    }
    if fingerprint := cluster.get("delegationTokenKey"):
        annotations[security.TOKEN_KEY_NOTE] = fingerprint
    if pod_layout.get_brokers_per_pod(cluster) > 1 or over.get("containers"):
        annotations["kubectl.kubernetes.io/default-container"] = pod_layout.format_container(0)
    if restart := cluster["metadata"].get("annotations", {}).get(names.RESTART):
        annotations[names.RESTART] = restart
    return annotations


def _build_secret_volumes(cluster: QueueCluster, *, has_store: bool) -> list[Volume]:
    out: list[Volume] = []
    for volume, secret, _ in _list_secrets(cluster, has_store=has_store):
        source: SecretVolume = {"secretName": secret, "defaultMode": SECRET_MODE}
        if volume == security.METRICS_TOKEN:
            # Brokers start without it, and then show their metrics to nobody.
            source["optional"] = True
        out.append({"name": volume, "secret": source})
    return out


def _build_security_context(*, openshift: bool) -> PodSecurityContext:
    common: PodSecurityContext = {"runAsNonRoot": True, "fsGroupChangePolicy": "OnRootMismatch"}
    if openshift:
        return common
    return {
        **common,
        "runAsUser": USER_ID,
        "runAsGroup": USER_ID,
        "fsGroup": USER_ID,
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def _build_spread_constraints(
    cluster: QueueCluster, pool: node_pools.NodePool
) -> list[TopologySpreadConstraint]:
    selector = names.build_selector(cluster["metadata"]["name"]) | node_pools.build_labels(pool)
    keys = ["kubernetes.io/hostname", ZONE]
    key = rack.get_topology_key(cluster)
    if key and key not in keys:
        keys.append(key)
    return [
        {
            "maxSkew": 1,
            "topologyKey": key,
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {"matchLabels": selector},
        }
        for key in keys
    ]


def _build_container(
    cluster: QueueCluster,
    pool: node_pools.NodePool,
    default_image: str,
    pull_policy: str,
    slot: int,
    *,
    has_store: bool,
) -> Container:
    spec = cluster["spec"]
    over = spec.get("template", {}).get("pod", {})
    # The chart's pull policy applies to the chart's image only.
    policy = PULL_POLICY if spec.get("image") else pull_policy
    ready_port = pod_layout.format_port_name(READY_PORT_NAME, slot)
    number = POD_INDEX if slot else NODE_ID
    # Kubernetes replaces the reference to the variable.
    config = f"{names.CONFIG_DIR}/{format_config_file(f'$({number})', slot)}"

    def build_probe(path: str, period_seconds: int, failures: int) -> Probe:
        return {
            "httpGet": {"path": path, "port": ready_port},
            "timeoutSeconds": 3,
            "periodSeconds": period_seconds,
            "failureThreshold": failures,
        }

    mounts: list[VolumeMount] = [
        {"name": pod_layout.format_volume(slot), "mountPath": names.DATA_DIR},
        {"name": "config", "mountPath": names.CONFIG_DIR, "readOnly": True},
        {"name": "tmp", "mountPath": TMP_DIR},
    ]
    mounts += [
        {"name": volume, "mountPath": path, "readOnly": True}
        for volume, _, path in _list_secrets(cluster, has_store=has_store)
    ]
    container: Container = {
        "name": pod_layout.format_container(slot),
        "image": choose_image(cluster, default_image),
        "imagePullPolicy": spec.get("imagePullPolicy") or policy,
        "args": ["server", "--log-json", "--config", config],
        "env": _build_environment(cluster, number, slot, has_store=has_store),
        "ports": [
            {"name": name, "containerPort": port}
            for name, port in map_ports(cluster, slot, pool).items()
        ],
        "volumeMounts": [*mounts, *over.get("volumeMounts", [])],
        # The last line of a failed broker's log goes into the pod's status and our condition.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "resources": storage.build_resources(cluster),
        "securityContext": over.get("containerSecurityContext", CONTAINER_SECURITY_CONTEXT),
        "startupProbe": build_probe("/healthz", period_seconds=1, failures=600),
        # The PodDisruptionBudget counts pods that are not ready: a broker that has to catch up
        # protects the others from eviction (ADR 96).
        "readinessProbe": build_probe("/readyz?in-sync", period_seconds=1, failures=3),
        "livenessProbe": build_probe("/healthz", period_seconds=10, failures=6),
    }
    other_slots = range(1, pod_layout.get_brokers_per_pod(cluster))
    if other_slots and not slot:
        # This broker may be the controller, which the others need to hand over: it stops last.
        metrics_ports = [
            str(pod_layout.compute_port(spec["metrics"]["port"], other_slot))
            for other_slot in other_slots
        ]
        pre_stop = ["python3", "-m", "shoal.server.host.pre_stop", *metrics_ports]
        container["lifecycle"] = {"preStop": {"exec": {"command": pre_stop}}}
    return container


def map_ports(cluster: QueueCluster, slot: int, pool: node_pools.NodePool) -> dict[str, int]:
    """Return the ports of a pool's container in a slot by name."""
    spec = cluster["spec"]
    listener_ports = {} if pool.is_controller else {n["name"]: n["port"] for n in spec["listeners"]}
    # Only brokers in slot 0 are controllers.
    own = {n.name: n.port for n in security.get_controller_listeners(cluster)} if not slot else {}
    metrics = {READY_PORT_NAME: spec["metrics"]["port"]}
    return {
        pod_layout.format_port_name(name, slot): pod_layout.compute_port(port, slot)
        for name, port in {**listener_ports, **own, **metrics}.items()
    }


def _list_secrets(cluster: QueueCluster, *, has_store: bool) -> list[tuple[str, str, str]]:
    """Return the name, the Secret and the mount path of volumes with Secrets."""
    of_store = tiered.list_volumes(cluster) if has_store else []
    return [*security.list_volumes(cluster), *of_store]


def _build_environment(
    cluster: QueueCluster, number: str, slot: int, *, has_store: bool
) -> list[PodVariable]:
    """Return a container's environment; `number` is the variable with the pod's number."""
    fields = {
        listeners.POD_NAME: "metadata.name",
        listeners.NODE_IP: "status.hostIP",
        number: "metadata.labels['apps.kubernetes.io/pod-index']",
    }
    entries: list[EnvVar] = [
        {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}
        for name, path in fields.items()
    ]
    if rack.get_topology_key(cluster):
        entries.append(rack.build_variable(RACK))
    own = cluster["spec"].get("template", {}).get("pod", {}).get("env", [])
    # `kubectl exec` runs `shoal` as the brokers, which are super users.
    client = security.build_shoal_environment(cluster, slot).items()
    entries += [{"name": name, "value": value} for name, value in client]
    entries += tiered.build_environment(cluster) if has_store else []
    taken_names = {e["name"] for e in entries}
    return [*entries, *(e for e in own if e["name"] not in taken_names)]
