"""Names, addresses and paths of the test cluster, all derived from one name and one index.

`SHOAL_CLUSTER_INDEX` (0 to 15) gives a cluster its own name and address ranges. So two clusters can
run side by side, and a range that the machine already uses can be avoided. `SHOAL_NODES` (1 to 5)
is the number of nodes of a new cluster. All files are in `CACHE` (`$XDG_CACHE_HOME/shoal`); none is
ever written into the source tree.
"""

from __future__ import annotations

import ipaddress
import os
from dataclasses import dataclass
from pathlib import Path

NAME = "shoal"
INDEX_MAX, NODES_MAX = 15, 5
#: Node label with a zone for each node.
ZONE = "topology.kubernetes.io/zone"
KUBERNETES_VERSION = "v1.35.4"
#: The feature gate and the API of MutatingAdmissionPolicies, with which tests imitate platforms.
POLICIES, POLICIES_API = "MutatingAdmissionPolicy", "admissionregistration.k8s.io/v1beta1"
#: The cluster binary's helm, kind and CoreDNS versions are in go/go.mod.
SPARK_OPERATOR_VERSION = "v2.5.0"
REPOSITORY = Path(__file__).resolve().parents[3]
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "shoal"


class ClusterError(Exception):
    """An error with its remedy for a person; shown as one sentence, without a traceback."""


@dataclass(frozen=True)
class Layout:
    """One cluster's names and addresses."""

    index: int = 0
    nodes: int = 1

    @property
    def name(self) -> str:
        return f"{NAME}{self.index}" if self.index else NAME

    @property
    def link(self) -> str:
        """The bridge to which the nodes are connected."""
        return f"{self.name}-nodes"

    def port(self, node: int) -> str:
        """The bridge's port of a node."""
        return f"{self.name}-node{node}"

    def node_name(self, node: int) -> str:
        return f"node{node + 1}" if node else "node"

    def cgroup(self, node: int) -> str:
        """The name of a node's directory in the cgroup tree."""
        return f"{self.name}-{self.node_name(node)}" if node else self.name

    def zone(self, node: int) -> str:
        return f"zone-{node + 1}"

    def address(self, node: int) -> str:
        return str(self.node_network[2 + node])

    def pods_of(self, node: int) -> ipaddress.IPv4Network:
        """The addresses of a node's pods. A bridge has 1,024 ports, and it may have as many."""
        return list(self.pod_network.subnets(new_prefix=22))[node]

    @property
    def node_network(self) -> ipaddress.IPv4Network:
        return ipaddress.IPv4Network(f"10.200.{self.index}.0/28")

    @property
    def host_address(self) -> str:
        return str(self.node_network[1])

    @property
    def node_address(self) -> str:
        """The address of the first node, which has the control plane."""
        return self.address(0)

    @property
    def pod_network(self) -> ipaddress.IPv4Network:
        return ipaddress.IPv4Network(f"10.{244 - self.index}.0.0/16")

    @property
    def service_network(self) -> ipaddress.IPv4Network:
        return ipaddress.IPv4Network(f"10.{96 + self.index}.0.0/16")

    @property
    def dns_address(self) -> str:
        return str(self.service_network[10])


def layout_from_environment() -> Layout:
    """Return the layout that `SHOAL_CLUSTER_INDEX` and `SHOAL_NODES` select."""
    index = _number("SHOAL_CLUSTER_INDEX", 0, range(INDEX_MAX + 1))
    return Layout(index, _number("SHOAL_NODES", 1, range(1, NODES_MAX + 1)))


def _number(variable: str, default: int, allowed: range) -> int:
    text = os.environ.get(variable, str(default))
    if not text.isdecimal() or int(text) not in allowed:
        raise ClusterError(f"{variable} is {text!r}; set it to {allowed[0]}..{allowed[-1]}.")
    return int(text)
