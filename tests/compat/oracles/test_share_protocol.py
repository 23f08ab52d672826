"""ShareFetch and ShareAcknowledge on the wire: sessions, epochs, acquire modes, renewal and the
error codes of KIP-932, KIP-1206 and KIP-1222, against a real broker."""

from __future__ import annotations

import datetime
import uuid
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
)
from prometheus_client.parser import text_string_to_metric_families
from shoal.log.uuids import format_uuid
from shoal.protocol.api import ApiKey
from shoal.protocol.errors import ErrorCode
from support.brokers.wireclient import WireClient
from support.runs.conditions import eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from support.brokers.servers import ShoalProcess
    from support.brokers.shared_servers import SharedKafka

ACCEPT, RELEASE, REJECT, RENEW = 1, 2, 3, 4


class Member:
    """A member of a group that sends its requests over its own connection."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.wire = WireClient(setup.bootstrap)
        self.member_id = format_uuid(uuid.uuid4())
        self.epoch = 0
        setup.members.append(self)

    def fetch(
        self, *, version: int = 2, acks: Any = (), epoch: int | None = None, **more: Any
    ) -> Any:
        sent = self.epoch if epoch is None else epoch
        partition = {
            "partition_index": 0,
            "acknowledgement_batches": [
                {"first_offset": a, "last_offset": b, "acknowledge_types": list(c)}
                for a, b, c in acks
            ],
        }
        body = {
            "group_id": self.setup.group,
            "member_id": self.member_id,
            "share_session_epoch": sent,
            "max_wait_ms": 200,
            "min_bytes": 1,
            "max_bytes": 1 << 20,
            "max_records": 500,
            "batch_size": 500,
            "topics": [{"topic_id": self.setup.topic_id, "partitions": [partition]}],
            **more,
        }
        answer = self.wire.call(ApiKey.SHARE_FETCH, version, body)
        if answer.error_code is ErrorCode.none and epoch is None:
            self.epoch += 1
        return answer

    def acquired(self, **more: Any) -> list[tuple[int, int, int]]:
        """Fetch; return first offset, last offset and delivery count of the acquired ranges."""
        answer = self.fetch(**more)
        assert answer.error_code is ErrorCode.none, answer
        return [
            (r.first_offset, r.last_offset, r.delivery_count)
            for topic in answer.responses
            for partition in topic.partitions
            for r in partition.acquired_records
        ]

    def acknowledge(
        self,
        *acks: tuple[int, int, list[int]],
        version: int = 2,
        renew: bool = False,
        epoch: int | None = None,
    ) -> Any:
        """Return the whole response, or the error code of its only partition."""
        body = {
            "group_id": self.setup.group,
            "member_id": self.member_id,
            "share_session_epoch": self.epoch if epoch is None else epoch,
            "is_renew_ack": renew,
            "topics": [
                {
                    "topic_id": self.setup.topic_id,
                    "partitions": [
                        {
                            "partition_index": 0,
                            "acknowledgement_batches": [
                                {"first_offset": a, "last_offset": b, "acknowledge_types": c}
                                for a, b, c in acks
                            ],
                        }
                    ],
                }
            ],
        }
        answer = self.wire.call(ApiKey.SHARE_ACKNOWLEDGE, version, body)
        if answer.error_code is not ErrorCode.none:
            return answer.error_code
        if epoch is None:
            self.epoch += 1
        return answer.responses[0].partitions[0].error_code


class Setup:
    """A topic with one partition whose share-group state is initialized from offset 0."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.members: list[Member] = []
        self.topic = f"t-{uuid.uuid4().hex[:8]}"
        self.group = f"g-{uuid.uuid4().hex[:8]}"
        self.admin = AdminClient({"bootstrap.servers": bootstrap})
        self.admin.create_topics([NewTopic(self.topic, 1, 1)])[self.topic].result(15)
        wire = WireClient(bootstrap)

        def find_id() -> Any:
            """Return the topic's id, once the broker has it: Kafka answers before that."""
            (row,) = wire.call(ApiKey.METADATA, 12, {"topics": [{"name": self.topic}]}).topics
            return None if row.error_code else row.topic_id

        self.topic_id = eventually(find_id, what=f"the id of {self.topic}")
        body = {
            "group_id": self.group,
            "topics": [
                {
                    "topic_id": self.topic_id,
                    "partitions": [{"partition": 0, "state_epoch": 1, "start_offset": 0}],
                }
            ],
        }

        key = f"{self.group}:{format_uuid(self.topic_id)}:0"
        find = {"key_type": 2, "coordinator_keys": [key]}

        def initialized() -> bool:
            wire.call(ApiKey.FIND_COORDINATOR, 6, find)  # Kafka creates the state topic for it.
            answer = wire.call(ApiKey.INITIALIZE_SHARE_GROUP_STATE, 0, body)
            return answer.results[0].partitions[0].error_code is ErrorCode.none

        eventually(initialized, what="share-group state")
        wire.sock.close()

    def configure(self, **configs: str) -> None:
        entries = [
            ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
            for name, value in configs.items()
        ]
        resource = ConfigResource(
            ConfigResource.Type.GROUP, self.group, incremental_configs=entries
        )
        for future in self.admin.incremental_alter_configs([resource]).values():
            future.result(15)

    def produce(self, *batches: int) -> None:
        """Produce batches of these sizes."""
        with WireClient(self.bootstrap) as wire:
            for size in batches:
                assert wire.produce(self.topic, *[b"x"] * size).error_code == 0


