"""Brokers that have to catch up before another broker may stop. Pure.

A broker lags if a partition is down to its min ISR, or below it, and lacks this broker's replica in
its ISR. As long as a broker lags, the partition cannot spare any of the others. A partition with
more in-sync replicas than its min ISR can spare one, so a missing replica does not count there.

Kubernetes evicts a pod only if the others are ready (PodDisruptionBudget), so a broker in a pod is
ready only if it does not lag. Clients find a cluster through brokers that are ready. If all of them
lag, one stays ready; the others are enough to prevent evictions in a cluster of at least three.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shoal.metadata.image import MetadataImage

#: In a smaller cluster, a single unready broker would not prevent the eviction of another one.
BROKERS_MIN = 3


def find_lagging_brokers(image: MetadataImage) -> dict[int, str]:
    """Return the brokers that lag, each with the name of one partition."""
    lagging: dict[int, str] = {}
    for topic in image.topics.values():
        for index, partition in enumerate(topic.partitions):
            if len(partition.isr) >= len(partition.replicas):
                continue
            if len(partition.isr) > image.resolve_topic_config(topic.name)["min.insync.replicas"]:
                continue
            for broker_id in partition.replicas:
                if broker_id not in partition.isr:
                    lagging.setdefault(broker_id, f"{topic.name}-{index}")
    return lagging


def find_awaiting_partition(
    image: MetadataImage, lags: dict[int, str], broker_id: int
) -> str | None:
    """Return the partition for which others wait for this broker; None if it counts as in sync.

    `lags` is what `find_lagging_brokers` returns for the image.
    """
    if (
        len(image.brokers) >= BROKERS_MIN
        and image.active <= lags.keys()
        and broker_id == min(image.active, default=None)
    ):
        return None
    return lags.get(broker_id)
