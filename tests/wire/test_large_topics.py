"""Topics of hundreds of partitions: a broker creates and deletes their logs in several turns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shoal.protocol.api import ApiKey
from shoal.protocol.errors import ErrorCode
from shoal.record.records import build_batch
from shoal.server.network.large_answers import ENTRIES_MIN
from support.brokers.wireclient import WireClient

if TYPE_CHECKING:
    from support.brokers.servers import ShoalProcess

COUNT = 300
RECORD = bytes(build_batch([(1, None, b"v", ())]))


def test_a_topic_is_served_when_its_creation_is_answered(shared_broker: ShoalProcess) -> None:
    """Takes some seconds on a busy machine, for 600 directories with files."""
    with WireClient(shared_broker.bootstrap) as client:
        topic_id = client.create_topic("in-turns", COUNT)
        for index in (COUNT - 1, 0):
            produced: Any = client.produce("in-turns", records=RECORD, partition=index)
            assert (produced.error_code, produced.base_offset) == (0, 0)
        # Its deletion, and a topic of the same name before the logs are deleted.
        topics = [{"name": "in-turns", "num_partitions": COUNT, "replication_factor": 1}]
        gone = [{"name": "in-turns", "topic_id": None}]
        client.send(ApiKey.DELETE_TOPICS, 6, {"topics": gone, "timeout_ms": 60_000})
        client.send(ApiKey.CREATE_TOPICS, 7, {"topics": topics, "timeout_ms": 60_000})
        _, deleted = client.receive(ApiKey.DELETE_TOPICS, 6)
        _, created = client.receive(ApiKey.CREATE_TOPICS, 7)
        assert deleted.responses[0].error_code == created.topics[0].error_code == 0
        assert created.topics[0].topic_id != topic_id
        produced = client.produce("in-turns", records=RECORD, partition=COUNT - 1)
        assert (produced.error_code, produced.base_offset) == (0, 0)


def test_requests_for_many_partitions_are_answered_in_full(shared_broker: ShoalProcess) -> None:
    """A broker handles them in pieces. Takes some seconds, for 300 directories with files."""
    everywhere = range(COUNT)
    with WireClient(shared_broker.bootstrap) as client:
        client.create_topic("wide", COUNT)
        data = [{"index": index, "records": RECORD} for index in everywhere]
        body = {"timeout_ms": 60_000, "topic_data": [{"name": "wide", "partition_data": data}]}
        for round_number in range(2):
            produced = client.call(ApiKey.PRODUCE, 9, {**body, "acks": -1})
            (topic,) = produced.responses
            assert [p.index for p in topic.partition_responses] == [*everywhere]
            assert {p.base_offset for p in topic.partition_responses} == {round_number}
        client.send(ApiKey.PRODUCE, 9, {**body, "acks": 0})
        # It is handled after the last piece.
        ends = [{"partition_index": index, "offset": -1} for index in everywhere]
        deletion = {"timeout_ms": 60_000, "topics": [{"name": "wide", "partitions": ends}]}
        deleted = client.call(ApiKey.DELETE_RECORDS, 2, deletion)
        assert {p.low_watermark for p in deleted.topics[0].partitions} == {3}


def test_a_partition_named_twice_in_a_large_request_is_refused_alone(
    shared_broker: ShoalProcess,
) -> None:
    """The answer is so large that it is encoded in turns. Found from outside: it closed the
    connection."""
    indexes = [0, 0, *range(1, ENTRIES_MIN + 1)]
    asked = [{"partition_index": index, "timestamp": -1} for index in indexes]
    body = {"replica_id": -1, "topics": [{"name": "nobody-has-it", "partitions": asked}]}
    with WireClient(shared_broker.bootstrap) as client:
        (topic,) = client.call(ApiKey.LIST_OFFSETS, 7, body).topics
    found = {p.partition_index: p.error_code for p in topic.partitions}
    assert len(found) == len(topic.partitions) == ENTRIES_MIN + 1
    assert found.pop(0) is ErrorCode.invalid_request
    assert {*found.values()} == {ErrorCode.unknown_topic_or_partition}