@pytest.fixture
def setup(shared_broker: ShoalProcess) -> Iterator[Setup]:
    made = Setup(shared_broker.bootstrap)
    yield made
    for member in made.members:
        member.wire.sock.close()


# Sessions.


def test_a_session_continues_with_the_next_epoch(setup: Setup) -> None:
    setup.produce(2, 3)
    member = Member(setup)
    assert member.acquired(max_records=1) == [(0, 1, 1)]
    assert member.acquired(topics=[]) == [(2, 4, 1)]
    assert member.fetch(epoch=7).error_code is ErrorCode.invalid_share_session_epoch
    assert member.fetch(epoch=1).error_code is ErrorCode.invalid_share_session_epoch


def test_a_missing_session(setup: Setup) -> None:
    member = Member(setup)
    assert member.fetch(epoch=5).error_code is ErrorCode.share_session_not_found
    assert member.fetch(epoch=-1).error_code is ErrorCode.share_session_not_found
    assert member.acknowledge((0, 0, [ACCEPT]), epoch=3) is ErrorCode.share_session_not_found
    assert member.acknowledge(epoch=0) is ErrorCode.invalid_share_session_epoch


def test_a_request_that_opens_a_session_acknowledges_nothing(setup: Setup) -> None:
    answer = Member(setup).fetch(acks=[(0, 0, [ACCEPT])])
    assert answer.error_code is ErrorCode.invalid_request


def test_the_number_of_sessions_is_limited(start_broker: Callable[..., ShoalProcess]) -> None:
    configs = {"group.share.max.share.sessions": "2", "group.share.max.size": "2"}
    setup = Setup(start_broker(configs=configs).bootstrap)
    first, second, third = Member(setup), Member(setup), Member(setup)
    assert first.fetch().error_code is ErrorCode.none
    assert second.fetch().error_code is ErrorCode.none
    assert third.fetch().error_code is ErrorCode.share_session_limit_reached
    assert first.acknowledge(epoch=-1) is ErrorCode.none
    assert third.fetch().error_code is ErrorCode.none


def test_a_partition_that_is_not_there(setup: Setup) -> None:
    member = Member(setup)
    unknown = {"topic_id": uuid.uuid4(), "partitions": [{"partition_index": 0}]}
    missing = {"topic_id": setup.topic_id, "partitions": [{"partition_index": 9}]}
    answer = member.fetch(topics=[unknown, missing])
    codes = {p.partition_index: p.error_code for t in answer.responses for p in t.partitions}
    assert codes == {0: ErrorCode.unknown_topic_id, 9: ErrorCode.unknown_topic_or_partition}


