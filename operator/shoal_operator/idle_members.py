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


class Holding(NamedTuple):
    """A member of a share group and the number of records that it holds."""

    client_id: str
    client_host: str
    records: int


def costs(pods: Sequence[Mapping[str, Any]], holdings: Iterable[Holding]) -> dict[str, int]:
    """Return the number of records that each pod holds, by name of the pod."""
    found = {str(pod["metadata"]["name"]): 0 for pod in pods}
    by_address: dict[str, list[str]] = {}
    for pod in pods:
        for address in _addresses(pod):
            by_address.setdefault(address, []).append(str(pod["metadata"]["name"]))
    for one in holdings:
        named = [n for n in found if one.client_id == n or one.client_id.startswith(f"{n}-")]
        at = named or by_address.get(one.client_host.removeprefix("/"), [])
        if len(at) == 1:
            found[at[0]] += one.records
    return found


def changes(pods: Sequence[Mapping[str, Any]], wanted: Mapping[str, int]) -> dict[str, str]:
    """Return the annotations to write, by name of the pod."""
    found = {}
    for pod in pods:
        have = pod["metadata"].get("annotations", {}).get(ANNOTATION, "0")
        cost = str(wanted[pod["metadata"]["name"]])
        if have != cost:
            found[str(pod["metadata"]["name"])] = cost
    return found


def _addresses(pod: Mapping[str, Any]) -> set[str]:
    status = pod.get("status", {})
    every = [status.get("podIP"), *(one.get("ip") for one in status.get("podIPs", []))]
    return {address for address in every if address}
