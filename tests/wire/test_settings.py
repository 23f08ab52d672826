"""Settings whose effect is visible on a broker's sockets, files and peers."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
from typing import TYPE_CHECKING

import pytest
from shoal.protocol.api import ApiKey
from shoal.protocol.errors import ErrorCode
from support.brokers.ports import free_ports
from support.brokers.servers import ShoalProcess
from support.brokers.wireclient import WireClient
from support.runs.conditions import eventually, slowness

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def open_s(connection: socket.socket) -> float:
    """Return for how long a connection that sent nothing has been open, by the kernel: a busy test
    accepts it late."""
    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)
    (last_data_sent_ms,) = struct.unpack_from("I", info, 44)
    return float(last_data_sent_ms) / 1000


def test_the_time_for_opening_a_connection_grows(tmp_path: Path) -> None:
    """socket.connection.setup.timeout.ms and .max.ms: a controller asks the other voter for its
    vote. The test is that voter; it accepts connections and never answers."""
    port, controller_port = free_ports(2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        other = silent.getsockname()[1]
        broker = ShoalProcess(
            tmp_path,
            configs={
                "process.roles": "broker,controller",
                "controller.quorum.voters": f"1@127.0.0.1:{controller_port},2@127.0.0.1:{other}",
                "node.id": "1",
                "shoal.cluster.id": "test",
                "controller.quorum.election.timeout.ms": "1500",
                "controller.quorum.election.backoff.max.ms": "20",
                "socket.connection.setup.timeout.ms": "150",
                "socket.connection.setup.timeout.max.ms": "600",
            },
        )
        broker.bootstrap = f"127.0.0.1:{port}"
        broker.launch()
        try:
            silent.settimeout(60)
            lasted = []
            for _ in range(4):
                connection, _ = silent.accept()
                with connection:
                    connection.settimeout(60)
                    while connection.recv(4096):
                        pass
                    lasted.append(open_s(connection))
        finally:
            broker.kill9()
    # An attempt in progress when the next election begins is given up earlier.
    for took, limit in zip(lasted, (0.15, 0.3, 0.6, 0.6), strict=True):
        assert took < limit + 0.15 * slowness(), lasted
    assert lasted[0] > 0.1, lasted
    assert max(lasted) > 0.5, lasted


def test_metadata_snapshots_are_deleted_when_they_are_old(
    start_broker: Callable[..., ShoalProcess],
) -> None:
    """metadata.max.retention.ms: only the newest snapshot stays, and the log begins there. By
    default all stay for a week."""
    often = {"metadata.log.max.record.bytes.between.snapshots": "1"}
    kept = start_broker("kept", configs=often)
    short = start_broker("short", configs={**often, "metadata.max.retention.ms": "1"})
    small = start_broker("small", configs={**often, "metadata.max.retention.bytes": "1"})

    def snapshots(broker: ShoalProcess) -> list[str]:
        folder = broker.data_dir / "__cluster_metadata-0"
        return sorted(path.name for path in folder.glob("*.checkpoint"))

    for number in range(3):
        for broker in (kept, short, small):
            before = snapshots(broker)
            with WireClient(broker.bootstrap) as client:
                client.create_topic(f"t{number}")
            eventually(lambda b=broker, was=before: snapshots(b) != was)
    eventually(lambda: len(snapshots(kept)) >= 3)
    for broker in (short, small):
        eventually(lambda b=broker: len(snapshots(b)) == 1)
    # The state is complete after a restart from that one snapshot.
    newest = snapshots(short)
    short.kill9()
    short.start()
    assert snapshots(short)[-1] >= newest[-1]
    with WireClient(short.bootstrap) as client:
        names = {t.name for t in client.call(ApiKey.METADATA, 12, {"topics": None}).topics}
        assert {"t0", "t1", "t2"} <= names


def test_new_segments_have_their_space_reserved(broker: ShoalProcess) -> None:
    """preallocate: the active segment has its blocks; a closed one frees the rest."""
    with WireClient(broker.bootstrap) as client:
        client.create_topic("reserved", preallocate="true", segment_bytes="4194304")
        client.create_topic("plain", segment_bytes="4194304")

        def reserved(topic: str) -> list[int]:
            files = sorted((broker.data_dir / f"{topic}-0").glob("*.log"))
            return [os.stat(file).st_blocks * 512 for file in files]

        assert reserved("reserved") == [4 << 20]
        assert reserved("plain") == [0]
        for _ in range(5):
            client.produce("reserved", bytes(1_000_000))
        first, second = reserved("reserved")
        assert first < 4.1e6
        assert second == 4 << 20
    assert broker.stop() == 0
    assert reserved("reserved")[1] < 1.1e6


def test_socket_buffers(start_broker: Callable[..., ShoalProcess]) -> None:
    """socket.receive.buffer.bytes and socket.send.buffer.bytes, as ss -m shows them. Linux doubles
    the requested size."""
    configs = {"socket.receive.buffer.bytes": "50000", "socket.send.buffer.bytes": "40000"}
    broker = start_broker(configs=configs)
    with WireClient(broker.bootstrap) as client:
        client.fetch("none", 0)
        port = broker.bootstrap.rpartition(":")[2]
        said = subprocess.run(
            ["ss", "-tmnH", "state", "established", f"sport = :{port}"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    assert ",rb100000," in said, said
    assert ",tb80000," in said, said


def test_a_broker_that_is_not_let_in_gives_up(tmp_path: Path) -> None:
    """initial.broker.registration.timeout.ms: there is no controller."""
    here, nowhere = free_ports(2)
    broker = ShoalProcess(
        tmp_path,
        configs={
            "node.id": "1",
            "process.roles": "broker",
            "shoal.cluster.id": "test",
            "controller.quorum.voters": f"2@127.0.0.1:{nowhere}",
            "initial.broker.registration.timeout.ms": "700",
        },
    )
    broker.bootstrap = f"127.0.0.1:{here}"
    assert "No controller has registered broker 1 within 700 ms" in broker.refusal()


@pytest.mark.parametrize("config", ["node.id", "broker.id"])
def test_the_id_of_a_broker(start_broker: Callable[..., ShoalProcess], config: str) -> None:
    broker = start_broker(configs={config: "7"})
    with WireClient(broker.bootstrap) as client:
        found = client.call(ApiKey.METADATA, 12, {"topics": []})
    assert [row.node_id for row in found.brokers] == [7]


@pytest.mark.parametrize("enabled", ["true", "false"])
def test_metadata_requests_create_topics(
    start_broker: Callable[..., ShoalProcess], enabled: str
) -> None:
    broker = start_broker(configs={"auto.create.topics.enable": enabled})
    asked = {"topics": [{"topic_id": None, "name": "new"}], "allow_auto_topic_creation": True}
    folder = broker.data_dir / "new-0"
    with WireClient(broker.bootstrap) as client:
        if enabled == "true":
            eventually(lambda: not client.call(ApiKey.METADATA, 12, asked).topics[0].error_code)
            eventually(folder.exists)
            return
        (row,) = client.call(ApiKey.METADATA, 12, asked).topics
        assert row.error_code is ErrorCode.unknown_topic_or_partition
        # A later topic is there, so the controller has handled all earlier requests.
        client.create_topic("later")
        names = [t.name for t in client.call(ApiKey.METADATA, 12, {"topics": None}).topics]
        assert names == ["later"]
        assert not folder.exists()


@pytest.mark.parametrize(
    ("assignors", "targets"), [("range", [0, 2]), ("uniform", [1, 1]), ("range,uniform", [0, 2])]
)
def test_assignors_of_consumer_groups(
    start_broker: Callable[..., ShoalProcess], assignors: str, targets: list[int]
) -> None:
    """The first one is the default, and one that is not named is refused. Of two topics with one
    partition each, `range` assigns both to the same member."""
    configs = {
        "group.consumer.assignors": assignors,
        "group.consumer.assignment.interval.ms": "0",
    }
    broker = start_broker(configs=configs)
    with WireClient(broker.bootstrap) as client:
        client.create_topic("work")
        client.create_topic("more")

        def joined(group: str, member: str, assignor: str | None = None) -> ErrorCode:
            body = {
                "group_id": group,
                "member_id": member,
                "member_epoch": 0,
                "rebalance_timeout_ms": 5_000,
                "subscribed_topic_names": ["work", "more"],
                "topic_partitions": [],
                "server_assignor": assignor,
            }
            code: ErrorCode = client.call(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, body).error_code
            return code

        eventually(lambda: joined("plain", "a") is ErrorCode.none)
        assert joined("plain", "b") is ErrorCode.none
        (found,) = client.call(ApiKey.CONSUMER_GROUP_DESCRIBE, 1, {"group_ids": ["plain"]}).groups
        assert found.assignor_name == assignors.partition(",")[0]
        sizes = [len(m.target_assignment.topic_partitions) for m in found.members]
        assert sorted(sizes) == targets
        for name in ("range", "uniform"):
            named = name in assignors.split(",")
            expected = ErrorCode.none if named else ErrorCode.unsupported_assignor
            assert joined(f"of-{name}", "a", name) is expected
