"""Connections that end in every state of a request leave nothing in a broker's memory.

A request that has arrived in part keeps its buffer as long as its connection. If anything behind
the connection refers to it in a cycle, the buffer stays until Python's next garbage collection, and
a stranger fills the memory. TLS and logins have buffers of their own.

Each state is of `CONNECTIONS` connections with some megabytes each, which takes seconds together.
"""

from __future__ import annotations

import contextlib
import ssl
import struct
from typing import TYPE_CHECKING, NamedTuple

import pytest
from shoal.protocol import codec, frames
from shoal.protocol.api import ApiKey
from support.brokers.ports import free_ports
from support.brokers.servers import ShoalProcess
from support.brokers.wireclient import WireClient
from support.runs.conditions import eventually
from support.security.certificates import Authority, Stores

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

AUTHORITY = Authority()
PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
#: The simplest, and the one with the buffers of the others.
BY_DAY = ("PLAINTEXT", "SASL_SSL")
#: The first listener is for the broker itself.
LISTENERS = {protocol: f"CLIENTS_{protocol}" for protocol in PROTOCOLS}
LOGIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
CONNECTIONS = 25
SIZE = 2 << 20
#: What a state may leave behind, in megabytes. All its requests are 50 and more.
MEMORY_MB = 20


class Target(NamedTuple):
    """A broker, and the addresses of its listeners by their protocols."""

    broker: ShoalProcess
    addresses: dict[str, str]

    def connect(self, protocol: str, *, logs_in: bool = True) -> WireClient:
        tls = None
        if protocol.endswith("SSL"):
            tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            tls.load_verify_locations(cadata=AUTHORITY.pem)
        client = WireClient(self.addresses[protocol], tls=tls)
        if protocol.startswith("SASL") and logs_in:
            client.log_in("alice", "secret")
        return client


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    folder = tmp_path_factory.mktemp("ended")
    ports = free_ports(len(PROTOCOLS))
    addresses = {p: f"127.0.0.1:{port}" for p, port in zip(PROTOCOLS, ports, strict=True)}
    names = [f"{name}:{protocol}" for protocol, name in LISTENERS.items()]
    configs = {
        **Stores(folder / "stores").configs(AUTHORITY.issue("server"), None),
        "listener.security.protocol.map": ",".join(["PLAINTEXT:PLAINTEXT", *names]),
        "sasl.enabled.mechanisms": "PLAIN",
    }
    for protocol, name in LISTENERS.items():
        if protocol.startswith("SASL"):
            config = f"listener.name.{name.lower()}.plain.sasl.jaas.config"
            configs[config] = f'{LOGIN} required user_alice="secret";'
    flags = [f"--listener={LISTENERS[p]}://{address}" for p, address in addresses.items()]
    broker = ShoalProcess(folder / "data", configs=configs, flags=flags).start()
    with WireClient(broker.bootstrap) as client:
        client.create_topic("ended")
    yield Target(broker, addresses)
    assert broker.stop() == 0, "\n".join(broker.log[-40:])


def make_frame(api: ApiKey, version: int, body: bytes | bytearray) -> bytes:
    frame = frames.build_request_head(api, version, 1, "ended") + body
    return struct.pack(">i", len(frame)) + frame


def make_produce(size: int) -> bytes:
    """Return a request whose record data is `size` bytes and no batch."""
    partition = {"index": 0, "records": bytes(size)}
    topics = [{"name": "ended", "partition_data": [partition]}]
    fields = {"transactional_id": None, "acks": -1, "timeout_ms": 1000, "topic_data": topics}
    return make_frame(ApiKey.PRODUCE, 9, codec.write_request(ApiKey.PRODUCE, 9, fields))


def make_wait() -> bytes:
    """Return a Fetch that waits a minute for records."""
    partition = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20}
    fields = {
        "max_wait_ms": 60_000,
        "min_bytes": 1,
        "topics": [{"topic": "ended", "partitions": [partition]}],
    }
    return make_frame(ApiKey.FETCH, 11, codec.write_request(ApiKey.FETCH, 11, fields))


def send_its_begin(target: Target, protocol: str) -> None:
    with target.connect(protocol) as client:
        client.sock.sendall(make_produce(2 * SIZE)[:SIZE])


def send_all_but_a_byte(target: Target, protocol: str) -> None:
    with target.connect(protocol) as client:
        client.sock.sendall(make_produce(SIZE)[:-1])


def leave_before_the_answer(target: Target, protocol: str) -> None:
    with target.connect(protocol) as client:
        client.sock.sendall(make_produce(SIZE))


def leave_behind_a_request_that_waits(target: Target, protocol: str) -> None:
    with target.connect(protocol) as client, contextlib.suppress(TimeoutError):
        client.sock.settimeout(1)
        client.sock.sendall(make_wait() + make_produce(SIZE) * 2)


def take_no_answers(target: Target, protocol: str) -> None:
    with target.connect(protocol) as client, contextlib.suppress(TimeoutError):
        client.sock.settimeout(0.2)
        client.sock.sendall(make_frame(ApiKey.API_VERSIONS, 0, b"") * 50_000)


def leave_in_the_login(target: Target, protocol: str) -> None:
    """The most that a login may send, but for its last byte. Without logins it is the first
    request."""
    with target.connect(protocol, logs_in=False) as client:
        if protocol.startswith("SASL"):
            client.call(ApiKey.SASL_HANDSHAKE, 1, {"mechanism": "PLAIN"})
        token = struct.pack(">i", 500_000) + bytes(500_000)
        client.sock.sendall(make_frame(ApiKey.SASL_AUTHENTICATE, 0, token)[:-1])


STATES = (
    send_its_begin,
    send_all_but_a_byte,
    leave_before_the_answer,
    leave_behind_a_request_that_waits,
    take_no_answers,
    leave_in_the_login,
)


@pytest.mark.parametrize(
    "protocol",
    [p if p in BY_DAY else pytest.param(p, marks=pytest.mark.nightly) for p in PROTOCOLS],
)
@pytest.mark.parametrize("end", STATES, ids=lambda state: state.__name__)
def test_a_connection_leaves_nothing(
    target: Target, protocol: str, end: Callable[[Target, str], None]
) -> None:
    # What the first round leaves in pages that are used again does not count.
    for _ in range(2):
        before_mb = target.broker.resident_mb()
        for _ in range(CONNECTIONS):
            end(target, protocol)

    def returns() -> bool:
        more_mb = target.broker.resident_mb() - before_mb
        assert more_mb < MEMORY_MB, f"{more_mb:.0f} MB more than before"
        return True

    eventually(returns)
