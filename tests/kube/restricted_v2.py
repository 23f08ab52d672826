"""The admission of pods by OpenShift's SecurityContextConstraints `restricted-v2`.

A pod that sets an id outside of its namespace's range is refused. The rest is assigned: a user from
the range, an fsGroup, SELinux options and the default seccomp profile. Nothing assigns `runAsGroup`
(OpenShift documentation, "Managing security context constraints").
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shoal_operator.model.names import Manifest

#: The number of ids in the range of a namespace.
RANGE = 10_000
VOLUMES = {
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "persistentVolumeClaim",
    "projected",
    "secret",
}


class Refused(Exception):
    """The pod violates the constraints; the text names the field."""


def admitted(pod: Manifest, first_id: int) -> Manifest:
    """Return the spec of a pod with what the platform assigns. Raises `Refused`.

    `first_id` is the first id of the namespace's range.
    """
    made = copy.deepcopy(pod)
    for problem in _problems(made, range(first_id, first_id + RANGE)):
        raise Refused(problem)
    own = made.setdefault("securityContext", {})
    own.setdefault("fsGroup", first_id)
    own.setdefault("seLinuxOptions", {"level": "s0:c26,c5"})
    own.setdefault("seccompProfile", {"type": "RuntimeDefault"})
    for container in _containers(made):
        context = container.setdefault("securityContext", {})
        context.setdefault("runAsUser", own.get("runAsUser", first_id))
        context.setdefault("runAsNonRoot", True)
        context.setdefault("allowPrivilegeEscalation", False)
        context.setdefault("capabilities", {"drop": ["ALL"]})
    return made


def _containers(pod: Manifest) -> list[Manifest]:
    return [*pod.get("initContainers", []), *pod["containers"]]


def _problems(pod: Manifest, ids: range) -> Iterator[str]:
    for field in ("hostNetwork", "hostPID", "hostIPC"):
        if pod.get(field):
            yield field
    for volume in pod.get("volumes", []):
        if kinds := set(volume) - {"name"} - VOLUMES:
            yield f"volumes {volume['name']}: {kinds}"
    whole = pod.get("securityContext", {})
    yield from _bad_ids("securityContext", whole, ids)
    for container in _containers(pod):
        yield from _problems_of_container(container, ids)


def _problems_of_container(container: Manifest, ids: range) -> Iterator[str]:
    name, context = container["name"], container.get("securityContext", {})
    yield from _bad_ids(name, context, ids)
    for field in ("privileged", "allowPrivilegeEscalation"):
        if context.get(field):
            yield f"{name}.{field}"
    capabilities = context.get("capabilities", {"drop": ["ALL"]})
    if set(capabilities.get("add", [])) - {"NET_BIND_SERVICE"}:
        yield f"{name}.capabilities.add"
    if "ALL" not in capabilities.get("drop", []):
        yield f"{name}.capabilities.drop"
    if any(port.get("hostPort") for port in container.get("ports", [])):
        yield f"{name}.ports.hostPort"


def _bad_ids(where: str, context: dict[str, Any], ids: range) -> Iterator[str]:
    for field in ("runAsUser", "fsGroup"):
        if field in context and context[field] not in ids:
            yield f"{where}.{field} {context[field]}"
    if "seLinuxOptions" in context:
        yield f"{where}.seLinuxOptions"
    if context.get("seccompProfile", {"type": "RuntimeDefault"}) != {"type": "RuntimeDefault"}:
        yield f"{where}.seccompProfile"
