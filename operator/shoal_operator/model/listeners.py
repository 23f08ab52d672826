"""Where clients find the brokers: Services, and what each broker tells clients about itself.

Inside the Kubernetes cluster a broker is its pod's name under the headless Service. On an external
listener each broker has a Service of its own, so that a client reaches the very broker it means,
and one more Service serves to bootstrap. A broker of a NodePort listener tells clients the address
of its node, which it knows by its environment, and the port that Kubernetes gave its Service.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shoal_operator.model import names, pod_layout
from shoal_operator.model.names import Manifest

INTERNAL = "Internal"
#: Environment variables of the broker's container, and how its file names them.
POD_NAME, NODE_IP = "POD_NAME", "NODE_IP"
#: Services of a cluster by name, as the API server has them.
Services = Mapping[str, Manifest]


def external(cluster: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The listeners that are reached from outside."""
    return [n for n in cluster["spec"]["listeners"] if _type(n) != INTERNAL]


def internal(cluster: Mapping[str, Any]) -> Mapping[str, Any]:
    """The listener that the operator, consumers and brokers themselves use; the schema asks for
    one."""
    every = cluster["spec"]["listeners"]
    return next((n for n in every if _type(n) == INTERNAL), every[0])


def services(cluster: Mapping[str, Any]) -> list[tuple[str, Manifest]]:
    """Names and specs of all Services of the cluster."""
    name = cluster["metadata"]["name"]
    ports = [_port(n) for n in cluster["spec"]["listeners"]]
    selector = names.selector(name)
    headless = {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": selector}
    made: list[tuple[str, Manifest]] = [
        (names.headless(name), {**headless, "ports": ports}),
        (names.bootstrap(name), {"type": "ClusterIP", "selector": selector, "ports": ports}),
    ]
    for listener in external(cluster):
        spec = {"type": listener["type"], "ports": [_port(listener)]}
        made.append((service(cluster, listener), {**spec, "selector": selector}))
        for broker in pod_layout.brokers(cluster):
            only = {
                "statefulset.kubernetes.io/pod-name": names.pod(name, pod_layout.pod_of(broker))
            }
            own = {
                **spec,
                "ports": [_port(listener, pod_layout.slot_of(broker))],
                "selector": selector | only,
            }
            made.append((service(cluster, listener, broker), own))
    return made


def service(
    cluster: Mapping[str, Any], listener: Mapping[str, Any], broker_id: int | None = None
) -> str:
    """The name of an external listener's Service: of one broker, or to bootstrap."""
    last = "bootstrap" if broker_id is None else broker_id
    return f"{cluster['metadata']['name']}-{listener['name']}-{last}"


def pending(cluster: Mapping[str, Any], have: Services) -> list[str]:
    """Services of external listeners that have no address yet, by name."""
    wanted = [
        (listener, broker)
        for listener in external(cluster)
        for broker in (None, *pod_layout.brokers(cluster))
    ]
    return [
        service(cluster, listener, broker)
        for listener, broker in wanted
        if not _address(listener, have.get(service(cluster, listener, broker)))
    ]


def advertised(cluster: Mapping[str, Any], broker_id: int, have: Services) -> str:
    """`advertised.listeners` of a broker; nothing of it may be `pending`."""
    meta, told = cluster["metadata"], []
    for listener in cluster["spec"]["listeners"]:
        if _type(listener) == INTERNAL:
            domain = f"{names.headless(meta['name'])}.{meta['namespace']}.svc"
            port = pod_layout.port(listener["port"], pod_layout.slot_of(broker_id))
            where = f"${{env:{POD_NAME}}}.{domain}:{port}"
        else:
            found = _address(listener, have.get(service(cluster, listener, broker_id)))
            assert found is not None, "the caller has looked at what is pending"
            host, port = found
            where = f"{host or f'${{env:{NODE_IP}}}'}:{port}"
        told.append(f"{listener['name'].upper()}://{where}")
    return ",".join(told)


def resolve_env(pod: Mapping[str, Any], text: str) -> str:
    """A broker's setting as that pod reads it."""
    text = text.replace(f"${{env:{POD_NAME}}}", pod["metadata"]["name"])
    return text.replace(f"${{env:{NODE_IP}}}", pod.get("status", {}).get("hostIP", ""))


def bootstrap_servers(cluster: Mapping[str, Any], listener: Mapping[str, Any]) -> str:
    """`host:port` of a listener inside the Kubernetes cluster."""
    meta = cluster["metadata"]
    return f"{names.bootstrap(meta['name'])}.{meta['namespace']}.svc:{listener['port']}"


def external_bootstrap_servers(
    cluster: Mapping[str, Any],
    listener: Mapping[str, Any],
    have: Services,
    node_addresses: list[str],
) -> str:
    """Where clients outside bootstrap, `host:port,…`; empty while that is not known."""
    found = _address(listener, have.get(service(cluster, listener)))
    if not found:
        return ""
    host, port = found
    return ",".join(f"{h}:{port}" for h in ([host] if host else node_addresses))


def _type(listener: Mapping[str, Any]) -> str:
    return str(listener.get("type", INTERNAL))


def _port(listener: Mapping[str, Any], slot: int = 0) -> Manifest:
    """The listener's port of a Service that leads to the brokers on that slot."""
    name, target = listener["name"], pod_layout.port_name(listener["name"], slot)
    return {"name": name, "port": listener["port"], "targetPort": target, "protocol": "TCP"}


def _address(listener: Mapping[str, Any], have: Mapping[str, Any] | None) -> tuple[str, int] | None:
    """Host and port that a Service is reached at, the host empty for that of a node; or None."""
    if have is None:
        return None
    port = have["spec"]["ports"][0]
    if listener["type"] == "NodePort":
        return (listener.get("host", ""), port["nodePort"]) if port.get("nodePort") else None
    for ingress in have.get("status", {}).get("loadBalancer", {}).get("ingress", []):
        host = ingress.get("hostname") or ingress.get("ip")
        if host:
            return host, port["port"]
    return None
