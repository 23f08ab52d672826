"""Whole clusters of real brokers on simulated machines: start, stop, crash, restart.

A broker is `server.process` unchanged, from its configs to its signal handler. Like Kubernetes, a
supervisor restarts it when it ends unasked and when it reports that it is unhealthy.
"""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from shoal.server import process as broker_process
from shoal.server.config import BrokerConfig, resolve
from sim.cluster_kernel import Kernel, Process, Violation
from sim.cluster_machine import Machine, SimSystem
from sim.cluster_network import Network

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from shoal.server.broker import Broker

PORT, CONTROLLER_PORT = 9092, 9093
#: Timeouts are shorter than the defaults, so that runs of seconds see their effects.
CONFIGS = {
    "log.dirs": "/data",
    "shoal.cluster.id": "simulated",
    "broker.heartbeat.interval.ms": "500",
    "broker.session.timeout.ms": "3000",
    "replica.lag.time.max.ms": "2000",
    "offsets.topic.num.partitions": "3",
    "share.coordinator.state.topic.num.partitions": "3",
    "share.coordinator.snapshot.update.records.per.snapshot": "20",
    "share.coordinator.state.topic.prune.interval.ms": "3000",
    "transaction.state.log.num.partitions": "1",
    "log.flush.offset.checkpoint.interval.ms": "2000",
    "group.consumer.min.heartbeat.interval.ms": "500",
    "group.consumer.heartbeat.interval.ms": "500",
    "group.consumer.min.session.timeout.ms": "3000",
    "group.consumer.session.timeout.ms": "4000",
    "group.min.session.timeout.ms": "1000",
    "group.initial.rebalance.delay.ms": "300",
    "group.share.min.heartbeat.interval.ms": "500",
    "group.share.heartbeat.interval.ms": "500",
    "group.share.min.session.timeout.ms": "3000",
    "group.share.session.timeout.ms": "4000",
    "group.share.min.record.lock.duration.ms": "1000",
    "group.share.record.lock.duration.ms": "2000",
    "group.share.max.delivery.count.limit": "25",
    "leader.imbalance.check.interval.seconds": "5",
}
#: Errors that may end a broker in a partitioned cluster; any other is a bug.
_EXPECTED = (
    "No controller has registered broker",
    "It was stopped before its cluster had admitted it",
)
#: Errors of a full or broken disk.
_DISK_REFUSES = ("No space left on device", "Input/output error")
_SUPERVISE_S = 0.5


class CannotStart(AssertionError):
    """A broker refused to start, or ended, for a reason that none of the faults explains."""


class BrokerMachine(Machine):
    """A machine with a broker and its supervisor."""

    def __init__(self, kernel: Kernel, network: Network, id: int, configs: Mapping[str, str]):
        super().__init__(kernel, network, f"b{id}", f"10.0.0.{id}")
        self.id = id
        own = {"node.id": str(id), "listeners": f"PLAINTEXT://10.0.0.{id}:{PORT}"}
        if "controller.listener.names" in configs:
            own["listeners"] += f",CONTROLLER://10.0.0.{id}:{CONTROLLER_PORT}"
        self.config: BrokerConfig = resolve({**configs, **own}, {})
        #: Whether the supervisor must keep it running.
        self.wanted = False
        self.stopping = False
        self.starts = 0
        #: The process that composed a broker last, and this broker.
        self._composed: tuple[Process, Broker] | None = None
        #: All brokers that ran here, as their processes left them.
        self.past: list[Broker] = []
        kernel.after(_SUPERVISE_S, self._supervise)

    @property
    def broker(self) -> Broker | None:
        """The running broker, once it is constructed."""
        if self._composed is None or self._composed[0] is not self.process:
            return None
        return self._composed[1]

    @property
    def ready(self) -> bool:
        return self.broker is not None and self.broker.get_unready_reason() is None

    def start(self) -> None:
        self.wanted = True
        if self.process is None:
            self.stopping = False
            self.starts += 1
            self.kernel.trace(f"{self.name} starts")
            process = self.boot()
            process.spawn(self._run(process))

    async def _run(self, process: Process) -> None:
        """Run the process's main function to its end."""
        try:
            await broker_process.serve(
                lambda: self._compose(process), ready=lambda: "Ready.", say=self._say
            )
        except broker_process.StartError as error:
            self._say(str(error))
            ill = self.disk.capacity_bytes is not None or self.disk.broken
            refused = ill and any(why in str(error) for why in _DISK_REFUSES)
            if not refused and not str(error).startswith(_EXPECTED):
                raise CannotStart(f"{self.name}: {error}") from None
        self.kernel.soon(None, lambda: self._ended(process))

    def _compose(self, process: Process) -> Broker:
        broker = broker_process.compose(self.config, process.loop, SimSystem(process, self))
        self._composed = process, broker
        self.past.append(broker)
        return broker

    def _ended(self, process: Process) -> None:
        if self.process is process:
            self.kernel.trace(f"{self.name} ended")
            self.ended()

    def _say(self, sentence: str) -> None:
        self.kernel.trace(f"{self.name} says: {sentence}")

    def stop(self) -> None:
        """SIGTERM."""
        self.wanted = False
        process = self.process
        if process is not None and not self.stopping:
            self.kernel.trace(f"{self.name} gets SIGTERM")
            self.stopping = True
            handler = process.loop.signals.get(signal.SIGTERM)
            if handler is None:
                self.kill()
            else:
                self.kernel.soon(process, handler)

    def crash(self, *, power: bool = False) -> None:
        self.wanted = self.stopping = False
        if power:
            self.lose_power()
        else:
            self.kill()

    def _supervise(self) -> None:
        broker = self.broker
        if broker is not None and broker.quorum.is_open:
            sick = broker.get_unhealthy_reason() or broker.quorum.fault
            if sick and self.wanted:
                self.kernel.trace(f"{self.name} is unhealthy: {sick}")
                self.kill()
        if self.wanted and self.process is None:
            self.start()
        self.kernel.after(_SUPERVISE_S, self._supervise)


