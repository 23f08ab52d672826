"""Which pods get other CPU and memory without a restart. Pure.

Kubernetes 1.33 and later resize the containers of a running pod. A StatefulSet does not: it only
makes new pods of its template, so that a pod which the operator has resized keeps the revision that
it was made of. The template's annotation `names.TEMPLATE` therefore has a digest of all but the
amounts of CPU and memory: a pod with the same digest differs from its template in these only.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from shoal_operator.brokers.diagnostics import Diagnosis
from shoal_operator.model import names, storage

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from shoal_operator.model.names import Manifest

#: What a pod's conditions say about a resize that its node has not carried out.
_PENDING = "PodResizePending"
_IN_PROGRESS = "PodResizeInProgress"


def is_resizable(pod: Mapping[str, Any], stateful: Mapping[str, Any] | None) -> bool:
    """Return whether a pod differs from its template in amounts of CPU and memory only, if at
    all."""
    template = (stateful or {}).get("spec", {}).get("template", {})
    want = template.get("metadata", {}).get("annotations", {}).get(names.TEMPLATE)
    return bool(want) and pod["metadata"].get("annotations", {}).get(names.TEMPLATE) == want


def build_resize(pod: Mapping[str, Any], stateful: Mapping[str, Any] | None) -> Manifest | None:
    """Return the merge patch that gives a pod the CPU and memory of its template, None if it has
    them or needs a restart."""
    if stateful is None or not is_resizable(pod, stateful):
        return None
    desired = {
        container["name"]: container.get("resources", {})
        for container in stateful["spec"]["template"]["spec"]["containers"]
    }
    containers = copy.deepcopy(pod["spec"]["containers"])
    differs = False
    for container in containers:
        have = container.get("resources", {})
        for kind, amounts in desired.get(container["name"], {}).items():
            for name in storage.RESIZED:
                if kind in ("requests", "limits") and name in amounts:
                    differs |= have[kind].get(name) != amounts[name]
                    have[kind][name] = amounts[name]
    return {"spec": {"containers": containers}} if differs else None


def find_infeasible(pod: Mapping[str, Any]) -> str:
    """Return why the node of a pod can never give it its new resources, else an empty string."""
    condition = _find_condition(pod, _PENDING)
    if condition.get("reason") != "Infeasible":
        return ""
    return condition.get("message", "").rstrip(".") or "its node does not say why"


def diagnose_resizes(pods: Sequence[Mapping[str, Any]]) -> Diagnosis | None:
    """Return a resize that a node has not carried out yet."""
    for pod in pods:
        name = pod["metadata"]["name"]
        pending, working = _find_condition(pod, _PENDING), _find_condition(pod, _IN_PROGRESS)
        if pending.get("reason") == "Deferred":
            text = (
                f"{name} gets its new CPU and memory once its node has room: "
                f"{pending.get('message', '').rstrip('.')}. To let it move to another node, delete "
                "the pod."
            )
            return Diagnosis("ResizeWaits", text)
        if working:
            message = working.get("message", "").rstrip(".")
            text = f"{name} gets other CPU and memory without a restart"
            return Diagnosis("Resizing", f"{text}: {message}." if message else f"{text}.")
    return None


def _find_condition(pod: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    for condition in pod.get("status", {}).get("conditions", []):
        if condition["type"] == kind and condition["status"] == "True":
            true_condition: Mapping[str, Any] = condition
            return true_condition
    return {}
