"""What `spec.template` and `spec.listeners` cannot replace, because the operator owns it. Pure.

The schema refuses most of it, and this module what a schema cannot express: labels, annotations and
ports. It also covers resources that were created under an older schema.
"""

from __future__ import annotations

import posixpath
import re
from typing import TYPE_CHECKING, Any, Literal, get_args

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

    from shoal_operator.model.queue_cluster import QueueCluster

#: The kinds of objects in `spec.template`.
_Kind = Literal["pod", "service", "serviceAccount", "persistentVolumeClaim"]
KINDS: tuple[_Kind, ...] = get_args(_Kind)
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


def find_first(cluster: QueueCluster) -> tuple[str, str] | None:
    """Return the path of a field that the operator owns and the reason with its remedy; else None.

    `cluster` is `security.resolve`.
    """
    return next(_find_all(cluster), None)


def _find_all(cluster: QueueCluster) -> Iterator[tuple[str, str]]:
    template = cluster["spec"].get("template", {})
    for kind in KINDS:
        yield from _find_in_metadata(f"spec.template.{kind}", template.get(kind, {}))
    for number, listener in enumerate(security.get_user_listeners(cluster)):
        path = f"spec.listeners[{number}]"
        yield from _find_in_metadata(path, listener)
        yield from _find_in_metadata(f"{path}.bootstrap", listener.get("bootstrap", {}))
        for index, broker in enumerate(listener.get("brokers", [])):
            yield from _find_in_metadata(f"{path}.brokers[{index}]", broker)
    (own, *pools) = node_pools.list_pools(cluster)
    yield from _find_in_pod(cluster, own, "spec.template.pod", template.get("pod", {}))
    for pool in pools:
        path = f"spec.nodePools[{pool.name}].template"
        settings = node_pools.find_settings(cluster, pool)
        over: Mapping[str, Any] = settings.get("template", {}) if settings else {}
        for kind in KINDS:
            yield from _find_in_metadata(f"{path}.{kind}", over.get(kind, {}))
        yield from _find_in_pod(
            node_pools.make_view(cluster, pool), pool, f"{path}.pod", over.get("pod", {})
        )


def _find_in_metadata(path: str, over: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    own = names.build_labels("")
    for field in ("labels", "annotations"):
        for key in over.get(field, {}):
            if key.startswith(f"{names.GROUP}/") or (field == "labels" and key in own):
                yield f"{path}.{field} {key}", "the operator sets it. Remove it."
            elif path.endswith(".template.pod") and key in _SCRAPING:
                yield f"{path}.{field} {key}", "the operator sets it. Use spec.metrics."


def _find_in_pod(
    cluster: QueueCluster, pool: node_pools.NodePool, path: str, over: Mapping[str, Any]
) -> Iterator[tuple[str, str]]:
    """Look at `over`, the pod's template at `path`. `cluster` is the pool's view."""
    yield from _find_in_volumes(path, over)
    ports = _list_ports(cluster, pool)
    for field in _CONTAINERS:
        for container in over.get(field, []):
            container_path = f"{path}.{field} {container['name']}"
            own = container["name"] == rack.CONTAINER or _RESTORE.fullmatch(container["name"])
            if own or pod_layout.parse_container_slot(container["name"]) is not None:
                yield container_path, _RENAME
            for port in container.get("ports", []):
                for key in (port.get("containerPort"), port.get("name")):
                    if key in ports:
                        text = "a broker in the pod has it. Choose another port and name."
                        yield f"{container_path}, port {key}", text


def _find_in_volumes(path: str, over: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for volume in over.get("volumes", []):
        if _VOLUME.fullmatch(volume["name"]):
            yield f"{path}.volumes {volume['name']}", _RENAME
    for mount in over.get("volumeMounts", []):
        mount_path = mount.get("mountPath", "")
        normalized = posixpath.normpath(mount_path)
        if normalized == broker_pod.TMP_DIR or any(_is_in(normalized, d) for d in _DIRECTORIES):
            text = "the operator mounts a volume there. Choose another path."
            yield f"{path}.volumeMounts {mount_path}", text


def _is_in(path: str, directory: str) -> bool:
    return path == directory or path.startswith(f"{directory}/")


def _list_ports(cluster: QueueCluster, pool: node_pools.NodePool) -> set[int | str]:
    """Return the numbers and names of the ports of all brokers in a pod."""
    slots = range(pod_layout.get_brokers_per_pod(cluster))
    port_maps = [broker_pod.map_ports(cluster, slot, pool) for slot in slots]
    return {key for ports in port_maps for pair in ports.items() for key in pair}
