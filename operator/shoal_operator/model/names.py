"""Names, labels and owner references of the operator's objects."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from shoal_operator.model.kubernetes import ObjectMeta, OwnerReference

GROUP = "shoal.dev"
VERSION = "v1beta1"
API_VERSION = f"{GROUP}/{VERSION}"
FIELD_MANAGER = "shoal-operator"
#: Finalizer of resources with `deletionPolicy: Delete`.
FINALIZER = f"{GROUP}/delete"
MANAGED_BY = "app.kubernetes.io/managed-by"
CLUSTER_LABEL = f"{GROUP}/cluster"
CONSUMER_LABEL = f"{GROUP}/share-consumer"
USER_LABEL = f"{GROUP}/user"
#: The label of the pods and volume claims of a node pool.
NODE_POOL = f"{GROUP}/node-pool"
#: API version of Kubeflow's Spark operator.
SPARK_API = "sparkoperator.k8s.io/v1beta2"
#: Labels of the operator's pods, as the chart sets them.
OPERATOR_LABELS = {"app.kubernetes.io/name": "shoal-operator"}
CONFIG_HASH = f"{GROUP}/config-hash"
RESTART = f"{GROUP}/restart"
#: Annotation of a pod with the digest of its template without the amounts of CPU and memory.
TEMPLATE = f"{GROUP}/template"
#: Annotation of a StatefulSet, and of its pods, that restore data directories: the restore's id.
RESTORE = f"{GROUP}/restore"
#: Annotations of pods: the label of its node that a pod asks for, and the label's value.
RACK_KEY, RACK = f"{GROUP}/rack-topology-key", f"{GROUP}/rack"
#: The volume with the annotations of a pod, its directory, and the file.
POD_VOLUME, POD_DIR = "shoal-pod", "/etc/shoal-pod"
POD_ANNOTATIONS = f"{POD_DIR}/annotations"
#: Directories in the broker image; they match its Containerfile.
DATA_DIR = "/var/lib/shoal"
CONFIG_DIR = "/etc/shoal"

Manifest = dict[str, Any]


def format_headless_service(cluster: str) -> str:
    return f"{cluster}-brokers"


def format_bootstrap_service(cluster: str) -> str:
    return f"{cluster}-bootstrap"


def format_stateful_set(cluster: str) -> str:
    return f"{cluster}-broker"


def format_pool_stateful_set(cluster: str, pool: str) -> str:
    return f"{cluster}-pool-{pool}"


def format_pod(cluster: str, ordinal: int) -> str:
    return f"{cluster}-broker-{ordinal}"


def format_claim(pod_name: str, volume: str = "data") -> str:
    return f"{volume}-{pod_name}"


def build_selector(cluster: str) -> dict[str, str]:
    """Return the labels that select the brokers' pods; they never change."""
    return {
        "app.kubernetes.io/name": "shoal",
        "app.kubernetes.io/instance": cluster,
        "app.kubernetes.io/component": "broker",
    }


def build_labels(cluster: str, component: str = "broker") -> dict[str, str]:
    return {
        "app.kubernetes.io/name": "shoal",
        "app.kubernetes.io/instance": cluster,
        "app.kubernetes.io/component": component,
        MANAGED_BY: FIELD_MANAGER,
        CLUSTER_LABEL: cluster,
    }


def build_consumer_labels(consumer: str, cluster: str) -> dict[str, str]:
    return {
        "app.kubernetes.io/name": "shoal-consumer",
        "app.kubernetes.io/instance": consumer,
        "app.kubernetes.io/component": "share-consumer",
        MANAGED_BY: FIELD_MANAGER,
        CLUSTER_LABEL: cluster,
        CONSUMER_LABEL: consumer,
    }


def build_owner_reference(resource: Mapping[str, Any]) -> OwnerReference:
    """Return the owner reference to a custom resource, for garbage collection."""
    return {
        "apiVersion": API_VERSION,
        "kind": resource["kind"],
        "name": resource["metadata"]["name"],
        "uid": resource["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": False,
    }


def build_metadata(
    owner: Mapping[str, Any],
    name: str,
    labels: dict[str, str],
    annotations: dict[str, str] | None = None,
) -> ObjectMeta:
    """Return the metadata of an object that is deleted with the custom resource `owner`, in its
    namespace."""
    meta: ObjectMeta = {
        "name": name,
        "namespace": owner["metadata"]["namespace"],
        "labels": labels,
        "ownerReferences": [build_owner_reference(owner)],
    }
    if annotations:
        meta["annotations"] = annotations
    return meta


def merge_environment(
    defaults: Sequence[Mapping[str, Any]], own: Sequence[Mapping[str, Any]]
) -> list[Mapping[str, Any]]:
    """Return the EnvVars of a container: the user's (`own`) override the operator's
    (`defaults`)."""
    overridden = {e["name"] for e in own}
    return [*(e for e in defaults if e["name"] not in overridden), *own]


def format_selector(labels: Mapping[str, str]) -> str:
    """Return labels in the notation of the scale subresource: `a=b,c=d`."""
    return ",".join(f"{k}={v}" for k, v in sorted(labels.items()))
