"""The state of tiered storage from the brokers' metrics: a part of a QueueCluster's status, and the
condition TieredStorageHealthy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from shoal.monitoring.exposition import parse_samples

from shoal_operator.kube.conditions import ExtraCondition

if TYPE_CHECKING:
    from collections.abc import Iterable

    from shoal_operator.model.queue_cluster import TieredStatus

_TOPICS = "kafka_server_BrokerTopicMetrics_Remote"
#: Gauges that are summed over topics and brokers, with the field of each.
_SUMS = {
    f"{_TOPICS}LogMetadataCount": "segments",
    f"{_TOPICS}LogSizeBytes": "size_bytes",
    f"{_TOPICS}CopyLagBytes": "not_copied_bytes",
    "shoal_remote_failing_partitions": "failing_partitions",
    "shoal_remote_missing_objects": "missing_objects",
    "shoal_remote_orphans": "orphans",
}
CONDITION = "TieredStorageHealthy"


@dataclass(slots=True)
class TieredHealth:
    """Numbers over all brokers. Each partition counts at its leader."""

    segments: int = 0
    size_bytes: int = 0
    not_copied_bytes: int = 0
    failing_partitions: int = 0
    missing_objects: int = 0
    orphans: int = 0

    def build_status(self) -> TieredStatus:
        """Return the field `status.tieredStorage`."""
        return {
            "segments": self.segments,
            "bytes": self.size_bytes,
            "notCopiedBytes": self.not_copied_bytes,
            "failingPartitions": self.failing_partitions,
            "missingObjects": self.missing_objects,
            "orphans": self.orphans,
        }


def parse(pages: Iterable[str]) -> TieredHealth:
    """Return the sums of the texts of the brokers' `/metrics`. Raises `ValueError`."""
    health = TieredHealth()
    for page in pages:
        for sample in parse_samples(page, tuple(_SUMS)):
            name = _SUMS[sample.name]
            setattr(health, name, getattr(health, name) + int(sample.value))
    return health


def build_condition(health: TieredHealth | None) -> ExtraCondition:
    """Return the condition; `health` is None while a broker does not answer."""
    if health is None:
        text = "Not all brokers show their metrics."
        return ExtraCondition(CONDITION, None, "MetricsUnknown", text)
    if health.missing_objects:
        return ExtraCondition(
            CONDITION,
            False,
            "ObjectsMissing",
            f"{health.missing_objects} objects of remote segments are missing in the store, and "
            "their records cannot be read. `shoal storage check` lists them. Restore them from "
            "older versions in the bucket, or delete the records.",
        )
    if health.failing_partitions:
        return ExtraCondition(
            CONDITION,
            False,
            "StoreFails",
            f"{health.failing_partitions} partitions could not be copied or cleaned, and stay on "
            "the brokers' disks. The brokers' logs have the error of the store. Check "
            "spec.tieredStorage, the credentials and their permissions.",
        )
    text = f"{health.segments} segments with {health.size_bytes} bytes are in the store."
    return ExtraCondition(CONDITION, True, "Reconciled", text)
