"""Several brokers on a host (`shoal server --brokers-per-host`): spread, watched, and stopped."""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from cluster.test_replication import CALM_CONFIGS, Writer, check
from confluent_kafka.admin import AdminClient, NewTopic
from support.brokers.clusters import CLUSTER_ID, ShoalCluster
from support.brokers.ports import free_run
from support.brokers.servers import ShoalProcess
from support.runs.conditions import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

PARTITIONS = 8


def pids(host: ShoalProcess) -> dict[int, int]:
    """Return the processes of a host's brokers, by id."""
    children = Path(f"/proc/{host.pid}/task/{host.pid}/children").read_text().split()
    named: dict[int, int] = {}
    for child in map(int, children):
        words = Path(f"/proc/{child}/cmdline").read_text().split("\0")
        named |= {int(w.partition("node.id=")[2]): child for w in words if "node.id=" in w}
    return named


class Hosts(ShoalCluster):
    """Two hosts of two brokers each: 10 and 11, 20 and 21. The first of each votes."""

    def __init__(self, folder: Path) -> None:
        ports = {10: free_run(2), 20: free_run(2)}
        self.addresses = {
            first + n: f"127.0.0.1:{port + n}" for first, port in ports.items() for n in range(2)
        }
        self.roles = dict.fromkeys(self.addresses, "broker,controller")
        self.controllers = {id: f"127.0.0.1:{free_run(1)}" for id in ports}
        self.quorum = ",".join(f"{id}@{address}" for id, address in self.controllers.items())
        self.nodes = {}
        for first in ports:
            own = {"broker.rack": f"host-{first}", "min.insync.replicas": "1"}
            self.nodes[first] = self.node(
                first, folder / str(first), {**CALM_CONFIGS, **own}, "--brokers-per-host=2"
            )


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    found = Hosts(tmp_path)
    try:
        yield found.start()
    finally:
        found.stop()


def test_replicas_share_no_host_and_a_dead_broker_comes_back(hosts: Hosts) -> None:
    eventually(lambda: len(hosts.metadata(10).brokers) == 4)
    admin = AdminClient({"bootstrap.servers": hosts.bootstrap})
    admin.create_topics([NewTopic("t", PARTITIONS, 2)], operation_timeout=60)["t"].result(60)
    rows = hosts.topic(10, "t")
    assert all(sorted(id // 10 for id in p.replica_nodes) == [1, 2] for p in rows)
    assert {p.leader_id for p in rows} == {10, 11, 20, 21}
    host = hosts.nodes[10]
    with Writer(hosts, "t") as writer:
        writer.more(100)
        before = pids(host)
        os.kill(before[11], signal.SIGKILL)
        writer.more(100)
        eventually(lambda: pids(host).get(11) not in (None, before[11]))
        assert pids(host)[10] == before[10], "the other one keeps running"
        eventually(lambda: all(len(p.isr_nodes) == 2 for p in hosts.topic(10, "t")))
        writer.more(100)
    check(hosts, "t", writer)
    message = "broker 11 ended (SIGKILL); it is started again in 1 s."
    assert any(message in line for line in host.log)
    for host in hosts.nodes.values():
        assert host.stop() == 0
        assert "Stopped." in host.log
    for id in hosts.addresses:
        folder = hosts.nodes[id // 10 * 10].data_dir / str(id)
        assert (folder / ".kafka_cleanshutdown").exists(), id


def alone(folder: Path, *flags: str, metrics: str = "127.0.0.1:0") -> ShoalProcess:
    host = ShoalProcess(folder, flags=["--brokers-per-host=2", *flags], metrics=metrics)
    host.bootstrap = f"127.0.0.1:{free_run(3)}"  # the last one is the controller's
    return host


def test_a_single_host(tmp_path: Path) -> None:
    """A one-host cluster, with the same id when it restarts; the host's name is the rack. Its
    brokers do not outlive it."""
    metrics = free_run(2)
    host = alone(tmp_path, metrics=f"127.0.0.1:{metrics}")
    first = host.bootstrap
    cluster = ShoalCluster(tmp_path, 1)

    def described() -> Any:
        cluster.addresses[1] = first
        return cluster.metadata(1)

    ids = set()
    for turn in range(2):
        host.bootstrap = first
        host.start()
        found = eventually(lambda: m if len((m := described()).brokers) == 2 else None)
        assert found is not None
        assert {broker.rack for broker in found.brokers} == {socket.gethostname()}
        ids.add(found.cluster_id)
        for number in range(2):
            host.metrics_url = f"http://127.0.0.1:{metrics + number}"
            assert host.metric("process_resident_memory_bytes") > 0
        started = [Path("/proc", str(pid)) for pid in pids(host).values()]
        assert len(started) == 2
        if turn == 0:
            assert host.stop() == 0
        else:
            host.kill9()
            eventually(lambda left=started: not any(process.exists() for process in left))
    assert len(ids) == 1
    assert CLUSTER_ID not in ids


def test_a_broker_that_does_not_start_ends_the_whole(tmp_path: Path) -> None:
    host = alone(tmp_path)
    port = int(host.bootstrap.rpartition(":")[2])
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", port + 1))
        taken.listen()
        said = host.refusal()
    assert f"broker 2 did not start: Cannot listen on 127.0.0.1:{port + 1}" in said
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))
