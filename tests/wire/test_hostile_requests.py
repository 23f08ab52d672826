"""Hostile input on live sockets: it costs at most one connection, and memory stays bounded."""

from __future__ import annotations

import random
import socket
import struct
from typing import TYPE_CHECKING, Any

import cramjam
import pytest
from shoal.protocol import frames
from shoal.protocol.api import ApiKey
from shoal.record.batch import sign
from shoal.record.records import build_batch
from shoal.server.handlers import HANDLERS
from support.attacks.hostile_requests import Author, framed
from support.attacks.quiet_clients import cpu_s
from support.brokers.servers import ShoalProcess
from support.brokers.wireclient import WireClient
from support.runs.conditions import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

REQUESTS = 80
NIGHTLY = [pytest.mark.nightly, pytest.mark.timeout(1800)]
GROWTH_MB_MAX = 100
#: All APIs except the one that can slow down every client: the broker would comply.
APIS = [key for key in HANDLERS if key != ApiKey.ALTER_CLIENT_QUOTAS]
#: Maximum CPU time of the broker until another client's request is served while a hostile one is
#: handled; generous. A busy machine does not lengthen it.
CPU_S_MAX = 8.0


@pytest.fixture(scope="module")
def shoal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ShoalProcess]:
    """A broker that has served usual requests once, so that tests measure growth."""
    process = ShoalProcess(tmp_path_factory.mktemp("hostile") / "data").start()
    with WireClient(process.bootstrap) as client:
        client.create_topic("usual")
        client.produce("usual", b"x")
        client.fetch("usual", 0)
    yield process
    assert process.stop() == 0, "\n".join(process.log[-40:])


def connect(broker: ShoalProcess) -> socket.socket:
    host, port = broker.bootstrap.rsplit(":", 1)
    return socket.create_connection((host, int(port)), 30)


def serves(broker: ShoalProcess) -> float:
    """Produce and fetch with a good client; return the broker's CPU time until then, in seconds."""
    begin = cpu_s(broker)
    with WireClient(broker.bootstrap) as good:
        row = good.produce("usual", b"x")
        assert row.error_code == 0
        assert good.fetch("usual", row.base_offset).error_code == 0
    return cpu_s(broker) - begin


def failures(broker: ShoalProcess) -> list[str]:
    """Return our own failures, which the broker logs with their traceback."""
    lines = broker.log
    begins = [i for i, line in enumerate(lines) if "a request failed" in line]
    return ["\n".join(lines[i : i + 40]) for i in begins]


@pytest.mark.parametrize("count", [REQUESTS, pytest.param(100 * REQUESTS, marks=NIGHTLY)])
@pytest.mark.parametrize("mutilated", [0.0, 0.5])
def test_requests_that_mean_harm(
    shoal: ShoalProcess, mutilated: float, count: int, seed: int
) -> None:
    """Every API in every version, with extreme and senseless fields, and with damaged frames."""
    rng = random.Random(seed)
    before = shoal.resident_mb()
    with WireClient(shoal.bootstrap) as client:
        topic = f"t{seed}-{int(mutilated * 10)}-{count}"
        ids = [client.create_topic(topic)]
    author = Author(rng, [topic, "g1", "g2", "m"], ids)
    sock = connect(shoal)
    for number in range(count):
        api = ApiKey(rng.choice(APIS))
        frame = author.request(api, rng.choice(HANDLERS[api].versions), number)
        if rng.random() < mutilated:
            frame = author.mutilated(frame)
        try:
            sock.sendall(frame)
            sock.settimeout(0.1)  # Some wait for members, some get no response.
            alive = bool(sock.recv(1 << 20))
        except TimeoutError:
            alive = False
        except OSError:
            alive = False
        if not alive:
            sock.close()
            sock = connect(shoal)
    sock.close()
    assert serves(shoal) < CPU_S_MAX
    assert not failures(shoal), failures(shoal)[0]
    assert shoal.resident_mb() - before < GROWTH_MB_MAX


def head(api: ApiKey, version: int) -> bytes:
    return frames.build_request_head(api, version, 1, "hostile")


