"""How a pod gets its rack: the annotations by which it asks, and what reads the answer.

`shoal_operator.cluster.racks` answers. See there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shoal_operator.model import external, names

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shoal_operator.model.kubernetes import (
        DownwardFile,
        EnvVar,
        FieldSource,
        Volume,
        VolumeMount,
    )
    from shoal_operator.model.names import Manifest
    from shoal_operator.model.queue_cluster import QueueCluster

#: The container that waits for the rack.
CONTAINER = "shoal-rack"
#: Fields that it takes from the pod's main container.
_SHARED = ("image", "imagePullPolicy", "securityContext", "resources")


def get_topology_key(cluster: QueueCluster) -> str:
    """Return the node label that has the racks of a cluster, empty without racks."""
    if external.is_external(cluster):
        return ""
    rack = cluster["spec"].get("rack")
    return rack.get("topologyKey", "") if rack else ""


def build_volume() -> Volume:
    """Return the volume with the pod's annotations."""
    item: DownwardFile = {"path": "annotations", "fieldRef": {"fieldPath": "metadata.annotations"}}
    return {"name": names.POD_VOLUME, "downwardAPI": {"items": [item]}}


def build_mount() -> VolumeMount:
    """Return the mount of that volume."""
    return {"name": names.POD_VOLUME, "mountPath": names.POD_DIR, "readOnly": True}


def build_container(main: Mapping[str, Any]) -> Manifest:
    """Return the init container that waits for the rack, with the image of `main`."""
    command = ["python3", "-m", "shoal.server.host.await_rack", names.POD_ANNOTATIONS, names.RACK]
    shared = {key: main[key] for key in _SHARED if key in main}
    return {"name": CONTAINER, "command": command, "volumeMounts": [build_mount()], **shared}


def build_variable(name: str) -> EnvVar:
    """Return the variable with the rack, for containers that start after `build_container`."""
    source: FieldSource = {"fieldRef": {"fieldPath": f"metadata.annotations['{names.RACK}']"}}
    return {"name": name, "valueFrom": source}
