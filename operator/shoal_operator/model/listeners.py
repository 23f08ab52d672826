"""Services and advertised addresses of the brokers' listeners.

Internal clients address a broker by its pod's name under the headless Service. An external listener
has a Service for each broker and a bootstrap Service. On a NodePort listener, a broker advertises
the address of its node, from its environment, and the node port of its Service. On a routed one,
it advertises the host and the port at which a proxy routes to its Service (`routes`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from shoal_operator.model import field_defaults, names, node_pools, pod_layout
from shoal_operator.model.names import Manifest

if TYPE_CHECKING:
    from shoal_operator.model.kubernetes import AddedMetadata, ServicePort, ServiceSpec
    from shoal_operator.model.queue_cluster import Listener, ListenerEndpoint, QueueCluster

INTERNAL, NODE_PORT, INGRESS, TLS_ROUTE = "Internal", "NodePort", "Ingress", "TLSRoute"
#: The types whose clients come through a proxy that routes by the host in their ClientHello (SNI).
ROUTED = (INGRESS, TLS_ROUTE)
#: The port of such proxies without `advertisedPort`.
PROXY_PORT = 443
#: The part of `hostTemplate` that stands for the id of a broker.
NODE_ID = "{nodeId}"
#: Environment variables of the broker's container that its file refers to.
POD_NAME, NODE_IP = "POD_NAME", "NODE_IP"
#: The existing Services of a cluster by name.
Services = Mapping[str, Manifest]


class ListenerService(NamedTuple):
    """A Service: its name, its spec, and the labels and annotations that the user adds."""

    name: str
    spec: ServiceSpec
    metadata: AddedMetadata


def list_external(cluster: QueueCluster) -> list[Listener]:
    """Return the listeners for clients outside the Kubernetes cluster."""
    return [n for n in cluster["spec"]["listeners"] if not is_internal(n)]


def get_internal(cluster: QueueCluster) -> Listener:
    """Return the listener that the operator, consumers and brokers use; the schema requires one."""
    listeners = cluster["spec"]["listeners"]
    return next(filter(is_internal, listeners), listeners[0])


def build_services(cluster: QueueCluster) -> list[ListenerService]:
    """Return all Services of the cluster."""
    name = cluster["metadata"]["name"]
    ports = [_build_port(n) for n in cluster["spec"]["listeners"]]
    selector = names.build_selector(name)
    common = cluster["spec"].get("template", {}).get("service", {})
    services = [
        ListenerService(
            names.format_headless_service(name),
            {
                "clusterIP": "None",
                "publishNotReadyAddresses": True,
                "selector": selector,
                "ports": ports,
            },
            merge_metadata(common),
        ),
        ListenerService(
            names.format_bootstrap_service(name),
            {"type": "ClusterIP", "selector": selector, "ports": ports},
            merge_metadata(common),
        ),
    ]
    for listener in list_external(cluster):
        routed = is_routed(listener)
        for broker in (None, *pod_layout.list_brokers(cluster)):
            own = get_overrides(listener, broker)
            spec: ServiceSpec = {
                "type": "ClusterIP" if routed else get_kind(listener),
                "ports": [
                    _build_port(listener, pod_layout.get_slot(broker or 0), own.get("nodePort"))
                ],
                "selector": selector
                if broker is None
                else selector | _build_pod_selector(cluster, broker),
            }
            if broker is not None:
                # A broker that has to catch up is not ready, but may lead other partitions.
                spec["publishNotReadyAddresses"] = True
            if listener.get("externalTrafficPolicy"):
                spec["externalTrafficPolicy"] = listener["externalTrafficPolicy"]
            if listener.get("loadBalancerSourceRanges"):
                spec["loadBalancerSourceRanges"] = listener["loadBalancerSourceRanges"]
            over = merge_metadata(common) if routed else merge_metadata(common, listener, own)
            services.append(
                ListenerService(format_service_name(cluster, listener, broker), spec, over)
            )
    return services


def _build_pod_selector(cluster: QueueCluster, broker: int) -> dict[str, str]:
    """Return the label of a broker's pod."""
    pod = node_pools.format_pod_name(cluster, pod_layout.get_pod(broker))
    return {"statefulset.kubernetes.io/pod-name": pod}


def merge_metadata(*parts: Mapping[str, Any]) -> AddedMetadata:
    """Return the labels and annotations of these parts of the spec; the last part wins."""

    def merge(field: str) -> dict[str, str]:
        return {k: v for part in parts for k, v in part.get(field, {}).items()}

    return {"labels": merge("labels"), "annotations": merge("annotations")}


def format_service_name(
    cluster: QueueCluster, listener: Listener, broker_id: int | None = None
) -> str:
    """Return the name of an external listener's Service: a broker's, or the bootstrap Service."""
    last = "bootstrap" if broker_id is None else broker_id
    return f"{cluster['metadata']['name']}-{listener['name']}-{last}"