GROUP = struct.pack(">h1s", 1, b"g")
EMPTY = b"\0\0"
NO_PARTITIONS = EMPTY + bytes(4)
#: The bytes before an array, one entry, and the bytes after: requests of 8 MB full of the smallest
#: possible entries.
FULL = {
    "metadata": (head(ApiKey.METADATA, 1), EMPTY, b""),
    "describe groups": (head(ApiKey.DESCRIBE_GROUPS, 0), EMPTY, b""),
    "delete groups": (head(ApiKey.DELETE_GROUPS, 0), EMPTY, b""),
    "list offsets": (head(ApiKey.LIST_OFFSETS, 1) + bytes(4), NO_PARTITIONS, b""),
    "fetch": (head(ApiKey.FETCH, 4) + bytes(17), NO_PARTITIONS, b""),
    "delete topics": (head(ApiKey.DELETE_TOPICS, 1), EMPTY, bytes(4)),
    "produce": (head(ApiKey.PRODUCE, 3) + b"\xff\xff" * 2 + bytes(4), NO_PARTITIONS, b""),
    "create topics": (head(ApiKey.CREATE_TOPICS, 2), b"\0\1a" + bytes(14), bytes(5)),
    "leave group": (head(ApiKey.LEAVE_GROUP, 3) + GROUP, b"\0\0\xff\xff", b""),
    "offset commit": (
        head(ApiKey.OFFSET_COMMIT, 2) + GROUP + b"\xff" * 4 + EMPTY + b"\xff" * 8,
        NO_PARTITIONS,
        b"",
    ),
    "alter configs": (
        head(ApiKey.INCREMENTAL_ALTER_CONFIGS, 0),
        b"\2\0\1a" + bytes(4),
        b"\0",
    ),
}


@pytest.mark.parametrize("size", [90_000, 8 << 20], ids=["small", "large"])
@pytest.mark.parametrize("name", FULL)
def test_arrays_full_of_nothing(shoal: ShoalProcess, name: str, size: int) -> None:
    before, entry, behind = FULL[name]
    memory_mb = shoal.resident_mb()
    count = size // len(entry)
    with connect(shoal) as hostile:
        data = before + struct.pack(">i", count) + entry * count + behind
        hostile.sendall(framed(data))
        assert serves(shoal) < CPU_S_MAX
        hostile.settimeout(30)
        answer = hostile.recv(1)
        assert answer == b"" or size < 1 << 20, "this many entries are refused"
    assert shoal.resident_mb() - memory_mb < GROWTH_MB_MAX
    assert not failures(shoal)


@pytest.mark.parametrize(
    ("before", "behind"),
    [
        (head(ApiKey.DELETE_GROUPS, 0), b""),
        (head(ApiKey.DELETE_TOPICS, 1), bytes(4)),
        (head(ApiKey.OFFSET_DELETE, 0) + GROUP, b""),
        (head(ApiKey.CREATE_TOPICS, 2), bytes(5)),
    ],
    ids=["delete groups", "delete topics", "offset delete", "create topics"],
)
def test_null_where_there_must_be_an_array(
    shoal: ShoalProcess, before: bytes, behind: bytes
) -> None:
    with connect(shoal) as hostile:
        hostile.sendall(framed(before + b"\xff" * 4 + behind))
        assert hostile.recv(1) == b""
    assert not failures(shoal)


