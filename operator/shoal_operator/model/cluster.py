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

    from shoal_operator.model.kubernetes import (
        ClaimMetadata,
        DisruptionBudgetSpec,
        IngressRule,
        NetworkPolicySpec,
        PodTemplateSpec,
        PolicyPeer,
        PolicyPort,
        StatefulSetSpec,
    )
    from shoal_operator.model.names import Manifest
    from shoal_operator.model.queue_cluster import QueueCluster

#: The port of the default listener.
PORT = 9092
#: Label that Kubernetes gives to namespaces.
NAMESPACE = "kubernetes.io/metadata.name"


def build_manifests(
    cluster: QueueCluster,
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
        _build_service_account(cluster),
        *build_service_manifests(cluster),
        _build_config_map(cluster, services or {}),
        _build_disruption_budget(cluster),
    ]
    if cluster["spec"].get("networkPolicy", {}).get("enabled", True):
        objects.append(_build_network_policy(cluster, operator_namespace))
    for pool in node_pools.list_pools(cluster):
        view = node_pools.make_view(cluster, pool)
        restores = bool(restore.get_restore_id(view))
        template = broker_pod.build_template(
            view, default_image, pull_policy, pool=pool, openshift=openshift, restores=restores
        )
        if restores:
            template = restore.build_template(view, template, pod_layout.list_brokers(cluster))
        objects.append(_build_stateful_set(view, pool, template))
    return objects


def build_service_manifests(cluster: QueueCluster) -> list[Manifest]:
    """Return the Services, which are applied first: they get the external addresses."""
    return [_build_service(cluster, service) for service in listeners.build_services(cluster)]


def get_bootstrap_servers(cluster: QueueCluster) -> str:
    """Return the bootstrap servers for clients inside the Kubernetes cluster."""
    if external.is_external(cluster):
        return external.get_bootstrap_servers(cluster)
    return listeners.get_bootstrap_servers(cluster, listeners.get_internal(cluster))


def build_http_url(cluster: QueueCluster, broker_id: int, path: str = "metrics") -> str:
    """Return the URL of a broker's metrics or health checks inside the Kubernetes cluster."""
    meta = cluster["metadata"]
    pod = node_pools.format_pod_name(cluster, pod_layout.get_pod(broker_id))
    host = f"{pod}.{names.format_headless_service(meta['name'])}"
    port = pod_layout.compute_port(
        cluster["spec"]["metrics"]["port"], pod_layout.get_slot(broker_id)
    )
    scheme = "https" if security.has_metrics_tls(cluster) else "http"
    return f"{scheme}://{host}.{meta['namespace']}.svc:{port}/{path}"


def _build_object(
    cluster: QueueCluster, api: str, kind: str, name: str, body: Mapping[str, Any]
) -> Manifest:
    labels = names.build_labels(cluster["metadata"]["name"])
    return {
        "apiVersion": api,
        "kind": kind,
        "metadata": names.build_metadata(cluster, name, labels),
        **body,
    }


def _build_service_account(cluster: QueueCluster) -> Manifest:
    name = names.format_stateful_set(cluster["metadata"]["name"])
    body = {"automountServiceAccountToken": False}
    manifest = _build_object(cluster, "v1", "ServiceAccount", name, body)
    return _with_metadata(manifest, cluster["spec"].get("template", {}).get("serviceAccount", {}))


def _build_config_map(cluster: QueueCluster, services: listeners.Services) -> Manifest:
    """Return the ConfigMap with a properties file for each broker."""
    name = names.format_stateful_set(cluster["metadata"]["name"])
    data = {}
    for pool in node_pools.list_pools(cluster):
        view = node_pools.make_view(cluster, pool)
        for slot in range(pod_layout.get_brokers_per_pod(view)):
            common = broker_config.format_properties(view, slot, pool=pool)
            for pod in pool.pods:
                id = pod_layout.compute_broker_id(pod, slot)
                advertised = (
                    "" if pool.is_controller else listeners.format_advertised(cluster, id, services)
                )
                text = common + broker_config.format_broker_properties(view, id, advertised)
                data[broker_pod.format_config_file(pod, slot)] = text
    return _build_object(cluster, "v1", "ConfigMap", name, {"data": data})


def _build_service(cluster: QueueCluster, service: listeners.ListenerService) -> Manifest:
    manifest = _build_object(cluster, "v1", "Service", service.name, {"spec": service.spec})
    return _with_metadata(manifest, service.metadata)


def _with_metadata(manifest: Manifest, over: Mapping[str, Any]) -> Manifest:
    """Return an object or claim template with the user's labels and annotations, too."""
    meta = {
        **manifest["metadata"],
        "labels": over.get("labels", {}) | manifest["metadata"]["labels"],
    }
    if over.get("annotations"):
        meta["annotations"] = dict(over["annotations"])
    return {**manifest, "metadata": meta}