def list_pending(cluster: QueueCluster, have: Services) -> list[str]:
    """Return the names of external listeners' Services without an address."""
    pairs = [
        (listener, broker)
        for listener in list_external(cluster)
        for broker in (None, *pod_layout.list_brokers(cluster))
    ]
    return [
        format_service_name(cluster, listener, broker)
        for listener, broker in pairs
        if not _find_address(cluster, listener, have, broker)
    ]


def format_advertised(cluster: QueueCluster, broker_id: int, have: Services) -> str:
    """Return `advertised.listeners` of a broker; no Service may be `list_pending`."""
    meta, entries = cluster["metadata"], []
    for listener in cluster["spec"]["listeners"]:
        if is_internal(listener):
            domain = f"{names.format_headless_service(meta['name'])}.{meta['namespace']}.svc"
            port = pod_layout.compute_port(listener["port"], pod_layout.get_slot(broker_id))
            endpoint = f"${{env:{POD_NAME}}}.{domain}:{port}"
        else:
            address = _find_address(cluster, listener, have, broker_id)
            assert address is not None, "the caller has checked pending()"
            name, port = address
            endpoint = f"{name or f'${{env:{NODE_IP}}}'}:{port}"
        entries.append(f"{listener['name'].upper()}://{endpoint}")
    return ",".join(entries)


def resolve_env(pod: Mapping[str, Any], text: str) -> str:
    """Return a config value with the pod's environment filled in."""
    text = text.replace(f"${{env:{POD_NAME}}}", pod["metadata"]["name"])
    return text.replace(f"${{env:{NODE_IP}}}", pod.get("status", {}).get("hostIP", ""))


def get_bootstrap_servers(cluster: QueueCluster, listener: Listener) -> str:
    """Return the bootstrap servers of a listener for internal clients."""
    meta = cluster["metadata"]
    return (
        f"{names.format_bootstrap_service(meta['name'])}.{meta['namespace']}.svc:{listener['port']}"
    )


def find_external_servers(
    cluster: QueueCluster,
    listener: Listener,
    have: Services,
    node_addresses: list[str],
    broker_id: int | None = None,
) -> str:
    """Return the bootstrap servers for external clients, or the address of one broker. It is empty
    while it is unknown."""
    address = _find_address(cluster, listener, have, broker_id)
    if not address:
        return ""
    name, port = address
    return ",".join(f"{h}:{port}" for h in ([name] if name else node_addresses))


def get_kind(listener: Listener) -> str:
    """Return the type of a listener."""
    return field_defaults.fill(listener, field_defaults.LISTENER)["type"]


def is_internal(listener: Listener) -> bool:
    """Return whether a listener serves clients inside the Kubernetes cluster."""
    return get_kind(listener) == INTERNAL


def is_routed(listener: Listener) -> bool:
    """Return whether clients of a listener come through a proxy that routes by their SNI."""
    return get_kind(listener) in ROUTED


def get_host(listener: Listener, broker_id: int | None = None) -> str:
    """Return the host of a routed listener: a broker's, or the bootstrap host; empty if the spec
    has none."""
    own = get_overrides(listener, broker_id).get("host", "")
    if own or broker_id is None:
        return str(own)
    return str(listener.get("hostTemplate", "")).replace(NODE_ID, str(broker_id))


def get_advertised_port(listener: Listener) -> int:
    """Return the port of the proxy of a routed listener."""
    return int(listener.get("advertisedPort", PROXY_PORT))


def get_overrides(listener: Listener, broker_id: int | None) -> ListenerEndpoint:
    """Return what the listener sets for a broker, or for bootstrap."""
    if broker_id is None:
        return listener.get("bootstrap", {})
    for endpoint in listener.get("brokers", []):
        if endpoint["broker"] == broker_id:
            return endpoint
    return {}


def _build_port(listener: Listener, slot: int = 0, node_port: int | None = None) -> ServicePort:
    """Return a Service port that routes to the brokers in a slot; Kubernetes chooses the node port
    if none is given."""
    name, target = listener["name"], pod_layout.format_port_name(listener["name"], slot)
    service_port: ServicePort = {
        "name": name,
        "port": listener["port"],
        "targetPort": target,
        "protocol": "TCP",
    }
    if node_port:
        service_port["nodePort"] = node_port
    return service_port


def _find_address(
    cluster: QueueCluster, listener: Listener, have: Services, broker_id: int | None
) -> tuple[str, int] | None:
    """Return host and port of a listener's Service, or of the proxy before it; None if unknown. An
    empty host means the node's."""
    if is_routed(listener):
        name = get_host(listener, broker_id)
        return (name, get_advertised_port(listener)) if name else None
    service = have.get(format_service_name(cluster, listener, broker_id))
    if service is None:
        return None
    port = service["spec"]["ports"][0]
    if get_kind(listener) == NODE_PORT:
        return (listener.get("host", ""), port["nodePort"]) if port.get("nodePort") else None
    for ingress in service.get("status", {}).get("loadBalancer", {}).get("ingress", []):
        name = ingress.get("hostname") or ingress.get("ip")
        if name:
            return name, port["port"]
    return None
