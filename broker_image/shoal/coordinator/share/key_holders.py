"""Dead-lettered records that hold their keys until they are freed
(`share.ordering.key.dead.letter=hold`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from shoal.coordinator.share.delivery_failure import DeadLetterRange
    from shoal.coordinator.share.selection import Selection
    from shoal.coordinator.share.share_partition import SharePartition
    from shoal.coordinator.share.states import StateBatch


def hold_keys(
    share: SharePartition, selection: Selection | None, ranges: Iterable[DeadLetterRange]
) -> list[StateBatch]:
    """Let records with written dead letters hold their keys; records without a key leave the
    window. Return the changes to persist, besides `share.delays`."""
    changes: list[StateBatch] = []
    for dead_letter_range in ranges:
        if selection is not None:
            for offset in range(dead_letter_range.first, dead_letter_range.last + 1):
                if selection.is_keyless(offset):
                    changes += share.complete_archiving(offset, offset)
        share.hold(dead_letter_range.first, dead_letter_range.last)
    return changes
