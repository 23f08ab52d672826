"""The kopf handlers, which pass watch events to `Operator`. `python -m shoal_operator` runs them.

kopf provides the watch streams, the liveness probe and the life cycle. The handlers are event
handlers only: kopf writes nothing to the objects and leaves no annotations.

Environment variables:
SHOAL_OPERATOR_NAMESPACE: the namespace of the operator's pods and of the Lease, which is in
`default` without it.
SHOAL_BROKER_IMAGE, SHOAL_SPARK_IMAGE: default images.
SHOAL_BROKER_PULL_POLICY, SHOAL_SPARK_PULL_POLICY: their pull policies; default `IfNotPresent`.
SHOAL_DRIVER_ROLE_KIND: whether Spark drivers have a `Role` or a `ClusterRole`, the default.
SHOAL_SCALE_URL: the URL at which drivers reach this operator.
SHOAL_HTTP_PORT: the port of metrics and scale signals; default 8080.
SHOAL_KEDA_PORT: the port of KEDA's external scaler (gRPC); off without it.
SHOAL_HTTP_TLS_DIR, SHOAL_HTTP_TOKEN_FILE: its certificate and its tokens; see `http_access`.
POD_NAME: the identity in the leader election.
"""

from __future__ import annotations

import asyncio
import os
import socket
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import kopf
import structlog

from shoal_operator import __version__
from shoal_operator.kube.election import LeaderElection
from shoal_operator.kube.http_client import HttpKubeClient
from shoal_operator.kube.kube import PLURALS
from shoal_operator.kube.scope import OperatorScope
from shoal_operator.model import names
from shoal_operator.runtime import SPARK_CRDS, Operator, list_watched
from shoal_operator.scaler import endpoint, keda
from shoal_operator.settings import LISTENER_TYPES, WORKLOADS, ChartSettings

if TYPE_CHECKING:
    from lightkube.config.kubeconfig import SingleConfig

    from shoal_operator.http_access import HttpAccess

log = structlog.get_logger()
#: kopf's back-off for requests that the API server refuses, as it does while a definition changes.
API_BACKOFFS_SECONDS = (0.5, *[1.0] * 20, *[5.0] * 10)


@dataclass(slots=True)
class OperatorEnvironment:
    """kopf's memo: the arguments of `__main__` and what `start` creates."""

    config: SingleConfig
    namespaces: tuple[str, ...] = ()
    http_access: HttpAccess | None = None
    openshift: bool = False
    workloads: frozenset[str] = frozenset(WORKLOADS)
    racks: bool = True
    routed: frozenset[str] = frozenset(LISTENER_TYPES.values())
    operator: Operator = field(init=False)
    close: Any = field(init=False)


def _load_settings(memo: OperatorEnvironment) -> ChartSettings:
    get_variable = os.environ.get
    scheme = "http" if memo.http_access is None else "https"
    return ChartSettings(
        broker_image=get_variable("SHOAL_BROKER_IMAGE", f"localhost/shoal/broker:{__version__}"),
        spark_image=get_variable("SHOAL_SPARK_IMAGE", f"localhost/shoal/spark:{__version__}"),
        driver_role_kind=get_variable("SHOAL_DRIVER_ROLE_KIND", "ClusterRole"),
        scale_url=get_variable("SHOAL_SCALE_URL", f"{scheme}://{socket.gethostname()}:8080"),
        broker_pull_policy=get_variable("SHOAL_BROKER_PULL_POLICY", "IfNotPresent"),
        spark_pull_policy=get_variable("SHOAL_SPARK_PULL_POLICY", "IfNotPresent"),
        namespace=get_variable("SHOAL_OPERATOR_NAMESPACE", ""),
        http_access=memo.http_access,
        openshift=memo.openshift,
        workloads=memo.workloads,
        racks=memo.racks,
        routed=memo.routed,
    )


@kopf.on.startup()
async def start(memo: OperatorEnvironment, settings: kopf.OperatorSettings, **_: Any) -> None:
    """Connect, serve metrics and start the leader election."""
    settings.posting.enabled = False
    # `__main__` has waited until all kinds exist.
    settings.scanning.disabled = True
    settings.networking.error_backoffs = API_BACKOFFS_SECONDS
    operator_settings = _load_settings(memo)
    kube = HttpKubeClient(memo.config)
    namespace = os.environ.get("SHOAL_OPERATOR_NAMESPACE", "default")
    identity = os.environ.get("POD_NAME", socket.gethostname())
    scope = OperatorScope(kube, namespace, memo.namespaces)
    election = LeaderElection(kube, names.FIELD_MANAGER, namespace, identity, scope)
    memo.operator = Operator(
        kube,
        operator_settings,
        memo.namespaces,
        another_leads=lambda: election.another_leads,
    )
    election.subscribe(memo.operator.set_leading)
    port = int(os.environ.get("SHOAL_HTTP_PORT", "8080"))
    web = await endpoint.serve(memo.operator, port, memo.http_access, problem=lambda: scope.problem)
    scaler = keda.make_server(memo.operator, memo.http_access)
    if keda_port := int(os.environ.get("SHOAL_KEDA_PORT", "0")):
        context = memo.http_access.grpc_context if memo.http_access else None
        await scaler.start("0.0.0.0", keda_port, context)
    campaign = asyncio.create_task(election.run(), name="election")

    async def close() -> None:
        campaign.cancel()
        await asyncio.gather(campaign, return_exceptions=True)
        await memo.operator.close()
        await web.cleanup()
        await scaler.close()
        await kube.close()

    memo.close = close
    log.info(
        "started",
        version=__version__,
        broker_image=operator_settings.broker_image,
        openshift=operator_settings.openshift,
        identity=identity,
    )


@kopf.on.cleanup()
async def stop(memo: OperatorEnvironment, **_: Any) -> None:
    """Release the Lease and close all connections."""
    await memo.close()


async def watch(event: Any, memo: OperatorEnvironment, **_: Any) -> None:
    """Pass a watch event to the operator."""
    manifest = dict(event["object"])
    if event["type"] == "DELETED":
        memo.operator.on_delete(manifest)
    else:
        memo.operator.on_update(manifest)


async def watch_definitions(memo: OperatorEnvironment, **_: Any) -> None:
    """Report that the definition of SparkApplications was installed or removed."""
    memo.operator.on_spark_changed()


def register(workloads: frozenset[str]) -> None:
    """Register the watches that an operator for these workloads needs."""
    for api_version, kind, labels in list_watched(workloads):
        group, _, version = api_version.rpartition("/")
        kopf.on.event(group, version, PLURALS[kind], labels=labels or None, id=f"watch-{kind}")(
            watch
        )
    if "spark" in workloads:
        for name in SPARK_CRDS:
            kopf.on.event(
                "apiextensions.k8s.io",
                "v1",
                "customresourcedefinitions",
                field="metadata.name",
                value=name,
                id=f"watch-{name}",
            )(watch_definitions)
