"""What becomes of records with key order whose dead letters are written: where the group wants it
(`share.ordering.key.dead.letter=hold`) they hold their keys until somebody frees them."""

from __future__ import annotations

from collections.abc import Iterable

from shoal.coordinator.share.delivery_failure import DeadLetterRange
from shoal.coordinator.share.selection import Selection
from shoal.coordinator.share.share_partition import SharePartition, StateBatch


def hold_keys(
    share: SharePartition, selection: Selection | None, ranges: Iterable[DeadLetterRange]
) -> list[StateBatch]:
    """The dead letters of some records are written, and these hold their keys from now on; those
    that are known to have none leave the window: the changes to persist, beside `share.delays`."""
    changes: list[StateBatch] = []
    for one in ranges:
        if selection is not None:
            for offset in range(one.first, one.last + 1):
                if selection.is_keyless(offset):
                    changes += share.archived(offset, offset)
        share.hold(one.first, one.last)
    return changes
