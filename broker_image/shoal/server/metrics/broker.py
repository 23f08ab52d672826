"""Gauges and counters of the broker as a whole, of its partitions and of its listeners.

Families have Kafka's names. Each reads its source when the metrics are asked for.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Protocol

from shoal.server.metrics.registry import MetricRegistry, Samples, label

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from shoal.replication.partition import Partition
    from shoal.server.disk import DiskExecutor

_MANAGER = "kafka_server_ReplicaManager_"
_SESSIONS = "kafka_server_FetchSessionCache_"
_SOCKETS = "kafka_server_socket_server_metrics_"


class PurgatoryPort(Protocol):
    """Requests that wait for a condition or a deadline."""

    size: int


class FetchSessionsPort(Protocol):
    """The cache of fetch sessions."""

    evictions_total: int

    def __len__(self) -> int: ...
    def count_partitions(self) -> int: ...


class RequestLimitsPort(Protocol):
    """Requests that are received or queued, and their bytes."""

    requests: int
    bytes: int

    @property
    def bytes_left(self) -> int | None: ...
    @property
    def waiting(self) -> int: ...


class ReceiveMemoryPort(Protocol):
    """The memory of requests that are arriving."""

    bytes: int

    @property
    def waiting(self) -> int: ...


class LogMaintenancePort(Protocol):
    """Retention and compaction."""

    compactions_total: int
    segments_deleted_total: int
    stray_logs: int


class LoginCountsPort(Protocol):
    """How often clients of one listener have logged in."""

    succeeded: int
    failed: int
    reauth_succeeded: int
    reauth_failed: int
    expired: int


class ListenerMetricsPort(Protocol):
    """One listener and the traffic of its connections."""

    name: str
    opened_total: int
    refused_total: int
    bytes_buffered: int
    bytes_in: int
    bytes_out: int

    @property
    def count(self) -> int: ...
    @property
    def logins(self) -> LoginCountsPort | None:
        """The logins, or None if clients do not log in."""


class MetricSources(NamedTuple):
    """The parts of a broker that these families read."""

    partitions: Iterable[Partition]
    purgatory: PurgatoryPort
    #: The number of share fetches in the purgatory.
    waiting_share_fetches: Callable[[], int]
    fetch_sessions: FetchSessionsPort
    request_limits: RequestLimitsPort
    receive_memory: ReceiveMemoryPort
    disk: DiskExecutor
    log_maintenance: LogMaintenancePort
    listeners: Sequence[ListenerMetricsPort]
    #: Returns the total and the usable bytes of the volume with the logs. Raises `OSError`.
    volume_bytes: Callable[[], tuple[int, int]]


def register(metrics: MetricRegistry, sources: MetricSources) -> None:
    """Add the families."""
    _register_replicas(metrics, sources.partitions)
    _register_purgatory(metrics, sources.purgatory, sources.waiting_share_fetches)
    _register_fetch_sessions(metrics, sources.fetch_sessions)
    _register_request_limits(metrics, sources.request_limits, sources.receive_memory)
    _register_disk(metrics, sources.disk, sources.log_maintenance)
    _register_volume(metrics, sources.volume_bytes)
    _register_sockets(metrics, sources.listeners)
    _register_logins(metrics, sources.listeners)
    _register_logs(metrics, sources.partitions)


def _register_replicas(metrics: MetricRegistry, partitions: Iterable[Partition]) -> None:
    def count(name: str, description: str, counts: Callable[[Partition], bool]) -> None:
        metrics.add_gauge(_MANAGER + name, description, lambda: sum(map(counts, partitions)))

    count("PartitionCount", "Partitions with a replica on this broker.", lambda _p: True)
    count("LeaderCount", "Partitions that this broker leads.", lambda p: p.is_leader)
    count(
        "UnderReplicatedPartitions",
        "Partitions led by this broker with a replica out of sync.",
        lambda p: p.is_leader and len(p.isr) < len(p.replicas),
    )
    count(
        "UnderMinIsrPartitionCount",
        "Partitions led by this broker with fewer in-sync replicas than min.insync.replicas.",
        lambda p: p.is_leader and len(p.isr) < p.min_isr,
    )
    count(
        "OfflineReplicaCount",
        "Logs that are offline after a disk failure.",
        lambda p: p.log.offline,
    )


def _register_purgatory(
    metrics: MetricRegistry, purgatory: PurgatoryPort, waiting_share_fetches: Callable[[], int]
) -> None:
    def collect_waiting() -> Samples:
        share = waiting_share_fetches()
        return [
            (label(delayedOperation="ShareFetch"), share),
            (label(delayedOperation="Other"), purgatory.size - share),
        ]

    for name in ("PurgatorySize", "NumDelayedOperations"):
        metrics.add(
            f"kafka_server_DelayedOperationPurgatory_{name}",
            "gauge",
            "Requests that wait for records, acknowledgements or a deadline.",
            collect_waiting,
        )


def _register_fetch_sessions(metrics: MetricRegistry, sessions: FetchSessionsPort) -> None:
    metrics.add_gauge(
        f"{_SESSIONS}NumIncrementalFetchSessions", "Fetch sessions.", lambda: len(sessions)
    )
    metrics.add_gauge(
        f"{_SESSIONS}NumIncrementalFetchPartitionsCached",
        "Partitions in fetch sessions.",
        sessions.count_partitions,
    )
    metrics.add(
        f"{_SESSIONS}IncrementalFetchSessionEvictionsPerSec_total",
        "counter",
        "Fetch sessions replaced by others.",
        lambda: [((), sessions.evictions_total)],
    )


def _register_request_limits(
    metrics: MetricRegistry, limits: RequestLimitsPort, memory: ReceiveMemoryPort
) -> None:
    metrics.add_gauge(
        "kafka_network_RequestChannel_RequestQueueSize",
        "Produce requests that wait to be appended.",
        lambda: limits.requests,
    )
    metrics.add_gauge(
        "kafka_network_SocketServer_MemoryPoolUsed",
        "Bytes of requests that are being received or wait to be appended.",
        lambda: limits.bytes,
    )
    metrics.add_gauge(
        "kafka_network_SocketServer_MemoryPoolAvailable",
        "Bytes left of queued.max.request.bytes; -1 without a limit.",
        lambda: -1 if limits.bytes_left is None else limits.bytes_left,
    )
    metrics.add_gauge(
        "shoal_network_connections_waiting_for_room",
        "Connections that wait to send their next request, because a limit is reached.",
        lambda: limits.waiting + memory.waiting,
    )
    metrics.add_gauge(
        "shoal_network_request_memory_bytes",
        "Bytes of shoal.request.memory.bytes that clients' requests hold.",
        lambda: memory.bytes,
    )


def _register_disk(
    metrics: MetricRegistry, disk: DiskExecutor, log_maintenance: LogMaintenancePort
) -> None:
    metrics.add(
        "kafka_log_LogFlushStats_LogFlushRateAndTimeMs_count",
        "counter",
        "Logs synced to disk.",
        lambda: [((), disk.synced_total)],
    )
    metrics.add(
        "shoal_disk_sync_rounds_total",
        "counter",
        "Rounds of syncs. Each round syncs all logs that are due.",
        lambda: [((), disk.rounds_total)],
    )
    metrics.add(
        "shoal_log_compactions_total",
        "counter",
        "Completed rounds of compaction.",
        lambda: [((), log_maintenance.compactions_total)],
    )
    metrics.add(
        "shoal_log_segments_deleted_total",
        "counter",
        "Segments deleted by retention and compaction.",
        lambda: [((), log_maintenance.segments_deleted_total)],
    )
    metrics.add_gauge(
        "shoal_log_stray_directories",
        "Directories of logs that the metadata does not know, which end in -stray.",
        lambda: log_maintenance.stray_logs,
    )


def _register_volume(metrics: MetricRegistry, volume_bytes: Callable[[], tuple[int, int]]) -> None:
    def collect(index: int) -> Samples:
        try:
            return [((), volume_bytes()[index])]
        except OSError:
            return []  # A volume that failed has no size.

    for index, name, description in (
        (0, "total", "Size of the volume with the logs."),
        (1, "usable", "Bytes of the volume with the logs that the broker can still write."),
    ):
        metrics.add(f"shoal_log_dir_{name}_bytes", "gauge", description, partial(collect, index))


def _register_sockets(metrics: MetricRegistry, listeners: Sequence[ListenerMetricsPort]) -> None:
    def add(name: str, kind: str, description: str, attribute: str) -> None:
        def collect() -> Samples:
            return [
                ((("listener", listener.name),), getattr(listener, attribute))
                for listener in listeners
            ]

        metrics.add(_SOCKETS + name, kind, description, collect)

    add("connection_count", "gauge", "Open connections.", "count")
    add("connection_creation_total", "counter", "Connections accepted.", "opened_total")
    add(
        "connection_refused_total",
        "counter",
        "Connections refused by a limit or closed after an error.",
        "refused_total",
    )
    add("held_bytes", "gauge", "Bytes of responses that wait for slow clients.", "bytes_buffered")
    add("incoming_byte_total", "counter", "Bytes received.", "bytes_in")
    add("outgoing_byte_total", "counter", "Bytes sent.", "bytes_out")


def _register_logins(metrics: MetricRegistry, listeners: Sequence[ListenerMetricsPort]) -> None:
    def add(name: str, description: str, attribute: str) -> None:
        def collect() -> Samples:
            return [
                ((("listener", listener.name),), getattr(listener.logins, attribute))
                for listener in listeners
                if listener.logins is not None
            ]

        metrics.add(_SOCKETS + name, "counter", description, collect)

    add("successful_authentication_total", "Logins of new connections.", "succeeded")
    add("failed_authentication_total", "Failed logins of new connections.", "failed")
    add("successful_reauthentication_total", "Logins again.", "reauth_succeeded")
    add("failed_reauthentication_total", "Failed logins again.", "reauth_failed")
    add(
        "expired_connections_killed_total",
        "Connections closed because their clients did not log in again.",
        "expired",
    )


def _register_logs(metrics: MetricRegistry, partitions: Iterable[Partition]) -> None:
    def add(name: str, description: str, attribute: str) -> None:
        def collect() -> Samples:
            return [
                ((("topic", p.topic), ("partition", str(p.index))), getattr(p.log, attribute))
                for p in partitions
            ]

        metrics.add(f"kafka_log_Log_{name}", "gauge", description, collect)

    add("LogStartOffset", "First offset of the log.", "log_start_offset")
    add("LogEndOffset", "Offset of the next record.", "log_end_offset")
    add("Size", "Size of the log in bytes.", "size_bytes")