def test_a_forgotten_partition_is_fetched_no_more_and_keeps_its_locks(setup: Setup) -> None:
    setup.produce(2, 2)
    member = Member(setup)
    assert member.acquired(max_records=2) == [(0, 1, 1)]
    forgotten = [{"topic_id": setup.topic_id, "partitions": [0]}]
    assert member.acquired(topics=[], forgotten_topics_data=forgotten) == []
    assert member.acknowledge((0, 1, [ACCEPT])) is ErrorCode.none


def test_closing_a_session_releases_its_records(setup: Setup) -> None:
    setup.produce(3)
    first, second = Member(setup), Member(setup)
    assert first.acquired() == [(0, 2, 1)]
    assert first.acknowledge((0, 0, [ACCEPT]), epoch=-1) is ErrorCode.none
    assert second.acquired() == [(1, 2, 2)]


def test_a_fetch_that_waits_ends_with_its_session_and_acquires_nothing(setup: Setup) -> None:
    member, other = Member(setup), Member(setup)
    assert member.acquired() == []
    partition = {"topic_id": setup.topic_id, "partitions": [{"partition_index": 0}]}
    body = {
        "group_id": setup.group,
        "member_id": member.member_id,
        "share_session_epoch": 1,
        "max_wait_ms": 20_000,
        "min_bytes": 1,
        "max_bytes": 1 << 20,
        "max_records": 500,
        "batch_size": 500,
        "topics": [partition],
    }
    member.wire.send(ApiKey.SHARE_FETCH, 2, body)
    closing = {**body, "share_session_epoch": -1, "topics": []}
    member.wire.send(ApiKey.SHARE_ACKNOWLEDGE, 2, closing)
    _, fetched = member.wire.receive(ApiKey.SHARE_FETCH, 2)
    assert fetched.error_code is ErrorCode.none
    assert not any(p.acquired_records for t in fetched.responses for p in t.partitions)
    _, closed = member.wire.receive(ApiKey.SHARE_ACKNOWLEDGE, 2)
    assert closed.error_code is ErrorCode.none
    setup.produce(2)
    assert other.acquired(max_wait_ms=5000) == [(0, 1, 1)]


def test_a_lost_connection_releases_its_records(setup: Setup) -> None:
    setup.produce(3)
    first, second = Member(setup), Member(setup)
    assert first.acquired() == [(0, 2, 1)]
    first.wire.sock.close()
    assert second.acquired(max_wait_ms=5000) == [(0, 2, 2)]


def connected_again(setup: Setup) -> Member:
    """Return a member that opens its session over a second connection, while the first one ends."""
    first, second = Member(setup), Member(setup)
    second.member_id = first.member_id
    for member in (first, second):
        assert member.fetch().error_code is ErrorCode.none
    first.wire.close()
    return second


def test_a_session_does_not_end_with_an_earlier_connection(setup: Setup) -> None:
    member = connected_again(setup)
    # Each fetch waits, so the broker has seen the end of the connection.
    for _ in range(5):
        assert member.fetch().error_code is ErrorCode.none


@pytest.mark.java
@pytest.mark.nightly
def test_nor_does_it_in_kafka(kafka: SharedKafka) -> None:
    """But it may, if Kafka notices the end while it opens the session: a few of a hundred thousand
    did in the permission matrix. So that has a member of its own for each case."""
    setup = Setup(kafka.bootstrap)
    test_a_session_does_not_end_with_an_earlier_connection(setup)
    for one in setup.members:
        one.wire.close()


# Acquiring.


def test_batch_optimized_takes_batches_whole_and_record_limit_does_not(setup: Setup) -> None:
    """KIP-1206."""
    setup.produce(5, 5, 5)
    first, second = Member(setup), Member(setup)
    assert first.acquired(max_records=3, batch_size=3) == [(0, 4, 1)]
    assert second.acquired(max_records=3, share_acquire_mode=1) == [(5, 7, 1)]
    assert second.acquired(max_records=4, share_acquire_mode=1) == [(8, 11, 1)]


