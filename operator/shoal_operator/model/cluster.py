"""A QueueCluster as Kubernetes objects: accounts, settings, Services, guards and the StatefulSet.

Pods meet the `restricted` pod security standard: no root, a read-only root file system, no
capabilities. The StatefulSet's update strategy is OnDelete: the operator's roller alone decides
when a broker restarts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shoal_operator.model import broker_config, names
from shoal_operator.model.names import Manifest

#: User and group of the broker image.
USER_ID = 1000
READY_PORT_NAME = "metrics"
#: The port of the listener that a cluster has without any in its spec.
PORT = 9092


def manifests(cluster: Mapping[str, Any], default_image: str) -> list[Manifest]:
    """All objects of a cluster, in the order in which they are applied.

    `cluster` is a QueueCluster with the schema's defaults filled in.
    """
    objects = [
        _service_account(cluster),
        _config_map(cluster),
        _headless_service(cluster),
        _bootstrap_service(cluster),
        *_external_services(cluster),
        _disruption_budget(cluster),
    ]
    if cluster["spec"].get("networkPolicy", {}).get("enabled", True):
        objects.append(_network_policy(cluster))
    objects.append(_stateful_set(cluster, default_image))
    return objects


def image(cluster: Mapping[str, Any], default_image: str) -> str:
    """The image that the brokers shall run."""
    return cluster["spec"].get("image") or default_image


def bootstrap_servers(cluster: Mapping[str, Any], listener: Mapping[str, Any] | None = None) -> str:
    """`host:port` inside the Kubernetes cluster, by the first listener or the one given."""
    meta = cluster["metadata"]
    port = (listener or cluster["spec"]["listeners"][0])["port"]
    return f"{names.bootstrap(meta['name'])}.{meta['namespace']}.svc:{port}"


def metrics_url(cluster: Mapping[str, Any], broker_id: int) -> str:
    """Where one broker's metrics are, inside the Kubernetes cluster."""
    meta = cluster["metadata"]
    host = f"{names.pod(meta['name'], broker_id)}.{names.headless(meta['name'])}"
    return f"http://{host}.{meta['namespace']}.svc:{cluster['spec']['metrics']['port']}/metrics"


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


def _config_map(cluster: Mapping[str, Any]) -> Manifest:
    name = names.stateful_set(cluster["metadata"]["name"])
    body = {"data": {"server.properties": broker_config.properties(cluster)}}
    return _object(cluster, "v1", "ConfigMap", name, body)


def _ports(cluster: Mapping[str, Any]) -> list[Manifest]:
    return [
        {"name": n["name"], "port": n["port"], "targetPort": n["name"], "protocol": "TCP"}
        for n in cluster["spec"]["listeners"]
    ]


def _service(cluster: Mapping[str, Any], name: str, spec: Mapping[str, Any]) -> Manifest:
    made = _object(cluster, "v1", "Service", name, {"spec": dict(spec)})
    over = cluster["spec"].get("template", {}).get("service", {})
    made["metadata"]["labels"] |= over.get("labels", {})
    if over.get("annotations"):
        made["metadata"]["annotations"] = dict(over["annotations"])
    return made


def _headless_service(cluster: Mapping[str, Any]) -> Manifest:
    name = cluster["metadata"]["name"]
    return _service(
        cluster,
        names.headless(name),
        {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": names.selector(name),
            "ports": _ports(cluster),
        },
    )


def _bootstrap_service(cluster: Mapping[str, Any]) -> Manifest:
    name = cluster["metadata"]["name"]
    spec = {"type": "ClusterIP", "selector": names.selector(name), "ports": _ports(cluster)}
    return _service(cluster, names.bootstrap(name), spec)


def _external_services(cluster: Mapping[str, Any]) -> list[Manifest]:
    """One Service to bootstrap for each external listener, and one for each broker."""
    name = cluster["metadata"]["name"]
    made = []
    for listener in cluster["spec"]["listeners"]:
        if listener.get("type", "Internal") == "Internal":
            continue
        port = {
            "name": listener["name"],
            "port": listener["port"],
            "targetPort": listener["name"],
            "protocol": "TCP",
        }
        spec = {"type": listener["type"], "ports": [port]}
        made.append(
            _service(
                cluster,
                f"{name}-{listener['name']}-bootstrap",
                {**spec, "selector": names.selector(name)},
            )
        )
        for broker in range(int(cluster["spec"].get("replicas", 1))):
            only = {"statefulset.kubernetes.io/pod-name": names.pod(name, broker)}
            made.append(
                _service(
                    cluster,
                    f"{name}-{listener['name']}-{broker}",
                    {**spec, "selector": names.selector(name) | only},
                )
            )
    return made


def _disruption_budget(cluster: Mapping[str, Any]) -> Manifest:
    name = cluster["metadata"]["name"]
    body = {"spec": {"maxUnavailable": 1, "selector": {"matchLabels": names.selector(name)}}}
    return _object(
        cluster, "policy/v1", "PodDisruptionBudget", names.stateful_set(name), body
    )  # fmt: skip


