"""Settings of the operator, which the chart passes in environment variables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from shoal_operator.model import listeners

if TYPE_CHECKING:
    from shoal_operator.http_access import HttpAccess

#: The fields of a ShareConsumer that describe its workload.
WORKLOADS = ("deployment", "spark", "scaleTargetRef", "job")
#: The features besides workloads that an operator may be without: racks, and types of listeners by
#: the names of the chart's values.
RACKS = "racks"
LISTENER_TYPES = {"ingress": listeners.INGRESS, "tlsRoute": listeners.TLS_ROUTE}


@dataclass(frozen=True, slots=True)
class ChartSettings:
    """Default images and addresses.

    `driver_role_kind` is the kind of Spark drivers' role: `Role` if the chart gives permissions in
    some namespaces only, else `ClusterRole`. `scale_url` is the URL of this operator's scale
    signals, empty if no driver can read them. The pull policies are for pods with `broker_image` or
    `spark_image` whose resource sets none. `namespace` is that of the operator's pods, empty if it
    runs elsewhere. `openshift` means that the platform assigns user, group and seccomp profile to
    pods (ADR 73).
    `workload_remedy` says what to do about a ShareConsumer with another workload than `workloads`.
    `workloads` are those that ShareConsumers may have; for others, permissions may be missing, as
    for racks if `racks` is false, and for types of listeners that `routed` lacks.
    """

    broker_image: str
    spark_image: str
    driver_role_kind: str
    scale_url: str
    broker_pull_policy: str = "IfNotPresent"
    spark_pull_policy: str = "IfNotPresent"
    namespace: str = ""
    #: TLS and tokens of the scale signals, None without.
    http_access: HttpAccess | None = None
    openshift: bool = False
    workloads: frozenset[str] = frozenset(WORKLOADS)
    workload_remedy: str = "Install the chart with workloads.{workload}=true."
    racks: bool = True
    routed: frozenset[str] = frozenset(listeners.ROUTED)
