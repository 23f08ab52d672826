"""A simulated quorum: nodes, a client that writes, an administrator, and faults by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from shoal.protocol.errors import ErrorCode
from shoal.quorum.events import MessageReceived, Propose
from shoal.quorum.messages import (
    AddRaftVoterRequest,
    RaftMessage,
    RaftVoterResponse,
    RemoveRaftVoterRequest,
    Request,
)
from shoal.quorum.voters import ReplicaKey, Voter, VoterSet
from shoal.record.records import build_batch
from sim.quorum_checker import Checker, Violation
from sim.quorum_node import Node
from sim.world import Network, World

CLIENT = -1
#: After the last fault, a quorum must elect, commit and catch up within this time.
LIVENESS_MS = 60_000


class Pending(NamedTuple):
    """A record whose commit the client waits for."""

    incarnation: int
    epoch: int
    offset: int
    value: bytes


class Cluster:
    """`voters` voters with ids from 1 on, followed by `observers` observers."""

    node_type: type[Node] = Node

    def __init__(
        self, seed: int, *, voters: int, observers: int = 0, keep_trace: bool = False
    ) -> None:
        self.world = World(seed, keep_trace=keep_trace)
        self.network = Network(self.world)
        configured = VoterSet.from_voters(Voter(ReplicaKey(id)) for id in range(1, voters + 1))
        self.nodes: dict[int, Node] = {}
        self.checker = Checker(self.nodes)
        self.pending: dict[int, list[Pending]] = {}
        self.elections = 0
        self.faults: dict[str, int] = {}
        self.changes: dict[str, int] = {}
        self.writing = True
        self._written = 0
        for id in range(1, voters + observers + 1):
            self.nodes[id] = self.node_type(self, id, configured)
        for node in self.nodes.values():
            node.start()
        self.world.after(0, self._write)

    # Sending and receiving.

    def send(self, source: Node, message: RaftMessage) -> None:
        if message.to == CLIENT:
            self._answered(message)
            return
        if isinstance(message.body, Request):
            message = message._replace(correlation=(source.incarnation, message.correlation))
        to = self.nodes[message.to]
        self.network.carry(source.id, to.id, lambda: to.deliver(message))

    def refuse(self, message: RaftMessage) -> None:
        """No process listens at the destination: the connection breaks."""
        if message.source == CLIENT:
            return
        source, to = self.nodes[message.source], message.to
        correlation = message.correlation
        self.network.carry(to, source.id, lambda: source.unanswered(to, correlation))

    # The client.

    def leaders(self) -> list[Node]:
        """Return the nodes that are in the leader state."""
        return [n for n in self.nodes.values() if n.raft is not None and n.raft.is_leader]

    def _write(self) -> None:
        rng = self.world.random
        leaders = [n for n in self.leaders() if n.paused is None]
        if leaders and self.writing:
            self.propose(leaders[rng.randrange(len(leaders))])
        self._collect()
        self.world.after(rng.randint(5, 80), self._write)

    def propose(self, node: Node) -> None:
        """Write one to three records as one batch, and wait for the last one."""
        values = []
        for _ in range(self.world.random.randint(1, 3)):
            self._written += 1
            values.append(b"v%d" % self._written)
        batch = build_batch([(node.now_ms, None, value, ()) for value in values])
        effects = node.step(Propose(batch))
        if effects is not None and effects.proposed is not None:
            one = Pending(node.incarnation, node.live().epoch, effects.proposed, values[-1])
            self.pending.setdefault(node.id, []).append(one)

    def _collect(self) -> None:
        """Acknowledge records of this node once its high watermark has passed them while it
        leads."""
        for id, waiting in self.pending.items():
            node = self.nodes[id]
            left = []
            for one in waiting:
                raft = node.raft
                if raft is None or one.incarnation != node.incarnation:
                    continue
                if not raft.is_leader or raft.epoch != one.epoch:
                    continue
                if raft.high_watermark > one.offset:
                    self.checker.acknowledged(one.offset, one.value)
                else:
                    left.append(one)
            self.pending[id] = left

    # The administrator.

    def change_voters(self, add: bool) -> None:
        """Ask a leader to add an observer to the voters, or to remove a voter."""
        rng = self.world.random
        leaders = [n for n in self.leaders() if n.paused is None]
        if not leaders:
            return
        leader = leaders[rng.randrange(len(leaders))]
        voters = leader.live().voters.latest
        body: Request
        if add:
            outside = [n for n in self.nodes.values() if not voters.has_voter(n.key)]
            if not outside:
                return
            body = AddRaftVoterRequest(outside[rng.randrange(len(outside))].voter)
        else:
            if len(voters) == 1:
                return
            victim = self.nodes[voters.ids[rng.randrange(len(voters))]]
            body = RemoveRaftVoterRequest(victim.key)
        leader.step(MessageReceived(RaftMessage(CLIENT, leader.id, None, body)))

    def _answered(self, message: RaftMessage) -> None:
        assert isinstance(message.body, RaftVoterResponse)
        name = message.body.error.name
        self.changes[name] = self.changes.get(name, 0) + 1

    # Faults and their end.

    def run(self, duration_ms: int) -> None:
        self.world.run_until(self.world.now_ms + duration_ms)

    def heal(self) -> None:
        """End all faults and restart the nodes that are down."""
        self.network.cut.clear()
        self.network.loss = 0.0
        for node in self.nodes.values():
            node.sync_ms = (0, 5)
            if node.paused is not None:
                node.resume()
            if not node.up:
                node.start()

    def settle(self) -> None:
        """Check that a healthy quorum commits a record and catches up within `LIVENESS_MS`.

        Raises `Violation`.
        """
        goal = self.checker.committed_end
        acknowledged = self.checker.acknowledged_count
        end_ms = self.world.now_ms + LIVENESS_MS

        def written() -> bool:
            more = self.checker.acknowledged_count > acknowledged
            return more and self.checker.committed_end > goal

        if not self.world.run_until(end_ms, written):
            raise Violation("liveness", "no record is committed any more")
        self.writing = False
        if not self.world.run_until(end_ms, self._even):
            raise Violation("liveness", f"nodes stay behind: {self.positions()}")

    def _even(self) -> bool:
        leaders = self.leaders()
        if not leaders:
            return False
        end = max(n.live().index.end_offset for n in leaders)
        return all(n.raft is not None and n.raft.high_watermark == end for n in self.nodes.values())

    def positions(self) -> str:
        return ", ".join(
            f"n{n.id} {n.raft.role.value} e{n.raft.epoch} hw{n.raft.high_watermark}"
            for n in self.nodes.values()
            if n.raft is not None
        )


Fault = Callable[[Cluster], None]


def _some(cluster: Cluster) -> Node:
    """Choose a node; half of the time a leader."""
    rng = cluster.world.random
    leaders = cluster.leaders()
    if leaders and rng.random() < 0.5:
        return leaders[rng.randrange(len(leaders))]
    ids = sorted(cluster.nodes)
    return cluster.nodes[ids[rng.randrange(len(ids))]]


def _start_later(cluster: Cluster, node: Node) -> None:
    def start() -> None:
        if not node.up:
            node.start()

    cluster.world.after(cluster.world.random.randint(1, 4_000), start)


def crash(cluster: Cluster) -> None:
    """kill -9: all written data is kept."""
    node = _some(cluster)
    node.stop(lambda n: n - 1)
    _start_later(cluster, node)


def power_loss(cluster: Cluster) -> None:
    """All unsynced data is lost."""
    node = _some(cluster)
    node.stop(lambda n: 0)
    _start_later(cluster, node)


def torn_write(cluster: Cluster) -> None:
    """A part of the unsynced data is kept, and the last write is torn."""
    node = _some(cluster)
    node.stop(cluster.world.random.randrange)
    _start_later(cluster, node)


def blackout(cluster: Cluster) -> None:
    """Power loss of all nodes at once."""
    for node in cluster.nodes.values():
        node.stop(cluster.world.random.randrange)
        _start_later(cluster, node)


def restart(cluster: Cluster) -> None:
    """A stop that transfers leadership."""
    node = _some(cluster)
    if not node.up:
        return
    node.resign()

    def stop() -> None:
        node.stop(lambda n: n - 1)
        _start_later(cluster, node)

    node.later(cluster.world.random.randint(1, 200), stop)


def pause(cluster: Cluster) -> None:
    node = _some(cluster)
    if node.up:
        node.pause()
        cluster.world.after(cluster.world.random.randint(10, 6_000), node.resume)


def partition(cluster: Cluster) -> None:
    """Two groups of nodes that cannot reach each other."""
    rng, ids = cluster.world.random, sorted(cluster.nodes)
    rng.shuffle(ids)
    size = rng.randint(1, len(ids))
    left, right = ids[:size], ids[size:]
    links = [(a, b) for a in left for b in right] + [(b, a) for a in left for b in right]
    _cut(cluster, links)


def one_way_partition(cluster: Cluster) -> None:
    """Messages from one node to some of the others are lost; the other direction works."""
    rng, node = cluster.world.random, _some(cluster)
    others = [id for id in sorted(cluster.nodes) if id != node.id and rng.random() < 0.7]
    flip = rng.random() < 0.5
    _cut(cluster, [(id, node.id) if flip else (node.id, id) for id in others])


def _cut(cluster: Cluster, links: list[tuple[int, int]]) -> None:
    cluster.network.cut.update(links)
    heal_ms = cluster.world.random.randint(100, 6_000)
    cluster.world.after(heal_ms, lambda: cluster.network.cut.difference_update(links))


def message_loss(cluster: Cluster) -> None:
    rng, network = cluster.world.random, cluster.network
    network.loss = rng.choice((0.05, 0.2, 0.5))

    def end() -> None:
        network.loss = 0.0

    cluster.world.after(rng.randint(100, 4_000), end)


def slow_disk(cluster: Cluster) -> None:
    rng, node = cluster.world.random, _some(cluster)
    node.sync_ms = (100, 1_500)

    def end() -> None:
        node.sync_ms = (0, 5)

    cluster.world.after(rng.randint(500, 5_000), end)


def clock_jump(cluster: Cluster) -> None:
    """A node's clock jumps forward, as after a frozen machine."""
    _some(cluster).clock_ahead_ms += cluster.world.random.randint(100, 10_000)


