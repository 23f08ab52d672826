"""The state of tiered storage from the brokers' metrics: a part of a QueueCluster's status, and the
condition TieredStorageHealthy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shoal.client.exposition import samples

from shoal_operator.conditions import Further

if TYPE_CHECKING:
    from collections.abc import Iterable

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

    def status(self) -> dict[str, Any]:
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
    found = TieredHealth()
    for page in pages:
        for sample in samples(page, tuple(_SUMS)):
            name = _SUMS[sample.name]
            setattr(found, name, getattr(found, name) + int(sample.value))
    return found


def condition(found: TieredHealth | None) -> Further:
    """Return the condition; `found` is None while a broker does not answer."""
    if found is None:
        text = "Not all brokers show their metrics."
        return Further(CONDITION, None, "MetricsUnknown", text)
    if found.missing_objects:
        return Further(
            CONDITION,
            False,
            "ObjectsMissing",
            f"{found.missing_objects} objects of remote segments are missing in the store, and "
            "their records cannot be read. `shoal storage check` lists them. Restore them from "
            "older versions in the bucket, or delete the records.",
        )
    if found.failing_partitions:
        return Further(
            CONDITION,
            False,
            "StoreFails",
            f"{found.failing_partitions} partitions could not be copied or cleaned, and stay on "
            "the brokers' disks. The brokers' logs have the error of the store. Check "
            "spec.tieredStorage, the credentials and their permissions.",
        )
    text = f"{found.segments} segments with {found.size_bytes} bytes are in the store."
    return Further(CONDITION, True, "Reconciled", text)
