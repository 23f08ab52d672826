"""The Kubernetes objects of a QueueCluster.

Pods meet the pod security standard `restricted`: no root, a read-only root file system, no
capabilities. The StatefulSet's update strategy is OnDelete: only the operator's roller restarts
brokers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shoal_operator.model import broker_config, listeners, names, pod_layout, security

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shoal_operator.model.names import Manifest

#: User and group of the broker image.
USER_ID = 1000
READY_PORT_NAME = "metrics"
ZONE, REGION = "topology.kubernetes.io/zone", "topology.kubernetes.io/region"
#: Node labels that Kubernetes copies to pods (Kubernetes, "Pod topology labels").
POD_TOPOLOGY_LABELS = (ZONE, REGION)
#: Variables with the pod's number: in slot 0 it is the broker id.
NODE_ID, POD_INDEX = "SHOAL_NODE_ID", "POD_INDEX"
#: The port of the default listener.
PORT = 9092
PULL_POLICY = "IfNotPresent"
#: Label that Kubernetes gives to namespaces.
NAMESPACE = "kubernetes.io/metadata.name"
#: Only the brokers' user and group read the certificates.
SECRET_MODE = 0o440


def manifests(
    cluster: Mapping[str, Any],
    default_image: str,
    services: listeners.Services | None = None,
    pull_policy: str = PULL_POLICY,
    operator_namespace: str = "",
) -> list[Manifest]:
    """Return all objects of a cluster in the order in which they are applied.

    `cluster` has the schema's defaults filled in. `services` are its existing Services by name,
    which have the external addresses. `pull_policy` belongs to `default_image`. The operator's pods
    may be in any namespace if `operator_namespace` is empty.
    """
    objects = [
        _service_account(cluster),
        *service_manifests(cluster),
        _config_map(cluster, services or {}),
        _disruption_budget(cluster),
    ]
    if cluster["spec"].get("networkPolicy", {}).get("enabled", True):
        objects.append(_network_policy(cluster, operator_namespace))
    objects.append(_stateful_set(cluster, default_image, pull_policy))
    return objects


def service_manifests(cluster: Mapping[str, Any]) -> list[Manifest]:
    """Return the Services, which are applied first: they get the external addresses."""
    return [_service(cluster, name, spec) for name, spec in listeners.services(cluster)]


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


def bootstrap_servers(cluster: Mapping[str, Any]) -> str:
    """Return the bootstrap servers for clients inside the Kubernetes cluster."""
    return listeners.bootstrap_servers(cluster, listeners.internal(cluster))


def http_url(cluster: Mapping[str, Any], broker_id: int, path: str = "metrics") -> str:
    """Return the URL of a broker's metrics or health checks inside the Kubernetes cluster."""
    meta = cluster["metadata"]
    host = f"{names.pod(meta['name'], pod_layout.pod_of(broker_id))}.{names.headless(meta['name'])}"
    port = pod_layout.port(cluster["spec"]["metrics"]["port"], pod_layout.slot_of(broker_id))
    scheme = "https" if security.has_metrics_tls(cluster) else "http"
    return f"{scheme}://{host}.{meta['namespace']}.svc:{port}/{path}"


def _object(
    cluster: Mapping[str, Any], api: str, kind: str, name: str, body: Mapping[str, Any]
) -> Manifest:
    meta = cluster["metadata"]
    return {
        "apiVersion": api,
        "kind": kind,
        "metadata": {
            "name": name,
            "namespace": meta["namespace"],
            "labels": names.labels(meta["name"]),
            "ownerReferences": [names.owner(cluster)],
        },
        **body,
    }


def _service_account(cluster: Mapping[str, Any]) -> Manifest:
    name = names.stateful_set(cluster["metadata"]["name"])
    body = {"automountServiceAccountToken": False}
    return _object(cluster, "v1", "ServiceAccount", name, body)


def _config_map(cluster: Mapping[str, Any], services: listeners.Services) -> Manifest:
    """Return the ConfigMap with a properties file for each broker."""
    name = names.stateful_set(cluster["metadata"]["name"])
    common = [
        broker_config.properties(cluster, slot) for slot in range(pod_layout.per_pod(cluster))
    ]
    data = {
        config_file(pod_layout.pod_of(broker), pod_layout.slot_of(broker)): common[
            pod_layout.slot_of(broker)
        ]
        + broker_config.of_broker(cluster, broker, listeners.advertised(cluster, broker, services))
        for broker in pod_layout.brokers(cluster)
    }
    return _object(cluster, "v1", "ConfigMap", name, {"data": data})


def config_file(pod: int | str, slot: int) -> str:
    """Return the name of a broker's file; `pod` may be a reference to a variable."""
    return f"broker-{pod}-{slot}.properties" if slot else f"broker-{pod}.properties"


def _service(cluster: Mapping[str, Any], name: str, spec: Mapping[str, Any]) -> Manifest:
    made = _object(cluster, "v1", "Service", name, {"spec": dict(spec)})
    over = cluster["spec"].get("template", {}).get("service", {})
    made["metadata"]["labels"] |= over.get("labels", {})
    if over.get("annotations"):
        made["metadata"]["annotations"] = dict(over["annotations"])
    return made


