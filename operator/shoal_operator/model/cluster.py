"""The Kubernetes objects of a QueueCluster.

Each node pool has a StatefulSet. Its update strategy is OnDelete: only the operator's roller
restarts brokers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shoal_operator.model import (
    broker_config,
    broker_pod,
    external,
    listeners,
    names,
    node_pools,
    pod_layout,
    restore,
    security,
    storage,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shoal_operator.model.names import Manifest

#: The port of the default listener.
PORT = 9092
#: Label that Kubernetes gives to namespaces.
NAMESPACE = "kubernetes.io/metadata.name"


def manifests(
    cluster: Mapping[str, Any],
    default_image: str,
    services: listeners.Services | None = None,
    pull_policy: str = broker_pod.PULL_POLICY,
    operator_namespace: str = "",
    *,
    openshift: bool = False,
) -> list[Manifest]:
    """Return all objects of a cluster in the order in which they are applied.

    `cluster` has the schema's defaults filled in. `services` are its existing Services by name,
    which have the external addresses. `pull_policy` belongs to `default_image`. The operator's pods
    may be in any namespace if `operator_namespace` is empty. With `openshift`, the platform assigns
    user, group and seccomp profile.
    """
    objects = [
        _service_account(cluster),
        *service_manifests(cluster),
        _config_map(cluster, services or {}),
        _disruption_budget(cluster),
    ]
    if cluster["spec"].get("networkPolicy", {}).get("enabled", True):
        objects.append(_network_policy(cluster, operator_namespace))
    for pool in node_pools.of(cluster):
        view = node_pools.view(cluster, pool)
        restores = bool(restore.id_of(view))
        template = broker_pod.template(
            view, default_image, pull_policy, pool=pool, openshift=openshift, restores=restores
        )
        if restores:
            template = restore.template(view, template, pod_layout.brokers(cluster))
        objects.append(_stateful_set(view, pool, template))
    return objects


def service_manifests(cluster: Mapping[str, Any]) -> list[Manifest]:
    """Return the Services, which are applied first: they get the external addresses."""
    return [_service(cluster, one) for one in listeners.services(cluster)]


def bootstrap_servers(cluster: Mapping[str, Any]) -> str:
    """Return the bootstrap servers for clients inside the Kubernetes cluster."""
    if external.is_external(cluster):
        return external.bootstrap_servers(cluster)
    return listeners.bootstrap_servers(cluster, listeners.internal(cluster))


def http_url(cluster: Mapping[str, Any], broker_id: int, path: str = "metrics") -> str:
    """Return the URL of a broker's metrics or health checks inside the Kubernetes cluster."""
    meta = cluster["metadata"]
    pod = node_pools.pod_name(cluster, pod_layout.pod_of(broker_id))
    host = f"{pod}.{names.headless(meta['name'])}"
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
    made = _object(cluster, "v1", "ServiceAccount", name, body)
    return _with_metadata(made, cluster["spec"].get("template", {}).get("serviceAccount", {}))


def _config_map(cluster: Mapping[str, Any], services: listeners.Services) -> Manifest:
    """Return the ConfigMap with a properties file for each broker."""
    name = names.stateful_set(cluster["metadata"]["name"])
    data = {}
    for pool in node_pools.of(cluster):
        view = node_pools.view(cluster, pool)
        for slot in range(pod_layout.per_pod(view)):
            common = broker_config.properties(view, slot, pool=pool)
            for pod in pool.pods:
                id = pod_layout.broker(pod, slot)
                known = "" if pool.is_controller else listeners.advertised(cluster, id, services)
                text = common + broker_config.of_broker(view, id, known)
                data[broker_pod.config_file(pod, slot)] = text
    return _object(cluster, "v1", "ConfigMap", name, {"data": data})


def _service(cluster: Mapping[str, Any], one: listeners.Service) -> Manifest:
    made = _object(cluster, "v1", "Service", one.name, {"spec": one.spec})
    return _with_metadata(made, one.metadata)


