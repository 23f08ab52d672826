"""The template of the brokers' pods.

Pods meet the pod security standard `restricted`: no root, a read-only root file system, no
capabilities.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shoal_operator.model import (
    assumed,
    broker_config,
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
    from collections.abc import Mapping

    from shoal_operator.model.names import Manifest

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
FIELDS = (
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
)


def image(cluster: Mapping[str, Any], default_image: str) -> str:
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


def config_file(pod: int | str, slot: int) -> str:
    """Return the name of a broker's file; `pod` may be a reference to a variable."""
    return f"broker-{pod}-{slot}.properties" if slot else f"broker-{pod}.properties"


def template(
    cluster: Mapping[str, Any],
    default_image: str,
    pull_policy: str,
    *,
    pool: node_pools.NodePool,
    openshift: bool,
    restores: bool = False,
) -> Manifest:
    """Return the template of a pool's pods. `cluster` is the pool's view.

    `pull_policy` belongs to `default_image`. With `openshift`, the platform assigns user, group and
    seccomp profile. Controllers reach the object store only if the pod `restores` them from it.
    """
    has_store = restores or not pool.is_controller
    name, spec = cluster["metadata"]["name"], cluster["spec"]
    over = assumed.fill(spec.get("template", {}).get("pod", {}), assumed.POD_TEMPLATE)
    annotations = {
        **over.get("annotations", {}),
        names.CONFIG_HASH: broker_config.digest(broker_config.properties(cluster, pool=pool)),
        "prometheus.io/scrape": str(spec["metrics"].get("enabled", True)).lower(),
        "prometheus.io/port": str(spec["metrics"]["port"]),
    }
    if fingerprint := spec.get("delegationTokenKey"):
        annotations[security.TOKEN_KEY_NOTE] = fingerprint
    sidecars = over.get("containers", [])
    if pod_layout.per_pod(cluster) > 1 or sidecars:
        annotations["kubectl.kubernetes.io/default-container"] = pod_layout.container(0)
    restart = cluster["metadata"].get("annotations", {}).get(names.RESTART)
    if restart:
        annotations[names.RESTART] = restart
    pod: Manifest = {
        "serviceAccountName": names.stateful_set(name),
        "automountServiceAccountToken": False,
        # The variable SHOAL_…_PORT of a Service named shoal-… would be read as a broker config.
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": over["terminationGracePeriodSeconds"],
        "securityContext": over.get("securityContext", _security_context(openshift=openshift)),
        "topologySpreadConstraints": over.get("topologySpreadConstraints")
        or _spread(cluster, pool),
        "containers": [
            *(
                _container(cluster, pool, default_image, pull_policy, slot, has_store=has_store)
                for slot in range(pod_layout.per_pod(cluster))
            ),
            *sidecars,
        ],
        "volumes": [
            {"name": "config", "configMap": {"name": names.stateful_set(name)}},
            {"name": "tmp", "emptyDir": {"sizeLimit": "64Mi"}},
            *storage.volumes(cluster),
        ],
    }
    pod["volumes"] += [*_secret_volumes(cluster, has_store=has_store), *over.get("volumes", [])]
    for key in FIELDS:
        if over.get(key):
            pod[key] = over[key]
    if key := rack.topology_key(cluster):
        annotations[names.RACK_KEY] = key
        pod["volumes"].append(rack.volume())
        first = rack.container(pod["containers"][0])
        pod["initContainers"] = [first, *pod.get("initContainers", [])]
    if spec.get("imagePullSecrets"):
        pod["imagePullSecrets"] = spec["imagePullSecrets"]
    labels = {**over.get("labels", {}), **names.labels(name), **node_pools.labels(pool)}
    return {"metadata": {"labels": labels, "annotations": annotations}, "spec": pod}


def _secret_volumes(cluster: Mapping[str, Any], *, has_store: bool) -> list[Manifest]:
    out = []
    for volume, secret, _ in _secrets(cluster, has_store=has_store):
        source: Manifest = {"secretName": secret, "defaultMode": SECRET_MODE}
        if volume == security.METRICS_TOKEN:
            # Brokers start without it, and then show their metrics to nobody.
            source["optional"] = True
        out.append({"name": volume, "secret": source})
    return out


def _security_context(*, openshift: bool) -> Manifest:
    common: Manifest = {"runAsNonRoot": True, "fsGroupChangePolicy": "OnRootMismatch"}
    if openshift:
        return common
    ids = dict.fromkeys(("runAsUser", "runAsGroup", "fsGroup"), USER_ID)
    return {**common, **ids, "seccompProfile": {"type": "RuntimeDefault"}}


def _spread(cluster: Mapping[str, Any], pool: node_pools.NodePool) -> list[Manifest]:
    selector = names.selector(cluster["metadata"]["name"]) | node_pools.labels(pool)
    keys = ["kubernetes.io/hostname", ZONE]
    key = rack.topology_key(cluster)
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


