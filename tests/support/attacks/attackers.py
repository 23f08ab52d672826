"""Attackers: each does to a broker what once held up its other clients or filled its memory.
`tests/hostile` runs those of `attack_catalogue` beside a quiet client.

An attacker is a function of a `Target`. It connects as a client without permissions where `refused`
is true. A new fault from outside becomes a new function here.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import resource
import select
import socket
import struct
import time
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

from shoal.coordinator.group.share.membership import LEAVE_EPOCH
from shoal.protocol import codec, frames
from shoal.protocol.api import ApiKey
from shoal.record.records import build_batch
from shoal.server.cluster_config import Listeners
from shoal.server.handlers import HANDLERS
from shoal.server.handlers.topics import create_topics
from support.attacks.large_requests import (
    make_deep_request,
    make_large_requests,
    make_longest_request,
)
from support.brokers.wireclient import WireClient
from support.runs.conditions import eventually
from support.security import permissions

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from support.brokers.servers import ShoalProcess

#: The address of a client without permissions.
STRANGER = "127.0.0.9"
#: The addresses of clients that hold memory, and of one that needs some.
HOLDERS, MODEST = [f"127.0.0.{number}" for number in range(20, 24)], "127.0.0.30"
#: What incomplete requests may take while they last, in megabytes: shoal.request.memory.bytes, and
#: a request that goes on without.
HELD_MB = 268 + 40
#: A broker that reads nothing for this long has stopped, in milliseconds.
SILENCE_MS = 500
#: How long an attacker waits for an answer, in seconds. Some requests wait for others by design.
PATIENCE_S = 20.0
#: How long it waits where thousands of files are created on a busy disk.
LONG_PATIENCE_S = 120.0
#: The type of an acknowledgement that releases a record.
RELEASE = 2
#: NONE, and NOT_LEADER_OR_FOLLOWER of a leader that begins again, on which clients retry.
CANCELLED = (0, 6)
#: The partitions of a topic that has many.
MANY = 2000
#: Requests that change what the quiet client needs, or end the process.
LEFT_OUT = {ApiKey.UNREGISTER_BROKER}


class Target(NamedTuple):
    """A broker, the addresses of its listeners with logins, for controllers and with TLS, how much
    of an attack is wanted: 1.0 is all of it, and whether the attacker has the broker's memory for
    itself."""

    broker: ShoalProcess
    logins: str
    controllers: str
    secured: str
    part: float
    is_alone: bool = True

    def connect(
        self,
        *,
        refused: bool = False,
        api: ApiKey = ApiKey.API_VERSIONS,
        patience_s: float = 0.0,
    ) -> WireClient:
        """Connect as a super user, or as a client without permissions, where an API is served."""
        source = STRANGER if refused else permissions.ADMIN
        is_of_brokers = Listeners.BROKER in HANDLERS[api].on
        address = self.broker.bootstrap if is_of_brokers else self.controllers
        return WireClient(address, timeout_s=patience_s or self.patience_s, source=source)

    @property
    def patience_s(self) -> float:
        """How long an attacker waits for an answer: many of them wait for each other."""
        return PATIENCE_S if self.is_alone else LONG_PATIENCE_S

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
    counts = [codec.find_max_entries(api) - 10]
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


def send_ids_of_one_hash(target: Target) -> None:
    """Ids of topics whose hashes are equal, in a table of them."""
    for api in (ApiKey.FETCH, ApiKey.SHARE_FETCH, ApiKey.CONSUMER_GROUP_HEARTBEAT):
        version = HANDLERS[api].versions.stop - 1
        array = "topic_partitions" if api is ApiKey.CONSUMER_GROUP_HEARTBEAT else "topics"
        frame = make_deep_request(api, version, array, target.count(7_000))
        for refused in (False, True):
            with target.connect(refused=refused) as client:
                assert send_and_wait(client, frame), "the request was not admitted"


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
    with target.connect() as client:
        member = ShareMember(client, topic, group)
        for _ in range(target.count(30)):
            member.fetch()


class ShareMember:
    """A member of a share group, which reads one partition."""

    def __init__(self, client: WireClient, topic: str, group: str) -> None:
        self._client = client
        self._ids = {"group_id": group, "member_id": "A" * 22}
        body = {"topics": [{"topic_id": None, "name": topic}]}
        self._topic_id = client.call(ApiKey.METADATA, 12, body).topics[0].topic_id
        self._epoch = 0
        for epoch in (0, 1):
            fields = {**self._ids, "subscribed_topic_names": [topic], "member_epoch": epoch}
            client.call(ApiKey.SHARE_GROUP_HEARTBEAT, 1, fields)

    def fetch(self) -> list[tuple[int, int]]:
        """Return the ranges of offsets that the member acquires."""
        body = {
            "max_wait_ms": 200,
            "min_bytes": 1,
            "max_bytes": 1 << 20,
            "max_records": 500,
            "batch_size": 500,
        }
        found = self._call(ApiKey.SHARE_FETCH, body, {})
        return [
            (acquired.first_offset, acquired.last_offset)
            for topic in found.responses
            for partition in topic.partitions
            for acquired in partition.acquired_records
        ]

    def acknowledge(self, batches: Sequence[Mapping[str, Any]]) -> None:
        """Acknowledge records."""
        asked = {"acknowledgement_batches": batches}
        answer = self._call(ApiKey.SHARE_ACKNOWLEDGE, {}, asked)
        assert not answer.responses[0].partitions[0].error_code, answer

    def _call(self, api: ApiKey, fields: Mapping[str, Any], asked: Mapping[str, Any]) -> Any:
        is_named = self._epoch == 0 or asked
        partition = {"partition_index": 0, **asked}
        topics = [{"topic_id": self._topic_id, "partitions": [partition]}] if is_named else []
        body = {**self._ids, **fields, "share_session_epoch": self._epoch, "topics": topics}
        self._epoch += 1
        return self._client.call(api, 1, body)


def cancel_records(target: Target) -> None:
    """Cancel each second record, so that the window has a state for each of them, and then all of
    them again, also what is behind the end."""
    topic, count = "cancelled", target.count(40_000)
    records = [(1, b"%d" % number, b"", ()) for number in range(count)]
    with target.connect(patience_s=LONG_PATIENCE_S) as client:
        client.create_topic(topic)
        assert client.produce(topic, records=bytes(build_batch(records))).error_code == 0
        for group, fairness in (("cancelling", "none"), ("cancelling-fairly", "key")):
            configs = {"share.auto.offset.reset": "earliest", "share.fairness.by": fairness}
            configure(client, group, configs)
            consume(target, topic, group)
            for step in (2, 1):
                for first in range(0, count + 1000, 1000 * step):
                    offsets = range(first, first + 1000 * step, step)
                    ranges = [{"first_offset": n, "last_offset": n} for n in offsets]
                    asked = {"partition_index": 0, "start_offset": 0, "cancelled_offsets": ranges}
                    body = {
                        "group_id": group,
                        "topics": [{"topic_name": topic, "partitions": [asked]}],
                    }
                    done = client.call(ApiKey.ALTER_SHARE_GROUP_OFFSETS, 0, body)
                    assert done.responses[0].partitions[0].error_code in CANCELLED, done
                consume(target, topic, group)
        delete_topic(client, topic)


def have_many_tenants(target: Target) -> None:
    """A tenant for each record. Their limits and weights change while members fetch, and others
    list what waits, in one request again and again."""
    topic, group = "tenants", "tenants"
    names = [b"%d" % number for number in range(target.count(5000))]
    named = ",".join(f"{number}:2" for number in range(3000))
    paused = ",".join(str(number) for number in range(5000))
    with target.connect(patience_s=LONG_PATIENCE_S) as client:
        client.create_topic(topic)
        records = [(1, name, b"", ()) for name in names]
        assert client.produce(topic, records=bytes(build_batch(records))).error_code == 0
        configure(client, group, {"share.auto.offset.reset": "earliest", **FAIR})
        for change in (
            {"share.fairness.weights": named},
            {"share.tenant.max.in.flight": "1"},
            {"share.tenant.max.per.second": "0.5"},
            {"share.tenant.paused": paused},
            {"share.tenant.max.per.second.overrides": named, "share.tenant.paused": ""},
            {"share.fairness.by": "header:tenant"},
        ):
            configure(client, group, change)
            consume(target, topic, group)
            list_in_flight(client, group, topic, target.count(500))
            scrape(target)
        configure(client, group, {"share.fairness.by": "none"})
        delete_topic(client, topic)


#: As many tenants as the defaults have.
FAIR = {
    "share.fairness.by": "key",
    "share.fairness.weights": "",
    "share.tenant.max.in.flight": "0",
    "share.tenant.max.per.second": "0",
    "share.tenant.max.per.second.overrides": "",
    "share.tenant.paused": "",
}


def list_in_flight(client: WireClient, group: str, topic: str, repeated: int) -> None:
    """List the records of a partition that wait, many times in one request."""
    asked = {
        "topic_name": topic,
        "partitions": [0] * repeated,
        "in_flight_from": [0] * repeated,
    }
    body = {"groups": [{"group_id": group, "topics": [asked]}]}
    client.call(ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, 0, body)


def give_reasons(target: Target) -> None:
    """Release records one by one, each with the longest reason, and list them."""
    topic, group = "reasons", "reasons"
    reason = {"exception_class": "E", "message": "m" * 4000, "stacktrace": "é" * 2000}
    with target.connect(patience_s=LONG_PATIENCE_S) as client:
        client.create_topic(topic)
        records = [(1, None, b"", ())] * 5000
        assert client.produce(topic, records=bytes(build_batch(records))).error_code == 0
        configs = {"share.auto.offset.reset": "earliest", "share.delivery.count.limit": "10"}
        configure(client, group, configs)
        member = ShareMember(client, topic, group)
        for _ in range(target.count(100)):
            offsets = [n for first, last in member.fetch() for n in range(first, last + 1)]
            for at in range(0, len(offsets), 500):
                member.acknowledge(
                    [
                        {
                            "first_offset": offset,
                            "last_offset": offset,
                            "acknowledge_types": [RELEASE],
                            "reason": reason,
                        }
                        for offset in offsets[at : at + 500]
                    ]
                )
            list_in_flight(client, group, topic, target.count(500))
        delete_topic(client, topic)


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


def compact_bombs(target: Target) -> None:
    """Batches that expand far, and keys as large, in a compacted topic. Each is the last of its
    key or loses a record, so that the cleaner reads it twice and writes it again."""
    topic = "compacted-bombs"
    keys: list[bytes] = [b"%d" % number for number in range(target.count(100))]
    if target.part == 1.0:
        keys += [bytes(4 << 20)] * 5
    with target.connect() as client:
        with contextlib.suppress(AssertionError):  # It exists.
            client.create_topic(topic, **CLEANED_OFTEN)
        now_ms = int(time.time() * 1000)
        for number, key in enumerate((*keys, b"in the active segment")):
            values = (bytes(16 << 20), b"last")
            records = [(now_ms + 10 * number, key, value, ()) for value in values]
            bomb = bytes(build_batch(records, compression="zstd"))
            rounds = count_compactions(target)
            assert client.produce(topic, records=bomb).error_code == 0
        eventually(lambda: count_compactions(target) > rounds)


#: Each batch is a segment of its own, and what is dirty is cleaned.
CLEANED_OFTEN = {
    "cleanup_policy": "compact",
    "segment_ms": "1",
    "min_cleanable_dirty_ratio": "0",
}


def count_compactions(target: Target) -> float:
    return eventually(lambda: read_compactions(target)) - 1


def read_compactions(target: Target) -> float | None:
    """Return one more than the number of compactions; None if the broker ended the exchange, since
    it took too long on a busy machine."""
    with contextlib.suppress(OSError):
        return target.broker.metric("shoal_log_compactions_total") + 1
    return None


def scrape(target: Target) -> None:
    """Read the metrics. On a busy machine that may take longer than the broker lets an exchange
    last; then they are read again."""

    def is_read() -> bool:
        try:
            target.broker.scrape()
        except OSError:
            return False
        return True

    eventually(is_read)


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
        scrape(target)


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


def produce_many_ids(target: Target) -> None:
    """Small batches of many records, each with an id of its own, for a topic that leaves records
    with known ids out."""
    topic = "unique-jobs"
    now_ms = int(time.time() * 1000)
    random_ids = random.Random(2)

    def make_batch() -> bytes:
        ids = (b"%x" % random_ids.getrandbits(64) for _ in range(1000))
        records = [(now_ms, None, b"", (("shoal.dedup.id", one),)) for one in ids]
        return bytes(build_batch(records, compression="zstd"))

    partitions = [{"index": 0, "records": make_batch()} for _ in range(target.count(100))]
    topics = [{"name": topic, "partition_data": partitions}]
    with target.connect() as client:
        with contextlib.suppress(AssertionError):  # It exists.
            client.create_topic(topic, shoal_deduplication_window_ms="10000")
        body = {"acks": 1, "timeout_ms": 1000, "topic_data": topics}
        produced = client.call(ApiKey.PRODUCE, 9, body)
        assert len(produced.responses[0].partition_responses) == len(partitions)


def have_much_compressed(target: Target) -> None:
    """One request with many batches of text, which the topic stores in another form. At its highest
    level, zstd takes 300 ms for each megabyte."""
    topic = "compressed-again"
    words = random.Random(1)
    text = b" ".join(b"%x" % words.getrandbits(words.randint(8, 40)) for _ in range(1500))
    batch = bytes(build_batch([(1, b"k", text, ())]))
    partitions = [{"index": 0, "records": batch}] * target.count(400)
    topics = [{"name": topic, "partition_data": partitions}]
    with target.connect() as client:
        with contextlib.suppress(AssertionError):  # It exists.
            configs = {"compression_type": "zstd", "compression_zstd_level": "19"}
            client.create_topic(topic, **configs)
        client.call(ApiKey.PRODUCE, 9, {"acks": 1, "timeout_ms": 1000, "topic_data": topics})


def leave_in_the_middle(target: Target) -> None:
    """Half of a large request, then the end of the connection."""
    begun = frames.build_request_head(ApiKey.METADATA, 12, 1, "hostile")
    for _ in range(target.count(100)):
        with target.connect() as client:
            client.sock.sendall(struct.pack(">i", 8 << 20) + begun + bytes(1 << 20))


def read_nothing(target: Target) -> None:
    """Ask for much, and read no answer."""
    frame = frames.build_request_head(ApiKey.API_VERSIONS, 0, 1, "hostile")
    for _ in range(target.count(20)):
        with target.connect() as client:
            client.sock.settimeout(0.5)
            with contextlib.suppress(OSError):
                client.sock.sendall((struct.pack(">i", len(frame)) + frame) * 20_000)


def write_slowly(target: Target) -> None:
    """Large requests that arrive byte by byte, then in part, and never as a whole."""
    begun = struct.pack(">i", 8 << 20) + frames.build_request_head(
        ApiKey.METADATA, 12, 1, "hostile"
    )
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(target.connect()) for _ in range(target.count(40))]
        for at in range(len(begun)):
            for client in clients:
                client.sock.send(begun[at : at + 1])
        for _ in range(20):
            for client in clients:
                client.sock.setblocking(False)
                with contextlib.suppress(BlockingIOError):
                    client.sock.send(bytes(50_000))


def hold_large_requests(target: Target) -> None:
    """Requests of 40 MB from some addresses, of which the last byte never arrives. Another client
    still gets its answer, and the requests of these addresses do not stay all in memory."""
    begun = struct.pack(">i", 40_000_000) + frames.build_request_head(
        ApiKey.METADATA, 12, 1, "hostile"
    )
    data = begun + bytes(40_000_003 - len(begun))
    before_mb = read_resident_mb(target)
    with contextlib.ExitStack() as stack:
        clients = [
            stack.enter_context(WireClient(target.broker.bootstrap, source=source))
            for source in HOLDERS * 5
        ]
        send_as_much_as_is_read([client.sock for client in clients], data)
        more_mb = read_resident_mb(target) - before_mb
        assert more_mb < HELD_MB or not target.is_alone, (
            f"incomplete requests take {more_mb:.0f} MB"
        )
        produce_large(target)


def produce_large(target: Target) -> None:
    """Send a large request as a client of its own, and receive the answer."""
    partitions = [{"index": 0, "records": bytes(1_000_000)}]
    topics = [{"name": "nobody-has-it", "partition_data": partitions}]
    with WireClient(target.broker.bootstrap, timeout_s=target.patience_s, source=MODEST) as client:
        client.call(ApiKey.PRODUCE, 9, {"acks": 1, "timeout_ms": 1000, "topic_data": topics})


def read_resident_mb(target: Target) -> float:
    pages = int(Path(f"/proc/{target.broker.pid}/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6


def send_as_much_as_is_read(sockets: list[socket.socket], data: bytes) -> None:
    """Send `data` to each socket, until the broker reads none of them any more."""
    at = {sock.fileno(): (sock, memoryview(data)) for sock in sockets}
    poll = select.poll()
    for sock in sockets:
        sock.setblocking(False)
        poll.register(sock, select.POLLOUT)
    while at and (ready := poll.poll(SILENCE_MS)):
        for number, _ in ready:
            sock, rest = at[number]
            with contextlib.suppress(BlockingIOError):
                rest = rest[sock.send(rest) :]
            at[number] = sock, rest
            if not rest:
                poll.unregister(number)
                del at[number]


def connect_and_leave(target: Target) -> None:
    for _ in range(target.count(1000)):
        target.connect().close()


def create_and_delete_many_partitions(target: Target) -> None:
    """Each partition is a directory and files. In between, all are moved to where they are, some
    again and again."""
    name, partitions = "many-partitions", target.count(MANY)
    indexes = [number % partitions for number in range(target.count(4_990))]
    moves = [{"partition_index": index, "replicas": [1]} for index in indexes]
    with target.connect(patience_s=LONG_PATIENCE_S) as client:
        client.create_topic(name, partitions)
        body = {"topics": [{"name": name, "partitions": moves}], "timeout_ms": 60_000}
        moved = client.call(ApiKey.ALTER_PARTITION_REASSIGNMENTS, 0, body)
        (topic,) = moved.responses
        assert [p.partition_index for p in topic.partitions] == indexes
        assert not any(p.error_code for p in topic.partitions)
        delete_topic(client, name)


def write_to_many_partitions(target: Target) -> None:
    """Requests for many partitions: produce, also in a transaction, and DeleteRecords. The first
    batch of a partition writes a file for its leader epoch, as does a deletion. Records that are
    old roll a segment in each partition."""
    name, partitions = "many-written-partitions", target.count(MANY)
    batch = bytes(build_batch([(1, b"k", b"v", ())]))
    with target.connect(patience_s=LONG_PATIENCE_S) as client:
        client.create_topic(name, partitions, retention_ms="-1")
        data = [{"index": index, "records": batch} for index in range(partitions)]
        body = {"timeout_ms": 60_000, "topic_data": [{"name": name, "partition_data": data}]}
        produced = client.call(ApiKey.PRODUCE, 9, {**body, "acks": -1})
        assert not any(p.error_code for p in produced.responses[0].partition_responses)
        end_transaction(client, name, partitions)
        ends = [{"partition_index": index, "offset": -1} for index in range(partitions)]
        body = {"timeout_ms": 60_000, "topics": [{"name": name, "partitions": ends}]}
        deleted = client.call(ApiKey.DELETE_RECORDS, 2, body)
        assert {p.low_watermark for p in deleted.topics[0].partitions} == {2}
        delete_topic(client, name)


def end_transaction(client: WireClient, topic: str, partitions: int) -> None:
    """End a transaction that has a part in each partition, and wait until it is complete."""
    body = {
        "transactional_id": topic,
        "transaction_timeout_ms": 60_000,
        "producer_id": -1,
        "producer_epoch": -1,
    }
    producer = client.call(ApiKey.INIT_PRODUCER_ID, 3, body)
    fields = {"producer_id": producer.producer_id, "producer_epoch": producer.producer_epoch}
    of_early = {f"v3_and_below_{name}": value for name, value in fields.items()}
    of_early["v3_and_below_transactional_id"] = topic
    topics = [{"name": topic, "partitions": list(range(partitions))}]
    added = client.call(
        ApiKey.ADD_PARTITIONS_TO_TXN, 3, {**of_early, "v3_and_below_topics": topics}
    )
    (result,) = added.results_by_topic_v3_and_below
    assert not any(p.partition_error_code for p in result.results_by_partition)
    body = {"transactional_id": topic, "committed": True, **fields}
    assert client.call(ApiKey.END_TXN, 3, body).error_code == 0
    eventually(lambda: describe_transaction(client, topic) == "CompleteCommit")


def describe_transaction(client: WireClient, transactional_id: str) -> str:
    described = client.call(
        ApiKey.DESCRIBE_TRANSACTIONS, 0, {"transactional_ids": [transactional_id]}
    )
    state: str = described.transaction_states[0].transaction_state
    return state


def share_many_partitions(target: Target) -> None:
    """The first heartbeat of a share group begins a state for each partition, and the end of the
    group deletes them."""
    name = "many-shared-partitions"
    beat = {"group_id": name, "member_id": "A" * 22, "subscribed_topic_names": [name]}
    with target.connect(patience_s=LONG_PATIENCE_S) as client:
        client.create_topic(name, target.count(MANY))
        for epoch in (0, LEAVE_EPOCH):
            answer = client.call(ApiKey.SHARE_GROUP_HEARTBEAT, 1, {**beat, "member_epoch": epoch})
            assert answer.error_code == 0, answer
        ended = client.call(ApiKey.DELETE_GROUPS, 2, {"groups_names": [name]})
        assert ended.results[0].error_code == 0, ended
        delete_topic(client, name)


def delete_topic(client: WireClient, name: str) -> None:
    body = {"topics": [{"name": name, "topic_id": None}], "timeout_ms": 60_000}
    deleted = client.call(ApiKey.DELETE_TOPICS, 6, body)
    assert deleted.responses[0].error_code == 0, deleted


def delete_a_topic_of_many_offsets(target: Target) -> None:
    """Groups with offsets of all its partitions, which go with the topic or with the group."""
    name, partitions = "offsets-of-deleted", target.count(MANY)
    groups = [f"of-deleted-{number}" for number in range(target.count(20))]
    with target.connect(patience_s=LONG_PATIENCE_S) as client:
        client.create_topic(name, partitions)
        for group in groups:
            commit_offsets(client, group, name, partitions)
        ended = client.call(ApiKey.DELETE_GROUPS, 2, {"groups_names": groups[:1]})
        assert ended.results[0].error_code == 0, ended
        delete_topic(client, name)


def ask_for_much_in_short(target: Target) -> None:
    """Names of a few bytes, each of which stands for thousands of entries of the answer: the
    offsets of groups and the configs of a broker. Some are asked for again and again."""
    partitions, repeated = target.count(MANY), target.count(500)
    name, shared = f"asked-for-{partitions}", f"sharing-{partitions}"
    groups = [f"asked-for-{number}" for number in range(target.count(20))]
    with target.connect(patience_s=LONG_PATIENCE_S) as client:
        with contextlib.suppress(AssertionError):  # It exists.
            client.create_topic(name, partitions)
        for group in groups:
            commit_offsets(client, group, name, partitions)
        starts = [{"partition_index": index, "start_offset": 0} for index in range(partitions)]
        body = {"group_id": shared, "topics": [{"topic_name": name, "partitions": starts}]}
        set_offsets = client.call(ApiKey.ALTER_SHARE_GROUP_OFFSETS, 0, body)
        assert set_offsets.error_code == 0, set_offsets
        all_offsets = [{"group_id": group, "topics": None} for group in groups * repeated]
        client.call(ApiKey.OFFSET_FETCH, 8, {"groups": all_offsets, "require_stable": False})
        of_shared = [{"group_id": shared, "topics": None}] * repeated
        client.call(ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, 0, {"groups": of_shared})
        configs = {"resource_type": 4, "resource_name": "1", "configuration_keys": None}
        asked: dict[str, Any] = {"include_synonyms": True, "include_documentation": True}
        body = {"resources": [configs] * repeated, **asked}
        client.call(ApiKey.DESCRIBE_CONFIGS, 4, body)
        resources = [{**configs, "configuration_keys": [f"n{n}"]} for n in range(repeated)]
        client.call(ApiKey.DESCRIBE_CONFIGS, 4, {"resources": resources, **asked})


def commit_offsets(client: WireClient, group: str, topic: str, partitions: int) -> None:
    """Commit an offset of each partition, as a client without a group."""
    commits = [{"partition_index": n, "committed_offset": 0} for n in range(partitions)]
    for at in range(0, partitions, MANY):
        body = {
            "group_id": group,
            "generation_id_or_member_epoch": -1,
            "member_id": "",
            "topics": [{"name": topic, "partitions": commits[at : at + MANY]}],
        }
        committed = client.call(ApiKey.OFFSET_COMMIT, 8, body)
        assert not any(result.error_code for result in committed.topics[0].partitions)


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
