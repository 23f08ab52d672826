"""Share groups that start at a point in time (share.auto.offset.reset=by_duration)."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest
from shoal.protocol.api import ApiKey
from shoal.record.records import NewRecord, build_batch
from support.brokers.wireclient import WireClient
from support.runs.conditions import eventually

if TYPE_CHECKING:
    from support.brokers.servers import ShoalProcess

MEMBER = "A" * 22
HOUR_MS = 3_600_000
#: Bytes of a record: ten records are read on the event loop, or aside.
SMALL, LARGE = 10, 100_000


@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_a_group_starts_at_a_record_within_a_batch(shared_broker: ShoalProcess, size: int) -> None:
    name, now_ms = f"reset-{size}", int(time.time() * 1000)
    records: list[NewRecord] = [
        (now_ms - (10 - n) * HOUR_MS, None, bytes(size), ()) for n in range(10)
    ]
    with WireClient(shared_broker.bootstrap) as client:
        topic_id = client.create_topic(name)
        batch = bytes(build_batch(records, compression="zstd"))
        assert client.produce(name, records=batch).error_code == 0
        config = {
            "name": "share.auto.offset.reset",
            "config_operation": 0,
            "value": f"by_duration:PT{3 * 60 + 30}M",
        }
        resource = {"resource_type": 32, "resource_name": name, "configs": [config]}
        client.call(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, {"resources": [resource]})
        assert first_acquired(client, name, topic_id) == 7


def first_acquired(client: WireClient, name: str, topic_id: Any) -> int:
    """Return the first offset that a group gets."""
    beat = {"group_id": name, "member_id": MEMBER, "subscribed_topic_names": [name]}
    answer = client.call(ApiKey.SHARE_GROUP_HEARTBEAT, 1, {**beat, "member_epoch": 0})
    assert answer.error_code == 0
    body = {
        "group_id": name,
        "member_id": MEMBER,
        "max_wait_ms": 500,
        "min_bytes": 1,
        "max_bytes": 1 << 20,
        "max_records": 500,
        "batch_size": 500,
    }
    topics = [{"topic_id": topic_id, "partitions": [{"partition_index": 0}]}]
    epoch = 0

    def acquired() -> list[int]:
        nonlocal epoch
        fields = {**body, "share_session_epoch": epoch, "topics": [] if epoch else topics}
        answer = client.call(ApiKey.SHARE_FETCH, 1, fields)
        epoch += 1
        return [
            records.first_offset
            for topic in answer.responses
            for partition in topic.partitions
            for records in partition.acquired_records
        ]

    return eventually(acquired, what="records")[0]
