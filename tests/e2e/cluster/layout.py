"""Names, addresses and paths of the test cluster, all derived from one name and one index.

`SHOAL_CLUSTER_INDEX` (0 to 15) gives a cluster its own name and address ranges. So two clusters can
run side by side, and a range that the machine already uses can be avoided. All files are in `CACHE`
(`$XDG_CACHE_HOME/shoal`); none is ever written into the source tree.
"""

from __future__ import annotations

import ipaddress
import os
from dataclasses import dataclass
from pathlib import Path

NAME = "shoal"
INDEX_MAX = 15
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

    @property
    def name(self) -> str:
        return f"{NAME}{self.index}" if self.index else NAME

    @property
    def link(self) -> str:
        """The host's end of the link to the node."""
        return f"{self.name}-node"

    @property
    def node_network(self) -> ipaddress.IPv4Network:
        return ipaddress.IPv4Network(f"10.200.{self.index}.0/30")

    @property
    def host_address(self) -> str:
        return str(self.node_network[1])

    @property
    def node_address(self) -> str:
        return str(self.node_network[2])

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
    """Return the layout that `SHOAL_CLUSTER_INDEX` selects."""
    text = os.environ.get("SHOAL_CLUSTER_INDEX", "0")
    if not text.isdecimal() or int(text) > INDEX_MAX:
        raise ClusterError(f"SHOAL_CLUSTER_INDEX is {text!r}; set it to 0..{INDEX_MAX}.")
    return Layout(int(text))
