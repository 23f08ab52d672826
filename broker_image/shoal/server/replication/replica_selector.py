"""Which replica a client reads from: the one in its rack, where it says which that is (KIP-392).

In force where `replica.selector.class` names Kafka's RackAwareReplicaSelector. A client is sent
away only by the leader, and only to an in-sync replica of a running broker that has what is asked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shoal.metadata.image import MetadataImage
    from shoal.replication.partition import Partition

SELECTOR = "RackAwareReplicaSelector"


def replica_for(
    image: MetadataImage, partition: Partition, rack: str, fetch_offset: int
) -> int | None:
    """The follower that a client in `rack` is to read from; None where it is to read here."""
    leadership, config = partition.leadership, image.broker_config
    if leadership is None or not (config["replica.selector.class"] or "").endswith(SELECTOR):
        return None
    brokers = image.brokers
    own = brokers.get(partition.node_id)
    if own is not None and own.rack == rack:
        return None
    there = [
        replica
        for replica, follower in leadership.followers.items()
        if replica in partition.isr
        and replica in image.active
        and brokers[replica].rack == rack
        and follower.log_start_offset <= fetch_offset <= follower.log_end_offset
    ]
    # The one furthest on, and of those the first in replica order.
    return max(there, key=lambda r: leadership.followers[r].log_end_offset, default=None)