def test_acquired_ranges_are_cut_at_batches_of_the_size_asked_for(setup: Setup) -> None:
    setup.produce(4, 4, 4)
    assert Member(setup).acquired(batch_size=6) == [(0, 7, 1), (8, 11, 1)]


def test_a_fetch_waits_for_records(setup: Setup) -> None:
    member = Member(setup)
    assert member.acquired() == []
    setup.produce(1)
    assert member.acquired(max_wait_ms=5000) == [(0, 0, 1)]


def test_records_are_those_of_the_acquired_batches(setup: Setup) -> None:
    setup.produce(2, 2, 2)
    member = Member(setup)
    assert member.acquired() == [(0, 5, 1)]
    assert member.acknowledge((0, 1, [RELEASE]), (4, 5, [RELEASE])) is ErrorCode.none
    answer = member.fetch()
    records = answer.responses[0].partitions[0].records
    bases, at = [], 0
    while at < len(records):
        bases.append(int.from_bytes(records[at : at + 8], "big"))
        at += 12 + int.from_bytes(records[at + 8 : at + 12], "big")
    assert bases == [0, 4], "the batch between, still acquired, is not sent again"


# Acknowledging.


def test_acknowledgements_of_a_partition_are_all_or_nothing(setup: Setup) -> None:
    """KIP-932: acknowledgements of a partition in one request succeed or fail together."""
    setup.produce(4)
    member, other = Member(setup), Member(setup)
    assert member.acquired() == [(0, 3, 1)]
    assert other.acquired() == []
    assert other.acknowledge((0, 0, [ACCEPT])) is ErrorCode.invalid_record_state
    wrong = member.acknowledge((0, 1, [ACCEPT]), (2, 9, [ACCEPT]))
    assert wrong is ErrorCode.invalid_request
    assert member.acknowledge((0, 3, [ACCEPT, RELEASE, REJECT, 0])) is ErrorCode.none
    assert member.acknowledge((0, 0, [ACCEPT])) is ErrorCode.invalid_record_state
    assert member.acquired() == [(1, 1, 2)]


@pytest.mark.parametrize(
    "acks",
    [
        [(3, 2, [ACCEPT])],
        [(0, 3, [ACCEPT, ACCEPT])],
        [(0, 0, [])],
        [(2, 3, [ACCEPT]), (0, 1, [ACCEPT])],
        [(0, 1, [ACCEPT]), (1, 2, [ACCEPT])],
        [(0, 0, [9])],
        [(0, 0, [RENEW])],
    ],
)
def test_acknowledgements_that_make_no_sense(setup: Setup, acks: Any) -> None:
    setup.produce(4)
    member = Member(setup)
    assert member.acquired() == [(0, 3, 1)]
    assert member.acknowledge(*acks) is ErrorCode.invalid_request
    assert member.acknowledge((0, 3, [ACCEPT])) is ErrorCode.none


def test_piggybacked_acknowledgements_are_answered_apart(setup: Setup) -> None:
    setup.produce(2)
    member = Member(setup)
    assert member.acquired() == [(0, 1, 1)]
    answer = member.fetch(acks=[(0, 1, [ACCEPT])])
    entry = answer.responses[0].partitions[0]
    assert (entry.error_code, entry.acknowledge_error_code) == (0, 0)
    answer = member.fetch(acks=[(5, 5, [ACCEPT])])
    entry = answer.responses[0].partitions[0]
    assert entry.error_code is ErrorCode.none
    assert entry.acknowledge_error_code == ErrorCode.invalid_record_state


