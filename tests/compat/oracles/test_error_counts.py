"""Error codes of responses in the metric ErrorsPerSec: the same ones as in Kafka, as often."""

from __future__ import annotations

import re
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
from shoal.protocol.api import ApiKey
from shoal.protocol.errors import ErrorCode
from shoal.record.records import build_batch
from shoal.server.handlers import HANDLERS
from shoal.server.network import error_counts
from support.brokers.ports import free_ports
from support.brokers.servers import ShoalProcess
from support.brokers.wireclient import WireClient
from support.kafka.java_classes import SOURCES, java
from support.kafka.kafkas import KafkaProcess
from support.runs.conditions import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from shoal.server.network.error_counts import ErrorFields

SOURCE = SOURCES / "ErrorCountsOracle.java"
BEAN = "kafka.network:type=RequestMetrics,name=ErrorsPerSec"
RECORDS = bytes(build_batch([(1, None, b"x", ())]))
#: (request, error): how often.
Counts = dict[tuple[str, str], int]
#: What `send_requests` makes a broker count.
COUNTED: Counts = {
    ("Produce", "NONE"): 3,
    ("Produce", "UNKNOWN_TOPIC_OR_PARTITION"): 2,
    ("Produce", "INVALID_REQUIRED_ACKS"): 1,
    ("Fetch", "NONE"): 3,
    ("Fetch", "OFFSET_OUT_OF_RANGE"): 1,
    ("Fetch", "UNKNOWN_TOPIC_OR_PARTITION"): 1,
    ("Fetch", "FETCH_SESSION_ID_NOT_FOUND"): 1,
    ("ListOffsets", "NONE"): 1,
    ("ListOffsets", "UNKNOWN_TOPIC_OR_PARTITION"): 1,
    ("OffsetCommit", "NONE"): 1,
    ("OffsetCommit", "UNKNOWN_TOPIC_OR_PARTITION"): 1,
    ("OffsetFetch", "NONE"): 3,
    ("Metadata", "INVALID_TOPIC_EXCEPTION"): 1,
    ("ShareFetch", "SHARE_SESSION_NOT_FOUND"): 1,
    ("ShareAcknowledge", "INVALID_SHARE_SESSION_EPOCH"): 1,
    ("DescribeConfigs", "INVALID_REQUEST"): 1,
    ("DeleteTopics", "UNKNOWN_TOPIC_OR_PARTITION"): 2,
}


def paths(known: ErrorFields, times: int = 1, before: str = "") -> Iterator[tuple[str, int]]:
    """Yield the path of each code that counts, and how often if each array has two elements."""
    yield from ((before + name, times) for name in known.codes)
    for name, inner in known.arrays:
        yield from paths(inner, times * 2, f"{before}{name}.")


@pytest.mark.nightly
@pytest.mark.java
def test_the_codes_that_count_are_those_of_kafka() -> None:
    command = java(str(SOURCE))
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    theirs: dict[tuple[int, int], dict[str, int]] = {}
    for line in done.stdout.splitlines():
        key, version, text = line.split("\t")
        pairs = (pair.split("=") for pair in text.split())
        # An absent field is NONE.
        theirs[int(key), int(version)] = {
            "error_code" if path == "NONE" else path: int(times) for path, times in pairs
        }
    ours = {
        (key, version): dict(paths(error_counts.find_fields(key, version)))
        for key, api in HANDLERS.items()
        for version in api.versions
    }
    assert ours == {pair: theirs[pair] for pair in ours}


def send_requests(bootstrap: str) -> None:
    """Send requests that fail as a whole, in parts, or not at all."""
    with WireClient(bootstrap) as client:
        client.create_topic("jobs")

        def produce(acks: int, *topics: str) -> dict[str, Any]:
            parts = [{"index": 0, "records": RECORDS}]
            data = [{"name": name, "partition_data": parts} for name in topics]
            return {"acks": acks, "timeout_ms": 10_000, "topic_data": data}

        # Its errors are not compared. A Produce that comes too early would count one.
        eventually(lambda: client.is_led("jobs"))
        client.call(ApiKey.PRODUCE, 9, produce(1, "jobs"))
        client.call(ApiKey.PRODUCE, 9, produce(-1, "jobs", "missing"))
        client.call(ApiKey.PRODUCE, 9, produce(2, "jobs"))

        def fetch(epoch: int, *wanted: tuple[str, int]) -> dict[str, Any]:
            topics = [
                {
                    "topic": name,
                    "partitions": [
                        {"partition": 0, "fetch_offset": at, "partition_max_bytes": 1 << 20}
                    ],
                }
                for name, at in wanted
            ]
            limits = {"max_wait_ms": 0, "min_bytes": 0, "max_bytes": 1 << 20}
            return {**limits, "session_id": 7, "session_epoch": epoch, "topics": topics}

        client.call(ApiKey.FETCH, 12, fetch(-1, ("jobs", 0), ("missing", 0)))
        client.call(ApiKey.FETCH, 12, fetch(-1, ("jobs", 99)))
        client.call(ApiKey.FETCH, 12, fetch(3))
        both = ("jobs", "missing")
        parts = [{"partition_index": 0, "timestamp": -1}]
        topics = [{"name": name, "partitions": parts} for name in both]
        client.call(ApiKey.LIST_OFFSETS, 7, {"replica_id": -1, "topics": topics})
        _group_requests(client)
        client.call(ApiKey.METADATA, 12, {"topics": [{"topic_id": None, "name": "no/such"}]})
        member = {"group_id": "g", "member_id": "m" * 22}
        limits = {"max_wait_ms": 0, "min_bytes": 0, "max_bytes": 1}
        client.call(ApiKey.SHARE_FETCH, 1, {**member, **limits, "share_session_epoch": 5})
        client.call(ApiKey.SHARE_ACKNOWLEDGE, 1, {**member, "share_session_epoch": 0})
        asked = {"resource_type": 8, "resource_name": "x", "configuration_keys": None}
        client.call(ApiKey.DESCRIBE_CONFIGS, 4, {"resources": [asked]})
        names = {"topic_names": ["missing", "absent"], "timeout_ms": 10_000}
        client.call(ApiKey.DELETE_TOPICS, 5, names)
        client.send(ApiKey.PRODUCE, 9, produce(0, "jobs", "missing"))
        assert client.closed()