def _build_disruption_budget(cluster: QueueCluster) -> Manifest:
    name = cluster["metadata"]["name"]
    spec: DisruptionBudgetSpec = {
        "maxUnavailable": 1,
        "selector": {"matchLabels": names.build_selector(name)},
    }
    object_name = names.format_stateful_set(name)
    return _build_object(cluster, "policy/v1", "PodDisruptionBudget", object_name, {"spec": spec})


def _build_network_policy(cluster: QueueCluster, operator_namespace: str) -> Manifest:
    name, cluster_spec = cluster["metadata"]["name"], cluster["spec"]
    slots = range(pod_layout.get_brokers_per_pod(cluster))

    def build_ports(*base_ports: int) -> list[PolicyPort]:
        return [
            {"port": pod_layout.compute_port(p, slot), "protocol": "TCP"}
            for slot in slots
            for p in base_ports
        ]

    brokers: list[PolicyPeer] = [{"podSelector": {"matchLabels": names.build_selector(name)}}]
    operator: PolicyPeer = {
        "namespaceSelector": (
            {"matchLabels": {NAMESPACE: operator_namespace}} if operator_namespace else {}
        ),
        "podSelector": {"matchLabels": names.OPERATOR_LABELS},
    }
    client_ports = [n["port"] for n in security.get_user_listeners(cluster)]
    clients: IngressRule = {"ports": build_ports(*client_ports)}
    scrape: IngressRule = {"ports": build_ports(cluster_spec["metrics"]["port"])}
    peers = cluster_spec.get("networkPolicy", {})
    if peers.get("from"):
        clients["from"] = [*peers["from"], *brokers]
    if peers.get("metricsFrom"):
        # The kubelet's probes need no rule: a pod's own node always reaches it.
        scrape["from"] = [*peers["metricsFrom"], *brokers, operator]
    quorum: IngressRule = {
        "ports": [
            {"port": n.port, "protocol": "TCP"} for n in security.get_controller_listeners(cluster)
        ],
        # The operator sets the log levels of controllers that no client reaches.
        "from": [*brokers, operator] if node_pools.find_controller_pool(cluster) else brokers,
    }
    ingress: list[IngressRule] = [clients, scrape, quorum]
    if security.has_internal_tls(cluster):
        ingress.append(
            {"ports": build_ports(security.REPLICATION_PORT), "from": [*brokers, operator]}
        )
    spec: NetworkPolicySpec = {
        "podSelector": {"matchLabels": names.build_selector(name)},
        "policyTypes": ["Ingress"],
        "ingress": ingress,
    }
    api, object_name = "networking.k8s.io/v1", names.format_stateful_set(name)
    return _build_object(cluster, api, "NetworkPolicy", object_name, {"spec": spec})


def build_claim_metadata(cluster: QueueCluster, pool: node_pools.NodePool) -> ClaimMetadata:
    """Return the labels and annotations of a pool's volume claims. `cluster` is its view."""
    labels = names.build_labels(cluster["metadata"]["name"]) | node_pools.build_labels(pool)
    own = {"metadata": {"labels": labels}}
    over = cluster["spec"].get("template", {}).get("persistentVolumeClaim", {})
    metadata: ClaimMetadata = _with_metadata(own, over)["metadata"]
    return metadata


def _build_stateful_set(
    cluster: QueueCluster, pool: node_pools.NodePool, template: PodTemplateSpec
) -> Manifest:
    """Return the StatefulSet of a pool. `cluster` is its view."""
    name = cluster["metadata"]["name"]
    keep = cluster["spec"]["storage"].get("deletionPolicy", "Retain")
    spec: StatefulSetSpec = {
        "replicas": pool.replicas,
        "serviceName": names.format_headless_service(name),
        "podManagementPolicy": "Parallel",
        "updateStrategy": {"type": "OnDelete"},
        "selector": {"matchLabels": names.build_selector(name) | node_pools.build_labels(pool)},
        "persistentVolumeClaimRetentionPolicy": {"whenDeleted": keep, "whenScaled": "Retain"},
        "template": template,
    }
    if claims := storage.build_claim_templates(cluster, build_claim_metadata(cluster, pool)):
        spec["volumeClaimTemplates"] = claims
    if pool.name:
        # The numbers of the pods are the ids of their brokers.
        spec["ordinals"] = {"start": pool.first_id}
    manifest = _build_object(cluster, "apps/v1", "StatefulSet", pool.stateful_set, {"spec": spec})
    manifest["metadata"]["labels"] |= node_pools.build_labels(pool)
    annotations = {}
    if security.has_internal_tls(cluster):
        annotations[security.INTERNAL_TLS] = str(security.get_internal_tls(cluster))
    if restoring := restore.get_restore_id(cluster):
        annotations[names.RESTORE] = restoring
    if annotations:
        manifest["metadata"]["annotations"] = annotations
    return manifest
