"""A simulated cluster of brokers with replicated partitions: producers, readers, faults by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from shoal.log.producers import BATCHES_MAX
from shoal.protocol.errors import ErrorCode
from shoal.record.records import build_batch
from sim.replica_checker import Checker, Violation
from sim.replica_controller import Controller, Registered
from sim.replica_node import Produce, ReplicaNode
from sim.world import Network, World

#: The clients' id on the network.
CLIENT = -1
#: After the last fault, a cluster must be in sync again within this time.
LIVENESS_MS = 30_000
PRODUCERS = 2
#: A producer sends a request again after this time without a response.
PRODUCE_TIMEOUT_MS = 1_200


class Producer:
    """An idempotent producer of one partition, with one batch at a time, that retries forever."""

    def __init__(self, cluster: ReplicaCluster, id: int, index: int) -> None:
        self.cluster = cluster
        self.id = id
        self.index = index
        self.sequence = 0
        self._attempt = 0
        self._guess = cluster.world.random.randrange(len(cluster.nodes)) + 1
        cluster.world.after(cluster.world.random.randint(0, 50), self.next)

    def next(self) -> None:
        """Send the next record."""
        if self.cluster.writing:
            self._send()
        else:
            self.cluster.done.add(self.id)

    def _send(self) -> None:
        cluster, world = self.cluster, self.cluster.world
        self._attempt += 1
        attempt = self._attempt
        value = b"p%d-%d" % (self.id, self.sequence)
        data = build_batch(
            [(world.now_ms, None, value, ())],
            producer_id=self.id,
            producer_epoch=0,
            base_sequence=self.sequence,
        )
        node = cluster.nodes[self._guess]

        def answered(code: ErrorCode, offset: int) -> None:
            if attempt != self._attempt:
                return
            self._attempt += 1
            if code is ErrorCode.none:
                cluster.checker.note_acknowledged(self.index, offset, value)
                cluster.acknowledged_sequences[self.id] = self.sequence
                self.sequence += 1
                world.after(world.random.randint(1, 60), self.next)
            else:
                self._again(code)

        def reply(code: ErrorCode, offset: int) -> None:
            cluster.network.carry(node.id, CLIENT, lambda: answered(code, offset))

        request = Produce(self.index, bytes(data))
        cluster.network.carry(
            CLIENT, node.id, lambda: node.alive(lambda: node.produce(request, reply))()
        )

        def timed_out() -> None:
            if attempt == self._attempt:
                self._again(ErrorCode.request_timed_out)

        world.after(PRODUCE_TIMEOUT_MS, timed_out)

    def _again(self, code: ErrorCode) -> None:
        world = self.cluster.world
        self.cluster.errors[code.name] = self.cluster.errors.get(code.name, 0) + 1
        if code is not ErrorCode.not_enough_replicas:
            self._guess = world.random.randrange(len(self.cluster.nodes)) + 1
        world.after(world.random.randint(5, 100), self._send)


class PipelinedProducer:
    """An idempotent producer of one partition with up to five batches in flight. After an error it
    sends them again in order, as librdkafka does."""

    def __init__(self, cluster: ReplicaCluster, id: int, index: int) -> None:
        self.cluster = cluster
        self.id = id
        self.index = index
        self._sequence = 0
        #: (value, batch) by sequence.
        self._unanswered: dict[int, tuple[bytes, bytes]] = {}
        self._resends = False
        self._answered_ms = 0
        self._guess = 1
        self._next()

    def _next(self) -> None:
        cluster, world = self.cluster, self.cluster.world
        if not cluster.writing and not self._unanswered:
            cluster.done.add(self.id)
            return
        oldest = next(iter(self._unanswered), self._sequence)
        # A log accepts any first sequence of an unknown producer, so the first batch goes alone.
        window = BATCHES_MAX if self.id in cluster.acknowledged_sequences else 1
        if cluster.writing and not self._resends and self._sequence - oldest < window:
            value = b"p%d-%d" % (self.id, self._sequence)
            data = build_batch(
                [(world.now_ms, None, value, ())],
                producer_id=self.id, producer_epoch=0, base_sequence=self._sequence,
            )  # fmt: skip
            self._unanswered[self._sequence] = value, bytes(data)
            self._send([self._sequence])
            self._sequence += 1
        if self._unanswered and world.now_ms - self._answered_ms > PRODUCE_TIMEOUT_MS:
            self._failed(ErrorCode.request_timed_out)
        world.after(world.random.randint(1, 60), self._next)

    def _send(self, sequences: Sequence[int]) -> None:
        """Send batches over one connection, which keeps their order."""
        cluster, node = self.cluster, self.cluster.nodes[self._guess]
        requests = [(n, Produce(self.index, self._unanswered[n][1])) for n in sequences]

        def reply_to(sequence: int) -> Callable[[ErrorCode, int], None]:
            def reply(code: ErrorCode, offset: int) -> None:
                cluster.network.carry(
                    node.id, CLIENT, lambda: self._answered(sequence, code, offset)
                )

            return reply

        def arrive() -> None:
            for sequence, request in requests:
                node.produce(request, reply_to(sequence))

        cluster.network.carry(CLIENT, node.id, lambda: node.alive(arrive)())

    def _answered(self, sequence: int, code: ErrorCode, offset: int) -> None:
        cluster = self.cluster
        if sequence not in self._unanswered:
            return
        self._answered_ms = cluster.world.now_ms
        if code is not ErrorCode.none:
            self._failed(code)
            return
        value, _ = self._unanswered.pop(sequence)
        cluster.checker.note_acknowledged(self.index, offset, value)
        acknowledged = cluster.acknowledged_sequences
        acknowledged[self.id] = max(sequence, acknowledged.get(self.id, -1))

    def _failed(self, code: ErrorCode) -> None:
        """Send all unacknowledged batches again, after a pause."""
        cluster, world = self.cluster, self.cluster.world
        if self._resends:
            return
        self._resends = True
        cluster.errors[code.name] = cluster.errors.get(code.name, 0) + 1
        if code is not ErrorCode.not_enough_replicas:
            self._guess = world.random.randrange(len(cluster.nodes)) + 1
        world.after(world.random.randint(5, 100), self._resend)

    def _resend(self) -> None:
        self._resends = False
        self._answered_ms = self.cluster.world.now_ms
        self._send(list(self._unanswered))


class ReplicaCluster:
    """`brokers` brokers with ids from 1 on, and partitions of three replicas among them."""

    def __init__(
        self,
        seed: int,
        *,
        brokers: int = 3,
        partitions: int = 2,
        min_isr: int = 2,
        group_commit: bool = False,
        keep_trace: bool = False,
        clients: bool = True,
        pipelined: bool = False,
    ) -> None:
        """Without `clients`, only the test writes and reads. `pipelined` producers have several
        batches in flight."""
        self.world = World(seed, keep_trace=keep_trace)
        self.network = Network(self.world)
        self.partition_count = partitions
        self.group_commit = group_commit
        ids = range(1, brokers + 1)
        registered = []
        for at in range(partitions):
            replicas = tuple(ids[(at + k) % brokers] for k in range(min(3, brokers)))
            registered.append(Registered(-1, 0, 0, replicas, replicas))
        self.controller = Controller(self.world, ids, registered, min_isr)
        self.checker = Checker(partitions)
        self.nodes = {id: ReplicaNode(self, id) for id in ids}
        #: By producer: the last sequence that was acknowledged.
        self.acknowledged_sequences: dict[int, int] = {}
        self.errors: dict[str, int] = {}
        self.faults: dict[str, int] = {}
        self.writing = True
        self.done: set[int] = set()
        for node in self.nodes.values():
            node.start()
        # The first image has every broker in sync, so that the first leaders are elected from it.
        producer = PipelinedProducer if pipelined else Producer
        self.producers = [
            producer(self, 1 + at * PRODUCERS + k, at)
            for at in range(partitions if clients else 0)
            for k in range(PRODUCERS)
        ]
        self._version = -1
        self.world.after(0, self._control)
        if clients:
            self.world.after(0, self._look)

    def _control(self) -> None:
        """Tick the controller, and send its image to the brokers."""
        self.controller.tick()
        if self.controller.version != self._version:
            self._version = self.controller.version
            image = self.controller.image
            for node in self.nodes.values():
                self.network.carry(0, node.id, lambda node=node: node.push(image))  # type: ignore[misc]
        self.world.after(10, self._control)

    def _look(self) -> None:
        """Ask for the end offsets of partitions, as a client."""
        rng = self.world.random
        node = self.nodes[rng.randrange(len(self.nodes)) + 1]
        index = rng.randrange(self.partition_count)
        if node.up and node.paused is None:
            latest = node.latest(index)
            if latest is not None:
                self.checker.listed(index, *latest)
        self.world.after(rng.randint(1, 20), self._look)

    def in_sync(self) -> bool:
        """Return whether every replica is in sync and has the whole committed log."""
        if len(self.done) < len(self.producers):
            return False
        for at, registered in enumerate(self.controller.partitions):
            replicas = [
                self.nodes[r].partitions[at] for r in registered.replicas if self.nodes[r].up
            ]
            ends = {(p.log.log_end_offset, p.high_watermark) for p in replicas}
            if len(replicas) < len(registered.replicas) or len(ends) > 1:
                return False
            ((end, high_watermark),) = ends
            if end != high_watermark or set(registered.isr) != set(registered.replicas):
                return False
        return True

    def check(self) -> None:
        """Check after the faults that all replicas are equal and have every acknowledged record."""
        for at, registered in enumerate(self.controller.partitions):
            replicas = [self.nodes[r].partitions[at] for r in registered.replicas]
            self.checker.converged(at, replicas)


# Faults: each begins, and returns the function that ends it.

Fault = Callable[[ReplicaCluster], Callable[[], None] | None]


def _one(cluster: ReplicaCluster) -> ReplicaNode:
    return cluster.nodes[cluster.world.random.randrange(len(cluster.nodes)) + 1]


def crash(cluster: ReplicaCluster) -> Callable[[], None] | None:
    """kill -9: the process ends, written data is kept."""
    node = _one(cluster)
    if not node.up:
        return None
    node.stop(lambda n: n - 1)
    return node.start


def restart(cluster: ReplicaCluster) -> Callable[[], None] | None:
    """SIGTERM, and a restart some time later."""
    node = _one(cluster)
    if not node.up or node.paused is not None:
        return None
    node.close()
    return node.start


def may_lose(cluster: ReplicaCluster, id: int) -> bool:
    """Return whether all committed records survive a power loss of this broker: another broker that
    has lost nothing must have them."""
    if any(n.id in cluster.lost for n in cluster.nodes.values() if n.id != id):  # type: ignore[attr-defined]
        return False
    return all([r for r in (*p.isr, *p.elr) if r != id] for p in cluster.controller.partitions)


def power_loss(cluster: ReplicaCluster) -> Callable[[], None] | None:
    """All unsynced data is lost, or a part of it; the last write may be torn."""
    node = _one(cluster)
    lost: set[int] = cluster.__dict__.setdefault("lost", set())
    for id in list(lost):  # The controller removes a restarted broker from the ISR.
        state = cluster.controller.states[id]
        if cluster.nodes[id].up and state.incarnation == cluster.nodes[id].incarnation:
            lost.discard(id)
    if not node.up or not may_lose(cluster, node.id):
        return None
    lost.add(node.id)
    node.stop(lambda n: cluster.world.random.randrange(n))
    return node.start


def pause(cluster: ReplicaCluster) -> Callable[[], None] | None:
    """SIGSTOP."""
    node = _one(cluster)
    if not node.up or node.paused is not None:
        return None
    node.paused = []

    def resume() -> None:
        if node.paused is not None:
            node.resume()

    return resume


def _cut(cluster: ReplicaCluster, links: set[tuple[int, int]]) -> Callable[[], None]:
    new = links - cluster.network.cut
    cluster.network.cut |= new

    def heal() -> None:
        cluster.network.cut -= new

    return heal


def isolate(cluster: ReplicaCluster) -> Callable[[], None] | None:
    """A broker is cut off from all others, the controller and clients included."""
    id = _one(cluster).id
    others = [o for o in (CLIENT, 0, *cluster.nodes) if o != id]
    return _cut(cluster, {(id, o) for o in others} | {(o, id) for o in others})


def cut_from_brokers(cluster: ReplicaCluster) -> Callable[[], None] | None:
    """A broker reaches clients and the controller, but no other broker."""
    id = _one(cluster).id
    others = [o for o in cluster.nodes if o != id]
    return _cut(cluster, {(id, o) for o in others} | {(o, id) for o in others})


def cut_from_controller(cluster: ReplicaCluster) -> Callable[[], None] | None:
    """A broker reaches clients and brokers, but not the controller; it may lead on in an old
    epoch."""
    id = _one(cluster).id
    return _cut(cluster, {(id, 0), (0, id)})


def one_way(cluster: ReplicaCluster) -> Callable[[], None] | None:
    """One broker's messages to another are lost."""
    a, b = cluster.world.random.sample(sorted(cluster.nodes), 2)
    return _cut(cluster, {(a, b)})


