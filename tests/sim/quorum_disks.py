"""Voters that lose their disk and vote again: the broker's part around the core.

The simulated shell reports a voter's directory to the leader. A node that lost its disk replaces
its former self as a voter. This is `server/cluster/voter_update.py` without the wire protocol.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.quorum.events import MessageReceived
from shoal.quorum.messages import (
    AddRaftVoterRequest,
    RaftMessage,
    RemoveRaftVoterRequest,
    Request,
    UpdateRaftVoterRequest,
)
from sim.quorum_checker import Violation
from sim.quorum_cluster import CLIENT, FAULTS, LIVENESS_MS, Cluster, torment

if TYPE_CHECKING:
    from sim.quorum_node import Node

#: How often a node checks whether it has something to report.
INTERVAL_MS = 300
#: Other faults of the run.
BESIDE = ("crash", "power_loss", "partition", "one_way_partition", "pause", "message_loss")


class Shells:
    """Adds voters automatically, and counts lost disks and returned voters."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.first = tuple(cluster.nodes)
        self.lost = 0
        cluster.world.after(INTERVAL_MS, self._look)

    def _look(self) -> None:
        for node in self.cluster.nodes.values():
            leader = self._leader()
            if leader is not None and node.up and node.paused is None:
                request = self._due(node, leader)
                if request is not None:
                    leader.step(MessageReceived(RaftMessage(CLIENT, leader.id, None, request)))
        self.cluster.world.after(INTERVAL_MS, self._look)

    def _leader(self) -> Node | None:
        leaders = [n for n in self.cluster.leaders() if n.paused is None]
        return max(leaders, key=lambda n: n.live().epoch, default=None)

    def _due(self, node: Node, leader: Node) -> Request | None:
        raft = leader.live()
        voter = raft.voters.latest.voters.get(node.id)
        if voter is None:
            return AddRaftVoterRequest(node.voter)
        if voter.key.directory_id is None:
            return UpdateRaftVoterRequest(raft.epoch, node.voter)
        progress = raft.leader_state and raft.leader_state.replicas.get(node.id)
        if voter.key == node.key or not progress or progress.key != node.key:
            return None
        return RemoveRaftVoterRequest(voter.key) if progress.caught_up_ms is not None else None

    def whole(self) -> bool:
        """Return whether the committed voters are all replicas, with their present directories."""
        keys = {node.key for node in self.cluster.nodes.values()}
        for node in self.cluster.nodes.values():
            voters = node.store.voters
            known = voters.latest_offset < node.live().high_watermark if node.up else False
            if not known or {voter.key for voter in voters.latest} != keys:
                return False
        return True

    def lose(self) -> None:
        """Replace a node's disk, which loses its copy of committed data. This happens to one node
        at a time, and to the next one only after all nodes have this one as a voter again."""
        if not self.whole():
            return
        rng, nodes = self.cluster.world.random, self.cluster.nodes
        node = nodes[rng.choice(sorted(nodes))]
        self.lost += 1
        node.stop(lambda n: 0)
        self.cluster.checker.forget(node)
        node.replace_disk()

        def start() -> None:
            if not node.up:
                node.start()

        self.cluster.world.after(rng.randint(1, 3_000), start)


def simulate(seed: int, *, duration_ms: int = 30_000, keep_trace: bool = False) -> Shells:
    """Run one seed with three or five voters. Raises `Violation`."""
    cluster = Cluster(seed, voters=3 if seed % 3 else 5, keep_trace=keep_trace)
    shells = Shells(cluster)
    FAULTS["disk_lost"] = lambda _: shells.lose()
    try:
        torment(cluster, ("disk_lost", "disk_lost", *BESIDE), duration_ms)
    finally:
        del FAULTS["disk_lost"]
    if not cluster.world.run_until(cluster.world.now_ms + LIVENESS_MS, shells.whole):
        voters = {n.id: sorted(n.store.voters.latest.ids) for n in cluster.nodes.values()}
        raise Violation("liveness", f"not all vote again: {voters}")
    return shells