def test_renewal_keeps_a_lock_and_moves_nothing(
    start_broker: Callable[..., ShoalProcess],
) -> None:
    """KIP-1222: RENEW restarts the acquisition lock of a record."""
    configs = {
        "group.share.min.record.lock.duration.ms": "1000",
        "group.share.record.lock.duration.ms": "3000",
    }
    setup = Setup(start_broker(configs=configs).bootstrap)
    setup.produce(2)
    member, other = Member(setup), Member(setup)
    assert member.acquired() == [(0, 1, 1)]
    assert other.acquired(max_wait_ms=500) == []
    # The lock of offset 1 ends after three seconds, that of offset 0 starts again.
    setup.configure(**{"share.record.lock.duration.ms": "60000"})
    assert member.acknowledge((0, 0, [RENEW]), renew=True) is ErrorCode.none
    assert other.acquired(max_wait_ms=20_000) == [(1, 1, 2)]
    assert member.acknowledge((0, 0, [ACCEPT])) is ErrorCode.none
    assert member.acknowledge((1, 1, [ACCEPT])) is ErrorCode.invalid_record_state


def test_renewal_can_be_forbidden_and_fetches_nothing(setup: Setup) -> None:
    setup.produce(1, 1)
    member = Member(setup)
    assert member.acquired(max_records=1) == [(0, 0, 1)]
    assert member.fetch(is_renew_ack=True).error_code is ErrorCode.invalid_request
    nothing = {"max_wait_ms": 0, "min_bytes": 0, "max_bytes": 0, "max_records": 0}
    answer = member.fetch(is_renew_ack=True, acks=[(0, 0, [RENEW])], **nothing)
    assert answer.responses[0].partitions[0].acknowledge_error_code == ErrorCode.none
    assert not answer.responses[0].partitions[0].acquired_records
    setup.configure(**{"share.renew.acknowledge.enable": "false"})
    refused = member.acknowledge((0, 0, [RENEW]), renew=True)
    assert refused is ErrorCode.invalid_record_state


def test_configs_hold_from_the_next_request_on(setup: Setup) -> None:
    setup.produce(1)
    member = Member(setup)
    assert member.fetch().acquisition_lock_timeout == codec_seconds(30)
    setup.configure(**{"share.record.lock.duration.ms": "15000"})
    assert member.fetch().acquisition_lock_timeout == codec_seconds(15)


def codec_seconds(seconds: int) -> Any:
    return datetime.timedelta(seconds=seconds)


# Topics, lag, the state log and metrics.


def test_deleted_records_leave_the_window(setup: Setup) -> None:
    """KIP-932: the start offset follows the log's; records below it count as archived."""
    setup.produce(5, 5)
    member = Member(setup)
    assert member.acquired(max_records=5) == [(0, 4, 1)]
    setup.admin.delete_records([TopicPartition(setup.topic, 0, 7)])
    eventually(lambda: _start_offset(setup) == 7)
    assert member.acknowledge((0, 4, [ACCEPT])) is ErrorCode.none
    assert member.acquired() == [(7, 9, 1)]


def test_a_deleted_topic_is_unknown(setup: Setup) -> None:
    setup.produce(1)
    member = Member(setup)
    assert member.acquired() == [(0, 0, 1)]
    setup.admin.delete_topics([setup.topic])[setup.topic].result(15)

    def is_unknown() -> bool:
        answer = member.fetch()
        return bool(answer.responses) and (
            answer.responses[0].partitions[0].error_code is ErrorCode.unknown_topic_id
        )

    eventually(is_unknown)
    assert member.acknowledge((0, 0, [ACCEPT])) is ErrorCode.unknown_topic_id


def test_lag_counts_what_is_not_complete(setup: Setup) -> None:
    """KIP-1226: end offset minus start offset minus the complete records after the start offset."""
    setup.produce(5, 5)
    member = Member(setup)
    assert _lag(setup) in (10, -1)
    assert member.acquired() == [(0, 9, 1)]
    assert member.acknowledge((0, 1, [ACCEPT]), (4, 5, [REJECT])) is ErrorCode.none
    assert (_start_offset(setup), _lag(setup)) == (2, 6)
    assert member.acknowledge((2, 3, [ACCEPT]), (6, 9, [ACCEPT])) is ErrorCode.none
    assert (_start_offset(setup), _lag(setup)) == (10, 0)


