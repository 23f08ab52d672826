"""Faults of a simulated cluster, by name.

Each fault begins at once and returns the function that ends it. Runs draw from `FAULTS`. A fault
that is impossible now, such as a power loss while replicas are behind, becomes a milder one.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING

from sim.cluster_clients import PARTITIONS, TOPIC, Workload, reassignment, voter
from sim.cluster_network import RESET

if TYPE_CHECKING:
    from sim.cluster_brokers import BrokerMachine
    from sim.cluster_machine import Machine

End = Callable[[], None]
Fault = Callable[["Workload", Random], End]


def _nothing() -> None:
    pass


def _any(load: Workload, rng: Random) -> BrokerMachine:
    """Choose a broker, often an important one such as the controller."""
    brokers = load.cluster.brokers
    for machine, broker in load.cluster.running():
        if broker.quorum.is_leader and rng.random() < 0.4:
            return machine
    return brokers[rng.choice(sorted(brokers))]


def crash(load: Workload, rng: Random) -> End:
    """kill -9: all written data is kept, synced or not."""
    machine = _any(load, rng)
    if not load.cluster.may_crash():
        return _nothing
    machine.crash()
    return machine.start


def power_loss(load: Workload, rng: Random) -> End:
    """All data that was not synced is lost, the last write possibly in part.

    Acknowledged records are in the memory of the whole ISR, or on disk where that is configured. So
    this hits one machine at a time, while all others have every record.
    """
    machine = _any(load, rng)
    if load.cluster.may_crash():
        _lose_power(load, machine)
        return machine.start
    return _nothing


def _lose_power(load: Workload, machine: BrokerMachine) -> None:
    cluster = load.cluster
    sick = any(other.disk.broken for other in cluster.brokers.values())
    alone = len(cluster.brokers) == 1
    power = cluster.synced or (not (alone or sick) and cluster.fully_replicated())
    cluster.lacking = power and not cluster.synced
    machine.crash(power=power)


def torn_write(load: Workload, rng: Random) -> End:
    """A broker dies between two changes of its disk. If `power_loss` is possible, a part of the
    unsynced data may be lost too."""
    machine = _any(load, rng)
    may = load.cluster.may_crash
    machine.disk.die_in(rng.randint(1, 60), may, lambda: _lose_power(load, machine))

    def end() -> None:
        machine.disk.die_in(0, may, _nothing)
        machine.start()

    return end


def blackout(load: Workload, _rng: Random) -> End:
    """All brokers fail at once: by power loss if acknowledged records are on disk, else by a
    kill."""
    machines = list(load.cluster.brokers.values())
    if not load.cluster.may_crash():
        return _nothing
    for machine in machines:
        machine.crash(power=load.cluster.synced)

    def end() -> None:
        for machine in machines:
            machine.start()

    return end


def restart(load: Workload, rng: Random) -> End:
    """SIGTERM, then a restart."""
    machine = _any(load, rng)
    machine.stop()
    return machine.start


def pause(load: Workload, rng: Random) -> End:
    """SIGSTOP, then SIGCONT."""
    return _stopped(load, _any(load, rng))


def client_pause(load: Workload, rng: Random) -> End:
    """A client is stopped, possibly for longer than its session, and resumes as if nothing
    happened."""
    return _stopped(load, rng.choice(load.cluster.clients))


def _stopped(load: Workload, machine: Machine) -> End:
    process = machine.process
    if process is None:
        return _nothing
    load.kernel.trace(f"{machine.name} pauses")
    process.pause()

    def end() -> None:
        load.kernel.trace(f"{machine.name} resumes")
        process.resume()

    return end


def _cut(load: Workload, pairs: set[tuple[str, str]]) -> End:
    network = load.cluster.network
    new = pairs - network.cut
    network.cut |= new
    load.kernel.trace(f"cut: {', '.join(f'{a}>{b}' for a, b in sorted(new))}")

    def end() -> None:
        load.kernel.trace(f"whole: {', '.join(f'{a}>{b}' for a, b in sorted(new))}")
        network.cut -= new

    return end


def _address(machine: Machine) -> str:
    return machine.host.address


def partition(load: Workload, rng: Random) -> End:
    """One broker, or half of them, is cut off from the others in both directions. Clients are on
    one side or reach both."""
    brokers = list(load.cluster.brokers.values())
    count = 1 if rng.random() < 0.6 else max(1, len(brokers) // 2)
    inner = {_address(m) for m in rng.sample(brokers, count)}
    inner |= {_address(m) for m in load.cluster.clients if rng.random() < 0.2}
    with_clients = rng.random() < 0.6
    others = load.cluster.machines() if with_clients else brokers
    outer = {_address(m) for m in others} - inner
    return _cut(
        load, {(a, b) for a in inner for b in outer} | {(b, a) for a in inner for b in outer}
    )


def one_way(load: Workload, rng: Random) -> End:
    """Messages of one machine to another, or to all, are lost. It still receives everything."""
    machines = load.cluster.machines()
    source = rng.choice(machines)
    others = [m for m in machines if m is not source]
    if rng.random() < 0.5:
        others = [rng.choice(others)]
    pairs = {(_address(source), _address(m)) for m in others}
    if rng.random() < 0.5:
        pairs = {(b, a) for a, b in pairs}
    return _cut(load, pairs)


def broken_connections(load: Workload, rng: Random) -> End:
    """Connections are reset; one end may notice later."""
    for transport in load.cluster.network.connections():
        if rng.random() < 0.4:
            (transport if rng.random() < 0.5 else transport.peer).cut_off(RESET)
    return _nothing


def loss(load: Workload, rng: Random) -> End:
    """Segments are lost and retransmitted, so that streams stall and overtake each other."""
    network = load.cluster.network
    network.loss = rng.choice((0.02, 0.1, 0.3))
    load.kernel.trace(f"loss {network.loss}")

    def end() -> None:
        network.loss = 0.0

    return end


def slow_network(load: Workload, rng: Random) -> End:
    network = load.cluster.network
    network.delay_s = (0.001, rng.choice((0.05, 0.3)))

    def end() -> None:
        network.delay_s = (0.0001, 0.001)

    return end


def slow_disk(load: Workload, rng: Random) -> End:
    machine = _any(load, rng)
    machine.disk.slowness = rng.choice((20.0, 200.0, 1000.0))
    load.kernel.trace(f"{machine.name} has a slow disk: {machine.disk.slowness}")

    def end() -> None:
        machine.disk.slowness = 1.0

    return end


def disk_error(load: Workload, rng: Random) -> End:
    """A disk refuses to sync, so its content is uncertain."""
    machine = _any(load, rng)
    if not load.cluster.may_crash():
        return _nothing
    machine.disk.broken = True
    load.kernel.trace(f"{machine.name} has a broken disk")

    def end() -> None:
        machine.disk.broken = False

    return end


def disk_full(load: Workload, rng: Random) -> End:
    machine = _any(load, rng)
    machine.disk.capacity_bytes = machine.disk.count_used_bytes() + rng.choice((0, 300, 5000))
    load.kernel.trace(f"{machine.name} has a full disk")

    def end() -> None:
        machine.disk.capacity_bytes = None

    return end


def clock_jump(load: Workload, rng: Random) -> End:
    """A wall clock is set back or forward."""
    machine = rng.choice(load.cluster.machines())
    jump_s = rng.choice((0.5, 5.0, 60.0, 3_600.0)) * rng.choice((1, -1))
    load.kernel.trace(f"{machine.name} has its clock set by {jump_s} s")
    machine.clock_offset_s += jump_s
    return _nothing


def client_crash(load: Workload, rng: Random) -> End:
    """A client's process is killed and restarted."""
    machine = rng.choice(load.cluster.clients)
    if machine.process is None:
        return _nothing
    machine.kill()

    def end() -> None:
        if machine.process is None:
            load.boot(machine)

    return end


