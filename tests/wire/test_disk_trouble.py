"""A full disk: producers get errors, no partial batch is served, and the broker recovers when there
is space again. A limit on file sizes simulates the full disk: the kernel also shortens or refuses
writes at the limit. And logs that reach their own limit."""

from __future__ import annotations

import resource
from typing import TYPE_CHECKING

import pytest
from conditions import eventually
from shoal.protocol.api import ApiKey
from shoal.protocol.errors import ErrorCode
from shoal.record.batch import headers
from shoal.record.records import read_records
from wireclient import WireClient

if TYPE_CHECKING:
    from collections.abc import Callable

    from servers import ShoalProcess

FAILED = 'kafka_server_BrokerTopicMetrics_FailedProduceRequestsPerSec_total{topic="t"}'


def limit_files(broker: ShoalProcess, size_bytes: int) -> None:
    _, hard = resource.prlimit(broker.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(broker.pid, resource.RLIMIT_FSIZE, (size_bytes, hard))


def read_all(client: WireClient, topic: str) -> list[bytes | None]:
    found: list[bytes | None] = []
    while True:
        answer = client.fetch(topic, len(found), partition_max_bytes=1 << 24)
        assert answer.error_code == 0
        if not answer.records:
            return found
        data = answer.records
        found += [r.value for at, _ in headers(data) for r in read_records(data, at)]


@pytest.mark.parametrize("then", ["continue", "kill -9", "restart"])
def test_the_disk_is_full_for_a_while(broker: ShoalProcess, then: str) -> None:
    with WireClient(broker.bootstrap) as client:
        client.create_topic("t")
        written = [b"%d " % i * 1000 for i in range(20)]
        for value in written:
            assert client.produce("t", value).error_code == 0
        limit_files(broker, 100_000)
        refused = 0
        for number in range(100):
            value = b"later %d " % number * 1000
            answer = client.produce("t", value)
            if answer.error_code == 0:
                assert answer.base_offset == len(written)
                written.append(value)
            else:
                assert answer.error_code == ErrorCode.kafka_storage_error, answer
                assert answer.error_message
                refused += 1
        assert refused > 80
        assert read_all(client, "t") == written
        assert broker.metric(FAILED) == refused
        limit_files(broker, resource.RLIM_INFINITY)
    if then == "kill -9":
        broker.kill9()
        broker.start()
    elif then == "restart":
        broker.restart()
    with WireClient(broker.bootstrap) as client:
        assert client.produce("t", b"room again").base_offset == len(written)
        assert read_all(client, "t") == [*written, b"room again"]


LOGS_MAX_BYTES = 200_000


def test_logs_at_their_limit_take_no_more_records_until_there_is_room(
    start_broker: Callable[..., ShoalProcess],
) -> None:
    broker = start_broker(configs={"shoal.log.dir.max.bytes": str(LOGS_MAX_BYTES)})
    with WireClient(broker.bootstrap) as client:
        client.create_topic("large")
        client.create_topic("t")

        def space() -> tuple[int, int]:
            (found,) = client.call(ApiKey.DESCRIBE_LOG_DIRS, 4, {"topics": None}).results
            return found.total_bytes, found.usable_bytes

        total, usable = space()
        assert (total, usable) == (LOGS_MAX_BYTES, LOGS_MAX_BYTES)
        value = b"v" * 50_000
        eventually(lambda: client.produce("large", value).error_code != 0)
        answer = client.produce("t", b"v")
        assert answer.error_code == ErrorCode.kafka_storage_error
        assert "200000 bytes (shoal.log.dir.max.bytes)" in answer.error_message
        assert space() == (LOGS_MAX_BYTES, 0)
        assert client.fetch("large", 0).error_code == 0
        deleted = client.call(
            ApiKey.DELETE_TOPICS, 5, {"topic_names": ["large"], "timeout_ms": 10_000}
        )
        assert deleted.responses[0].error_code == 0
        eventually(lambda: client.produce("t", b"v").error_code == 0)
        assert space()[1] > LOGS_MAX_BYTES / 2