def voter_added(cluster: Cluster) -> None:
    cluster.change_voters(add=True)


def voter_removed(cluster: Cluster) -> None:
    cluster.change_voters(add=False)


FAULTS: dict[str, Fault] = {
    fault.__name__: fault
    for fault in (
        crash,
        power_loss,
        torn_write,
        blackout,
        restart,
        pause,
        partition,
        one_way_partition,
        message_loss,
        slow_disk,
        clock_jump,
        voter_added,
        voter_removed,
    )
}
#: Errors that a change of voters may get during faults.
CHANGE_ERRORS = {
    ErrorCode.none,
    ErrorCode.request_timed_out,
    ErrorCode.not_leader_or_follower,
    ErrorCode.duplicate_voter,
    ErrorCode.voter_not_found,
}


def simulate(
    seed: int,
    *,
    duration_ms: int = 12_000,
    keep_trace: bool = False,
    faults: Sequence[str] = (),
    voters: int = 0,
) -> Cluster:
    """Run one seed. Unless they are given, the seed determines the number of nodes, and the faults
    and their times. Raises `Violation`."""
    shape = World(seed).random
    voters, observers = voters or shape.choice((1, 3, 3, 5)), shape.randint(0, 2)
    cluster = Cluster(seed, voters=voters, observers=observers, keep_trace=keep_trace)
    try:
        torment(cluster, faults, duration_ms)
    except AssertionError as error:
        if cluster.world.lines is not None:
            error.add_note("\n".join(["What happened before it:", *cluster.world.lines[-60:]]))
        raise
    return cluster


def torment(cluster: Cluster, faults: Sequence[str], duration_ms: int) -> None:
    """Inject faults for `duration_ms`, then end them and check that the quorum recovers. Raises
    `Violation`."""
    rng = cluster.world.random
    names = sorted(FAULTS)
    # Each run has only some kinds of faults, so that no kind hides another.
    chosen = list(faults) or [name for name in names if rng.random() < 0.5] or names
    gap_ms = rng.choice((150, 600, 2_000))
    end_ms = cluster.world.now_ms + duration_ms

    def strike() -> None:
        if cluster.world.now_ms >= end_ms:
            return
        name = chosen[rng.randrange(len(chosen))]
        cluster.faults[name] = cluster.faults.get(name, 0) + 1
        cluster.world.trace(name)
        FAULTS[name](cluster)
        cluster.world.after(rng.randint(1, 2 * gap_ms), strike)

    cluster.world.after(rng.randint(1, 3_000), strike)
    cluster.run(duration_ms)
    cluster.heal()
    cluster.settle()
