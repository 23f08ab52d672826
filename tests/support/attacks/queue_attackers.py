"""Attackers of what share groups and unique jobs keep of records (`attack_catalogue`)."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING

from shoal.coordinator.share.dead_letters import HEADERS_MAX
from shoal.protocol.errors import ErrorCode
from shoal.record.records import build_batch
from support.attacks.attackers import (
    FAIR,
    LONG_PATIENCE_S,
    ShareMember,
    configure,
    delete_topic,
    scrape,
)
from support.runs.conditions import eventually

if TYPE_CHECKING:
    from shoal.record.records import NewRecord
    from support.attacks.attackers import Target
    from support.brokers.wireclient import WireClient

ACCEPT, REJECT = 1, 3
#: Tenants of one produce request.
TENANTS_A_BATCH = 5_000
#: Fetches without records, after which a member has got all.
EMPTY_MAX = 3


def reject_bombs(target: Target) -> None:
    """Reject records of batches that expand, in a group whose dead letters have copies of them."""
    topic = group = "rejected-bombs"
    letters = f"dlq.{topic}"
    bombs: tuple[list[NewRecord], ...] = (
        [(1, b"k", bytes(16 << 20), ())],
        [(1, b"k", b"v", [("", None)] * (HEADERS_MAX - 1))] * 30,
        [(1, None, bytes(900), ())] * 500,
    )
    with target.connect(patience_s=LONG_PATIENCE_S) as client:
        client.create_topic(topic)
        client.create_topic(letters, errors_deadletterqueue_group_enable="true")
        configs = {
            "share.auto.offset.reset": "earliest",
            "errors.deadletterqueue.topic.name": letters,
            "errors.deadletterqueue.copy.record.enable": "true",
        }
        configure(client, group, configs)
        count = 0
        for records in bombs:
            bomb = bytes(build_batch(records, compression="zstd"))
            for _ in range(target.count(5)):
                assert client.produce(topic, records=bomb).error_code == 0
                count += len(records)
        member = ShareMember(client, topic, group)
        assert acknowledge_all(member, count, REJECT) == count
        eventually(
            lambda: client.fetch(letters, 0).high_watermark >= count, timeout_s=LONG_PATIENCE_S
        )
        for name in (topic, letters):
            delete_topic(client, name)


def acknowledge_all(member: ShareMember, count: int, kind: int) -> int:
    """Acknowledge this many records, or all that there are. Return their number."""
    done = empty = 0
    while done < count and empty < EMPTY_MAX:
        ranges = member.fetch()
        empty = 0 if ranges else empty + 1
        done += sum(last - first + 1 for first, last in ranges)
        if ranges:
            member.acknowledge(
                [
                    {"first_offset": first, "last_offset": last, "acknowledge_types": [kind]}
                    for first, last in ranges
                ]
            )
    return done


def make_up_tenants(target: Target) -> None:
    """A long name of a tenant for each record, of which a member completes one after the other."""
    topic = group = "made-up-tenants"
    with target.connect(patience_s=LONG_PATIENCE_S) as client:
        client.create_topic(topic)
        configs = {"share.auto.offset.reset": "earliest", "share.tenant.max.per.second": "0.5"}
        configure(client, group, {**FAIR, **configs})
        count = target.count(100_000)
        for at in range(0, count, TENANTS_A_BATCH):
            numbers = range(at, min(at + TENANTS_A_BATCH, count))
            records = [(1, b"%d" % number + bytes(150), b"", ()) for number in numbers]
            assert client.produce(topic, records=bytes(build_batch(records))).error_code == 0
        assert acknowledge_all(ShareMember(client, topic, group), count, ACCEPT) == count
        scrape(target)
        configure(client, group, {"share.fairness.by": "none"})
        delete_topic(client, topic)


def send_long_ids(target: Target) -> None:
    """Long ids of unique jobs, more than fit into memory, and many on one record."""
    topic, ids = "long-ids", random.Random(3)
    with target.connect(patience_s=LONG_PATIENCE_S) as client:
        client.create_topic(topic, shoal_deduplication_window_ms="100000000")
        for _ in range(target.count(30)):
            for count, bits in ((900, 4000), (20_000, 64)):
                send_ids(client, topic, [(b"%x" % ids.getrandbits(bits),) for _ in range(count)])
        for compression, own_ids in (
            ("none", (b"x" * 900_000,)),
            ("none", (b"x",) * 50_000),
            ("zstd", (bytes(16 << 20),)),
        ):
            send_ids(client, topic, [own_ids], compression)
        delete_topic(client, topic)


def send_ids(
    client: WireClient, topic: str, records: list[tuple[bytes, ...]], compression: str = "none"
) -> None:
    """Send records with these ids until the broker has room for them."""
    now_ms = int(time.time() * 1000)
    batch = bytes(
        build_batch(
            [(now_ms, None, b"", [("shoal.dedup.id", own) for own in ids]) for ids in records],
            compression=compression,
        )
    )

    def is_stored() -> bool:
        code = client.produce(topic, records=batch).error_code
        assert code in (ErrorCode.none, ErrorCode.not_leader_or_follower), code
        return code == ErrorCode.none

    eventually(is_stored, timeout_s=LONG_PATIENCE_S)
