"""Rules for the brokers of a simulated cluster, checked from within during the whole run.

* `one_leader`: one node leads the quorum in an epoch, and one a partition in a leader epoch.
* `high_watermark`: a replica's never goes back while its broker lives.
* `committed_prefix`: all replicas have the same batches below their high watermarks, for ever. The
  first replica that has a batch committed decides; all others are compared with it.
* `leader_completeness`: the leader of the newest epoch has everything that was committed.
* `last_stable_offset`: a replica's is the start of the first transaction that has no marker below
  its high watermark, by what was committed.
* `find_aborted_transactions`: at the end of a run, a replica's index of them equals that of the
  committed transactions.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, NamedTuple

from shoal.metadata.names import METADATA_TOPIC
from shoal.record.batch import BatchHeader, iter_headers
from shoal.record.control import ControlType, read_marker
from sim.cluster_kernel import Violation

if TYPE_CHECKING:
    from collections.abc import Callable

    from shoal.log.log import Log
    from shoal.replication.partition import Partition
    from sim.cluster_brokers import BrokerMachine, SimCluster

_READ_BYTES = 1 << 20
Where = tuple[str, int]


class Batch(NamedTuple):
    """A committed batch: its place and a digest of all its bytes."""

    first: int
    next: int
    digest: bytes


class Ended(NamedTuple):
    """A transaction that has a marker: its producer, its first offset, the marker's offset."""

    producer_id: int
    first: int
    marker: int
    aborted: bool


class Committed:
    """The committed batches of one partition, and its transactions."""

    def __init__(self, start: int) -> None:
        self.start = self.end = start
        self.batches: dict[int, Batch] = {}
        #: By producer id: the start of its transaction without a marker.
        self.open: dict[int, int] = {}
        self.ended: list[Ended] = []

    def add(self, batch: Batch, header: BatchHeader, data: bytes) -> None:
        if batch.first > self.end:
            # Earlier batches were deleted everywhere (DeleteRecords) before the first check.
            self.start = batch.first
        self.batches[batch.first] = batch
        self.end = batch.next
        if not header.is_transactional:
            return
        producer_id = header.producer_id
        if not header.is_control:
            self.open.setdefault(producer_id, batch.first)
        elif producer_id in self.open:
            marker = read_marker(data)
            aborted = marker is not None and marker.control_type is ControlType.ABORT
            ended = Ended(producer_id, self.open.pop(producer_id), batch.first, aborted)
            self.ended.append(ended)

    def stable(self, high_watermark: int) -> int:
        """Return the last stable offset of a replica with this high watermark."""
        firsts = [first for first in self.open.values() if first < high_watermark]
        for ended in reversed(self.ended):
            if ended.marker < high_watermark:
                break
            if ended.first < high_watermark:
                firsts.append(ended.first)
        return min(firsts, default=high_watermark)


class _Seen:
    """What was seen of one replica: its high watermark, and how far its log was compared."""

    def __init__(self, life: tuple[object, object]) -> None:
        #: The process, and the replica's object in it; a change starts a new comparison.
        self.life = life
        self.high_watermark = 0
        self.checked = 0