def _container(
    cluster: Mapping[str, Any],
    pool: node_pools.NodePool,
    default_image: str,
    pull_policy: str,
    slot: int,
    *,
    has_store: bool,
) -> Manifest:
    spec = cluster["spec"]
    over = spec.get("template", {}).get("pod", {})
    # The chart's pull policy applies to the chart's image only.
    policy = PULL_POLICY if spec.get("image") else pull_policy
    ready_port = pod_layout.port_name(READY_PORT_NAME, slot)
    number = POD_INDEX if slot else NODE_ID
    # Kubernetes replaces the reference to the variable.
    config = f"{names.CONFIG_DIR}/{config_file(f'$({number})', slot)}"

    def probe(path: str, **timing: int) -> Manifest:
        return {"httpGet": {"path": path, "port": ready_port}, "timeoutSeconds": 3, **timing}

    container: Manifest = {
        "name": pod_layout.container(slot),
        "image": image(cluster, default_image),
        "imagePullPolicy": spec.get("imagePullPolicy") or policy,
        "args": ["server", "--log-json", "--config", config],
        "env": _environment(cluster, number, slot, has_store=has_store),
        "ports": [
            {"name": name, "containerPort": port}
            for name, port in ports(cluster, slot, pool).items()
        ],
        "volumeMounts": [
            {"name": pod_layout.volume(slot), "mountPath": names.DATA_DIR},
            {"name": "config", "mountPath": names.CONFIG_DIR, "readOnly": True},
            {"name": "tmp", "mountPath": TMP_DIR},
        ],
        # The last line of a failed broker's log goes into the pod's status and our condition.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "resources": storage.resources(cluster),
        "securityContext": over.get("containerSecurityContext", CONTAINER_SECURITY_CONTEXT),
        "startupProbe": probe("/healthz", periodSeconds=1, failureThreshold=600),
        # The PodDisruptionBudget counts pods that are not ready: a broker that has to catch up
        # protects the others from eviction (ADR 96).
        "readinessProbe": probe("/readyz?in-sync", periodSeconds=1, failureThreshold=3),
        "livenessProbe": probe("/healthz", periodSeconds=10, failureThreshold=6),
    }
    for volume, _, path in _secrets(cluster, has_store=has_store):
        mount = {"name": volume, "mountPath": path, "readOnly": True}
        container["volumeMounts"].append(mount)
    container["volumeMounts"] += over.get("volumeMounts", [])
    others = range(1, pod_layout.per_pod(cluster))
    if others and not slot:
        # This broker may be the controller, which the others need to hand over: it stops last.
        metrics_ports = [str(pod_layout.port(spec["metrics"]["port"], other)) for other in others]
        pre_stop = ["python3", "-m", "shoal.server.host.pre_stop", *metrics_ports]
        container["lifecycle"] = {"preStop": {"exec": {"command": pre_stop}}}
    return container


def ports(cluster: Mapping[str, Any], slot: int, pool: node_pools.NodePool) -> dict[str, int]:
    """Return the ports of a pool's container in a slot by name."""
    spec = cluster["spec"]
    given = {} if pool.is_controller else {n["name"]: n["port"] for n in spec["listeners"]}
    # Only brokers in slot 0 are controllers.
    own = {n.name: n.port for n in security.controllers(cluster)} if not slot else {}
    metrics = {READY_PORT_NAME: spec["metrics"]["port"]}
    return {
        pod_layout.port_name(name, slot): pod_layout.port(port, slot)
        for name, port in {**given, **own, **metrics}.items()
    }


def _secrets(cluster: Mapping[str, Any], *, has_store: bool) -> list[tuple[str, str, str]]:
    """Return the name, the Secret and the mount path of volumes with Secrets."""
    of_store = tiered.volumes(cluster) if has_store else []
    return [*security.volumes(cluster), *of_store]


def _environment(
    cluster: Mapping[str, Any], number: str, slot: int, *, has_store: bool
) -> list[Manifest]:
    """Return a container's environment; `number` is the variable with the pod's number."""
    fields = {
        listeners.POD_NAME: "metadata.name",
        listeners.NODE_IP: "status.hostIP",
        number: "metadata.labels['apps.kubernetes.io/pod-index']",
    }
    given = [
        {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}
        for name, path in fields.items()
    ]
    if rack.topology_key(cluster):
        given.append(rack.variable(RACK))
    own = cluster["spec"].get("template", {}).get("pod", {}).get("env", [])
    # `kubectl exec` runs `shoal` as the brokers, which are super users.
    client = security.shoal_environment(cluster, slot).items()
    given += [{"name": name, "value": value} for name, value in client]
    given += tiered.environment(cluster) if has_store else []
    taken = {e["name"] for e in given}
    return [*given, *(e for e in own if e["name"] not in taken)]
