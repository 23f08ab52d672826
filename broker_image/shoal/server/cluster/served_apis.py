"""The APIs that each listener of this node serves.

Listeners in `controller.listener.names` serve the quorum and the controller; the others serve
clients and brokers (`Listeners`). A listener serves both if the quorum's log has this voter at a
port of its clients: the node had no listener for controllers when the cluster was formed. That ends
once the quorum has committed the new endpoint of the voter (ADR 52).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from shoal.protocol.api import ApiKey
from shoal.server.cluster_config import Listeners

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shoal.quorum.voters import VoterSet
    from shoal.security.requirements import ApiPermissions
    from shoal.server.cluster.quorum import MetadataQuorum
    from shoal.server.cluster.registration import Registration
    from shoal.server.network.api import Api
    from shoal.server.node import Node

MOVE = (
    "Give each voter a port for controllers: name those ports in controller.quorum.voters"
    " (--quorum) on all nodes, and restart one node after another. See docs/cluster.md."
)


class ApiTables(NamedTuple):
    """The APIs that a node can serve, by API key."""

    #: All of them.
    table: Mapping[int, Api]
    #: Those that a listener of each kind serves.
    by_kind: Mapping[Listeners, Mapping[int, Api]]


class ServedApis:
    """Owns the tables of this node's listeners, by listener name."""

    def __init__(
        self, node: Node, registration: Registration, quorum: MetadataQuorum, tables: ApiTables
    ) -> None:
        self._node = node
        self._registration = registration
        self._quorum = quorum
        self._tables = tables
        self._kinds: dict[str, Listeners] = dict(node.cluster.kinds)
        self._early = False
        self._voters: VoterSet | None = None
        self._warned = False
        #: Listeners of clients that also serve the quorum, because its log has this voter there.
        self.shared: frozenset[str] = frozenset()
        #: The APIs in ApiVersions, by listener.
        self.advertised_apis: dict[str, Mapping[int, Api]] = {}
        #: The APIs that are served now: fewer than `advertised_apis` while the broker joins its
        #: cluster.
        self.now: dict[str, Mapping[int, Api]] = {}
        self._fill()

    def get_kind(self, listener: str) -> Listeners:
        """Return the present kind of that listener."""
        kind = self._kinds.get(listener, Listeners.BROKER)
        return Listeners.BOTH if listener in self.shared else kind

    def find_permissions(self, key: int) -> ApiPermissions:
        """Return what the API of a request requires of its sender."""
        return self._tables.table[key].permissions

    def begin(self, *, early: bool) -> None:
        """Serve the APIs of a node that joins its cluster (`early`), or all."""
        self._early = early
        self._fill()

    def start(self) -> None:
        """Follow the voters of the quorum, which is open."""
        self._follow_voters()
        self._quorum.on_step(self._follow_voters)

    def _follow_voters(self) -> None:
        voters = self._quorum.raft.voters
        latest = voters.latest
        if latest is self._voters:
            return
        shared = self._find_client_listeners(latest)
        committed = voters.latest_offset < self._quorum.high_watermark
        if not shared and self.shared and not committed:
            return  # the old endpoint may come back
        self._voters = latest
        if shared != self.shared:
            if not shared:
                self._node.log.info("listeners of clients no longer serve the quorum")
            self.shared = shared
            self._fill()
        self._warn()

    def _warn(self) -> None:
        """Log once that clients can reach the quorum, with the remedy unless it has begun."""
        shared = sorted(name for name in self._kinds if self.get_kind(name) is Listeners.BOTH)
        if not shared or self._warned:
            return
        self._warned = True
        if Listeners.CONTROLLER in self._kinds.values():
            self._node.log.info(
                "listeners of clients serve the quorum until it has this voter's new endpoint",
                listener=",".join(shared),
            )
        else:
            self._node.log.warning(
                "clients can reach the metadata quorum, which uses their listener",
                listener=",".join(shared),
                remedy=MOVE,
            )

    def _find_client_listeners(self, voters: VoterSet) -> frozenset[str]:
        """Return the listeners of clients at which a quorum of several nodes has this voter."""
        voter = voters.voters.get(self._quorum.local.id)
        if voter is None or (not self._node.cluster.clustered and self._quorum.alone):
            return frozenset()
        names = {endpoint.name for endpoint in voter.endpoints}
        ports = {endpoint.port for endpoint in voter.endpoints}
        if any(Listeners.CONTROLLER in self._kinds.get(name, Listeners(0)) for name in names):
            return frozenset()
        return frozenset(
            e.name
            for e in self._registration.get_endpoints()
            if self._kinds[e.name] is Listeners.BROKER and (e.name in names or e.port in ports)
        )

    def _fill(self) -> None:
        for name in self._kinds:
            table = self.advertised_apis[name] = self._tables.by_kind[self.get_kind(name)]
            if self._early:
                controllers = Listeners.CONTROLLER in self.get_kind(name)
                table = {
                    key: api
                    for key, api in table.items()
                    if (api.early if controllers else key == ApiKey.API_VERSIONS)
                }
            self.now[name] = table
