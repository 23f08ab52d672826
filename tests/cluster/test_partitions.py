"""Brokers that cannot reach each other, in network namespaces, with real clients that reach all.

Packets vanish silently: nothing is refused and no connection ends, so brokers and clients rely on
their time-outs. Less than a majority acknowledges nothing, and the others continue. A broker that
was cut off catches up when it is back. `-s` shows the times.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from cluster.test_replication import CONFIGS
from shoal.client.client import Client
from shoal.client.errors import ClientError, expect
from shoal.client.net.cluster import TopicPartition
from shoal.protocol.api import ApiKey
from shoal.protocol.errors import ErrorCode
from shoal.record.records import build_batch
from shoal.server.coordinators.service import compute_partition
from support.brokers import networks
from support.brokers.clusters import ShoalCluster, running
from support.brokers.networks import NAMESPACES, Network, inside, lacks
from support.runs.conditions import eventually
from support.runs.machine import lacking
from support.scenarios.fault_clients import GroupMember
from support.scenarios.fault_runs import TOPIC, Run
from support.scenarios.histories import Outage

if TYPE_CHECKING:
    from collections.abc import Iterator

#: How long a broker may try what it must not acknowledge.
PATIENCE_MS = 3_000
#: Partitions of __consumer_offsets.
OFFSETS = int(CONFIGS["offsets.topic.num.partitions"])


@pytest.fixture(scope="module", autouse=True)
def _machine() -> None:
    """Fail in CI if the machine cannot do this, else skip."""
    if reason := lacks():
        lacking(reason)


@pytest.fixture
def network() -> Iterator[Network]:
    with Network(3) as found:
        yield found


def heard(network: Network, source: int, to: int) -> bool:
    """Return whether a datagram gets from one host to another."""
    with contextlib.ExitStack() as stack:
        ends = []
        for id in (source, to):
            with inside(network.hosts[id]):
                end = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
            end.bind((network.addresses[id], 0))
            end.settimeout(0.3)
            ends.append(end)
        ends[0].sendto(b"hello", ends[1].getsockname())
        with contextlib.suppress(TimeoutError):
            return ends[1].recv(10) == b"hello"
        return False


def test_a_network_loses_the_chosen_traffic(network: Network) -> None:
    pairs = [(a, b) for a in network.hosts for b in network.hosts if a != b]

    def lost() -> list[tuple[int, int]]:
        return [pair for pair in pairs if not heard(network, *pair)]

    assert lost() == []
    network.part([1], one_way=True)
    assert lost() == [(1, 2), (1, 3)]
    network.part([1])
    assert lost() == [(1, 2), (1, 3), (2, 1), (3, 1)]
    network.heal()
    assert lost() == []


def test_namespaces_of_a_dead_test_are_removed() -> None:
    """Its namespaces and the processes in them, and none of running tests."""
    leave = (
        "import networks, os, subprocess; n = networks.Network(1); n.__enter__();"
        "print(subprocess.Popen([*n.command(1), 'sleep', '600'], stdout=2).pid, flush=True);"
        "os._exit(0)"
    )
    died = subprocess.Popen(
        [sys.executable, "-c", leave],
        cwd=Path(networks.__file__).parent,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert died.stdout is not None
    with died.stdout as output:
        sleeper = Path("/proc", output.readline().strip(), "stat")
    assert died.wait(60) == 0
    left = list(NAMESPACES.glob(f"shoal-net-{died.pid}-*"))
    assert len(left) == 2
    assert sleeper.exists()
    with Network(1) as first, Network(1) as second:
        assert not [path for path in left if path.exists()]
        eventually(lambda: not sleeper.exists() or ") Z " in sleeper.read_text())
        for other in (first, second):
            assert (NAMESPACES / other.router).exists()
    assert not (NAMESPACES / first.router).exists()


class Cut:
    """A run whose brokers are cut off from each other, and the requests to them meanwhile."""

    def __init__(self, network: Network, cluster: ShoalCluster) -> None:
        self.network, self.cluster = network, cluster
        self.run = Run(cluster)

    def leader(self) -> int:
        """Return a broker that leads and is not the controller."""
        controller = self.cluster.controller()
        leaders = [int(p.leader_id) for p in self.cluster.topic(controller, TOPIC)]
        return next(id for id in leaders if id != controller)

    def others(self, id: int) -> list[int]:
        return [other for other in self.cluster.brokers if other != id]

    def coordinates(self, id: int) -> None:
        """Move the consumer group's coordinator to that broker."""
        asked = {"key_type": 0, "coordinator_keys": [GroupMember.GROUP]}
        where = TopicPartition("__consumer_offsets", compute_partition(GroupMember.GROUP, OFFSETS))

        async def move() -> None:
            async with Client(self.cluster.bootstrap) as client:
                expect(await client.admin.reassign({where: [id, *self.others(id)]}))
                await client.admin.elect_leaders([where])  # It may already lead, or be out of sync.

        def moved() -> bool:
            asyncio.run(move())
            coordinators = [
                self.cluster.ask(by, ApiKey.FIND_COORDINATOR, asked).coordinators[0].node_id
                for by in self.cluster.brokers
            ]
            return coordinators == [id] * len(coordinators)

        eventually(moved)
        self.run.all_get_on()

    @contextlib.contextmanager
    def off(self, what: str, id: int, *lost: tuple[int, int]) -> Iterator[None]:
        """Drop this traffic, or all between the broker and the others; then heal and wait for
        recovery."""
        began = time.monotonic()
        if not lost:
            self.network.part([id])
        for source, to in lost:
            self.network.lose(source, to)
        yield
        self.run.all_get_on()
        healed = time.monotonic()
        self.run.history.outages.append(Outage(id, began, healed))
        self.network.heal()
        eventually(self.run.in_sync, timeout_s=90, what="not all replicas are in sync")
        back_s = time.monotonic() - healed
        self.run.recover()
        print(f"{what} (broker {id}): {healed - began:.1f} s and {back_s:.1f} s", flush=True)

    def asked(self, id: int, api_key: ApiKey, fields: dict[str, Any]) -> Any:
        """Return the broker's response, or None without one."""
        with contextlib.suppress(ClientError):
            return self.cluster.ask(id, api_key, fields)
        return None

    def acknowledges_no_write(self, id: int, led: list[int]) -> None:
        """Check that it acknowledges no write with acks=all to partitions that it may still
        lead."""
        (topic_id,) = [t.topic_id for t in self.cluster.metadata(id).topics if t.name == TOPIC]
        batch = bytes(build_batch([(int(time.time() * 1000), None, b"minority", ())]))
        data = [{"index": index, "records": batch} for index in led]
        topic = {"name": TOPIC, "topic_id": topic_id, "partition_data": data}
        produce = {"acks": -1, "timeout_ms": PATIENCE_MS, "topic_data": [topic]}
        answer = self.asked(id, ApiKey.PRODUCE, produce)
        rows = [] if answer is None else answer.responses[0].partition_responses
        print("  writes were answered", [ErrorCode(row.error_code).name for row in rows])
        assert not [row for row in rows if row.error_code is ErrorCode.none], rows

    def makes_no_topic(self, id: int) -> None:
        topic = {
            "name": "of-nobody",
            "num_partitions": 1,
            "replication_factor": 3,
            "assignments": (),
            "configs": (),
        }
        create = {"topics": [topic], "timeout_ms": PATIENCE_MS, "validate_only": False}
        answer = self.asked(id, ApiKey.CREATE_TOPICS, create)
        assert answer is None or answer.topics[0].error_code is not ErrorCode.none, answer


