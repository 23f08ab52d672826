"""The user's Secret with the tokens for the brokers' metrics (`metrics.token`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal_operator.brokers.diagnostics import Diagnosis
from shoal_operator.model import security

if TYPE_CHECKING:
    from shoal_operator.kube.kube import KubeClient
    from shoal_operator.model.queue_cluster import QueueCluster


async def diagnose_token(kube: KubeClient, cluster: QueueCluster) -> Diagnosis | None:
    """Return why the metrics of a `resolved` cluster are shown to nobody but the operator, or None.

    Raises `KubeError`.
    """
    token = security.get_metrics_token(cluster)
    if token is None:
        return None
    name, key = token["name"], token["key"]
    manifest = await kube.get("v1", "Secret", name, cluster["metadata"]["namespace"])
    if manifest is not None and manifest.get("data", {}).get(key):
        return None
    lacks = "does not exist" if manifest is None else f"has no {key}"
    return Diagnosis(
        "MetricsTokenMissing",
        f"The brokers show their metrics to no reader: Secret {name!r} {lacks}. Create it with the "
        f"token in the key {key}, or remove spec.metrics.token.",
    )
