"""Where a consumer starts without a valid position (`auto.offset.reset`)."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from shoal.client.admin.topics import OffsetSpec, Topics
from shoal.client.errors import KafkaError
from shoal.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shoal.client.net.cluster import Cluster, TopicPartition


class Reset(Enum):
    """Where to start without a valid committed offset."""

    EARLIEST = "earliest"
    LATEST = "latest"
    NONE = "none"


async def find_start_offsets(
    cluster: Cluster, partitions: Sequence[TopicPartition], reset: Reset
) -> dict[TopicPartition, int]:
    """Return the first or next offsets of partitions. Raises `KafkaError`."""
    spec = OffsetSpec.EARLIEST if reset == Reset.EARLIEST else OffsetSpec.LATEST
    listed = await Topics(cluster).offsets(dict.fromkeys(partitions, int(spec)))
    offsets = {}
    for partition, result in listed.items():
        if isinstance(result, KafkaError):
            raise result
        offsets[partition] = result.offset
    return offsets


async def find_initial_offsets(
    cluster: Cluster, group: str, partitions: Sequence[TopicPartition], reset: Reset
) -> dict[TopicPartition, int]:
    """Return where partitions without a committed offset begin. Raises `KafkaError`."""
    if reset == Reset.NONE:
        raise KafkaError(
            ErrorCode.offset_out_of_range,
            f"group {group!r} has committed nothing for {partitions[0]}",
        )
    return await find_start_offsets(cluster, partitions, reset)
