"""A catalogue of attackers: each does to a broker what once held up its other clients or filled its
memory. `tests/hostile` runs them beside a quiet client.

An attacker is a function of a `Target`. It connects as a client without permissions where `refused`
is true. A new fault from outside becomes a new function here.
"""

from __future__ import annotations

import contextlib
import itertools
import socket
import struct
import time
from functools import cache
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

import permissions
from large_requests import make_large_requests, make_longest_request
from shoal.protocol import codec, frames
from shoal.protocol.api import ApiKey
from shoal.record.records import build_batch
from shoal.server.cluster_config import Listeners
from shoal.server.handlers import HANDLERS, create_topics
from wireclient import WireClient

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from servers import ShoalProcess

#: The address of a client without permissions, and the name of the listener with logins.
STRANGER, LOGINS = "127.0.0.9", "LOGINS"
#: How long an attacker waits for an answer, in seconds. Some requests wait for others by design.
PATIENCE_S = 20.0
#: Requests that change what the quiet client needs, or end the process.
LEFT_OUT = {ApiKey.UNREGISTER_BROKER}


class Target(NamedTuple):
    """A broker, the addresses of its listeners with logins and for controllers, and how much of an
    attack is wanted: 1.0 is all of it."""

    broker: ShoalProcess
    logins: str
    controllers: str
    part: float

    def connect(self, *, refused: bool = False, api: ApiKey = ApiKey.API_VERSIONS) -> WireClient:
        """Connect as a super user, or as a client without permissions, where an API is served."""
        source = STRANGER if refused else permissions.ADMIN
        is_of_brokers = Listeners.BROKER in HANDLERS[api].on
        address = self.broker.bootstrap if is_of_brokers else self.controllers
        return WireClient(address, timeout_s=PATIENCE_S, source=source)

    def count(self, whole: int) -> int:
        return max(1, int(whole * self.part))


def send_and_wait(client: WireClient, frame: bytes) -> bool:
    """Send a frame, and wait for the answer, the end of the connection, or too long. Return whether
    the connection is still open."""
    try:
        client.sock.sendall(struct.pack(">i", len(frame)) + frame)
        size = int.from_bytes(client.sock.recv(4, socket.MSG_WAITALL), "big")
        while size > 0 and (data := client.sock.recv(min(size, 1 << 20))):
            size -= len(data)
            if size == 0:
                return True
    except TimeoutError:
        return True
    except OSError:
        pass
    return False


def make_largest_frames(api: ApiKey) -> Iterator[tuple[str, bytes]]:
    """Yield the largest requests of the first and the last version of an API, by name."""
    versions = HANDLERS[api].versions
    counts = [codec.largest_count(api) - 10]
    if api is ApiKey.CREATE_TOPICS:  # It refuses more topics before it looks at them.
        counts.append(create_topics.TOPICS_MAX + 1)
    for version in dict.fromkeys((versions[-1], versions[0])):
        for entries, is_long in itertools.product(counts, (False, True)):
            for large in make_large_requests(api, version, entries=entries, is_long=is_long):
                yield f"v{version} {large.path} {entries}{' long' * is_long}", large.frame
        yield f"v{version} long", make_longest_request(api, version)


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
        configure(client, group, {"share.auto.offset.reset": "earliest", "share.ordering": "key"})
        for number in range(target.count(100)):
            bomb = build_batch([(1, b"%d" % number, bytes(16 << 20), ())], compression="zstd")
            assert client.produce(topic, records=bytes(bomb)).error_code == 0
    consume(target, topic, group)


def configure(client: WireClient, group: str, values: Mapping[str, str]) -> None:
    """Set configs of a group."""
    configs = [
        {"name": name, "config_operation": 0, "value": value} for name, value in values.items()
    ]
    resource = {"resource_type": 32, "resource_name": group, "configs": configs}
    body = {"resources": [resource], "validate_only": False}
    client.call(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, body)


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


@cache
def timed_bomb() -> bytes:
    """Return a batch of 100 MB of small records, of which only the last one is half an hour old;
    the others are an hour old."""
    hour_ms = 3_600_000
    then_ms = int(time.time() * 1000) - hour_ms
    count = 100_000
    records = [(then_ms, None, bytes(1000), ())] * (count - 1)
    newest = (then_ms + hour_ms // 2, None, b"", ())
    return bytes(build_batch([*records, newest], compression="zstd"))


def search_by_timestamp(target: Target) -> None:
    """Search batches that expand far, in many partitions, in one of them many times, and for the
    start of share groups."""
    topic, partitions = "timed-bombs", target.count(20)
    with target.connect() as client:
        with contextlib.suppress(AssertionError):  # It exists.
            client.create_topic(topic, 20)
        for index in range(partitions):
            produced = client.produce(topic, records=timed_bomb(), partition=index)
            assert produced.error_code == 0
        wanted_ms = int(time.time() * 1000) - 45 * 60_000
        for indexes in (list(range(partitions)), [0] * target.count(10_000)):
            asked = [{"partition_index": index, "timestamp": wanted_ms} for index in indexes]
            body = {"replica_id": -1, "topics": [{"name": topic, "partitions": asked}]}
            client.call(ApiKey.LIST_OFFSETS, 7, body)
        for number in range(target.count(10)):
            group = f"timed-{number}"
            configure(client, group, {"share.auto.offset.reset": "by_duration:PT45M"})
            consume(target, topic, group)


def write_to_the_ledger(target: Target) -> None:
    """Records in the topic of redrives, which the leader reads for its metrics."""
    value = b'{"topic":"t","partition":0,"done":"' + bytes(8 << 20) + b'","redriven":{"g":1}}'
    deep = b'{"redriven":' + b"[" * 100_000
    with target.connect() as client:
        with contextlib.suppress(AssertionError):  # It exists.
            client.create_topic("shoal-redrives", cleanup_policy="compact")
        for number in range(target.count(100)):
            records = [(1, b"%d" % number, one, ()) for one in (value, deep)]
            bomb = bytes(build_batch(records, compression="zstd"))
            assert client.produce("shoal-redrives", records=bomb).error_code == 0
    for _ in range(target.count(30)):
        target.broker.scrape()


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
    search_by_timestamp,
    write_to_the_ledger,
    produce_bombs,
    make_up_tokens,
    leave_in_the_middle,
    read_nothing,
    connect_and_leave,
    search_by_pattern,
    ask_for_health,
)
