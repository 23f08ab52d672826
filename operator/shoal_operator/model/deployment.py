"""A ShareConsumer's Deployment."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shoal_operator.model import consumer_pod, names

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shoal_operator.model.consumer_pod import PodContext
    from shoal_operator.model.names import Manifest


def manifest(consumer: Mapping[str, Any], about: PodContext, replicas: int) -> Manifest:
    """Return a Deployment of `replicas` consumers, with the group in their environment."""
    meta, given = consumer["metadata"], consumer["spec"]["deployment"]["template"]
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {
            "name": meta["name"],
            "namespace": meta["namespace"],
            "labels": names.consumer_labels(meta["name"], about.cluster),
            "ownerReferences": [names.owner(consumer)],
        },
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": consumer_pod.selector(meta["name"])},
            "template": consumer_pod.template(consumer, given, about),
        },
    }
