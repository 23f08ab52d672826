"""Which APIs each listener of this node serves.

Listeners that `controller.listener.names` names serve the quorum and the controller, the others
serve clients and brokers (`Listeners`). One case serves both on one listener: the quorum's log has
this voter at a port of its clients, since the node had no listener for controllers when the cluster
was formed. That ends as soon as the quorum has committed the voter's new endpoint (ADR 0052).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from shoal.protocol.api import ApiKey
from shoal.server.cluster_config import Listeners
from shoal.server.handlers import EARLY, TABLES
from shoal.server.network.api import Api

if TYPE_CHECKING:
    from shoal.quorum.voters import VoterSet
    from shoal.server.broker import Broker

MOVE = (
    "Give each voter a port for controllers: name those ports in controller.quorum.voters"
    " (--quorum) on all nodes, and restart one node after another. See docs/cluster.md."
)


class ServedApis:
    """Owns the tables of this node's listeners, by listener name."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._kinds: dict[str, Listeners] = dict(broker.cluster.kinds)
        self._early = False
        self._voters: VoterSet | None = None
        self._warned = False
        #: Listeners of clients that serve the quorum too, because its log has this voter there.
        self.shared: frozenset[str] = frozenset()
        #: What ApiVersions names, by listener.
        self.named: dict[str, Mapping[int, Api]] = {}
        #: What is served now: less than `named` while the broker joins its cluster.
        self.now: dict[str, Mapping[int, Api]] = {}
        self._fill()

    def kind(self, listener: str) -> Listeners:
        """What that listener is for, at the moment."""
        kind = self._kinds.get(listener, Listeners.BROKER)
        return Listeners.BOTH if listener in self.shared else kind

    def begin(self, *, early: bool) -> None:
        """Serve what a joining node does (`early`), or everything."""
        self._early = early
        self._fill()

    def look(self) -> None:
        """Follow the quorum's voters; called after each step of the quorum."""
        voters = self._broker.quorum.raft.voters
        latest = voters.latest
        if latest is self._voters:
            return
        shared = self._at_clients(latest)
        committed = voters.latest_offset < self._broker.quorum.high_watermark
        if not shared and self.shared and not committed:
            return  # the old endpoint may come back
        self._voters = latest
        if shared != self.shared:
            if not shared:
                self._broker.log.info("listeners of clients no longer serve the quorum")
            self.shared = shared
            self._fill()
        self._warn()

    def _warn(self) -> None:
        """Log once that clients reach the quorum, with the remedy unless it is under way."""
        both = sorted(name for name in self._kinds if self.kind(name) is Listeners.BOTH)
        if not both or self._warned:
            return
        self._warned = True
        if Listeners.CONTROLLER in self._kinds.values():
            self._broker.log.info(
                "listeners of clients serve the quorum until it has this voter's new endpoint",
                listener=",".join(both),
            )
        else:
            self._broker.log.warning(
                "clients can reach the metadata quorum, which uses their listener",
                listener=",".join(both),
                remedy=MOVE,
            )

    def _at_clients(self, voters: VoterSet) -> frozenset[str]:
        """The listeners of clients at which a quorum of several nodes has this voter."""
        broker = self._broker
        voter = voters.voters.get(broker.quorum.local.id)
        if voter is None or (not broker.cluster.clustered and broker.quorum.alone):
            return frozenset()
        names = {endpoint.name for endpoint in voter.endpoints}
        ports = {endpoint.port for endpoint in voter.endpoints}
        if any(Listeners.CONTROLLER in self._kinds.get(name, Listeners(0)) for name in names):
            return frozenset()
        return frozenset(
            e.name
            for e in broker.endpoints()
            if self._kinds[e.name] is Listeners.BROKER and (e.name in names or e.port in ports)
        )

    def _fill(self) -> None:
        for name in self._kinds:
            table = self.named[name] = TABLES[self.kind(name)]
            if self._early:
                early = EARLY if Listeners.CONTROLLER in self.kind(name) else {ApiKey.API_VERSIONS}
                table = {key: row for key, row in table.items() if key in early}
            self.now[name] = table
