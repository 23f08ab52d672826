"""What the chart tells the operator."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Settings:
    """What the environment says.

    `driver_role` is the ClusterRole that Spark drivers are bound to, `scale_url` the address at
    which they find this operator's scale signals. The pull policies are for pods that run
    `broker_image` or `spark_image` and whose resource sets none.
    """

    broker_image: str
    spark_image: str
    driver_role: str
    scale_url: str
    broker_pull_policy: str = "IfNotPresent"
    spark_pull_policy: str = "IfNotPresent"
