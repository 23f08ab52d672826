"""The metrics of tiered storage: what all partitions are looked at for is read once a scrape."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shoal.monitoring.exposition import parse_samples
from shoal.server.metrics import tiered
from shoal.server.metrics.registry import MetricRegistry
from shoal.server.metrics.tiered import RemoteMeters, RemoteState

if TYPE_CHECKING:
    from collections.abc import Sequence


class Counts:
    """Counters of a store and of a cache."""

    def __init__(self) -> None:
        self.attempts_total = self.failures_total = self.bytes_total = {"get": 3}
        self.hits_total = self.misses_total = self.size_bytes = 5


class Source:
    """Tiered storage that counts how often it is read."""

    def __init__(self) -> None:
        self.meters = RemoteMeters()
        self.store_counts = self.cache_counts = Counts()
        self.segments = 2
        self.reads = {"states": 0, "totals": 0}

    def get_states(self) -> Sequence[RemoteState]:
        self.reads["states"] += 1
        return [RemoteState("t", self.segments, 3, 4, 5, 6, 7) for _ in range(2)]

    def get_totals(self) -> dict[str, int]:
        self.reads["totals"] += 1
        names = [name for name, _ in (*tiered._TOTALS, *tiered._NUMBERS)]  # noqa: SLF001
        return dict.fromkeys(names, 9)


def value(text: str, name: str) -> float:
    (found,) = parse_samples(text, [name])
    return found.value


def test_all_partitions_are_read_once_a_scrape() -> None:
    metrics, source = MetricRegistry(), Source()
    found: Any = source
    tiered.register(metrics, lambda: found)
    text = metrics.render()
    assert source.reads == {"states": 1, "totals": 1}
    prefix = "kafka_server_BrokerTopicMetrics_Remote"
    assert value(text, f"{prefix}LogMetadataCount") == 4
    assert value(text, f"{prefix}DeleteLagBytes") == 14
    assert value(text, "shoal_remote_orphans") == 9
    source.segments = 10
    assert value(metrics.render(), f"{prefix}LogMetadataCount") == 20, "the next scrape reads again"
    assert source.reads == {"states": 2, "totals": 2}


def test_without_tiered_storage_the_families_are_empty() -> None:
    metrics = MetricRegistry()
    tiered.register(metrics, lambda: None)
    text = metrics.render()
    assert "# TYPE shoal_remote_orphans gauge" in text
    assert not [line for line in text.splitlines() if line.startswith("shoal_remote_")]