def deaf_to_controller(cluster: ReplicaCluster) -> Callable[[], None] | None:
    """The controller receives from a broker that does not receive from it."""
    return _cut(cluster, {(0, _one(cluster).id)})


def message_loss(cluster: ReplicaCluster) -> Callable[[], None] | None:
    cluster.network.loss = 0.1

    def heal() -> None:
        cluster.network.loss = 0.0

    return heal


def reorder(cluster: ReplicaCluster) -> Callable[[], None] | None:
    cluster.network.delay_ms = (1, 150)

    def heal() -> None:
        cluster.network.delay_ms = (1, 8)

    return heal


def slow_disk(cluster: ReplicaCluster) -> Callable[[], None] | None:
    node = _one(cluster)
    node.sync_ms = (50, 400)

    def heal() -> None:
        node.sync_ms = (0, 4)

    return heal


def disk_full(cluster: ReplicaCluster) -> Callable[[], None] | None:
    node = _one(cluster)
    if not node.up:
        return None
    node.storage.capacity_bytes = node.storage.count_used_bytes() + cluster.world.random.randrange(
        300
    )

    def heal() -> None:
        node.storage.capacity_bytes = None

    return heal


def prefer(cluster: ReplicaCluster) -> Callable[[], None] | None:
    """The controller elects another replica."""
    cluster.controller.prefer(cluster.world.random.randrange(cluster.partition_count))
    return lambda: None


