"""A ShareConsumer's Deployment."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal_operator.model import names
from shoal_operator.model.consumers import consumer_pod, kueue

if TYPE_CHECKING:
    from shoal_operator.model.consumers.consumer_pod import PodContext
    from shoal_operator.model.kubernetes import DeploymentSpec
    from shoal_operator.model.names import Manifest
    from shoal_operator.model.resources.share_consumer import ShareConsumer


def build_manifest(consumer: ShareConsumer, context: PodContext, replicas: int) -> Manifest:
    """Return a Deployment of `replicas` consumers, with the group in their environment.

    Kueue admits each pod by itself, so the pods have its labels, too.
    """
    meta, pod_template = consumer["metadata"], consumer["spec"]["deployment"]["template"]
    of_kueue = kueue.select_labels(consumer)
    template = consumer_pod.build_template(consumer, pod_template, context)
    template["metadata"]["labels"] |= of_kueue
    labels = of_kueue | names.build_consumer_labels(meta["name"], context.cluster)
    spec: DeploymentSpec = {
        "replicas": replicas,
        "selector": {"matchLabels": consumer_pod.build_selector(meta["name"])},
        "template": template,
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": names.build_metadata(consumer, meta["name"], labels),
        "spec": spec,
    }
