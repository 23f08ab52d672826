"""What the chart tells the operator."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Settings:
    """What the environment says.

    `driver_role` is the ClusterRole that Spark drivers are bound to, `scale_url` the address at
    which they find this operator's scale signals.
    """

    broker_image: str
    spark_image: str
    driver_role: str
    scale_url: str