def bomb(codec: str) -> bytes:
    """Return a batch below 1 MB that announces one record and expands to between 16 MB and 27
    GB."""
    zeros = bytes(16 << 20)
    compress: Any = {
        "gzip": cramjam.gzip.compress,
        "snappy": cramjam.snappy.compress_raw,
        "lz4": cramjam.lz4.compress,
        "zstd": cramjam.zstd.compress,
    }[codec]
    piece = bytes(compress(zeros))
    pieces = 1 if codec == "snappy" else 900_000 // len(piece)  # Only snappy has no frames.
    batch = bytearray(build_batch([(1, b"k", b"v", ())])[:61]) + piece * pieces
    struct.pack_into(">i", batch, 8, len(batch) - 12)
    struct.pack_into(">h", batch, 21, 1 + ["gzip", "snappy", "lz4", "zstd"].index(codec))
    sign(batch)
    return bytes(batch)


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_compression_bombs(shoal: ShoalProcess, codec: str) -> None:
    """Topics whose records the broker must read refuse them; others keep the bytes unchanged."""
    data, memory_mb = bomb(codec), shoal.resident_mb()
    with WireClient(shoal.bootstrap) as client:
        recompressed = "lz4" if codec != "lz4" else "gzip"
        for name, configs in (
            ("plain", dict[str, str]()),
            ("compacted", {"cleanup_policy": "compact"}),
            ("recompressed", {"compression_type": recompressed}),
        ):
            topic = f"{name}-{codec}"
            client.create_topic(topic, **configs)
            answer = client.produce(topic, records=data)
            assert answer.error_code in (0, 2, 87), answer
            assert answer.error_code != 0 or name != "compacted"
    assert serves(shoal) < CPU_S_MAX
    assert shoal.resident_mb() - memory_mb < GROWTH_MB_MAX
    assert not failures(shoal)


def test_acknowledgements_of_more_than_there_is(shoal: ShoalProcess) -> None:
    """A range of 2^62 offsets is stored as numbers, never processed in a loop."""
    with WireClient(shoal.bootstrap) as client:
        topic_id = client.create_topic("vast")
        batch = {"first_offset": 0, "last_offset": 1 << 62, "acknowledge_types": [1]}
        partition = {"partition_index": 0, "acknowledgement_batches": [batch]}
        topics = [{"topic_id": topic_id, "partitions": [partition]}]
        body = {"group_id": "vast", "member_id": "A" * 22, "share_session_epoch": 1}
        client.call(ApiKey.SHARE_ACKNOWLEDGE, 1, {**body, "topics": topics})
        state = {"first_offset": 0, "last_offset": 1 << 62, "delivery_state": 2}
        written = {"partition": 0, "start_offset": 0, "state_batches": [state] * 1000}
        topics = [{"topic_id": topic_id, "partitions": [written]}]
        client.call(ApiKey.WRITE_SHARE_GROUP_STATE, 0, {"group_id": "vast", "topics": topics})
    assert serves(shoal) < CPU_S_MAX
    assert not failures(shoal)


def test_connections_that_trickle(tmp_path: Path) -> None:
    """Slow-loris: hundreds of requests that never end; idle connections are closed in time."""
    broker = ShoalProcess(tmp_path / "data", configs={"connections.max.idle.ms": "2000"}).start()
    try:
        with WireClient(broker.bootstrap) as client:
            client.create_topic("usual")
        serves(broker)
        memory_mb = broker.resident_mb()
        begun = framed(head(ApiKey.METADATA, 1) + bytes(4))[:-1]
        loris = [connect(broker) for _ in range(100)]
        for at in range(len(begun)):
            for sock in loris:
                sock.send(begun[at : at + 1])
            if at % 8 == 0:
                assert serves(broker) < CPU_S_MAX
        assert broker.resident_mb() - memory_mb < 40
        for sock in loris:
            sock.settimeout(15)
            assert sock.recv(1) == b"", "an idle connection is closed"
            sock.close()
        eventually(lambda: broker.resident_mb() - memory_mb < 20)
    finally:
        broker.kill9()


def test_a_regex_cannot_run_away(shoal: ShoalProcess) -> None:
    """KIP-848's subscribed regex is matched in linear time, and a huge one is refused."""
    with WireClient(shoal.bootstrap) as client:
        client.create_topic("a" * 200)
        for number, regex in enumerate(("(a+)+$b", "(a|a)*b", "((a{1,100}){1,100}){1,100}", "(")):
            body = {
                "group_id": f"regex-{number}",
                "member_id": f"member-{number}",
                "member_epoch": 0,
                "rebalance_timeout_ms": 30_000,
                "subscribed_topic_names": [],
                "subscribed_topic_regex": regex,
                "topic_partitions": [],
            }
            answer = client.call(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, body)
            assert answer.error_code in (0, 128), answer
    assert serves(shoal) < CPU_S_MAX
    assert not failures(shoal)
