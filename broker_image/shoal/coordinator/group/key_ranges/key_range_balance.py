"""Division of the slots of a partition among its owners by the measured load of each slot.

The *busiest* owner counts. A slot cannot be divided, so the one with the hottest key may be more
than its owner's share. Therefore a division is also judged without the hottest slot.

Pure functions. `key_range_loads` measures, and decides when to divide again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.coordinator.group.key_ranges.key_slots import ALL, SLOTS, iterate_slots

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

#: A division is worth its moves if the busiest owner has at most this part of its load afterwards.
GAIN = 0.8
#: Owners whose loads differ by less than this part of the mean are equal.
_TOLERANCE = 0.05
#: The part of the load that is taken as equal for all slots, so that those without records are
#: divided too: new keys may come.
_EVEN = 1 / 16


def balance(before: Mapping[str, int], loads: Sequence[int]) -> dict[str, int]:
    """Return the slots of each owner by the load of each slot. Every owner has some.

    Slots without an owner go to the owners with the least load. Then the owners with the most load
    pass slots to those with the least, as long as that makes a difference.
    """
    weights = _compute_weights(loads)
    parts = _SlotDistribution(before, weights)
    free = ALL & ~parts.taken_slots
    for slot in sorted(iterate_slots(free), key=lambda slot: (-weights[slot], slot)):
        parts.give(slot, min(parts.order))
    mean = sum(weights) / len(before)
    for _ in range(SLOTS):
        if not parts.move_one(mean * _TOLERANCE):
            break
    return parts.slots


def is_worth_it(before: Mapping[str, int], after: Mapping[str, int], loads: Sequence[int]) -> bool:
    """Whether the busiest owner has much less to do after a move, with the hottest slot or without
    it."""
    hottest = max(range(SLOTS), key=lambda slot: loads[slot])
    aside = [0 if slot == hottest else load for slot, load in enumerate(loads)]
    return any(
        compute_busiest_load(after, slot_loads) <= GAIN * compute_busiest_load(before, slot_loads)
        for slot_loads in (loads, aside)
    )


def compute_busiest_load(parts: Mapping[str, int], loads: Sequence[int]) -> float:
    """The load of the owner with most of it."""
    return max(sum(loads[slot] for slot in iterate_slots(slots)) for slots in parts.values())


def _compute_weights(loads: Sequence[int]) -> list[float]:
    even = sum(loads) * _EVEN / SLOTS or 1.0
    return [load + even for load in loads]


class _SlotDistribution:
    """The slots and the load of each owner, while slots move."""

    def __init__(self, before: Mapping[str, int], weights: Sequence[float]) -> None:
        self._weights = weights
        self.slots: dict[str, int] = {}
        self._load: dict[str, float] = {}
        self.taken_slots = 0
        for member in sorted(before):
            self.slots[member] = before[member] & ~self.taken_slots
            self._load[member] = sum(weights[slot] for slot in iterate_slots(self.slots[member]))
            self.taken_slots |= self.slots[member]

    @property
    def order(self) -> list[tuple[float, int, str]]:
        """The owners with load and number of slots."""
        return [(self._load[m], s.bit_count(), m) for m, s in self.slots.items()]

    def give(self, slot: int, to: tuple[float, int, str]) -> None:
        self.slots[to[2]] |= 1 << slot
        self._load[to[2]] += self._weights[slot]

    def move_one(self, tolerance: float) -> bool:
        """Move the slot that evens out two owners best, of the busiest one that has such a slot.
        Return whether there was one."""
        order = sorted(self.order)
        least = order[0]
        for owner in reversed(order[1:]):
            gap = owner[0] - least[0]
            is_needed = least[1] == 0
            if owner[1] < 2 or (gap <= tolerance and not is_needed):
                continue
            slot = min(
                iterate_slots(self.slots[owner[2]]),
                key=lambda slot: abs(self._weights[slot] - gap / 2),
            )
            weight = self._weights[slot]
            if is_needed or weight < gap:
                self.slots[owner[2]] &= ~(1 << slot)
                self._load[owner[2]] -= weight
                self.give(slot, least)
                return True
        return False