def voter_removed(load: Workload, rng: Random) -> End:
    """A voter is removed from the quorum and added again later."""
    brokers = load.cluster.brokers
    machine = brokers[rng.choice(sorted(brokers))]
    if len(brokers) == 1:
        return _nothing
    number = len(load.cluster.clients)
    load.run(f"tool-{number}", voter(machine, added=False))

    def end() -> None:
        load.run(f"tool-{number + 100}", voter(machine, added=True))

    return end


def reassigned(load: Workload, rng: Random) -> End:
    """A partition moves to other brokers, or its preferred leader changes."""
    ids = sorted(load.cluster.brokers)
    replicas = rng.sample(ids, min(3, len(ids)))
    partition = rng.randrange(PARTITIONS)
    topic = rng.choice(load.topics) if len(load.topics) > 1 else TOPIC
    load.run(f"tool-{len(load.cluster.clients)}", reassignment(topic, partition, replicas))
    return _nothing


FAULTS: dict[str, Fault] = {
    fault.__name__: fault
    for fault in (
        crash,
        power_loss,
        blackout,
        restart,
        pause,
        partition,
        one_way,
        broken_connections,
        loss,
        slow_network,
        slow_disk,
        disk_full,
        torn_write,
        disk_error,
        clock_jump,
        client_crash,
        client_pause,
        voter_removed,
        reassigned,
    )
}