def _network_policy(cluster: Mapping[str, Any]) -> Manifest:
    name, spec = cluster["metadata"]["name"], cluster["spec"]
    clients: Manifest = {
        "ports": [{"port": n["port"], "protocol": "TCP"} for n in spec["listeners"]]
    }
    peers = spec.get("networkPolicy", {}).get("from")
    if peers:
        clients["from"] = [*peers, {"podSelector": {"matchLabels": names.selector(name)}}]
    scrape = {"ports": [{"port": spec["metrics"]["port"], "protocol": "TCP"}]}
    body = {
        "spec": {
            "podSelector": {"matchLabels": names.selector(name)},
            "policyTypes": ["Ingress"],
            "ingress": [clients, scrape],
        }
    }
    return _object(
        cluster, "networking.k8s.io/v1", "NetworkPolicy", names.stateful_set(name), body
    )  # fmt: skip


def _stateful_set(cluster: Mapping[str, Any], default_image: str) -> Manifest:
    name, spec = cluster["metadata"]["name"], cluster["spec"]
    claim_spec: Manifest = {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": spec["storage"]["size"]}},
    }
    if spec["storage"].get("storageClassName"):
        claim_spec["storageClassName"] = spec["storage"]["storageClassName"]
    keep = spec["storage"].get("deletionPolicy", "Retain")
    body = {
        "spec": {
            "replicas": int(spec.get("replicas", 1)),
            "serviceName": names.headless(name),
            "podManagementPolicy": "Parallel",
            "updateStrategy": {"type": "OnDelete"},
            "selector": {"matchLabels": names.selector(name)},
            "persistentVolumeClaimRetentionPolicy": {"whenDeleted": keep, "whenScaled": "Retain"},
            "template": _pod_template(cluster, default_image),
            "volumeClaimTemplates": [
                {
                    "metadata": {"name": "data", "labels": names.labels(name)},
                    "spec": claim_spec,
                }
            ],
        }
    }
    return _object(cluster, "apps/v1", "StatefulSet", names.stateful_set(name), body)


def _pod_template(cluster: Mapping[str, Any], default_image: str) -> Manifest:
    name, spec = cluster["metadata"]["name"], cluster["spec"]
    over = spec.get("template", {}).get("pod", {})
    annotations = {
        **over.get("annotations", {}),
        names.CONFIG_HASH: broker_config.digest(broker_config.properties(cluster)),
        "prometheus.io/scrape": str(spec["metrics"].get("enabled", True)).lower(),
        "prometheus.io/port": str(spec["metrics"]["port"]),
    }
    restart = cluster["metadata"].get("annotations", {}).get(names.RESTART)
    if restart:
        annotations[names.RESTART] = restart
    pod: Manifest = {
        "serviceAccountName": names.stateful_set(name),
        "automountServiceAccountToken": False,
        # A Service named shoal-… would reach the broker as a setting, SHOAL_…_PORT.
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
        "containers": [_container(cluster, default_image)],
        "volumes": [
            {"name": "config", "configMap": {"name": names.stateful_set(name)}},
            {"name": "tmp", "emptyDir": {"sizeLimit": "64Mi"}},
        ],
    }
    for key in ("nodeSelector", "affinity", "tolerations", "priorityClassName"):
        if over.get(key):
            pod[key] = over[key]
    if spec.get("imagePullSecrets"):
        pod["imagePullSecrets"] = spec["imagePullSecrets"]
    labels = {**over.get("labels", {}), **names.labels(name)}
    return {"metadata": {"labels": labels, "annotations": annotations}, "spec": pod}


def _spread(cluster: Mapping[str, Any]) -> list[Manifest]:
    keys = ["kubernetes.io/hostname"]
    if rack := cluster["spec"].get("rack"):
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


def _container(cluster: Mapping[str, Any], default_image: str) -> Manifest:
    meta, spec = cluster["metadata"], cluster["spec"]
    host = f"$(POD_NAME).{names.headless(meta['name'])}.{meta['namespace']}.svc"
    advertised = ",".join(f"{n['name'].upper()}://{host}:{n['port']}" for n in spec["listeners"])
    metrics_port = spec["metrics"]["port"]

    def probe(path: str, **timing: int) -> Manifest:
        return {"httpGet": {"path": path, "port": READY_PORT_NAME}, "timeoutSeconds": 3, **timing}

    container: Manifest = {
        "name": "broker",
        "image": image(cluster, default_image),
        "imagePullPolicy": spec.get("imagePullPolicy", "IfNotPresent"),
        "args": ["server", "--log-json", "--config", f"{names.CONFIG_DIR}/server.properties"],
        "env": [
            {"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
            {
                "name": "SHOAL_NODE_ID",
                "valueFrom": {
                    "fieldRef": {"fieldPath": "metadata.labels['apps.kubernetes.io/pod-index']"}
                },
            },
            {"name": "SHOAL_ADVERTISED_LISTENERS", "value": advertised},
        ],
        "ports": [
            *({"name": n["name"], "containerPort": n["port"]} for n in spec["listeners"]),
            {"name": READY_PORT_NAME, "containerPort": metrics_port},
        ],
        "volumeMounts": [
            {"name": "data", "mountPath": names.DATA_DIR},
            {"name": "config", "mountPath": names.CONFIG_DIR, "readOnly": True},
            {"name": "tmp", "mountPath": "/tmp"},
        ],
        # A broker that ends says why in a sentence, which our condition then repeats.
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
    if spec.get("resources"):
        container["resources"] = spec["resources"]
    return container
