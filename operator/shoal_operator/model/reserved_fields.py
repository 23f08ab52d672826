"""What `spec.template` and `spec.listeners` cannot replace, because the operator owns it. Pure.

The schema refuses most of it, and this module what a schema cannot express: labels, annotations and
ports. It also covers resources that were created under an older schema.
"""

from __future__ import annotations

import posixpath
import re
from typing import TYPE_CHECKING, Any

from shoal_operator.model import (
    broker_pod,
    names,
    node_pools,
    pod_layout,
    rack,
    restore,
    security,
    tiered,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

#: The kinds of objects in `spec.template`.
KINDS = ("pod", "service", "serviceAccount", "persistentVolumeClaim")
_CONTAINERS = ("containers", "initContainers")
_SCRAPING = ("prometheus.io/scrape", "prometheus.io/port")
_VOLUME = re.compile(
    r"config|tmp|shoal-pod|tls|listener-tls|metrics-token|delegation-token-key|remote-keys"
    r"|data[0-9]*"
)
_RESTORE = re.compile(rf"{restore.CONTAINER}[0-9]*")
#: Directories that the operator mounts; nothing can be mounted in them, and not at `/tmp` itself.
_DIRECTORIES = (
    names.DATA_DIR,
    names.CONFIG_DIR,
    security.TLS_DIR,
    security.LISTENER_TLS_DIR,
    security.METRICS_TOKEN_DIR,
    security.TOKEN_KEY_DIR,
    tiered.KEYS_DIR,
)
_RENAME = "the operator has one of this name. Choose another name."


def first(cluster: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return the path of a field that the operator owns and the reason with its remedy; else None.

    `cluster` is `security.resolved`.
    """
    return next(_every(cluster), None)


def _every(cluster: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    template = cluster["spec"].get("template", {})
    for kind in KINDS:
        yield from _metadata(f"spec.template.{kind}", template.get(kind, {}))
    for number, listener in enumerate(security.given_listeners(cluster)):
        path = f"spec.listeners[{number}]"
        yield from _metadata(path, listener)
        yield from _metadata(f"{path}.bootstrap", listener.get("bootstrap", {}))
        for at, broker in enumerate(listener.get("brokers", [])):
            yield from _metadata(f"{path}.brokers[{at}]", broker)
    (own, *pools) = node_pools.of(cluster)
    yield from _pod(cluster, own, "spec.template.pod", template.get("pod", {}))
    for pool in pools:
        path = f"spec.nodePools[{pool.name}].template"
        over = node_pools.given(cluster, pool).get("template", {})
        for kind in KINDS:
            yield from _metadata(f"{path}.{kind}", over.get(kind, {}))
        yield from _pod(node_pools.view(cluster, pool), pool, f"{path}.pod", over.get("pod", {}))


def _metadata(path: str, over: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    own = names.labels("")
    for field in ("labels", "annotations"):
        for key in over.get(field, {}):
            if key.startswith(f"{names.GROUP}/") or (field == "labels" and key in own):
                yield f"{path}.{field} {key}", "the operator sets it. Remove it."
            elif path.endswith(".template.pod") and key in _SCRAPING:
                yield f"{path}.{field} {key}", "the operator sets it. Use spec.metrics."


def _pod(
    cluster: Mapping[str, Any], pool: node_pools.NodePool, path: str, over: Mapping[str, Any]
) -> Iterator[tuple[str, str]]:
    """Look at `over`, the pod's template at `path`. `cluster` is the pool's view."""
    yield from _volumes(path, over)
    ports = _ports(cluster, pool)
    for field in _CONTAINERS:
        for container in over.get(field, []):
            where = f"{path}.{field} {container['name']}"
            own = container["name"] == rack.CONTAINER or _RESTORE.fullmatch(container["name"])
            if own or pod_layout.slot_of_container(container["name"]) is not None:
                yield where, _RENAME
            for port in container.get("ports", []):
                for key in (port.get("containerPort"), port.get("name")):
                    if key in ports:
                        text = "a broker in the pod has it. Choose another port and name."
                        yield f"{where}, port {key}", text


def _volumes(path: str, over: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for volume in over.get("volumes", []):
        if _VOLUME.fullmatch(volume["name"]):
            yield f"{path}.volumes {volume['name']}", _RENAME
    for mount in over.get("volumeMounts", []):
        given = mount.get("mountPath", "")
        where = posixpath.normpath(given)
        if where == broker_pod.TMP_DIR or any(_is_in(where, d) for d in _DIRECTORIES):
            text = "the operator mounts a volume there. Choose another path."
            yield f"{path}.volumeMounts {given}", text


def _is_in(path: str, directory: str) -> bool:
    return path == directory or path.startswith(f"{directory}/")


def _ports(cluster: Mapping[str, Any], pool: node_pools.NodePool) -> set[int | str]:
    """Return the numbers and names of the ports of all brokers in a pod."""
    slots = range(pod_layout.per_pod(cluster))
    every = [broker_pod.ports(cluster, slot, pool) for slot in slots]
    return {key for ports in every for pair in ports.items() for key in pair}
