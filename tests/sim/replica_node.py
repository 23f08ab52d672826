"""A broker of a simulated cluster, limited to replication: real logs in memory, real partitions and
fetchers, and a small version of the broker's shell."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from shoal.log.config import LogConfig
from shoal.log.directory import LogDirectory
from shoal.log.errors import AppendRefused, LogOffline
from shoal.log.memory import MemoryStorage
from shoal.log.producers import BATCHES_MAX
from shoal.protocol.errors import ErrorCode
from shoal.record.batch import read_header
from shoal.replication.partition import Partition, ReplicaFetch, ReplicaFetchResult
from shoal.replication.replica_fetcher import (
    FetchOutcome,
    FetchSessionRequest,
    FetchSessionResponse,
    Key,
    ReplicaFetcher,
)
from sim.replica_checker import Violation, batches
from sim.replica_controller import Image

if TYPE_CHECKING:
    from collections.abc import Callable

    from shoal.replication.leadership import AlterPartition
    from sim.replica_cluster import ReplicaCluster

TOPIC = "t"
TOPIC_ID = UUID(int=7)
CONFIG = LogConfig(segment_bytes=2_000, index_interval_bytes=200, retention_ms=-1)
FETCH_BYTES = 1_000
FETCH_WAIT_MS = 100
REQUEST_TIMEOUT_MS = 600
HEARTBEAT_MS = 150
LAG_TIME_MAX_MS = 1_500
ALTER_RETRY_MS = 50


class Produce(NamedTuple):
    """An idempotent producer's batch of one record, with acks=all."""

    index: int  # type: ignore[assignment]  # It hides tuple.index.
    data: bytes


@dataclass
class _Session:
    id: int
    epoch: int = 1
    partitions: dict[Key, ReplicaFetch] = field(default_factory=dict)


class _Parked(NamedTuple):
    """A waiting fetch of a follower."""

    replica_id: int
    broker_epoch: int
    session_id: int
    reply: Callable[[FetchSessionResponse], None]