def _disruption_budget(cluster: Mapping[str, Any]) -> Manifest:
    name = cluster["metadata"]["name"]
    body = {"spec": {"maxUnavailable": 1, "selector": {"matchLabels": names.selector(name)}}}
    return _object(cluster, "policy/v1", "PodDisruptionBudget", names.stateful_set(name), body)


def _network_policy(cluster: Mapping[str, Any], operator_namespace: str) -> Manifest:
    name, spec = cluster["metadata"]["name"], cluster["spec"]
    every = range(pod_layout.per_pod(cluster))

    def ports(*given: int) -> list[Manifest]:
        return [
            {"port": pod_layout.port(p, slot), "protocol": "TCP"} for slot in every for p in given
        ]

    given = [n["port"] for n in security.given_listeners(cluster)]
    clients: Manifest = {"ports": ports(*given)}
    peers = spec.get("networkPolicy", {}).get("from")
    if peers:
        clients["from"] = [*peers, {"podSelector": {"matchLabels": names.selector(name)}}]
    scrape = {"ports": ports(spec["metrics"]["port"])}
    brokers = [{"podSelector": {"matchLabels": names.selector(name)}}]
    quorum = {
        "ports": [{"port": n.port, "protocol": "TCP"} for n in security.controllers(cluster)],
        "from": brokers,
    }
    ingress: list[Manifest] = [clients, scrape, quorum]
    if security.has_internal_tls(cluster):
        where = {"matchLabels": {NAMESPACE: operator_namespace}} if operator_namespace else {}
        pods = {"matchLabels": names.OPERATOR_LABELS}
        operator = {"namespaceSelector": where, "podSelector": pods}
        ingress.append({"ports": ports(security.REPLICATION_PORT), "from": [*brokers, operator]})
    body = {
        "spec": {
            "podSelector": {"matchLabels": names.selector(name)},
            "policyTypes": ["Ingress"],
            "ingress": ingress,
        }
    }
    return _object(cluster, "networking.k8s.io/v1", "NetworkPolicy", names.stateful_set(name), body)


def _stateful_set(cluster: Mapping[str, Any], default_image: str, pull_policy: str) -> Manifest:
    name, spec = cluster["metadata"]["name"], cluster["spec"]
    every = range(pod_layout.per_pod(cluster))
    claim_spec: Manifest = {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": spec["storage"]["size"]}},
    }
    if spec["storage"].get("storageClassName"):
        claim_spec["storageClassName"] = spec["storage"]["storageClassName"]
    keep = spec["storage"].get("deletionPolicy", "Retain")
    body = {
        "spec": {
            "replicas": pod_layout.replicas(cluster),
            "serviceName": names.headless(name),
            "podManagementPolicy": "Parallel",
            "updateStrategy": {"type": "OnDelete"},
            "selector": {"matchLabels": names.selector(name)},
            "persistentVolumeClaimRetentionPolicy": {"whenDeleted": keep, "whenScaled": "Retain"},
            "template": _pod_template(cluster, default_image, pull_policy),
            "volumeClaimTemplates": [
                {
                    "metadata": {"name": pod_layout.volume(slot), "labels": names.labels(name)},
                    "spec": claim_spec,
                }
                for slot in every
            ],
        }
    }
    made = _object(cluster, "apps/v1", "StatefulSet", names.stateful_set(name), body)
    if security.has_internal_tls(cluster):
        made["metadata"]["annotations"] = {
            security.INTERNAL_TLS: str(security.internal_tls(cluster))
        }
    return made


def _pod_template(cluster: Mapping[str, Any], default_image: str, pull_policy: str) -> Manifest:
    name, spec = cluster["metadata"]["name"], cluster["spec"]
    over = spec.get("template", {}).get("pod", {})
    annotations = {
        **over.get("annotations", {}),
        names.CONFIG_HASH: broker_config.digest(broker_config.properties(cluster)),
        "prometheus.io/scrape": str(spec["metrics"].get("enabled", True)).lower(),
        "prometheus.io/port": str(spec["metrics"]["port"]),
    }
    if pod_layout.per_pod(cluster) > 1:
        annotations["kubectl.kubernetes.io/default-container"] = pod_layout.container(0)
    restart = cluster["metadata"].get("annotations", {}).get(names.RESTART)
    if restart:
        annotations[names.RESTART] = restart
    pod: Manifest = {
        "serviceAccountName": names.stateful_set(name),
        "automountServiceAccountToken": False,
        # The variable SHOAL_…_PORT of a Service named shoal-… would be read as a broker config.
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": over.get("terminationGracePeriodSeconds", 60),
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER_ID,
            "runAsGroup": USER_ID,
            "fsGroup": USER_ID,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "topologySpreadConstraints": over.get("topologySpreadConstraints") or _spread(cluster),
        "containers": [
            _container(cluster, default_image, pull_policy, slot)
            for slot in range(pod_layout.per_pod(cluster))
        ],
        "volumes": [
            {"name": "config", "configMap": {"name": names.stateful_set(name)}},
            {"name": "tmp", "emptyDir": {"sizeLimit": "64Mi"}},
        ],
    }
    for volume, secret, _ in security.volumes(cluster):
        source: Manifest = {"secretName": secret, "defaultMode": SECRET_MODE}
        if volume == security.METRICS_TOKEN:
            # Brokers start without it, and then show their metrics to nobody.
            source["optional"] = True
        pod["volumes"].append({"name": volume, "secret": source})
    for key in ("nodeSelector", "affinity", "tolerations", "priorityClassName"):
        if over.get(key):
            pod[key] = over[key]
    if spec.get("imagePullSecrets"):
        pod["imagePullSecrets"] = spec["imagePullSecrets"]
    labels = {**over.get("labels", {}), **names.labels(name)}
    return {"metadata": {"labels": labels, "annotations": annotations}, "spec": pod}


