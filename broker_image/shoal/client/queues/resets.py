"""Plans to move the positions of a group, for `shoal groups reset-offsets` and the console."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from shoal.client.admin.topics import OffsetSpec
from shoal.client.errors import expect

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from shoal.client.admin.admin import Admin
    from shoal.client.net.cluster import TopicPartition


class MissingPositionError(ValueError):
    """A position cannot be shifted because the group has none in the partition."""

    def __init__(self, partition: TopicPartition) -> None:
        super().__init__(f"the group has no position in {partition}")
        self.partition = partition


class ResetTarget(NamedTuple):
    """Where to move: to an `OffsetSpec` or a timestamp (`spec`), to an `offset`, or by `shift`
    records. Exactly one of them is set."""

    spec: int | None = None
    offset: int | None = None
    shift: int | None = None


async def plan(
    admin: Admin,
    partitions: Iterable[TopicPartition],
    current: Mapping[TopicPartition, int | None],
    target: ResetTarget,
) -> dict[TopicPartition, int]:
    """Return the new offsets, within the bounds of the logs. `current` are the old ones.

    Raises `KafkaError` if a partition does not exist, and `MissingPositionError`.
    """
    places = list(partitions)
    starts = await _list_offsets(admin, places, OffsetSpec.EARLIEST)
    ends = await _list_offsets(admin, places, OffsetSpec.LATEST)
    new_offsets: Mapping[TopicPartition, int]
    if target.offset is not None:
        new_offsets = dict.fromkeys(places, target.offset)
    elif target.shift is not None:
        new_offsets = _shift(places, current, target.shift)
    else:
        assert target.spec is not None
        offsets = await _list_offsets(admin, places, target.spec)
        # Without a record at or after a time, the position moves to the end.
        new_offsets = {
            partition: ends[partition] if offset < 0 else offset
            for partition, offset in offsets.items()
        }
    return {
        partition: min(max(offset, starts[partition]), ends[partition])
        for partition, offset in new_offsets.items()
    }


def _shift(
    partitions: list[TopicPartition], current: Mapping[TopicPartition, int | None], by: int
) -> dict[TopicPartition, int]:
    offsets = {}
    for partition in partitions:
        offset = current.get(partition)
        if offset is None:
            raise MissingPositionError(partition)
        offsets[partition] = offset + by
    return offsets


async def _list_offsets(
    admin: Admin, partitions: list[TopicPartition], spec: int
) -> dict[TopicPartition, int]:
    listed = expect(await admin.topics.offsets(dict.fromkeys(partitions, int(spec))))
    return {partition: result.offset for partition, result in listed.items()}