class ReplicaNode:
    """One broker; `up` is False while it is down."""

    def __init__(self, cluster: ReplicaCluster, id: int) -> None:
        self.cluster = cluster
        self.world = cluster.world
        self.id = id
        self.storage = MemoryStorage()
        self.up = False
        self.incarnation = 0
        self.paused: list[Callable[[], None]] | None = None
        self.sync_ms = (0, 4)
        self.partitions: list[Partition] = []

    # Start and stop.

    def start(self) -> None:
        self.incarnation += 1
        self.up, self.paused = True, None
        self.epoch = -1
        self.image: Image | None = None
        self.storage.now_ms = self.world.now_ms
        self.directory = LogDirectory(self.storage, "data")
        self.directory.open(cluster_id="c", node_id=self.id, directory_id=UUID(int=self.id))
        self.partitions = []
        self.fetchers: dict[int, ReplicaFetcher] = {}
        self.in_flight: dict[int, int] = {}
        self._correlation = 0
        self._sessions: dict[int, _Session] = {}
        self._parked: list[_Parked] = []
        self._waiting: list[tuple[Partition, int, int, Callable[[ErrorCode, int], None]]] = []
        self._syncing: set[int] = set()
        for index in range(self.cluster.partition_count):
            log = self.directory.open_log(
                TOPIC, index, CONFIG, now_ms=self.world.now_ms, topic_id=TOPIC_ID
            )
            replicas = self.cluster.controller.partitions[index].replicas
            partition = Partition(
                TOPIC,
                TOPIC_ID,
                index,
                log,
                node_id=self.id,
                leader_id=-1,
                leader_epoch=-1,
                partition_epoch=-1,
                isr=(),
                replicas=replicas,
                high_watermark=self.directory.high_watermarks.get((TOPIC, index), 0),
            )
            partition.min_isr = self.cluster.controller.min_isr
            partition.lag_time_max_ms = LAG_TIME_MAX_MS
            partition.group_commit = self.cluster.group_commit
            partition.on_advance(self._advanced)
            partition.on_append(self._appended)
            partition.sync_requested = self._sync_soon
            partition.alter_isr = self._alter
            partition.broker_epoch_of = self._broker_epoch
            self.partitions.append(partition)
            self.cluster.checker.advanced(partition, self.incarnation)
        self.directory.mark_started()
        self._register()
        self._every(20, self._tick)
        self._every(HEARTBEAT_MS, self._heartbeat)
        self._every(400, self._checkpoint)

    def stop(self, choose: Callable[[int], int]) -> None:
        if self.up:
            self.world.trace(f"b{self.id} stops")
            self.up, self.paused = False, None
            self.storage.capacity_bytes = None
            self.storage.crash(choose)

    def close(self) -> None:
        """Stop as on SIGTERM: the logs are closed, and nothing is lost."""
        if self.up:
            self.world.trace(f"b{self.id} closes")
            self.storage.now_ms = self.world.now_ms
            try:
                self.directory.close()
            except OSError:
                pass
            self.stop(lambda n: n - 1)

    def alive(self, call: Callable[[], None]) -> Callable[[], None]:
        """Wrap a call: it runs only if this incarnation is still alive, and later if it is
        paused."""
        incarnation = self.incarnation

        def run() -> None:
            if not self.up or self.incarnation != incarnation:
                return
            if self.paused is not None:
                self.paused.append(run)
                return
            self.storage.now_ms = self.world.now_ms
            call()

        return run

    def resume(self) -> None:
        waiting, self.paused = self.paused or [], None
        for call in waiting:
            call()

    def _every(self, interval_ms: int, call: Callable[[], None]) -> None:
        def run() -> None:
            call()
            self.world.after(interval_ms, self.alive(run))

        self.world.after(self.world.random.randint(0, interval_ms), self.alive(run))

    # The controller.

    def _ask(self, ask: Callable[[], object], then: Callable[[object], None]) -> None:
        """Send a request to the controller over the network, and pass on the response."""
        answered = self.alive
        network, own = self.cluster.network, self.id

        def arrive() -> None:
            answer = ask()
            network.carry(0, own, answered(lambda: then(answer)))

        network.carry(own, 0, arrive)

    def _register(self) -> None:
        controller, incarnation = self.cluster.controller, self.incarnation
        clean = self.directory.clean

        def registered(epoch: object) -> None:
            assert isinstance(epoch, int)
            self.epoch = max(self.epoch, epoch)

        self._ask(lambda: controller.register(self.id, incarnation, clean), registered)

    def _heartbeat(self) -> None:
        if self.epoch < 0:
            self._register()
            return
        controller, epoch = self.cluster.controller, self.epoch

        def heard() -> Image:
            # A broker is unfenced once it has caught up with the metadata of its registration.
            if self.image is not None and self.image.version >= epoch:
                controller.heartbeat(self.id, epoch)
            return controller.image

        self._ask(heard, self._apply_image)

    def push(self, image: Image) -> None:
        """The controller sends a new image."""
        self.alive(lambda: self._apply_image(image))()

    def _apply_image(self, image: object) -> None:
        assert isinstance(image, Image)
        if self.image is not None and image.version <= self.image.version:
            return
        if not 0 <= self.epoch <= image.version:
            return  # A broker opens its logs once the image has the registration of this start.
        self.image = image
        for partition in self.partitions:
            partition.register(image.partitions[partition.index], self.world.now_ms)
            if partition.is_leader:
                self.cluster.checker.leads(partition)
            self._follow(partition)
        self._serve_waiting()
        self._fetch_all()

    def _follow(self, partition: Partition) -> None:
        for leader_id, fetcher in self.fetchers.items():
            if leader_id != partition.leader_id:
                fetcher.forget(partition)
        if partition.leader_id >= 0 and not partition.is_leader:
            fetcher = self.fetchers.setdefault(
                partition.leader_id, ReplicaFetcher(partition.leader_id)
            )
            fetcher.follow(partition)

    def _broker_epoch(self, broker_id: int) -> int:
        if broker_id == self.id:
            return self.epoch
        return -1 if self.image is None else self.image.brokers.get(broker_id, -1)

    def _alter(self, partition: Partition, asked: AlterPartition) -> None:
        """Send AlterPartition. A missing response counts as a refusal for now."""
        controller, done = self.cluster.controller, [False]

        def answered(found: Any) -> None:
            code, registered = found
            done[0] = True
            if code is ErrorCode.none:
                partition.complete_isr_change(registered.isr, registered.partition_epoch)
            else:
                partition.fail_isr_change(asked, code, self.world.now_ms, ALTER_RETRY_MS)

        def timed_out() -> None:
            if not done[0]:
                code = ErrorCode.request_timed_out
                partition.fail_isr_change(asked, code, self.world.now_ms, ALTER_RETRY_MS)

        self._ask(lambda: controller.alter(asked), answered)
        self.world.after(REQUEST_TIMEOUT_MS, self.alive(timed_out))

    # Time and disk.

    def _tick(self) -> None:
        for partition in self.partitions:
            if partition.is_leader:
                partition.tick(self.world.now_ms)
        self._serve_waiting()
        self._fetch_all()

    def _checkpoint(self) -> None:
        self.directory.high_watermarks = {
            (TOPIC, p.index): p.high_watermark for p in self.partitions
        }
        for partition in self.partitions:
            self._sync_soon(partition)
        self._write_checkpoints()

    def _write_checkpoints(self) -> None:
        try:
            self.directory.checkpoint()
        except OSError:
            pass

    def _sync_soon(self, partition: Partition) -> None:
        if partition.index not in self._syncing:
            self._syncing.add(partition.index)
            self.world.after(0, self.alive(lambda: self._sync(partition)))

    def _sync(self, partition: Partition) -> None:
        try:
            sync = partition.log.begin_sync()
        except (OSError, LogOffline):
            self._syncing.discard(partition.index)
            return
        delay_ms = self.world.random.randint(*self.sync_ms)

        def done() -> None:
            if sync is not None:
                sync.run()
                partition.log.finish_sync(sync)
            self._syncing.discard(partition.index)
            if partition.log.unsynced_messages and partition.group_commit:
                self._sync_soon(partition)
            partition.mark_synced(partition.log.recovery_point)
            self._fetch_all()

        self.world.after(delay_ms, self.alive(done))

    # Following.

    def _fetch_all(self) -> None:
        for leader_id, fetcher in self.fetchers.items():
            if leader_id in self.in_flight:
                continue
            request = fetcher.build_next_fetch(self.world.now_ms)
            if request is not None:
                self._fetch(leader_id, fetcher, request)

    def _fetch(self, leader_id: int, fetcher: ReplicaFetcher, request: FetchSessionRequest) -> None:
        self._correlation += 1
        correlation = self.in_flight[leader_id] = self._correlation
        leader, network = self.cluster.nodes[leader_id], self.cluster.network

        def answered(response: FetchSessionResponse) -> None:
            if self.in_flight.get(leader_id) != correlation:
                return
            del self.in_flight[leader_id]
            self._do(fetcher, fetcher.complete_fetch(response, self.world.now_ms))
            self._fetch_all()

        def reply(response: FetchSessionResponse) -> None:
            network.carry(leader_id, self.id, here(response))

        def here(response: FetchSessionResponse) -> Callable[[], None]:
            return alive(partial(answered, response))

        def timed_out() -> None:
            if self.in_flight.get(leader_id) == correlation:
                del self.in_flight[leader_id]
                fetcher.fail_fetch()

        alive = partial(_alive_in, self, self.incarnation)
        epoch = self.epoch
        network.carry(
            self.id,
            leader_id,
            lambda: leader.alive(lambda: leader.fetched(self.id, epoch, request, reply))(),
        )
        self.world.after(REQUEST_TIMEOUT_MS, self.alive(timed_out))

    def _do(self, fetcher: ReplicaFetcher, what: FetchOutcome) -> None:
        for partition in what.sync:
            # The recovery point on disk must not cover records that replace truncated ones.
            self._write_checkpoints()
            self._sync_soon(partition)
        for partition in what.list_offsets:
            leader = self.cluster.nodes[fetcher.leader_id]
            log = leader.partitions[partition.index].log if leader.up else None
            code = ErrorCode.none if log is not None else ErrorCode.not_leader_or_follower
            start = end = 0
            if log is not None:
                start, end = log.log_start_offset, log.log_end_offset
            epoch, now_ms = partition.leader_epoch, self.world.now_ms
            self._do(
                fetcher, fetcher.complete_list_offsets(partition, epoch, code, start, end, now_ms)
            )

    # Leading.

    def fetched(
        self,
        replica_id: int,
        broker_epoch: int,
        request: FetchSessionRequest,
        reply: Callable[[FetchSessionResponse], None],
    ) -> None:
        """Serve a follower's fetch."""
        if request.session_epoch == 0:
            session = _Session(self.world.random.getrandbits(31))
            self._sessions[replica_id] = session
        else:
            found = self._sessions.get(replica_id)
            if found is None or found.id != request.session_id:
                reply(FetchSessionResponse(ErrorCode.fetch_session_id_not_found, 0, {}))
                return
            if found.epoch != request.session_epoch:
                reply(FetchSessionResponse(ErrorCode.invalid_fetch_session_epoch, 0, {}))
                return
            session = found
            session.epoch += 1
        for key in request.forgotten:
            session.partitions.pop(key, None)
        session.partitions.update(request.partitions)
        parked = _Parked(replica_id, broker_epoch, session.id, reply)
        if not self._answer(parked, must=False):
            self._parked.append(parked)
            self.world.after(FETCH_WAIT_MS, self.alive(lambda: self._expire(parked)))

    def _answer(self, parked: _Parked, *, must: bool) -> bool:
        session = self._sessions.get(parked.replica_id)
        if session is None or session.id != parked.session_id:
            return True
        found: dict[Key, ReplicaFetchResult] = {}
        for key, fetch in session.partitions.items():
            answer = self.partitions[key[1]].fetch_for_follower(
                parked.replica_id,
                parked.broker_epoch,
                fetch,
                max_bytes=FETCH_BYTES,
                min_one=True,
                now_ms=self.world.now_ms,
            )
            if not answer.error_code:
                self.cluster.checker.served(self.partitions[key[1]])
            must |= bool(answer.error_code or answer.diverging or answer.records)
            found[key] = answer
        self._serve_waiting()
        if must:
            parked.reply(FetchSessionResponse(ErrorCode.none, parked.session_id, found))
        return must

    def _expire(self, parked: _Parked) -> None:
        if parked in self._parked:
            self._parked.remove(parked)
            self._answer(parked, must=True)

    def _appended(self, partition: Partition) -> None:
        self.world.after(0, self.alive(self._serve_fetches))

    def _serve_fetches(self) -> None:
        for parked in list(self._parked):
            if parked in self._parked and self._answer(parked, must=False):
                self._parked.remove(parked)

    def produce(self, request: Produce, reply: Callable[[ErrorCode, int], None]) -> None:
        partition = self.partitions[request.index]
        if not partition.is_leader:
            reply(ErrorCode.not_leader_or_follower, -1)
        elif len(partition.isr) < partition.effective_min_isr:
            reply(ErrorCode.not_enough_replicas, -1)
        else:
            try:
                appended = partition.append(request.data, now_ms=self.world.now_ms)
            except AppendRefused as refused:
                out_of_order = refused.code is ErrorCode.out_of_order_sequence_number
                if out_of_order and self._is_wrong_to_refuse(request):
                    raise Violation("sequence", f"b{self.id}: {refused.message}") from None
                reply(refused.code, -1)
                return
            entry = (partition, partition.leader_epoch, appended.last_offset + 1, reply)
            self._waiting.append(entry)
            self._serve_waiting()

    def _is_wrong_to_refuse(self, request: Produce) -> bool:
        """Return whether a leader that was not replaced refuses a sequence against the rules.

        Such a leader has all acknowledged records, and the last five batches of a producer are in
        its log. It rightly refuses a batch that overtook an earlier one, and late duplicates of
        older batches. A replaced leader lacks what the next one has accepted.
        """
        partition = self.partitions[request.index]
        newest_epoch = self.cluster.controller.partitions[request.index].leader_epoch
        if partition.leader_epoch != newest_epoch:
            return False
        header, log = read_header(request.data), partition.log
        stored = [
            batch.base_sequence
            for batch in batches(log, log.log_start_offset, log.log_end_offset)
            if batch.producer_id == header.producer_id
        ]
        if header.base_sequence in stored[-BATCHES_MAX:]:
            return True
        acknowledged = self.cluster.acknowledged_sequences.get(header.producer_id, -1)
        return acknowledged > max(stored, default=-1)

    def _serve_waiting(self) -> None:
        left = []
        for partition, epoch, offset, reply in self._waiting:
            if partition.has_lost_leadership_since(epoch):
                reply(ErrorCode.not_leader_or_follower, -1)
            elif partition.is_committed(offset):
                reply(ErrorCode.none, offset - 1)
            else:
                left.append((partition, epoch, offset, reply))
        self._waiting = left

    def latest(self, index: int) -> tuple[int, int] | None:
        """ListOffsets of the end: (leader epoch, offset), or None for a retriable error."""
        partition = self.partitions[index]
        if not partition.is_leader or partition.is_behind:
            return None
        return partition.leader_epoch, partition.high_watermark

    def _advanced(self, partition: Partition) -> None:
        self.cluster.checker.advanced(partition, self.incarnation)


def _alive_in(node: ReplicaNode, incarnation: int, call: Callable[[], None]) -> Callable[[], None]:
    """Wrap `call`: it runs only if the node is still in the incarnation that made the request."""

    def run() -> None:
        if node.incarnation == incarnation:
            node.alive(call)()

    return run
