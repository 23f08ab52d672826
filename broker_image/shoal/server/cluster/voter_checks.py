"""Whether this node's configs fit the metadata quorum.

A config that does not fit ends the process, with a sentence that names the remedy: by `JoinError`
while the node starts, and by `Node.fail` for what shows later.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.protocol.errors import ErrorCode
from shoal.server.cluster.lifecycle import JoinError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from shoal.client.settings import Address
    from shoal.log.directory import LogDirectory
    from shoal.server.cluster.quorum import MetadataQuorum
    from shoal.server.cluster.registration import Registration
    from shoal.server.node import Node

#: In `meta.properties`: the voters of controller.quorum.voters that the quorum once had.
FIRST_VOTERS = "shoal.first.voters"


class VoterChecks:
    """Owns which checks were made, and which nodes were logged."""

    def __init__(
        self,
        node: Node,
        directory: LogDirectory,
        registration: Registration,
        quorum: MetadataQuorum,
    ) -> None:
        self._node = node
        self._directory = directory
        self._registration = registration
        self._quorum = quorum
        self._voters_checked = False
        self._started = False
        self._unserved: set[tuple[int, Address]] = set()
        quorum.peers.on_refused(self._on_refused)
        quorum.peers.on_unserved(self._on_unserved)

    def start(self) -> None:
        """Check the voters now, and after each step of the quorum until it has voters."""
        self._check_voters()
        self._quorum.on_step(self._check_voters)

    def on_started(self) -> None:
        """The node serves: from here on, the refusal of another node is only logged."""
        self._started = True

    def check_address(self) -> None:
        """Check that this voter listens where the others look for it. Raises `JoinError`."""
        node, registration = self._node, self._registration
        listed = node.cluster.voters and node.cluster.voters.voters.get(node.id)
        bound = [
            listener.port
            for listener in registration.listeners
            if listener.name == node.cluster.listener
        ]
        if not listed or not bound:
            return
        port = listed.endpoints[0].port
        advertised = [e.port for e in registration.get_quorum_endpoints()]
        if port not in (*bound, *advertised):
            raise JoinError(
                f"controller.quorum.voters has node {node.id} at port {port}, and this"
                f" node listens on {bound[0]}: node.id {node.id} is taken by another"
                " process, or --listener has to name that port."
            )

    def check_listener(self, *, formed: bool) -> None:
        """Check that a voter of a new quorum has a listener for controllers.

        A voter whose quorum is `formed` may use the listener of its clients, if the quorum's log
        has it there. Raises `JoinError`.
        """
        cluster, id = self._node.cluster, self._node.id
        listed = cluster.voters and cluster.voters.voters.get(id)
        if formed or not listed or cluster.has_controller_listener:
            return
        endpoint = listed.endpoints[0]
        raise JoinError(
            f"controller.quorum.voters has node {id} at {endpoint.host}:{endpoint.port}, where"
            " its clients connect; a new quorum needs a port of its own. Name another port for"
            f" each voter, for instance {id}@{endpoint.host}:{endpoint.port + 1}. If the"
            " others' quorum still uses the clients' port, set"
            f" controller.listener.names={cluster.inter_broker} until it has moved"
            " (docs/cluster.md)."
        )

    def check_auto_join(self) -> None:
        """Log why a node that is configured to join the voters cannot."""
        node, quorum = self._node, self._quorum
        joins = node.config["controller.quorum.auto.join.enable"] and node.cluster.is_controller
        votes = quorum.raft.voters.latest.has_voter(quorum.local)
        if joins and not votes and not node.cluster.has_controller_listener:
            node.log.warning(
                "this node cannot join the voters: it has no listener for controllers",
                remedy="name one by controller.listener.names (docs/cluster.md)",
            )

    def _check_voters(self) -> None:
        """Fail if controller.quorum.voters names voters that the quorum never had."""
        node, voters = self._node, self._quorum.raft.voters
        configured = node.config["controller.quorum.voters"]
        if self._voters_checked or voters.latest_offset < 0 or not configured:
            return
        self._voters_checked = True
        assert node.cluster.voters is not None
        ids = node.cluster.voters.ids
        formatted = (self._directory.read_meta_properties() or {}).get(FIRST_VOTERS)
        if any(voter_set.ids == ids for voter_set in voters.logged_sets):
            self._directory.write_property(FIRST_VOTERS, _format_ids(ids))
            return
        if formatted == _format_ids(ids):
            return
        node.fail(
            f"controller.quorum.voters names the voters {_format_ids(ids)}, and the cluster's are"
            f" {_format_ids(voters.latest.ids)}: give this node the setting that the others have."
            " Voters of a running cluster are changed by kafka-metadata-quorum.sh add-controller"
            " and remove-controller."
        )

    def _on_refused(self, id: int, error: ErrorCode) -> None:
        """Another node of the quorum has refused a request of this one as a whole."""
        address = self._quorum.peers.find_address(id)
        node_text = f"Node {id}" + (f" at {address[0]}:{address[1]}" if address else "")
        if error is ErrorCode.inconsistent_cluster_id:
            sentence = (
                f"{node_text} is of another cluster than {self._directory.cluster_id}: see"
                " controller.quorum.voters, and give all nodes the same --cluster-id."
            )
        elif error is ErrorCode.inconsistent_voter_set:
            sentence = (
                f"{node_text} does not have node {self._node.id} among its voters: give all nodes "
                "the same controller.quorum.voters (--quorum)."
            )
        else:
            return
        if self._started:
            self._node.log.warning("a node of the quorum refused this one", why=sentence)
        else:
            self._node.fail(sentence)

    def _on_unserved(self, id: int, address: Address) -> None:
        """Log once that the configs name an address that does not serve the quorum. An address
        in the quorum's log may be one that the voter has left."""
        configured = self._quorum.peers.configured.get(id)
        if address == configured and (id, address) not in self._unserved:
            self._unserved.add((id, address))
            self._node.log.warning(
                "a node does not serve the quorum where it was asked",
                node=id,
                address=f"{address[0]}:{address[1]}",
                remedy="controller.quorum.voters names ports for controllers, not for clients",
            )


def _format_ids(ids: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(ids)))