class SimCluster:
    """Brokers 1 to n, by default all voters, each on its own machine."""

    def __init__(
        self,
        kernel: Kernel,
        count: int,
        configs: Mapping[str, str] | None = None,
        voters: Sequence[int] = (),
        own_configs: Mapping[int, Mapping[str, str]] | None = None,
    ) -> None:
        """`own_configs` are further configs of single brokers, by id."""
        self.kernel = kernel
        self.network = Network(kernel)
        replicas, min_isr = min(count, 3), 1 if count == 1 else 2
        shared = {
            **CONFIGS,
            "default.replication.factor": str(replicas),
            "offsets.topic.replication.factor": str(replicas),
            "share.coordinator.state.topic.replication.factor": str(replicas),
            "share.coordinator.state.topic.min.isr": str(min_isr),
            "min.insync.replicas": str(min_isr),
            **(configs or {}),
        }
        if count > 1:
            shared["controller.listener.names"] = "CONTROLLER"
            shared["controller.quorum.voters"] = ",".join(
                f"{id}@10.0.0.{id}:{CONTROLLER_PORT}" for id in voters or range(1, count + 1)
            )
        self.brokers = {}
        for id in range(1, count + 1):
            role = {"process.roles": "broker"} if voters and id not in voters else {}
            own = {**shared, **role, **(own_configs or {}).get(id, {})}
            self.brokers[id] = BrokerMachine(kernel, self.network, id, own)
        self.clients: list[Machine] = []
        #: Whether acknowledged records are on disk.
        self.synced = False
        #: Whether a broker may lack acknowledged records, until all replicas are in sync again.
        self.lacking = False

    @property
    def bootstrap(self) -> str:
        return ",".join(f"10.0.0.{id}:{PORT}" for id in self.brokers)

    def client(self, name: str) -> Machine:
        """One more machine, without a broker."""
        machine = Machine(self.kernel, self.network, name, f"10.0.1.{len(self.clients) + 1}")
        self.clients.append(machine)
        return machine

    def machines(self) -> list[Machine]:
        return [*self.brokers.values(), *self.clients]

    def running(self) -> Iterator[tuple[BrokerMachine, Broker]]:
        """Yield the fully constructed brokers, including those stopped by SIGSTOP."""
        for machine in self.brokers.values():
            broker = machine.broker
            if broker is not None and broker.is_open:
                yield machine, broker

    def may_crash(self) -> bool:
        """Return False while a broker lacks acknowledged records after a power loss. If the others
        were killed then, these records could be lost (KIP-966)."""
        self.lacking = self.lacking and not self.fully_replicated()
        return not self.lacking

    def fully_replicated(self) -> bool:
        """Whether every broker serves and every replica is in its ISR in all brokers' images."""
        for machine in self.brokers.values():
            broker = machine.broker
            if broker is None or not machine.ready:
                return False
            for topic in broker.image.topics.values():
                for partition in topic.partitions:
                    if set(partition.isr) != set(partition.replicas):
                        return False
        return True

    def until(self, done: Callable[..., bool], limit_s: float, what: str) -> None:
        """Run until `done`. Raises `Violation` after `limit_s`."""
        kernel, end = self.kernel, self.kernel.now + limit_s

        def look() -> None:
            if done():
                kernel.stopped = True
            elif kernel.now < end:
                kernel.after(0.05, look)

        kernel.after(0.0, look)
        if not kernel.run(end):
            raise Violation("liveness", f"{what} not after {limit_s} s")