FAULTS: dict[str, Fault] = {
    f.__name__: f
    for f in (
        crash,
        power_loss,
        pause,
        isolate,
        cut_from_brokers,
        cut_from_controller,
        one_way,
        deaf_to_controller,
        message_loss,
        reorder,
        slow_disk,
        disk_full,
        prefer,
        restart,
    )
}


def torment(
    cluster: ReplicaCluster, faults: Sequence[str], *, duration_ms: int = 8_000
) -> ReplicaCluster:
    """Run with these faults, then without any until all replicas are in sync, and check."""
    world, rng = cluster.world, cluster.world.random
    end_ms = world.now_ms + duration_ms
    open_faults: list[Callable[[], None]] = []
    lost: set[int] = cluster.__dict__.setdefault("lost", set())

    def begin() -> None:
        if world.now_ms > end_ms - 500:
            return
        name = faults[rng.randrange(len(faults))]
        undo = FAULTS[name](cluster)
        if undo is not None:
            world.trace(f"fault {name}")
            cluster.faults[name] = cluster.faults.get(name, 0) + 1
            closed = [False]

            def close() -> None:
                if not closed[0]:
                    closed[0] = True
                    world.trace(f"over {name}")
                    undo()

            open_faults.append(close)
            world.after(rng.randint(50, 2_500), close)
        world.after(rng.randint(50, 1_200), begin)

    if faults:
        world.after(rng.randint(300, 1_000), begin)
    world.run_until(end_ms)
    for close in open_faults:
        close()
    lost.clear()
    cluster.writing = False
    if not world.run_until(world.now_ms + LIVENESS_MS, cluster.in_sync):
        state = [
            (n.id, n.up, [(p.log.log_end_offset, p.high_watermark, p.isr) for p in n.partitions])
            for n in cluster.nodes.values()
        ]
        raise Violation("liveness", f"not in sync: {cluster.controller.partitions} {state}")
    cluster.check()
    return cluster


def simulate(seed: int, *, keep_trace: bool = False) -> ReplicaCluster:
    """Run one seed, which determines the number of brokers, and the faults and their times."""
    cluster = ReplicaCluster(
        seed,
        brokers=5 if seed % 3 == 0 else 3,
        group_commit=seed % 4 == 1,
        keep_trace=keep_trace,
        pipelined=seed % 4 == 3,
    )
    # Recorded seeds draw only from the faults that existed when they were recorded.
    names = sorted(FAULTS.keys() - {restart.__name__})
    chosen = cluster.world.random.sample(names, cluster.world.random.randint(2, 6))
    if seed % 4 == 3:
        chosen.append(restart.__name__)
    try:
        return torment(cluster, chosen)
    except AssertionError:
        if cluster.world.lines is not None:
            print("\n".join(cluster.world.lines[-200:]))
        raise
