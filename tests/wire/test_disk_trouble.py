"""A full disk: producers get errors, no partial batch is served, and the broker recovers when there
is space again. A limit on file sizes simulates the full disk: the kernel also shortens or refuses
writes at the limit. Topics that are created or deleted without room, or without descriptors of
files. And logs that reach their own limit."""

from __future__ import annotations

import asyncio
import os
import resource
import urllib.error
import urllib.request
from typing import TYPE_CHECKING

import pytest
from shoal.client.client import Client
from shoal.client.settings import Settings
from shoal.monitoring import cluster_health
from shoal.protocol.api import ApiKey
from shoal.protocol.errors import ErrorCode
from shoal.record.batch import iter_headers
from shoal.record.records import read_records
from support.brokers.wireclient import WireClient
from support.runs.conditions import eventually

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.brokers.servers import ShoalProcess

FAILED = 'kafka_server_BrokerTopicMetrics_FailedProduceRequestsPerSec_total{topic="t"}'


def limit_files(broker: ShoalProcess, size_bytes: int) -> None:
    _, hard = resource.prlimit(broker.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(broker.pid, resource.RLIMIT_FSIZE, (size_bytes, hard))


def readiness(broker: ShoalProcess) -> tuple[int, str]:
    """Return the status and the text of /readyz."""
    try:
        with urllib.request.urlopen(f"{broker.metrics_url}/readyz", timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as refused:
        return refused.code, refused.read().decode()


def logged(broker: ShoalProcess, event: str) -> int:
    return sum(event in line for line in broker.log)


def problems(broker: ShoalProcess) -> list[str]:
    """Return what is wrong according to `shoal cluster health`."""

    async def main() -> list[str]:
        async with Client(Settings.from_bootstrap(broker.bootstrap)) as client:
            return (await cluster_health.examine(client)).problems

    return asyncio.run(main())


def read_all(client: WireClient, topic: str) -> list[bytes | None]:
    found: list[bytes | None] = []
    while True:
        answer = client.fetch(topic, len(found), partition_max_bytes=1 << 24)
        assert answer.error_code == 0
        if not answer.records:
            return found
        data = answer.records
        found += [r.value for at, _ in iter_headers(data) for r in read_records(data, at)]


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
        eventually(lambda: readiness(broker)[0] == 503)
        assert "refuses writes: File too large" in readiness(broker)[1]
        assert logged(broker, "the disk refuses writes") == 1
        limit_files(broker, resource.RLIM_INFINITY)
    if then == "kill -9":
        broker.kill9()
        broker.start()
    elif then == "restart":
        broker.restart()
    eventually(lambda: readiness(broker) == (200, "ready\n"))
    with WireClient(broker.bootstrap) as client:
        assert client.produce("t", b"room again").base_offset == len(written)
        assert read_all(client, "t") == [*written, b"room again"]


def test_a_full_disk_under_the_metadata_log_is_told(broker: ShoalProcess) -> None:
    with WireClient(broker.bootstrap) as client:
        client.create_topic("t")
        limit_files(broker, 1)
        row = {"name": "u", "num_partitions": 1, "replication_factor": 1}
        body = {"timeout_ms": 10_000, "topics": [row]}

        def create() -> int:
            return int(client.call(ApiKey.CREATE_TOPICS, 7, body).topics[0].error_code)

        assert create() == ErrorCode.kafka_storage_error
        eventually(lambda: logged(broker, "the disk refuses writes") == 1)
        assert readiness(broker)[0] == 503
        limit_files(broker, resource.RLIM_INFINITY)
        eventually(lambda: readiness(broker) == (200, "ready\n"))
        eventually(lambda: create() == 0)
        assert client.produce("u", b"v").error_code == 0
    assert logged(broker, "the metadata log failed") == 1
    assert logged(broker, "the metadata log can be written again") == 1


def limit_descriptors(broker: ShoalProcess, count: int) -> None:
    """Let the broker open `count` files more than it has."""
    used = len(os.listdir(f"/proc/{broker.pid}/fd"))
    _, hard = resource.prlimit(broker.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(broker.pid, resource.RLIMIT_NOFILE, (used + count, hard))


def test_a_topic_created_without_room_is_served_when_there_is_some(broker: ShoalProcess) -> None:
    """Found from outside: its partitions answered NOT_LEADER_OR_FOLLOWER until a restart."""
    with WireClient(broker.bootstrap) as client:
        client.create_topic("warm")  # Loads the code of CreateTopics, which needs files, too.
        limits = resource.prlimit(broker.pid, resource.RLIMIT_NOFILE)
        limit_descriptors(broker, 2)
        row = {"name": "t", "num_partitions": 5, "replication_factor": 1}
        body = {"timeout_ms": 10_000, "topics": [row]}
        (refused,) = client.call(ApiKey.CREATE_TOPICS, 7, body).topics
        assert refused.error_code == ErrorCode.kafka_storage_error
        assert "Too many open files" in refused.error_message
        codes = [client.produce("t", b"v", partition=index).error_code for index in range(5)]
        assert ErrorCode.not_leader_or_follower in codes
        resource.prlimit(broker.pid, resource.RLIMIT_NOFILE, limits)
        for index in range(5):
            eventually(lambda i=index: client.produce("t", b"v", partition=i).error_code == 0)
    assert logged(broker, "metadata is not applied and will be repeated")
    eventually(lambda: logged(broker, "the metadata is applied again") == 1)
    broker.restart()
    with WireClient(broker.bootstrap) as client:
        codes = [client.produce("t", b"v", partition=index).error_code for index in range(5)]
    assert codes == [0] * 5


def test_probes_and_health_tell_of_a_partition_that_is_not_served(broker: ShoalProcess) -> None:
    with WireClient(broker.bootstrap) as client:
        (broker.data_dir / "t-1").write_text("no directory")
        (broker.data_dir / "gone-0").write_text("no directory")
        row = {"num_partitions": 3, "replication_factor": 1}
        body = {"timeout_ms": 10_000, "topics": [{"name": "t", **row}, {"name": "gone", **row}]}
        rows = client.call(ApiKey.CREATE_TOPICS, 7, body).topics
        assert [row.error_code for row in rows] == [ErrorCode.kafka_storage_error] * 2
        # Those beside it are served, and other changes are applied.
        client.create_topic("other")
        written = [("t", 0), ("t", 2), ("other", 0)]
        assert [client.produce(t, b"v", partition=i).error_code for t, i in written] == [0] * 3
        status, text = readiness(broker)
        assert status == 503
        assert "gone-0 is not served: [Errno 20] Not a directory" in text
        assert "(1 more)" in text
        (problem,) = problems(broker)
        assert "1 broker is short of a working disk" in problem
        (broker.data_dir / "t-1").unlink()
        eventually(lambda: client.produce("t", b"v", partition=1).error_code == 0)
        assert readiness(broker)[0] == 503
        names = {"topic_names": ["gone"], "timeout_ms": 10_000}
        assert client.call(ApiKey.DELETE_TOPICS, 5, names).responses[0].error_code == 0
        eventually(lambda: readiness(broker) == (200, "ready\n"))
        assert problems(broker) == []


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
