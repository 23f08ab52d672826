"""Attackers that commit offsets (`attack_catalogue`)."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from shoal.protocol.api import ApiKey
from shoal.protocol.features import KEY_HASH_MAX
from shoal.record.finished_offsets import HEADER
from shoal.record.records import build_batch
from support.runs.conditions import eventually

if TYPE_CHECKING:
    from support.attacks.attackers import Target
    from support.brokers.wireclient import WireClient

#: The records of the topic: offsets up to there may be finished.
RECORDS = 20_001
#: shoal.group.consumer.individual.commit.max.ranges
RANGES_MAX = 10_000
#: The largest `finished` of a request, in bytes.
SIZE_MAX = 7 << 20


def finish_offsets(target: Target) -> None:
    """Commit finished offsets one by one: chunks without ranges, chunks of more lengths than
    ranges, short and long ones, and as many ranges as are allowed, each in a chunk of its own."""
    topic = group = "finished"
    long = bytes([0x81] * 9 + [0x00]) * 6_000
    chunks: tuple[tuple[list[bytes], int], ...] = (
        ([HEADER.pack(0, 0, 0, 0, 0) * (target.count(SIZE_MAX) // HEADER.size)], 1),
        ([HEADER.pack(0, 5, 0, 0, 60_000) + b"\x01" * 60_000] * target.count(120), 3),
        ([HEADER.pack(0, 5, 0, 1, 60_000) + long] * target.count(120), 3),
        ([b"".join(HEADER.pack(n, n, 1, 1, 1) + b"\x01" for n in range(1, RECORDS, 2))], 3),
    )
    with target.connect() as client:
        with contextlib.suppress(AssertionError):  # It exists.
            client.create_topic(topic)
        records = [(1, None, b"", ())] * RECORDS
        assert client.produce(topic, records=bytes(build_batch(records))).error_code == 0
        epoch = eventually(lambda: join(client, group, topic), what="a member")
        for encodings, times in chunks:
            for _ in range(times):
                commit(client, group, epoch, topic, encodings)


def join(client: WireClient, group: str, topic: str) -> int | None:
    """Return the epoch of a member of a consumer group, None if it is too early."""
    body = {
        "group_id": group,
        "member_id": "m",
        "member_epoch": 0,
        "rebalance_timeout_ms": 60_000,
        "subscribed_topic_names": [topic],
        "topic_partitions": [],
    }
    answer = client.call(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, body)
    return None if answer.error_code else answer.member_epoch


def commit(client: WireClient, group: str, epoch: int, topic: str, encodings: list[bytes]) -> None:
    """Commit each of these finished offsets of the same partition, in one request."""
    whole: dict[str, Any] = {"first_hash": 0, "last_hash": KEY_HASH_MAX, "position": 0}
    partitions = [
        {
            "partition_index": 0,
            "committed_offset": 0,
            "committed_metadata": None,
            "key_ranges": [{**whole, "finished": encoded}],
        }
        for encoded in encodings
    ]
    body = {
        "group_id": group,
        "member_id": "m",
        "generation_id_or_member_epoch": epoch,
        "topics": [{"name": topic, "partitions": partitions}],
    }
    answered = client.call(ApiKey.OFFSET_COMMIT, 9, body).topics[0].partitions
    assert len(answered) == len(encodings)
