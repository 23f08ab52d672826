"""A share group over more partitions than are loaded in one turn of the broker's loop."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from shoal.protocol.api import ApiKey
from shoal.server.share.service import LOADS_MAX
from support.brokers.wireclient import WireClient
from support.runs.conditions import eventually

if TYPE_CHECKING:
    from support.brokers.servers import ShoalProcess

PARTITIONS = 3 * LOADS_MAX + 7
GROUP, MEMBER = "many", "A" * 22


def heartbeat(client: WireClient, epoch: int, topic: str) -> Any:
    body = {
        "group_id": GROUP,
        "member_id": MEMBER,
        "member_epoch": epoch,
        "subscribed_topic_names": [topic],
    }
    return client.call(ApiKey.SHARE_GROUP_HEARTBEAT, 1, body)


def test_a_member_gets_the_records_of_all_its_partitions(shared_broker: ShoalProcess) -> None:
    with WireClient(shared_broker.bootstrap) as client:
        topic_id = client.create_topic("many", PARTITIONS)
        for index in range(PARTITIONS):
            client.produce("many", b"%d" % index, partition=index)
        config = {"name": "share.auto.offset.reset", "config_operation": 0, "value": "earliest"}
        resource = {"resource_type": 32, "resource_name": GROUP, "configs": [config]}
        client.call(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, {"resources": [resource]})
        epoch = 0

        def is_assigned() -> bool:
            nonlocal epoch
            answer = heartbeat(client, epoch, "many")
            assert answer.error_code == 0
            epoch = answer.member_epoch
            assigned = answer.assignment.topic_partitions if answer.assignment else ()
            return sum(len(t.partitions) for t in assigned) == PARTITIONS

        eventually(is_assigned, what="all partitions are assigned")
        fetched = [
            {"partition_index": index, "acknowledgement_batches": []} for index in range(PARTITIONS)
        ]
        got: set[int] = set()
        session, end = 0, time.monotonic() + 60
        while len(got) < PARTITIONS and time.monotonic() < end:
            answer = client.call(
                ApiKey.SHARE_FETCH,
                1,
                {
                    "group_id": GROUP,
                    "member_id": MEMBER,
                    "share_session_epoch": session,
                    "max_wait_ms": 1000,
                    "min_bytes": 1,
                    "max_bytes": 1 << 24,
                    "max_records": 1000,
                    "batch_size": 1000,
                    "topics": [{"topic_id": topic_id, "partitions": fetched}]
                    if not session
                    else [],
                },
            )
            assert answer.error_code == 0
            session += 1
            for found in (p for t in answer.responses for p in t.partitions):
                assert found.error_code == 0
                if found.acquired_records:
                    got.add(found.partition_index)
        assert got == set(range(PARTITIONS))
