"""The user's Secret with the tokens for the brokers' metrics (`metrics.token`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal_operator.diagnostics import Diagnosis
from shoal_operator.model import security

if TYPE_CHECKING:
    from shoal_operator.kube import Kube
    from shoal_operator.model.names import Manifest


async def problem(kube: Kube, cluster: Manifest) -> Diagnosis | None:
    """Return why the metrics of a `resolved` cluster are shown to nobody but the operator, or None.

    Raises `KubeError`.
    """
    token = security.metrics_token(cluster)
    if token is None:
        return None
    name, key = token["name"], token["key"]
    found = await kube.get("v1", "Secret", name, cluster["metadata"]["namespace"])
    if found is not None and found.get("data", {}).get(key):
        return None
    lacks = "does not exist" if found is None else f"has no {key}"
    return Diagnosis(
        "MetricsTokenMissing",
        f"The brokers show their metrics to no reader: Secret {name!r} {lacks}. Create it with the "
        f"token in the key {key}, or remove spec.metrics.token.",
    )
