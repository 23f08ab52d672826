"""Ingresses and TLSRoutes of routed listeners, whose clients come through a proxy. Pure.

The proxy reads the host in a client's ClientHello (SNI) and passes the connection on, still
encrypted. There is a route for each broker and one for bootstrap. A route has the name of the
Service that it leads to (ADR 140, ADR 141).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shoal_operator.model import listeners, names, pod_layout
from shoal_operator.model.listeners import INGRESS, TLS_ROUTE

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from shoal_operator.model.kubernetes import IngressBackend, IngressSpec, TlsRouteSpec
    from shoal_operator.model.names import Manifest
    from shoal_operator.model.queue_cluster import Listener, QueueCluster

#: The versions of a kind that the operator can write, the best one first. From the Gateway API 1.5
#: on, its standard channel serves v1 alone. Earlier releases have the others in the experimental
#: channel.
VERSIONS = {
    INGRESS: ("networking.k8s.io/v1",),
    TLS_ROUTE: tuple(f"gateway.networking.k8s.io/{v}" for v in ("v1", "v1alpha3", "v1alpha2")),
}
#: The values of the chart that give the permissions for a kind.
VALUES = {INGRESS: "listeners.ingress", TLS_ROUTE: "listeners.tlsRoute"}
#: The class whose Ingresses get `PASSTHROUGH`, which ingress-nginx needs.
NGINX = "nginx"
PASSTHROUGH = {
    "nginx.ingress.kubernetes.io/ssl-passthrough": "true",
    "nginx.ingress.kubernetes.io/backend-protocol": "HTTPS",
}
#: The conditions of a TLSRoute that are false if a Gateway does not serve it.
_ANSWERS = {"Accepted", "ResolvedRefs"}


def build_manifests(cluster: QueueCluster, kind: str, api_version: str) -> list[Manifest]:
    """Return the cluster's routes of this kind."""
    routed_listeners = [n for n in cluster["spec"]["listeners"] if listeners.get_kind(n) == kind]
    return [
        _build_route(cluster, listener, broker, api_version)
        for listener in routed_listeners
        for broker in (None, *pod_layout.list_brokers(cluster))
    ]


def build_selector(cluster: str) -> dict[str, str]:
    """Return the labels that all routes of a cluster have."""
    return names.build_labels(cluster)


def _build_route(
    cluster: QueueCluster, listener: Listener, broker: int | None, api_version: str
) -> Manifest:
    name, host = (
        listeners.format_service_name(cluster, listener, broker),
        listeners.get_host(listener, broker),
    )
    # An Ingress without a host would take the connections to all hosts.
    assert host, "the caller has checked listeners.pending()"
    over = listeners.merge_metadata(listener, listeners.get_overrides(listener, broker))
    notes = over["annotations"]
    spec: IngressSpec | TlsRouteSpec = _build_tls_route_spec(listener, name, host)
    if listeners.get_kind(listener) == INGRESS:
        spec = _build_ingress_spec(listener, name, host)
        if listener.get("class") == NGINX:
            notes = PASSTHROUGH | notes
    labels = over["labels"] | build_selector(cluster["metadata"]["name"])
    return {
        "apiVersion": api_version,
        "kind": listeners.get_kind(listener),
        "metadata": names.build_metadata(cluster, name, labels, notes),
        "spec": spec,
    }


def _build_ingress_spec(listener: Listener, service: str, host: str) -> IngressSpec:
    backend: IngressBackend = {"service": {"name": service, "port": {"number": listener["port"]}}}
    spec: IngressSpec = {
        # Without a secretName: the controller has no certificate to show, as brokers have theirs.
        "tls": [{"hosts": [host]}],
        "rules": [
            {
                "host": host,
                "http": {"paths": [{"path": "/", "pathType": "Prefix", "backend": backend}]},
            }
        ],
    }
    if listener.get("class"):
        spec["ingressClassName"] = listener["class"]
    return spec


def _build_tls_route_spec(listener: Listener, service: str, host: str) -> TlsRouteSpec:
    return {
        "parentRefs": [{**parent} for parent in listener.get("parentRefs", [])],
        "hostnames": [host],
        "rules": [{"backendRefs": [{"name": service, "port": listener["port"]}]}],
    }


def find_problem(cluster: QueueCluster) -> str:
    """Return which broker has no host or which two have the same, and the remedy; empty if none."""
    owners: dict[tuple[str, int], str] = {}
    for listener, broker in _iterate_hosts(cluster):
        name = listener["name"]
        endpoint = "bootstrap" if broker is None else f"broker {broker}"
        host = listeners.get_host(listener, broker)
        if not host:
            remedy = "Set bootstrap.host."
            if broker is not None:
                remedy = "Set hostTemplate, or add the broker with its host to brokers."
            return f"Listener {name!r} has no host for {endpoint}. {remedy}"
        this = f"{endpoint} of listener {name!r}"
        previous = owners.setdefault((host, listeners.get_advertised_port(listener)), this)
        if previous != this:
            return (
                f"{previous[0].upper()}{previous[1:]} and {this} have the same host {host!r}, by "
                "which a proxy routes. Give each one its own host."
            )
    return ""


def _iterate_hosts(cluster: QueueCluster) -> Iterator[tuple[Listener, int | None]]:
    """Yield the routed listeners, each with every broker, and with None for bootstrap."""
    for listener in cluster["spec"]["listeners"]:
        if listeners.is_routed(listener):
            for broker in (None, *pod_layout.list_brokers(cluster)):
                yield listener, broker


def describe_rejection(route: Mapping[str, Any], age_seconds: float, seconds_max: float) -> str:
    """Return why no proxy serves a TLSRoute, in a sentence; empty if one does, or before
    `seconds_max` have passed without an answer."""
    parents = route.get("status", {}).get("parents", [])
    generation = route["metadata"].get("generation", 0)
    for parent in parents:
        for condition in parent.get("conditions", []):
            is_new = condition.get("observedGeneration", generation) >= generation
            if condition["type"] in _ANSWERS and condition["status"] == "False" and is_new:
                message = condition.get("message") or condition.get("reason", "")
                parent_ref = parent.get("parentRef", {})
                return (
                    f"{parent_ref.get('kind', 'Gateway')} {parent_ref.get('name', '')!r} does not "
                    f"serve it: {message.rstrip('.')}."
                )
    if not parents and age_seconds > seconds_max:
        return (
            "No Gateway has accepted it. Check parentRefs, and that the Gateway's controller runs."
        )
    return ""