def _spread(cluster: Mapping[str, Any]) -> list[Manifest]:
    keys = ["kubernetes.io/hostname", ZONE]
    rack = cluster["spec"].get("rack")
    if rack and rack["topologyKey"] not in keys:
        keys.append(rack["topologyKey"])
    return [
        {
            "maxSkew": 1,
            "topologyKey": key,
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {"matchLabels": names.selector(cluster["metadata"]["name"])},
        }
        for key in keys
    ]


def _container(
    cluster: Mapping[str, Any], default_image: str, pull_policy: str, slot: int
) -> Manifest:
    spec = cluster["spec"]
    # The chart's pull policy applies to the chart's image only.
    policy = PULL_POLICY if spec.get("image") else pull_policy
    ready_port = pod_layout.port_name(READY_PORT_NAME, slot)
    number = POD_INDEX if slot else NODE_ID
    # Kubernetes replaces the reference to the variable.
    config = f"{names.CONFIG_DIR}/{config_file(f'$({number})', slot)}"
    ports = {n["name"]: n["port"] for n in spec["listeners"]}
    own = {n.name: n.port for n in security.controllers(cluster)} if not slot else {}
    metrics = {READY_PORT_NAME: spec["metrics"]["port"]}

    def probe(path: str, **timing: int) -> Manifest:
        return {"httpGet": {"path": path, "port": ready_port}, "timeoutSeconds": 3, **timing}

    container: Manifest = {
        "name": pod_layout.container(slot),
        "image": image(cluster, default_image),
        "imagePullPolicy": spec.get("imagePullPolicy") or policy,
        "args": ["server", "--log-json", "--config", config],
        "env": _environment(cluster, number, slot),
        "ports": [
            {"name": pod_layout.port_name(name, slot), "containerPort": pod_layout.port(port, slot)}
            for name, port in {**ports, **own, **metrics}.items()
        ],
        "volumeMounts": [
            {"name": pod_layout.volume(slot), "mountPath": names.DATA_DIR},
            {"name": "config", "mountPath": names.CONFIG_DIR, "readOnly": True},
            {"name": "tmp", "mountPath": "/tmp"},
        ],
        # The last line of a failed broker's log goes into the pod's status and our condition.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "startupProbe": probe("/healthz", periodSeconds=1, failureThreshold=600),
        "readinessProbe": probe("/readyz", periodSeconds=2, failureThreshold=2),
        "livenessProbe": probe("/healthz", periodSeconds=10, failureThreshold=6),
    }
    for volume, _, path in security.volumes(cluster):
        mount = {"name": volume, "mountPath": path, "readOnly": True}
        container["volumeMounts"].append(mount)
    if spec.get("resources"):
        container["resources"] = spec["resources"]
    others = range(1, pod_layout.per_pod(cluster))
    if others and not slot:
        # This broker may be the controller, which the others need to hand over: it stops last.
        metrics_ports = [str(pod_layout.port(spec["metrics"]["port"], other)) for other in others]
        pre_stop = ["python3", "-m", "shoal.server.host.pre_stop", *metrics_ports]
        container["lifecycle"] = {"preStop": {"exec": {"command": pre_stop}}}
    return container


def _environment(cluster: Mapping[str, Any], number: str, slot: int) -> list[Manifest]:
    """Return a container's environment; `number` is the variable with the pod's number."""
    fields = {
        listeners.POD_NAME: "metadata.name",
        listeners.NODE_IP: "status.hostIP",
        number: "metadata.labels['apps.kubernetes.io/pod-index']",
    }
    key = cluster["spec"].get("rack", {}).get("topologyKey", "")
    if key in POD_TOPOLOGY_LABELS:
        # Kubernetes 1.35 copies this label from the node to its pods; before, it is empty.
        fields["SHOAL_BROKER_RACK"] = f"metadata.labels['{key}']"
    given = [
        {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}
        for name, path in fields.items()
    ]
    own = cluster["spec"].get("template", {}).get("pod", {}).get("env", [])
    # `kubectl exec` runs `shoal` as the brokers, which are super users.
    client = security.shoal_environment(cluster, slot).items()
    given += [{"name": name, "value": value} for name, value in client]
    taken = {e["name"] for e in given}
    return [*given, *(e for e in own if e["name"] not in taken)]
