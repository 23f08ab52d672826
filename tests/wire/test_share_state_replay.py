"""The log of share-group state stays short, so that the next coordinator serves soon."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.protocol.api import ApiKey
from shoal.protocol.errors import ErrorCode
from shoal.server.share.state_coordinator import REPLAY_RECORDS_MAX
from support.brokers.wireclient import WireClient
from support.runs.conditions import eventually

if TYPE_CHECKING:
    from collections.abc import Callable
    from uuid import UUID

    from support.brokers.servers import ShoalProcess

PARTITIONS, ROUNDS = 100, 150
#: Less than the interval at which pruning truncates the log: a test that waits for that fails.
TIMEOUT_S = 30
LOG_END = 'kafka_log_Log_LogEndOffset{topic="__share_group_state",partition="0"}'
LOG_START = 'kafka_log_Log_LogStartOffset{topic="__share_group_state",partition="0"}'


def initialize(wire: WireClient, topic_id: UUID) -> None:
    rows = [{"partition": p, "state_epoch": 1, "start_offset": 0} for p in range(PARTITIONS)]
    body = {"group_id": "g", "topics": [{"topic_id": topic_id, "partitions": rows}]}
    answer = wire.call(ApiKey.INITIALIZE_SHARE_GROUP_STATE, 0, body)
    assert {p.error_code for p in answer.results[0].partitions} == {ErrorCode.none}


def write(wire: WireClient, topic_id: UUID, start_offset: int) -> None:
    """Move the start offset of all share partitions but the first."""
    rows = [
        {
            "partition": p,
            "state_epoch": 1,
            "leader_epoch": 0,
            "start_offset": start_offset,
            "delivery_complete_count": 0,
            "state_batches": [],
        }
        for p in range(1, PARTITIONS)
    ]
    body = {"group_id": "g", "topics": [{"topic_id": topic_id, "partitions": rows}]}
    answer = wire.call(ApiKey.WRITE_SHARE_GROUP_STATE, 1, body)
    assert {p.error_code for p in answer.results[0].partitions} == {ErrorCode.none}


def start_offset(wire: WireClient, topic_id: UUID, partition: int) -> int:
    rows = [{"partition": partition, "leader_epoch": 0}]
    body = {"group_id": "g", "topics": [{"topic_id": topic_id, "partitions": rows}]}
    (row,) = wire.call(ApiKey.READ_SHARE_GROUP_STATE, 0, body).results[0].partitions
    assert row.error_code == ErrorCode.none
    return row.start_offset


def test_a_log_of_many_writes_is_cut_at_once(start_broker: Callable[..., ShoalProcess]) -> None:
    """The first share partition is never written again, and its snapshot is the oldest."""
    broker = start_broker(configs={"share.coordinator.state.topic.num.partitions": "1"})
    with WireClient(broker.bootstrap) as wire:
        topic_id = wire.create_topic("t", PARTITIONS)
        initialize(wire, topic_id)
        for number in range(1, ROUNDS + 1):
            write(wire, topic_id, number)

    def records() -> float:
        return broker.metric(LOG_END) - broker.metric(LOG_START)

    assert broker.metric(LOG_END) > 2 * REPLAY_RECORDS_MAX
    eventually(lambda: records() <= REPLAY_RECORDS_MAX, timeout_s=TIMEOUT_S, what="the log is cut")
    broker.kill9()
    broker.start()
    with WireClient(broker.bootstrap) as wire:
        eventually(lambda: start_offset(wire, topic_id, 1) == ROUNDS)
        assert start_offset(wire, topic_id, 0) == 0
