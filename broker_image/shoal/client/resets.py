"""Plans to move the positions of a group, for `shoal groups reset-offsets` and the console."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from shoal.client.errors import expect
from shoal.client.topics import OffsetSpec

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from shoal.client.admin import Admin
    from shoal.client.cluster import TopicPartition


class NoPosition(ValueError):
    """A position cannot be shifted because the group has none in the partition."""

    def __init__(self, where: TopicPartition) -> None:
        super().__init__(f"the group has no position in {where}")
        self.where = where


class Reset(NamedTuple):
    """Where to move: to an `OffsetSpec` or a timestamp (`spec`), to an `offset`, or by `shift`
    records. Exactly one of them is set."""

    spec: int | None = None
    offset: int | None = None
    shift: int | None = None


async def plan(
    admin: Admin,
    partitions: Iterable[TopicPartition],
    current: Mapping[TopicPartition, int | None],
    how: Reset,
) -> dict[TopicPartition, int]:
    """Return the new offsets, within the bounds of the logs. `current` are the old ones.

    Raises `KafkaError` if a partition does not exist, and `NoPosition`.
    """
    places = list(partitions)
    starts = await _listed(admin, places, OffsetSpec.EARLIEST)
    ends = await _listed(admin, places, OffsetSpec.LATEST)
    wanted: Mapping[TopicPartition, int]
    if how.offset is not None:
        wanted = dict.fromkeys(places, how.offset)
    elif how.shift is not None:
        wanted = _shifted(places, current, how.shift)
    else:
        assert how.spec is not None
        found = await _listed(admin, places, how.spec)
        # Without a record at or after a time, the position moves to the end.
        wanted = {where: ends[where] if at < 0 else at for where, at in found.items()}
    return {where: min(max(at, starts[where]), ends[where]) for where, at in wanted.items()}


def _shifted(
    partitions: list[TopicPartition], current: Mapping[TopicPartition, int | None], by: int
) -> dict[TopicPartition, int]:
    found = {}
    for where in partitions:
        offset = current.get(where)
        if offset is None:
            raise NoPosition(where)
        found[where] = offset + by
    return found


async def _listed(
    admin: Admin, partitions: list[TopicPartition], spec: int
) -> dict[TopicPartition, int]:
    listed = expect(await admin.topics.offsets(dict.fromkeys(partitions, int(spec))))
    return {where: one.offset for where, one in listed.items()}
