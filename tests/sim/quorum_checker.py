"""Invariants of a quorum, by name. Each is checked after every step of a node.

single_leader            an epoch has one leader
single_vote              a replica gives one vote an epoch, restarts included
monotone_epoch           a replica's epoch never goes back, restarts included
monotone_high_watermark  a replica's high watermark never goes back while it runs
committed_prefix         below their high watermarks all replicas have the same batches
leader_completeness      a leader has every batch that was committed in an earlier epoch (Raft 5.4)
own_epoch                a leader commits by counting what its own epoch has written (Raft 5.4.2)
majority_durable         what a leader commits is durable on a majority of its voters
acknowledged             a record that was acknowledged stays where it was
same_state               nodes that have applied the same offsets are in the same state
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from shoal.record.batch import iter_headers
from shoal.record.records import read_records

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator

    from shoal.quorum.voters import ReplicaKey, VoterSet
    from sim.quorum_node import Node


class Violation(AssertionError):
    """An invariant does not hold."""

    def __init__(self, name: str, what: str) -> None:
        super().__init__(f"{name}: {what}")
        self.name = name


class Batch(NamedTuple):
    next_offset: int
    epoch: int
    crc: int


class Checker:
    """Remembers every commit, and checks each node against it."""

    def __init__(self, nodes: dict[int, Node]) -> None:
        self._nodes = nodes
        self.leaders: dict[int, int] = {}
        self.committed: dict[int, Batch] = {}
        #: The epoch in which each batch was committed.
        self._committed_in: dict[int, int] = {}
        self.values: dict[int, bytes] = {}
        self.committed_end = 0
        self.acknowledged_count = 0
        self._gone: dict[ReplicaKey, int] = {}
        self._epochs: dict[int, int] = {}
        self._votes: dict[tuple[int, int], ReplicaKey] = {}
        self._high_watermarks: dict[int, int] = {}
        self._voters: dict[int, VoterSet] = {}
        self._verified: dict[int, int] = {}
        self._states: dict[int, Hashable] = {}

    def started(self, node: Node) -> None:
        raft = node.live()
        self._epoch(node)
        self._high_watermarks[node.id] = raft.high_watermark
        self._voters[node.id] = raft.voters.latest
        self._verified[node.id] = raft.index.start_offset

    def forget(self, node: Node) -> None:
        """The node becomes another replica without promises. The old replica's log counts until its
        fetches are no longer in flight."""
        self._gone[node.key] = node.durable_end
        self._epochs.pop(node.id, None)
        self._votes = {key: vote for key, vote in self._votes.items() if key[0] != node.id}

    def stepped(self, node: Node) -> None:
        raft = node.live()
        self._epoch(node)
        before = self._high_watermarks[node.id]
        if raft.high_watermark < before:
            raise Violation(
                "monotone_high_watermark", f"n{node.id} from {before} to {raft.high_watermark}"
            )
        if raft.is_leader and self.leaders.get(raft.epoch) != node.id:
            self._new_leader(node)
        if raft.high_watermark > before:
            self._high_watermarks[node.id] = raft.high_watermark
            self._prefix(node)
            if raft.is_leader:
                self._majority(node)
        self._voters[node.id] = raft.voters.latest

    def _epoch(self, node: Node) -> None:
        epoch = node.live().epoch
        if epoch < self._epochs.get(node.id, 0):
            raise Violation("monotone_epoch", f"n{node.id} from {self._epochs[node.id]} to {epoch}")
        self._epochs[node.id] = epoch
        voted = node.live().voted
        if (known := self._votes.get((node.id, epoch))) not in (None, voted):
            raise Violation(
                "single_vote", f"n{node.id} voted {known} in epoch {epoch}, now {voted}"
            )
        if voted is not None:
            self._votes[node.id, epoch] = voted

    def _new_leader(self, node: Node) -> None:
        raft = node.live()
        other = self.leaders.setdefault(raft.epoch, node.id)
        if other != node.id:
            raise Violation("single_leader", f"n{other} and n{node.id} lead epoch {raft.epoch}")
        start = max(raft.index.start_offset, self._verified[node.id])
        own = {at: batch for at, batch, _ in self._batches(node, start, raft.index.end_offset)}
        for at, batch in self.committed.items():
            # A candidate that was paused may win its election after a later one.
            is_earlier = self._committed_in[at] < raft.epoch
            if at >= start and is_earlier and own.get(at) != batch:
                raise Violation(
                    "leader_completeness",
                    f"n{node.id} leads epoch {raft.epoch} without the batch {batch} at {at}",
                )

    def _prefix(self, node: Node) -> None:
        raft = node.live()
        start = max(raft.index.start_offset, self._verified[node.id])
        for at, batch, data in self._batches(node, start, raft.high_watermark):
            known = self.committed.get(at)
            if known is None:
                if at != self.committed_end:
                    raise Violation(
                        "committed_prefix", f"n{node.id} commits {batch} at {at} across others"
                    )
                self.committed[at] = batch
                self._committed_in[at] = raft.epoch
                self.committed_end = batch.next_offset
                for record in read_records(data):
                    self.values[record.offset] = record.value or b""
            elif known != batch:
                raise Violation(
                    "committed_prefix", f"n{node.id} has {batch} at {at}, others {known}"
                )
        self._verified[node.id] = max(raft.high_watermark, self._verified[node.id])

    def _majority(self, node: Node) -> None:
        raft = node.live()
        if (epoch := raft.index.find_epoch(raft.high_watermark)) != raft.epoch:
            raise Violation(
                "own_epoch", f"n{node.id} commits epoch {epoch} directly in epoch {raft.epoch}"
            )
        # A change within this step came before the commit, or after it.
        in_force = self._voters[node.id], raft.voters.latest
        durable = [self._durable(voters) for voters in in_force]
        if all(
            voters.find_committed_offset(found) < raft.high_watermark
            for voters, found in zip(in_force, durable, strict=True)
        ):
            raise Violation(
                "majority_durable",
                f"n{node.id} commits up to {raft.high_watermark}, durable are {durable[-1]}",
            )

    def _durable(self, voters: VoterSet) -> dict[int, int]:
        """Voter id -> the offset up to which it has the log on disk."""
        return {
            id: min(n.durable_end, n.store.index.end_offset)
            for id, n in self._nodes.items()
            if voters.has_voter(n.key) and n.incarnation
        } | {key.id: end for key, end in self._gone.items() if voters.has_voter(key)}

    def acknowledged(self, offset: int, value: bytes) -> None:
        if self.values.get(offset) != value:
            raise Violation("acknowledged", f"{value!r} is not at {offset}")
        self.acknowledged_count += 1

    def applied(self, node: Node) -> None:
        state = node.state
        known = self._states.setdefault(node.applied, state)
        if known != state:
            raise Violation("same_state", f"n{node.id} at {node.applied}: {state}, not {known}")

    def _batches(self, node: Node, start: int, end: int) -> Iterator[tuple[int, Batch, bytes]]:
        log = node.store.log
        while start < end:
            found = log.read(start, 1 << 20, max_offset=end)
            for at, header in iter_headers(found.data):
                data = bytes(found.data[at : at + header.size])
                batch = Batch(header.next_offset, header.leader_epoch, header.crc)
                yield header.base_offset, batch, data
            assert found.next_offset > start, f"n{node.id} ends within a batch at {start}"
            start = found.next_offset
