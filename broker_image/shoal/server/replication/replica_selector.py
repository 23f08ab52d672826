"""Selects the replica that a consumer reads from: one in the consumer's rack (KIP-392).

This is active if `replica.selector.class` names Kafka's RackAwareReplicaSelector. Only the leader
redirects a consumer, and only to an in-sync replica of an active broker that has the offset.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shoal.metadata.image import MetadataImage
    from shoal.replication.partition import Partition

SELECTOR = "RackAwareReplicaSelector"


def select_replica(
    image: MetadataImage, partition: Partition, rack: str, fetch_offset: int
) -> int | None:
    """Return the follower that a client in `rack` should read from; None for the leader."""
    leadership, config = partition.leadership, image.broker_config
    if leadership is None or not (config["replica.selector.class"] or "").endswith(SELECTOR):
        return None
    brokers = image.brokers
    own = brokers.get(partition.node_id)
    if own is not None and own.rack == rack:
        return None
    candidates = [
        replica
        for replica, follower in leadership.followers.items()
        if replica in partition.isr
        and replica in image.active
        and brokers[replica].rack == rack
        and follower.log_start_offset <= fetch_offset <= follower.log_end_offset
    ]
    # The replica with the highest log end offset; among equals the first in replica order.
    return max(candidates, key=lambda r: leadership.followers[r].log_end_offset, default=None)