def _group_requests(client: WireClient) -> None:
    """Commit and fetch offsets of a group, once its coordinator is loaded."""

    def coordinated() -> bool:
        asked = {"key_type": 0, "coordinator_keys": ["g"]}
        (found,) = client.call(ApiKey.FIND_COORDINATOR, 4, asked).coordinators
        groups = {"groups": [{"group_id": "g", "topics": []}]}
        if found.error_code:
            return False
        (found,) = client.call(ApiKey.OFFSET_FETCH, 8, groups).groups
        return bool(found.error_code == ErrorCode.none)

    eventually(coordinated, timeout_s=60)
    parts = [{"partition_index": 0, "committed_offset": 1, "committed_metadata": ""}]
    topics = [{"name": name, "partitions": parts} for name in ("jobs", "missing")]
    client.call(ApiKey.OFFSET_COMMIT, 8, {"group_id": "g", "topics": topics})
    wanted = [{"name": "jobs", "partition_indexes": [0]}]
    client.call(ApiKey.OFFSET_FETCH, 8, {"groups": [{"group_id": "g", "topics": wanted}]})


def counted(found: Counts) -> Counts:
    """Return the counts of `COUNTED`, and those of other errors in the same requests."""
    requests = {request for request, _ in COUNTED} - {"Metadata"}
    transient = ("COORDINATOR_NOT_AVAILABLE", "COORDINATOR_LOAD_IN_PROGRESS", "NOT_COORDINATOR")
    return {
        (request, error): count
        for (request, error), count in found.items()
        if (request in requests and error not in transient) or (request, error) in COUNTED
    }


def test_whole_requests_and_their_parts_count(tmp_path: Path) -> None:
    process = ShoalProcess(tmp_path / "data", configs={"auto.create.topics.enable": "false"})
    process.start()
    try:
        send_requests(process.bootstrap)
        text = process.scrape()
    finally:
        process.stop()
    rows = re.findall(r'ErrorsPerSec_total\{request="(\w+)",error="(\w+)"\} (\d+)', text)
    assert counted({(request, error): int(count) for request, error, count in rows}) == COUNTED


@pytest.mark.java
@pytest.mark.nightly
def test_kafkas_beans_have_the_same_counts(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    remote = "-Dcom.sun.management.jmxremote"
    flags = (f"{remote}.port={port}", f"{remote}.authenticate=false", f"{remote}.ssl=false")
    host = ("-Djava.rmi.server.hostname=127.0.0.1", f"{remote}.host=127.0.0.1")
    process = KafkaProcess(
        tmp_path / "kafka",
        configs={"auto.create.topics.enable": "false"},
        jvm_flags=(*flags, *host, f"{remote}.rmi.port={port}"),
    ).start()
    try:
        send_requests(process.bootstrap)
        url = f"service:jmx:rmi:///jndi/rmi://127.0.0.1:{port}/jmxrmi"
        words = ("--object-name", f"{BEAN},*", "--attributes", "Count", "--one-time")
        tool = "org.apache.kafka.tools.JmxTool"
        done = subprocess.run(
            java(tool, "--jmx-url", url, *words, "--report-format", "properties"),
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
    finally:
        process.kill9()
    rows = re.findall(rf"{BEAN},request=(\w+),error=(\w+):Count=(\d+)", done.stdout)
    assert rows, done.stdout + done.stderr
    found = counted({(request, error): int(count) for request, error, count in rows})
    # In one process, Kafka counts what a broker forwards at the broker and at the controller.
    found["DeleteTopics", "UNKNOWN_TOPIC_OR_PARTITION"] //= 2
    assert found == COUNTED
