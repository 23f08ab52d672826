"""Writes the Ingresses and TLSRoutes of a QueueCluster, and deletes those no longer wanted.

The API server may lack TLSRoutes, and admission may refuse a route: the brokers run nevertheless,
and the status names what is wrong. Routes are listed in each pass and not watched: a watch of
TLSRoutes would have to follow their definition, as that of SparkApplications does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shoal_operator import clock
from shoal_operator.brokers.diagnostics import Diagnosis
from shoal_operator.kube.drift import has_drifted, with_digest
from shoal_operator.kube.kube import KubeClient, KubeError
from shoal_operator.model import listeners, routes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shoal_operator.model.names import Manifest
    from shoal_operator.model.queue_cluster import QueueCluster

#: How long the controller of a Gateway may take to answer.
ACCEPTED_SECONDS_MAX = 30.0


class RouteReconciler:
    """The routes of one QueueCluster; `kinds` are those that the operator may write."""

    def __init__(self, kube: KubeClient, kinds: frozenset[str]) -> None:
        self._kube = kube
        self._kinds = [kind for kind in listeners.ROUTED if kind in kinds]
        #: The kinds of which the cluster has no route.
        self._none_left: set[str] = set()

    async def reconcile(self, cluster: QueueCluster) -> Diagnosis | None:
        """Bring the routes to the spec; return what is wrong. Raises `KubeError` if the API server
        fails."""
        diagnoses = [await self._reconcile(cluster, kind) for kind in self._kinds]
        return next(filter(None, diagnoses), None)

    async def _reconcile(self, cluster: QueueCluster, kind: str) -> Diagnosis | None:
        is_wanted = any(listeners.get_kind(n) == kind for n in cluster["spec"]["listeners"])
        if not is_wanted and kind in self._none_left:
            return None
        problem = None
        try:
            if version := await self._find_version(kind):
                problem = await self._bring_about(cluster, kind, version)
            else:
                problem = _diagnose_missing_api()
        except KubeError as error:
            if error.terminating or error.status not in (403, 404):
                raise
            problem = (
                _diagnose_missing_api()
                if error.status == 404
                else _diagnose_refused(kind, f"{kind}s", error)
            )
        if is_wanted:
            self._none_left.discard(kind)
            return problem
        self._none_left.add(kind)
        return None

    async def _find_version(self, kind: str) -> str:
        """Return the best version of a kind that the API server has, empty without one."""
        first, *alternatives = routes.VERSIONS[kind]
        if kind == listeners.INGRESS:
            return first
        for version in (first, *alternatives):
            if await self._kube.has_kind(version, kind):
                return version
        return ""

    async def _bring_about(
        self, cluster: QueueCluster, kind: str, version: str
    ) -> Diagnosis | None:
        """Write the routes of a kind, and delete the others; return the first problem."""
        meta, problems = cluster["metadata"], []
        labels = routes.build_selector(meta["name"])
        existing, _ = await self._kube.list_snapshot(version, kind, meta["namespace"], labels)
        have = {route["metadata"]["name"]: route for route in existing if _is_of(cluster, route)}
        for want in routes.build_manifests(cluster, kind, version):
            route = have.pop(want["metadata"]["name"], None)
            problems.append(await self._apply(with_digest(want), route))
        for route in have.values():
            await self._kube.delete(route)
        return next(filter(None, problems), None)

    async def _apply(self, want: Manifest, have: Manifest | None) -> Diagnosis | None:
        """Write a route where it has drifted; return what is wrong with it."""
        kind, name = want["kind"], want["metadata"]["name"]
        try:
            if have is None or has_drifted(want, have):
                have = await self._kube.apply(want)
        except KubeError as error:
            if error.terminating or not 400 <= error.status < 500:
                raise
            return _diagnose_refused(kind, f"{kind} {name}", error)
        if kind != listeners.TLS_ROUTE:
            return None
        age_seconds = clock.count_seconds_since(have["metadata"]["creationTimestamp"])
        why = routes.describe_rejection(have, age_seconds, ACCEPTED_SECONDS_MAX)
        text = f"TLSRoute {name} reaches no client. {why}"
        return Diagnosis("RouteNotAccepted", text) if why else None


def _is_of(cluster: QueueCluster, route: Mapping[str, Any]) -> bool:
    """Return whether the cluster owns a route that is not being deleted."""
    meta, uid = route["metadata"], cluster["metadata"]["uid"]
    owners = [reference["uid"] for reference in meta.get("ownerReferences", [])]
    return uid in owners and not meta.get("deletionTimestamp")


def _diagnose_missing_api() -> Diagnosis:
    text = (
        "The API server has no TLSRoutes, so that clients outside reach no listener of this type. "
        "Install the definitions of the Gateway API 1.5 or later, or the experimental ones of an "
        "earlier release, and a controller of Gateways."
    )
    return Diagnosis("GatewayApiMissing", text)


def _diagnose_refused(kind: str, subject: str, error: KubeError) -> Diagnosis:
    text = (
        f"{subject} cannot be written: {error}. Correct what the message names. The chart's value "
        f"{routes.VALUES[kind]} gives the permissions."
    )
    return Diagnosis("RouteNotWritten", text)