def _with_metadata(made: Manifest, over: Mapping[str, Any]) -> Manifest:
    """Return an object or claim template with the user's labels and annotations, too."""
    meta = {**made["metadata"], "labels": over.get("labels", {}) | made["metadata"]["labels"]}
    if over.get("annotations"):
        meta["annotations"] = dict(over["annotations"])
    return {**made, "metadata": meta}


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

    brokers = [{"podSelector": {"matchLabels": names.selector(name)}}]
    where = {"matchLabels": {NAMESPACE: operator_namespace}} if operator_namespace else {}
    operator = {
        "namespaceSelector": where,
        "podSelector": {"matchLabels": names.OPERATOR_LABELS},
    }
    given = [n["port"] for n in security.given_listeners(cluster)]
    clients: Manifest = {"ports": ports(*given)}
    scrape: Manifest = {"ports": ports(spec["metrics"]["port"])}
    peers = spec.get("networkPolicy", {})
    if peers.get("from"):
        clients["from"] = [*peers["from"], *brokers]
    if peers.get("metricsFrom"):
        # The kubelet's probes need no rule: a pod's own node always reaches it.
        scrape["from"] = [*peers["metricsFrom"], *brokers, operator]
    quorum: Manifest = {
        "ports": [{"port": n.port, "protocol": "TCP"} for n in security.controllers(cluster)],
        # The operator sets the log levels of controllers that no client reaches.
        "from": [*brokers, operator] if node_pools.controllers(cluster) else brokers,
    }
    ingress: list[Manifest] = [clients, scrape, quorum]
    if security.has_internal_tls(cluster):
        ingress.append({"ports": ports(security.REPLICATION_PORT), "from": [*brokers, operator]})
    body = {
        "spec": {
            "podSelector": {"matchLabels": names.selector(name)},
            "policyTypes": ["Ingress"],
            "ingress": ingress,
        }
    }
    return _object(cluster, "networking.k8s.io/v1", "NetworkPolicy", names.stateful_set(name), body)


def claim_metadata(cluster: Mapping[str, Any], pool: node_pools.NodePool) -> Manifest:
    """Return the labels and annotations of a pool's volume claims. `cluster` is its view."""
    labels = names.labels(cluster["metadata"]["name"]) | node_pools.labels(pool)
    own = {"metadata": {"labels": labels}}
    over = cluster["spec"].get("template", {}).get("persistentVolumeClaim", {})
    return dict(_with_metadata(own, over)["metadata"])


def _stateful_set(
    cluster: Mapping[str, Any], pool: node_pools.NodePool, template: Manifest
) -> Manifest:
    """Return the StatefulSet of a pool. `cluster` is its view."""
    name, spec = cluster["metadata"]["name"], cluster["spec"]
    keep = spec["storage"].get("deletionPolicy", "Retain")
    body = {
        "spec": {
            "replicas": pool.replicas,
            "serviceName": names.headless(name),
            "podManagementPolicy": "Parallel",
            "updateStrategy": {"type": "OnDelete"},
            "selector": {"matchLabels": names.selector(name) | node_pools.labels(pool)},
            "persistentVolumeClaimRetentionPolicy": {"whenDeleted": keep, "whenScaled": "Retain"},
            "template": template,
        }
    }
    if claims := storage.claim_templates(cluster, claim_metadata(cluster, pool)):
        body["spec"]["volumeClaimTemplates"] = claims
    if pool.name:
        # The numbers of the pods are the ids of their brokers.
        body["spec"]["ordinals"] = {"start": pool.first_id}
    made = _object(cluster, "apps/v1", "StatefulSet", pool.stateful_set, body)
    made["metadata"]["labels"] |= node_pools.labels(pool)
    annotations = {}
    if security.has_internal_tls(cluster):
        annotations[security.INTERNAL_TLS] = str(security.internal_tls(cluster))
    if restoring := restore.id_of(cluster):
        annotations[names.RESTORE] = restoring
    if annotations:
        made["metadata"]["annotations"] = annotations
    return made