def _row(setup: Setup) -> Any:
    wire = WireClient(setup.bootstrap)
    topics = [{"topic_name": setup.topic, "partitions": [0]}]
    answer = wire.call(
        ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS,
        1,
        {"groups": [{"group_id": setup.group, "topics": topics}]},
    )
    wire.sock.close()
    return answer.groups[0].topics[0].partitions[0]


def _lag(setup: Setup) -> int:
    return _row(setup).lag


def _start_offset(setup: Setup) -> int:
    return _row(setup).start_offset


def test_the_state_log_is_cut_and_state_is_rebuilt_from_what_is_left(
    start_broker: Callable[..., ShoalProcess],
) -> None:
    configs = {
        "share.coordinator.snapshot.update.records.per.snapshot": "5",
        "share.coordinator.state.topic.prune.interval.ms": "200",
    }
    broker = start_broker(configs=configs)
    setup = Setup(broker.bootstrap)
    setup.produce(*[1] * 40)
    member = Member(setup)
    assert member.acquired() == [(0, 39, 1)]
    for offset in range(1, 40):
        kind = RELEASE if offset == 7 else ACCEPT
        assert member.acknowledge((offset, offset, [kind])) is ErrorCode.none

    def cut() -> bool:
        name = "kafka_server_share_coordinator_metrics_last_pruned_offset"
        return any(sample.value >= 30 for sample in broker.samples(name))

    eventually(cut)
    broker.kill9()
    broker.start()
    again = Member(setup)
    eventually(lambda: _lag(setup) == 2)
    assert again.acquired(max_wait_ms=5000) == [(0, 0, 1), (7, 7, 2)]


#: The metrics of KAFKA-19865 and of the coordinators' runtimes, with their Prometheus names.
METRICS = """
BrokerTopicMetrics: TotalShareFetchRequestsPerSec_total FailedShareFetchRequestsPerSec_total
    TotalShareAcknowledgementRequestsPerSec_total FailedShareAcknowledgementRequestsPerSec_total
ShareGroupMetrics: RecordAcknowledgementsPerSec_total PartitionLoadTimeMs_sum
    RequestTopicPartitionsFetchRatio_sum TopicPartitionsAcquireTimeMs_sum
SharePartitionMetrics: AcquisitionLockTimeoutPerSec_total InFlightMessageCount InFlightBatchCount
    InFlightBatchMessageCount_sum FetchLockTimeMs_sum FetchLockRatio_sum
ShareSessionCache: ShareSessionEvictionsPerSec_total SharePartitionsCount ShareSessionsCount
DelayedShareFetchMetrics: ExpiresPerSec_total
DelayedOperationPurgatory: PurgatorySize NumDelayedOperations
group_coordinator_metrics: group_count share_group_count share_group_rebalance_count_total
    num_partitions partition_load_time_ms_sum event_queue_size thread_idle_ratio_avg
share_coordinator_metrics: write_total write_latency_ms_sum last_pruned_offset num_partitions
    partition_load_time_ms_sum event_queue_size thread_idle_ratio_avg
"""


def test_metrics_have_kafkas_names(setup: Setup, shared_broker: ShoalProcess) -> None:
    setup.produce(3)
    member = Member(setup)
    member.acquired()
    member.acknowledge((0, 0, [ACCEPT]))
    found = shared_broker.scrape()
    # Without the TYPE lines, from which the parser would add `_total` to the names of counters.
    lines = "\n".join(line for line in found.split("\n") if not line.startswith("#"))
    families = text_string_to_metric_families(lines)
    samples = {sample.name for family in families for sample in family.samples}
    groups = (x.split(": ") for x in METRICS.replace("\n    ", " ").strip().splitlines())
    wanted = {f"kafka_server_{group}_{name}" for group, names in groups for name in names.split()}
    assert sorted(wanted - samples) == []
    share = "kafka_server_share_coordinator_metrics_"
    assert f'{share}num_partitions{{state="active"}} 50\n' in found
    idle = found.partition(f"\n{share}thread_idle_ratio_avg ")[2].partition("\n")[0]
    assert 0 <= float(idle) <= 1