@pytest.fixture
def cut(tmp_path: Path, network: Network) -> Iterator[Cut]:
    """A run of clients, whose history is judged at the end."""
    with (
        network.clients(),
        running(ShoalCluster(tmp_path, configs=CONFIGS, network=network)) as cluster,
    ):
        found = Cut(network, cluster)
        found.run.prepare()
        yield found
        found.run.judge()


def test_a_broker_that_is_cut_off_acknowledges_nothing_and_the_others_continue(cut: Cut) -> None:
    """It is the controller, and leads a partition."""
    cluster, controller = cut.cluster, cut.cluster.controller()
    led = [p.partition_index for p in cluster.topic(controller, TOPIC) if p.leader_id == controller]
    assert led
    with cut.off("the controller", controller):
        cut.acknowledges_no_write(controller, led)
        cut.makes_no_topic(controller)
        asked = cut.others(controller)[0]
        assert cluster.controller(asked=asked, but=controller) != controller


@pytest.mark.nightly
def test_the_others_continue_without_the_traffic_of_one_direction(cut: Cut) -> None:
    """The simulations of clusters lose such traffic in each run."""
    leader = cut.leader()
    with cut.off("what a leader sends", leader, *((leader, id) for id in cut.others(leader))):
        pass
    controller = cut.cluster.controller()
    cut.coordinates(controller)
    sent = [(id, controller) for id in cut.others(controller)]
    with cut.off("what the controller is sent", controller, *sent):
        pass
