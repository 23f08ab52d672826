"""The broker's gauges and counters, under Kafka's names, read from its parts when asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from shoal.server.metrics.registry import Samples, label

if TYPE_CHECKING:
    from shoal.replication.partition import Partition
    from shoal.server.broker import Broker

_MANAGER = "kafka_server_ReplicaManager_"
_SESSIONS = "kafka_server_FetchSessionCache_"
_SOCKETS = "kafka_server_socket_server_metrics_"


def register(broker: Broker) -> None:
    """Add the families that tell of the broker as a whole, its partitions and its sockets."""
    _register_replicas(broker)
    _register_requests(broker)
    _register_request_limits(broker)
    _register_disk(broker)
    _register_sockets(broker)
    _register_logs(broker)


def _register_replicas(broker: Broker) -> None:
    partitions = broker.partitions

    def count(name: str, help: str, counts: Callable[[Partition], bool]) -> None:
        broker.metrics.gauge(_MANAGER + name, help, lambda: sum(map(counts, partitions)))

    count("PartitionCount", "Partitions here.", lambda p: True)
    count("LeaderCount", "Partitions led here.", lambda p: p.is_leader)
    count(
        "UnderReplicatedPartitions",
        "Partitions led here with a replica out of sync.",
        lambda p: p.is_leader and len(p.isr) < len(p.replicas),
    )
    count(
        "UnderMinIsrPartitionCount",
        "Partitions led here with fewer in sync than min.insync.replicas.",
        lambda p: p.is_leader and len(p.isr) < p.min_isr,
    )
    count("OfflineReplicaCount", "Logs that the disk failed under.", lambda p: p.log.offline)


def _register_requests(broker: Broker) -> None:
    gauge, sessions = broker.metrics.gauge, broker.fetch_sessions
    for name in ("PurgatorySize", "NumDelayedOperations"):
        broker.metrics.add(
            f"kafka_server_DelayedOperationPurgatory_{name}",
            "gauge",
            "Requests that wait for records, for acknowledgement or for time.",
            lambda: _waiting(broker),
        )
    gauge(f"{_SESSIONS}NumIncrementalFetchSessions", "Fetch sessions.", lambda: len(sessions))
    gauge(
        f"{_SESSIONS}NumIncrementalFetchPartitionsCached",
        "Partitions in fetch sessions.",
        sessions.partitions,
    )
    broker.metrics.add(
        f"{_SESSIONS}IncrementalFetchSessionEvictionsPerSec_total",
        "counter",
        "Fetch sessions that gave way to others.",
        lambda: [((), sessions.evictions_total)],
    )


def _register_request_limits(broker: Broker) -> None:
    gauge, limits = broker.metrics.gauge, broker.request_limits
    gauge(
        "kafka_network_RequestChannel_RequestQueueSize",
        "Produce requests that wait to be appended.",
        lambda: limits.requests,
    )
    gauge(
        "kafka_network_SocketServer_MemoryPoolUsed",
        "Bytes of requests that are arriving or wait to be appended.",
        lambda: limits.bytes,
    )
    gauge(
        "kafka_network_SocketServer_MemoryPoolAvailable",
        "Bytes left of queued.max.request.bytes; -1 without a limit.",
        lambda: -1 if limits.bytes_left is None else limits.bytes_left,
    )
    gauge(
        "shoal_network_connections_waiting_for_room",
        "Connections that wait for room for their next request.",
        lambda: limits.waiting,
    )


def _waiting(broker: Broker) -> Samples:
    share = broker.share.waiting_fetches
    return [
        (label(delayedOperation="ShareFetch"), share),
        (label(delayedOperation="Other"), broker.purgatory.size - share),
    ]


def _register_disk(broker: Broker) -> None:
    add, disk, background = broker.metrics.add, broker.disk, broker.background
    add(
        "kafka_log_LogFlushStats_LogFlushRateAndTimeMs_count",
        "counter",
        "Syncs of a log to disk.",
        lambda: [((), disk.synced_total)],
    )
    add(
        "shoal_disk_sync_rounds_total",
        "counter",
        "Rounds of syncs; each carries all logs that were due.",
        lambda: [((), disk.rounds_total)],
    )
    add(
        "shoal_log_compactions_total",
        "counter",
        "Rounds of compaction that ended.",
        lambda: [((), background.compactions_total)],
    )
    add(
        "shoal_log_segments_deleted_total",
        "counter",
        "Segments that retention and compaction took away.",
        lambda: [((), background.segments_deleted_total)],
    )


def _register_sockets(broker: Broker) -> None:
    def add(name: str, kind: str, help: str, attribute: str) -> None:
        def collect() -> Samples:
            return [
                ((("listener", listener.name),), getattr(listener, attribute))
                for listener in broker.listeners
            ]

        broker.metrics.add(_SOCKETS + name, kind, help, collect)

    add("connection_count", "gauge", "Connections open.", "count")
    add("connection_creation_total", "counter", "Connections that came in.", "opened_total")
    add(
        "connection_refused_total",
        "counter",
        "Connections closed for what their client did, or for want of room.",
        "refused_total",
    )
    add("held_bytes", "gauge", "Bytes of answers that clients are slow to take.", "bytes_buffered")
    add("incoming_byte_total", "counter", "Bytes received.", "bytes_in")
    add("outgoing_byte_total", "counter", "Bytes sent.", "bytes_out")


def _register_logs(broker: Broker) -> None:
    def add(name: str, help: str, attribute: str) -> None:
        def collect() -> Samples:
            return [
                ((("topic", p.topic), ("partition", str(p.index))), getattr(p.log, attribute))
                for p in broker.partitions
            ]

        broker.metrics.add(f"kafka_log_Log_{name}", "gauge", help, collect)

    add("LogStartOffset", "First offset of a log.", "log_start_offset")
    add("LogEndOffset", "Offset of a log's next record.", "log_end_offset")
    add("Size", "Bytes in a log.", "size_bytes")
