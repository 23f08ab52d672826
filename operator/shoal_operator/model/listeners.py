"""Services and advertised addresses of the brokers' listeners.

Internal clients address a broker by its pod's name under the headless Service. An external listener
has a Service for each broker and a bootstrap Service. On a NodePort listener, a broker advertises
the address of its node, from its environment, and the node port of its Service. On a routed one,
it advertises the host and the port at which a proxy routes to its Service (`routes`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from shoal_operator.model import assumed, names, node_pools, pod_layout
from shoal_operator.model.names import Manifest

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
#: Fields of a listener that the specs of its Services have under the same name.
FIELDS = ("externalTrafficPolicy", "loadBalancerSourceRanges")


class Service(NamedTuple):
    """A Service: its name, its spec, and the labels and annotations that the user adds."""

    name: str
    spec: Manifest
    metadata: Manifest


def external(cluster: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the listeners for clients outside the Kubernetes cluster."""
    return [n for n in cluster["spec"]["listeners"] if not is_internal(n)]


def internal(cluster: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the listener that the operator, consumers and brokers use; the schema requires one."""
    every = cluster["spec"]["listeners"]
    return next(filter(is_internal, every), every[0])


def services(cluster: Mapping[str, Any]) -> list[Service]:
    """Return all Services of the cluster."""
    name = cluster["metadata"]["name"]
    ports = [_port(n) for n in cluster["spec"]["listeners"]]
    selector = names.selector(name)
    headless = {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": selector}
    every = cluster["spec"].get("template", {}).get("service", {})
    made = [
        Service(names.headless(name), {**headless, "ports": ports}, metadata(every)),
        Service(
            names.bootstrap(name),
            {"type": "ClusterIP", "selector": selector, "ports": ports},
            metadata(every),
        ),
    ]
    for listener in external(cluster):
        routed = is_routed(listener)
        for broker in (None, *pod_layout.brokers(cluster)):
            own = given(listener, broker)
            spec: Manifest = {
                "type": "ClusterIP" if routed else kind(listener),
                "ports": [_port(listener, pod_layout.slot_of(broker or 0), own.get("nodePort"))],
                "selector": selector if broker is None else selector | _only(cluster, broker),
            }
            if broker is not None:
                # A broker that has to catch up is not ready, but may lead other partitions.
                spec["publishNotReadyAddresses"] = True
            spec |= {key: listener[key] for key in FIELDS if listener.get(key)}
            over = metadata(every) if routed else metadata(every, listener, own)
            made.append(Service(service(cluster, listener, broker), spec, over))
    return made


def _only(cluster: Mapping[str, Any], broker: int) -> dict[str, str]:
    """Return the label of a broker's pod."""
    pod = node_pools.pod_name(cluster, pod_layout.pod_of(broker))
    return {"statefulset.kubernetes.io/pod-name": pod}


def metadata(*parts: Mapping[str, Any]) -> Manifest:
    """Return the labels and annotations of these parts of the spec; the last part wins."""
    return {
        field: {k: v for part in parts for k, v in part.get(field, {}).items()}
        for field in ("labels", "annotations")
    }


def service(
    cluster: Mapping[str, Any], listener: Mapping[str, Any], broker_id: int | None = None
) -> str:
    """Return the name of an external listener's Service: a broker's, or the bootstrap Service."""
    last = "bootstrap" if broker_id is None else broker_id
    return f"{cluster['metadata']['name']}-{listener['name']}-{last}"


def pending(cluster: Mapping[str, Any], have: Services) -> list[str]:
    """Return the names of external listeners' Services without an address."""
    wanted = [
        (listener, broker)
        for listener in external(cluster)
        for broker in (None, *pod_layout.brokers(cluster))
    ]
    return [
        service(cluster, listener, broker)
        for listener, broker in wanted
        if not _address(cluster, listener, have, broker)
    ]


def advertised(cluster: Mapping[str, Any], broker_id: int, have: Services) -> str:
    """Return `advertised.listeners` of a broker; no Service may be `pending`."""
    meta, entries = cluster["metadata"], []
    for listener in cluster["spec"]["listeners"]:
        if is_internal(listener):
            domain = f"{names.headless(meta['name'])}.{meta['namespace']}.svc"
            port = pod_layout.port(listener["port"], pod_layout.slot_of(broker_id))
            where = f"${{env:{POD_NAME}}}.{domain}:{port}"
        else:
            found = _address(cluster, listener, have, broker_id)
            assert found is not None, "the caller has checked pending()"
            name, port = found
            where = f"{name or f'${{env:{NODE_IP}}}'}:{port}"
        entries.append(f"{listener['name'].upper()}://{where}")
    return ",".join(entries)


def resolve_env(pod: Mapping[str, Any], text: str) -> str:
    """Return a config value with the pod's environment filled in."""
    text = text.replace(f"${{env:{POD_NAME}}}", pod["metadata"]["name"])
    return text.replace(f"${{env:{NODE_IP}}}", pod.get("status", {}).get("hostIP", ""))


def bootstrap_servers(cluster: Mapping[str, Any], listener: Mapping[str, Any]) -> str:
    """Return the bootstrap servers of a listener for internal clients."""
    meta = cluster["metadata"]
    return f"{names.bootstrap(meta['name'])}.{meta['namespace']}.svc:{listener['port']}"


def external_bootstrap_servers(
    cluster: Mapping[str, Any],
    listener: Mapping[str, Any],
    have: Services,
    node_addresses: list[str],
    broker_id: int | None = None,
) -> str:
    """Return the bootstrap servers for external clients, or the address of one broker. It is empty
    while it is unknown."""
    found = _address(cluster, listener, have, broker_id)
    if not found:
        return ""
    name, port = found
    return ",".join(f"{h}:{port}" for h in ([name] if name else node_addresses))


def kind(listener: Mapping[str, Any]) -> str:
    """Return the type of a listener."""
    return str(assumed.fill(listener, assumed.LISTENER)["type"])


def is_internal(listener: Mapping[str, Any]) -> bool:
    """Return whether a listener serves clients inside the Kubernetes cluster."""
    return kind(listener) == INTERNAL


def is_routed(listener: Mapping[str, Any]) -> bool:
    """Return whether clients of a listener come through a proxy that routes by their SNI."""
    return kind(listener) in ROUTED


def host(listener: Mapping[str, Any], broker_id: int | None = None) -> str:
    """Return the host of a routed listener: a broker's, or the bootstrap host; empty if the spec
    has none."""
    own = given(listener, broker_id).get("host", "")
    if own or broker_id is None:
        return str(own)
    return str(listener.get("hostTemplate", "")).replace(NODE_ID, str(broker_id))


def advertised_port(listener: Mapping[str, Any]) -> int:
    """Return the port of the proxy of a routed listener."""
    return int(listener.get("advertisedPort", PROXY_PORT))


def given(listener: Mapping[str, Any], broker_id: int | None) -> Mapping[str, Any]:
    """Return what the listener sets for a broker, or for bootstrap."""
    if broker_id is None:
        return dict(listener.get("bootstrap", {}))
    every = (dict(one) for one in listener.get("brokers", []) if one["broker"] == broker_id)
    return next(every, {})


def _port(listener: Mapping[str, Any], slot: int = 0, node_port: int | None = None) -> Manifest:
    """Return a Service port that routes to the brokers in a slot; Kubernetes chooses the node port
    if none is given."""
    name, target = listener["name"], pod_layout.port_name(listener["name"], slot)
    made = {"name": name, "port": listener["port"], "targetPort": target, "protocol": "TCP"}
    return made | ({"nodePort": node_port} if node_port else {})


def _address(
    cluster: Mapping[str, Any], listener: Mapping[str, Any], have: Services, broker_id: int | None
) -> tuple[str, int] | None:
    """Return host and port of a listener's Service, or of the proxy before it; None if unknown. An
    empty host means the node's."""
    if is_routed(listener):
        name = host(listener, broker_id)
        return (name, advertised_port(listener)) if name else None
    found = have.get(service(cluster, listener, broker_id))
    if found is None:
        return None
    port = found["spec"]["ports"][0]
    if kind(listener) == NODE_PORT:
        return (listener.get("host", ""), port["nodePort"]) if port.get("nodePort") else None
    for ingress in found.get("status", {}).get("loadBalancer", {}).get("ingress", []):
        name = ingress.get("hostname") or ingress.get("ip")
        if name:
            return name, port["port"]
    return None
