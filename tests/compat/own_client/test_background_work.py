"""A broker's background work: retention, compaction, expiry of idle connections."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from shoal.protocol.api import ApiKey
from shoal.protocol.errors import ErrorCode
from shoal.record.batch import iter_headers
from shoal.record.records import build_batch, read_records
from support.brokers.wireclient import WireClient
from support.runs.conditions import eventually

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.brokers.servers import ShoalProcess


def test_retention_by_size_and_time(start_broker: Callable[..., ShoalProcess]) -> None:
    broker = start_broker(configs={"log.retention.check.interval.ms": "50"})
    with WireClient(broker.bootstrap) as client:
        small = {"segment_bytes": "1048576", "file_delete_delay_ms": "0"}
        client.create_topic("size", retention_bytes="2000000", retention_ms="-1", **small)
        client.create_topic("time", retention_ms="1000", **small)
        for _ in range(50):
            client.produce("size", bytes(100_000), timestamp_ms=1)
            client.produce("time", bytes(100_000), timestamp_ms=1)
        # Five segments of ten records: deleting three leaves at most 2 MB and a segment.
        eventually(lambda: client.fetch("size", 50).log_start_offset == 30)
        assert client.fetch("size", 29).error_code == ErrorCode.offset_out_of_range
        assert client.fetch("size", 30).error_code == 0
        assert len(list((broker.data_dir / "size-0").glob("*.log"))) == 2
        eventually(lambda: client.fetch("time", 50).log_start_offset == 50)
        assert client.produce("time", b"v").base_offset == 50
    eventually(lambda: not list(broker.data_dir.rglob("*.deleted")))


def test_compaction_leaves_the_last_value_of_each_key(
    start_broker: Callable[..., ShoalProcess],
) -> None:
    broker = start_broker(
        configs={"log.cleaner.backoff.ms": "50", "log.retention.check.interval.ms": "50"}
    )
    with WireClient(broker.bootstrap) as client:
        client.create_topic(
            "t",
            cleanup_policy="compact",
            segment_bytes="1048576",
            segment_ms="100",
            min_cleanable_dirty_ratio="0.01",
        )
        for number in range(200):
            batch = build_batch([(1, b"%d" % (number % 5), b"%d" % number * 1000, ())])
            assert client.produce("t", records=bytes(batch)).error_code == 0
        unkeyed = client.produce("t", b"no key")
        assert unkeyed.error_code == ErrorCode.invalid_record

        def compacted() -> bool:
            data = client.fetch("t", 0, partition_max_bytes=1 << 24).records or b""
            kept = [r for at, _ in iter_headers(data) for r in read_records(data, at)]
            assert [r.offset for r in kept] == list(range(195, 200))
            assert [r.value for r in kept] == [b"%d" % n * 1000 for n in range(195, 200)]
            return True

        eventually(compacted, timeout_s=120)
        batch = build_batch([(1, b"k", b"v", ())])
        assert client.produce("t", records=bytes(batch)).base_offset == 200
    broker.restart()
    with WireClient(broker.bootstrap) as client:
        assert client.fetch("t", 200).high_watermark == 201


def test_a_deleted_topic_leaves_no_files(broker: ShoalProcess) -> None:
    with WireClient(broker.bootstrap) as client:
        for _ in range(3):  # repeatedly under one name
            topic_id = client.create_topic("t", 3)
            client.produce("t", b"v", partition=2)
            body = {"topics": [{"topic_id": topic_id}], "timeout_ms": 1000}
            assert client.call(ApiKey.DELETE_TOPICS, 6, body).responses[0].error_code == 0
            assert not list(broker.data_dir.glob("t-?"))
        eventually(lambda: not list(broker.data_dir.glob("*-delete")))


def test_limits_on_connections(start_broker: Callable[..., ShoalProcess]) -> None:
    broker = start_broker(configs={"max.connections": "3"})
    kept = [WireClient(broker.bootstrap) for _ in range(3)]
    for client in kept:
        client.fetch("none", 0)
    one_more = WireClient(broker.bootstrap)
    assert one_more.closed()
    kept[0].sock.shutdown(socket.SHUT_RDWR)
    kept[0].sock.close()

    def room_again() -> bool:
        with WireClient(broker.bootstrap) as client:
            try:
                return client.fetch("none", 0) is not None
            except OSError:
                return False

    eventually(room_again)
    for client in kept[1:]:
        client.sock.close()
