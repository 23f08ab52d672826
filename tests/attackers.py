"""A catalogue of attackers: each does to a broker what once held up its other clients or filled its
memory. `tests/hostile` runs them beside a quiet client.

An attacker is a function of a `Target`. It connects as a client without permissions where `refused`
is true. A new fault from outside becomes a new function here.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

import permissions
from large_requests import make_large_requests
from shoal.protocol import codec, frames
from shoal.protocol.api import ApiKey
from shoal.record.records import build_batch
from shoal.server.handlers import HANDLERS
from wireclient import WireClient

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from servers import ShoalProcess

#: The address of a client without permissions, and the name of the listener with logins.
STRANGER, LOGINS = "127.0.0.9", "LOGINS"
#: How long an attacker waits for an answer, in seconds. Some requests wait for others by design.
PATIENCE_S = 20.0
#: Requests that change what the quiet client needs, or end the process.
LEFT_OUT = {ApiKey.UNREGISTER_BROKER}


class Target(NamedTuple):
    """A broker, the address of its listener with logins, and how much of an attack is wanted: 1.0
    is all of it."""

    broker: ShoalProcess
    logins: str
    part: float

    def connect(self, *, refused: bool = False) -> WireClient:
        """Connect as a super user, or as a client without permissions."""
        source = STRANGER if refused else permissions.ADMIN
        return WireClient(self.broker.bootstrap, timeout_s=PATIENCE_S, source=source)

    def count(self, whole: int) -> int:
        return max(1, int(whole * self.part))


def send_and_wait(client: WireClient, frame: bytes) -> None:
    """Send a frame, and wait for the answer, the end of the connection, or too long."""
    with contextlib.suppress(OSError):
        client.sock.sendall(struct.pack(">i", len(frame)) + frame)
        size = int.from_bytes(client.sock.recv(4, socket.MSG_WAITALL), "big")
        while size > 0 and (data := client.sock.recv(min(size, 1 << 20))):
            size -= len(data)


def large_frames(version_of: Callable[[range], int], part: float) -> Iterator[tuple[str, bytes]]:
    """Yield the largest requests of all APIs in one version each, by name."""
    for key, api in HANDLERS.items():
        if key in LEFT_OUT:
            continue
        version = version_of(api.versions)
        entries = int(codec.largest_count(key) * part) - 10
        for large in make_large_requests(ApiKey(key), version, entries=entries):
            yield f"{ApiKey(key).name} v{version} {large.path}", large.frame


def send_names_that_nobody_may_use(target: Target) -> None:
    """Each refusal is audited."""
    for api in (ApiKey.METADATA, ApiKey.DELETE_GROUPS, ApiKey.DESCRIBE_CONFIGS):
        version = HANDLERS[api].versions.stop - 1
        entries = target.count(codec.ENTRIES_MAX) - 10
        for large in make_large_requests(api, version, entries=entries):
            with target.connect(refused=True) as client:
                send_and_wait(client, large.frame)


def expand_batches(target: Target) -> None:
    """Batches of a few kilobytes that expand to megabytes, in a share group with key order."""
    topic, group = "bombs", "bombs"
    with target.connect() as client:
        with contextlib.suppress(AssertionError):  # It exists.
            client.create_topic(topic)
        configs = [
            {"name": name, "config_operation": 0, "value": value}
            for name, value in (("share.auto.offset.reset", "earliest"), ("share.ordering", "key"))
        ]
        resource = {"resource_type": 32, "resource_name": group, "configs": configs}
        client.call(
            ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, {"resources": [resource], "validate_only": False}
        )
        for number in range(target.count(100)):
            bomb = build_batch([(1, b"%d" % number, bytes(16 << 20), ())], compression="zstd")
            assert client.produce(topic, records=bytes(bomb)).error_code == 0
    consume(target, topic, group)


def consume(target: Target, topic: str, group: str) -> None:
    """Fetch all records of a topic by a share group, headers alone."""
    member = "A" * 22
    with target.connect() as client:
        topic_id = (
            client.call(ApiKey.METADATA, 12, {"topics": [{"topic_id": None, "name": topic}]})
            .topics[0]
            .topic_id
        )
        beat = {"group_id": group, "member_id": member, "subscribed_topic_names": [topic]}
        for epoch in (0, 1):
            client.call(ApiKey.SHARE_GROUP_HEARTBEAT, 1, {**beat, "member_epoch": epoch})
        body = {
            "group_id": group,
            "member_id": member,
            "max_wait_ms": 200,
            "min_bytes": 1,
            "max_bytes": 1 << 20,
            "max_records": 500,
            "batch_size": 500,
            "topics": [{"topic_id": topic_id, "partitions": [{"partition_index": 0}]}],
        }
        for epoch in range(target.count(30)):
            topics = body["topics"] if epoch == 0 else []
            fields = {**body, "share_session_epoch": epoch, "topics": topics}
            client.call(ApiKey.SHARE_FETCH, 1, fields)


def produce_bombs(target: Target) -> None:
    """One request with many batches, each of which expands to what a broker validates at once."""
    topic = "produced-bombs"
    bomb = bytes(build_batch([(1, b"k", bytes(1_000_000), ())], compression="zstd"))
    partitions = [{"index": 0, "records": bomb}] * target.count(4000)
    topics = [{"name": topic, "partition_data": partitions}]
    with target.connect() as client:
        with contextlib.suppress(AssertionError):  # It exists.
            client.create_topic(topic)
        client.call(ApiKey.PRODUCE, 9, {"acks": 1, "timeout_ms": 1000, "topic_data": topics})


def make_up_tokens(target: Target) -> None:
    """SCRAM with ids of delegation tokens that nobody has."""
    for number in range(target.count(200)):
        with WireClient(target.logins) as client:
            client.call(ApiKey.SASL_HANDSHAKE, 1, {"mechanism": "SCRAM-SHA-512"})
            first = b"n,,n=made-up-%d,r=abc,tokenauth=true" % number
            client.call(ApiKey.SASL_AUTHENTICATE, 2, {"auth_bytes": first})


def leave_in_the_middle(target: Target) -> None:
    """Half of a large request, then the end of the connection."""
    begun = frames.request_head(ApiKey.METADATA, 12, 1, "hostile")
    for _ in range(target.count(100)):
        with target.connect() as client:
            client.sock.sendall(struct.pack(">i", 8 << 20) + begun + bytes(1 << 20))


def read_nothing(target: Target) -> None:
    """Ask for much, and read no answer."""
    frame = frames.request_head(ApiKey.API_VERSIONS, 0, 1, "hostile")
    for _ in range(target.count(20)):
        with target.connect() as client:
            client.sock.settimeout(0.5)
            with contextlib.suppress(OSError):
                client.sock.sendall((struct.pack(">i", len(frame)) + frame) * 20_000)


def connect_and_leave(target: Target) -> None:
    for _ in range(target.count(1000)):
        target.connect().close()


def search_by_pattern(target: Target) -> None:
    """Patterns for which an engine that backtracks takes forever."""
    for pattern in ("(a+)+$b", "(a|a)*b", "((a{1,100}){1,100}){1,100}", "(" * 5000):
        for api, version, fields in (
            (ApiKey.LIST_TRANSACTIONS, 2, {"transactional_id_pattern": pattern}),
            (
                ApiKey.CONSUMER_GROUP_HEARTBEAT,
                1,
                {
                    "group_id": f"pattern-{len(pattern)}",
                    "member_id": "m",
                    "member_epoch": 0,
                    "rebalance_timeout_ms": 1000,
                    "subscribed_topic_regex": pattern,
                    "topic_partitions": [],
                },
            ),
        ):
            with target.connect() as client, contextlib.suppress(OSError):
                client.call(api, version, fields)


def ask_for_health(target: Target) -> None:
    """Headers of the health port that look like the begin of a bearer token."""
    address = urlsplit(target.broker.metrics_url)
    for text in (b" " * 8000, b"bearer " * 1000, b"\t" * 8000):
        request = b"GET /metrics HTTP/1.1\r\nauthorization: bearer" + text + b"\r\n\r\n"
        with (
            contextlib.suppress(OSError),
            socket.create_connection((address.hostname, address.port or 0), PATIENCE_S) as client,
        ):
            client.sendall(request)
            client.recv(1 << 16)


CATALOGUE: tuple[Callable[[Target], None], ...] = (
    send_names_that_nobody_may_use,
    expand_batches,
    produce_bombs,
    make_up_tokens,
    leave_in_the_middle,
    read_nothing,
    connect_and_leave,
    search_by_pattern,
    ask_for_health,
)
