"""Which pods of a share group hold records, so that a smaller Deployment loses idle pods first.

A member belongs to the pod whose name is its client id, or begins it with a hyphen after the name.
Otherwise it belongs to the pod with the address from which the member connected, if one pod has it:
pods on the network of their node share an address. Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

#: Kubernetes removes pods with lower costs first; without the annotation, the cost is 0.
ANNOTATION = "controller.kubernetes.io/pod-deletion-cost"


class MemberHolding(NamedTuple):
    """A member of a share group and the number of records that it holds."""

    client_id: str
    client_host: str
    records: int


def compute_costs(
    pods: Sequence[Mapping[str, Any]], holdings: Iterable[MemberHolding]
) -> dict[str, int]:
    """Return the number of records that each pod holds, by name of the pod."""
    costs = {str(pod["metadata"]["name"]): 0 for pod in pods}
    by_address: dict[str, list[str]] = {}
    for pod in pods:
        for address in _list_addresses(pod):
            by_address.setdefault(address, []).append(str(pod["metadata"]["name"]))
    for holding in holdings:
        matching = [
            n for n in costs if holding.client_id == n or holding.client_id.startswith(f"{n}-")
        ]
        pod_names = matching or by_address.get(holding.client_host.removeprefix("/"), [])
        if len(pod_names) == 1:
            costs[pod_names[0]] += holding.records
    return costs


def build_annotations(
    pods: Sequence[Mapping[str, Any]], costs: Mapping[str, int]
) -> dict[str, str]:
    """Return the annotations to write, by name of the pod."""
    annotations = {}
    for pod in pods:
        have = pod["metadata"].get("annotations", {}).get(ANNOTATION, "0")
        cost = str(costs[pod["metadata"]["name"]])
        if have != cost:
            annotations[str(pod["metadata"]["name"])] = cost
    return annotations


def _list_addresses(pod: Mapping[str, Any]) -> set[str]:
    status = pod.get("status", {})
    addresses = [status.get("podIP"), *(entry.get("ip") for entry in status.get("podIPs", []))]
    return {address for address in addresses if address}
