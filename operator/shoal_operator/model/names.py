"""Names, labels and owner references of everything the operator makes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

GROUP = "shoal.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
FIELD_MANAGER = "shoal-operator"
#: Finalizer of resources whose deletion policy asks for work in the brokers.
FINALIZER = f"{GROUP}/delete"
CLUSTER_LABEL = f"{GROUP}/cluster"
CONSUMER_LABEL = f"{GROUP}/share-consumer"
#: Where Kubeflow's Spark operator keeps its resources.
SPARK_API = "sparkoperator.k8s.io/v1beta2"
CONFIG_HASH = f"{GROUP}/config-hash"
RESTART = f"{GROUP}/restart"
#: Where the broker image keeps things; the Containerfile agrees.
DATA_DIR = "/var/lib/shoal"
CONFIG_DIR = "/etc/shoal"

Manifest = dict[str, Any]


def headless(cluster: str) -> str:
    return f"{cluster}-brokers"


def bootstrap(cluster: str) -> str:
    return f"{cluster}-bootstrap"


def stateful_set(cluster: str) -> str:
    return f"{cluster}-broker"


def pod(cluster: str, ordinal: int) -> str:
    return f"{cluster}-broker-{ordinal}"


def claim(cluster: str, ordinal: int, volume: str = "data") -> str:
    return f"{volume}-{pod(cluster, ordinal)}"


def selector(cluster: str) -> dict[str, str]:
    """Labels that never change: they select the brokers' pods."""
    return {
        "app.kubernetes.io/name": "shoal",
        "app.kubernetes.io/instance": cluster,
        "app.kubernetes.io/component": "broker",
    }


def labels(cluster: str, component: str = "broker") -> dict[str, str]:
    return {
        "app.kubernetes.io/name": "shoal",
        "app.kubernetes.io/instance": cluster,
        "app.kubernetes.io/component": component,
        "app.kubernetes.io/managed-by": FIELD_MANAGER,
        CLUSTER_LABEL: cluster,
    }


def consumer_labels(consumer: str, cluster: str) -> dict[str, str]:
    return {
        "app.kubernetes.io/name": "shoal-consumer",
        "app.kubernetes.io/instance": consumer,
        "app.kubernetes.io/component": "share-consumer",
        "app.kubernetes.io/managed-by": FIELD_MANAGER,
        CLUSTER_LABEL: cluster,
        CONSUMER_LABEL: consumer,
    }


def owner(resource: Mapping[str, Any]) -> Manifest:
    """The owner reference to a custom resource: what it owns goes when it goes."""
    return {
        "apiVersion": API_VERSION,
        "kind": resource["kind"],
        "name": resource["metadata"]["name"],
        "uid": resource["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": False,
    }


def environment(given: Sequence[Manifest], own: Sequence[Manifest]) -> list[Manifest]:
    """Merge variables of a container: those of the user (`own`) win over those of the operator.

    Each entry is an EnvVar of Kubernetes, with at least a `name`.
    """
    taken = {e["name"] for e in own}
    return [*(e for e in given if e["name"] not in taken), *own]


def selector_text(wanted: Mapping[str, str]) -> str:
    """Labels as the scale subresource wants them: `a=b,c=d`."""
    return ",".join(f"{k}={v}" for k, v in sorted(wanted.items()))
