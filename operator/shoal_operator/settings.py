"""Settings of the operator, which the chart passes in environment variables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shoal_operator.http_access import HttpAccess


@dataclass(frozen=True, slots=True)
class Settings:
    """Default images and addresses.

    `driver_role` is the ClusterRole of Spark drivers. `scale_url` is the URL of this operator's
    scale signals. The pull policies are for pods with `broker_image` or `spark_image` whose
    resource sets none. `namespace` is that of the operator's pods, empty if it runs elsewhere.
    """

    broker_image: str
    spark_image: str
    driver_role: str
    scale_url: str
    broker_pull_policy: str = "IfNotPresent"
    spark_pull_policy: str = "IfNotPresent"
    namespace: str = ""
    #: TLS and tokens of the scale signals, None without.
    http_access: HttpAccess | None = None