class LogsChecker:
    """Checks all brokers periodically."""

    def __init__(self, cluster: SimCluster) -> None:
        self.cluster = cluster
        self.committed: dict[Where, Committed] = {}
        self._batch_calls: list[Callable[[Where, BatchHeader, bytes], None]] = []
        self._leaders: dict[tuple[Any, ...], int] = {}
        self._newest: dict[Where, int] = {}
        self._seen: dict[tuple[int, Where], _Seen] = {}

    def on_batch(self, call: Callable[[Where, BatchHeader, bytes], None]) -> None:
        """Call `call` once for each batch, when a replica has it committed."""
        self._batch_calls.append(call)

    def look(self) -> None:
        """Check everything that is new since the last call. Raises `Violation`."""
        for machine, broker in self.cluster.running():
            quorum = broker.quorum
            if quorum.is_leader:
                self._leads((METADATA_TOPIC, quorum.epoch), machine.id)
            # After a failed write, a broker starts a new `Raft`.
            where, log = (METADATA_TOPIC, 0), quorum._log
            assert log is not None
            self._replica(machine, quorum.raft, where, log, quorum.high_watermark)
            for partition in broker.partitions:
                where = (partition.topic, partition.index)
                if partition.is_leader:
                    self._leads((*where, partition.leader_epoch), machine.id)
                    newest = self._newest.get(where, -1)
                    self._newest[where] = max(newest, partition.leader_epoch)
                if not partition.log.offline:
                    self._replica(
                        machine, partition, where, partition.log, partition.high_watermark
                    )
                    self._stable(machine, partition)
        for machine, broker in self.cluster.running():
            for partition in broker.partitions:
                where = (partition.topic, partition.index)
                if partition.is_leader and partition.leader_epoch == self._newest[where]:
                    end, committed = partition.log.log_end_offset, self.committed.get(where)
                    if committed is not None and end < committed.end:
                        raise Violation(
                            "leader_completeness",
                            f"{machine.name} leads {where} in epoch {partition.leader_epoch} and"
                            f" ends at {end}; {committed.end} was committed",
                        )

    def _leads(self, what: tuple[Any, ...], id: int) -> None:
        if self._leaders.setdefault(what, id) != id:
            raise Violation("one_leader", f"{self._leaders[what]} and {id} lead {what}")

    def _replica(
        self, machine: BrokerMachine, replica: object, where: Where, log: Log, high_watermark: int
    ) -> None:
        seen, life = self._seen.get((machine.id, where)), (machine.process, replica)
        if seen is None or seen.life != life:
            seen = self._seen[(machine.id, where)] = _Seen(life)
        if high_watermark < seen.high_watermark:
            raise Violation(
                "high_watermark",
                f"{machine.name} {where} from {seen.high_watermark} to {high_watermark}",
            )
        seen.high_watermark = high_watermark
        at = max(seen.checked, log.log_start_offset)
        if at < high_watermark:
            seen.checked = self._compare(machine, where, log, at, high_watermark)

    def _compare(self, machine: BrokerMachine, where: Where, log: Log, at: int, end: int) -> int:
        committed = self.committed.get(where)
        if committed is None:
            committed = self.committed[where] = Committed(at)
        while at < end:
            read = log.read(at, _READ_BYTES, max_offset=end)
            if not read.data:
                break
            for position, header in iter_headers(read.data):
                data = bytes(read.data[position : position + header.size])
                batch = Batch(
                    header.base_offset, header.next_offset, hashlib.blake2b(data).digest()[:16]
                )
                at = batch.next
                if batch.first >= committed.end:
                    committed.add(batch, header, data)
                    for call in self._batch_calls:
                        call(where, header, data)
                elif batch.first >= committed.start:
                    self._same(machine, where, committed, batch)
        return at

    def _same(
        self, machine: BrokerMachine, where: Where, committed: Committed, batch: Batch
    ) -> None:
        known = committed.batches.get(batch.first)
        if known != batch:
            raise Violation(
                "committed_prefix",
                f"{machine.name} {where} has {batch.first} to {batch.next - 1} otherwise than was"
                f" committed ({'nothing begins there' if known is None else known.next - 1})",
            )

    def _stable(self, machine: BrokerMachine, partition: Partition) -> None:
        where = (partition.topic, partition.index)
        committed = self.committed.get(where)
        if committed is None or not (committed.open or committed.ended):
            return
        high_watermark, stable = partition.high_watermark, partition.last_stable_offset
        if high_watermark < committed.start:
            return
        known = committed.stable(high_watermark)
        if stable != known and stable != self._as_loaded(partition, committed, known):
            raise Violation(
                "last_stable_offset",
                f"{machine.name} {where} has {stable}, and it is {known}"
                f" at high watermark {high_watermark}",
            )

    def _as_loaded(self, partition: Partition, committed: Committed, known: int) -> int:
        """Return the last stable offset of a broker that started with a marker above its high
        watermark.

        Its snapshot of the producers counts the transaction as ended, as in Kafka. That is
        harmless: the end of a transaction is decided before its marker is written.
        """
        high_watermark = partition.high_watermark
        if partition.log.log_end_offset <= high_watermark:
            return known
        tail = partition.log.read(high_watermark, _READ_BYTES).data
        over = {h.producer_id for _, h in iter_headers(tail) if h.is_control}
        over |= {t.producer_id for t in committed.ended if t.marker >= high_watermark}
        firsts = [f for producer_id, f in committed.open.items() if producer_id not in over]
        return min([first for first in firsts if first < high_watermark], default=high_watermark)

    def look_through(self) -> None:
        """Compare all replicas from the start of each log."""
        self._seen.clear()
        self.look()
        for machine, broker in self.cluster.running():
            for partition in broker.partitions:
                committed = self.committed.get((partition.topic, partition.index))
                if committed is not None and not partition.log.offline:
                    self._aborted(machine, partition, committed)

    def _aborted(self, machine: BrokerMachine, partition: Partition, committed: Committed) -> None:
        end = min(partition.high_watermark, committed.end)
        wanted = [t[:3] for t in committed.ended if t.aborted and t.marker < end]
        found = partition.log.find_aborted_transactions(partition.log.log_start_offset, end)
        there = [t[:3] for t in found if t.last_offset < end]
        if there != [t for t in wanted if t[2] >= partition.log.log_start_offset]:
            raise Violation(
                "aborted_transactions",
                f"{machine.name} {partition.topic}-{partition.index} has {there}, not {wanted}",
            )
