"""Key ranges whose boundaries follow the measured load: the division, and when it is made."""

from __future__ import annotations

import random
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shoal.coordinator.group.key_ranges.key_range_balance import (
    balance,
    compute_busiest_load,
    is_worth_it,
)
from shoal.coordinator.group.key_ranges.key_range_loads import (
    RECORDS_MIN,
    WINDOWS,
    KeyRangeLoad,
    KeyRangeLoads,
    check,
)
from shoal.coordinator.group.key_ranges.key_slots import ALL, SLOTS, iterate_slots, to_ranges
from shoal.coordinator.group.settings import GroupSettings
from shoal.coordinator.group.shard import GroupShard
from shoal.protocol.errors import ApiError
from shoal.protocol.features import KEY_HASH_MAX
from shoal.record.key_hash import hash_key
from support.brokers.coordinator_sim import Simulation
from support.runs.example_counts import scale_examples
from test_key_range_groups_model import Client, image_of, report_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

WHERE = UUID(int=1), 0
INTERVAL_MS = 1_000
#: The goal of a group with 8 members and Zipf keys: the busiest against the mean, without the
#: hottest key.
GOAL = 1.3


def equal(count: int) -> dict[str, int]:
    """The owners of a partition that was never measured."""
    ends = [SLOTS * n // count for n in range(count + 1)]
    return {
        f"m{n:02}": (1 << ends[n + 1]) - (1 << ends[n]) if ends[n + 1] > ends[n] else 0
        for n in range(count)
    }


def slot_of(key: int) -> int:
    return hash_key(b"key-%d" % key) * SLOTS // (KEY_HASH_MAX + 1)


def zipf(keys: int, total: int = 1_000_000) -> list[int]:
    """The load of each slot if the key k has 1/k of the records of the first one."""
    harmonic = sum(1 / k for k in range(1, keys + 1))
    loads = [0] * SLOTS
    for key in range(1, keys + 1):
        loads[slot_of(key)] += int(total / harmonic / key)
    return loads


def busiest_against_mean(parts: Mapping[str, int], loads: Sequence[int]) -> float:
    return compute_busiest_load(parts, loads) * len(parts) / sum(loads)


def check_tiles(parts: Mapping[str, int]) -> None:
    assert reduce(or_, parts.values()) == ALL
    assert sum(slots.bit_count() for slots in parts.values()) == SLOTS
    assert all(parts.values())


loads_of_slots = st.lists(st.integers(0, 10_000), min_size=SLOTS, max_size=SLOTS)
owners = st.dictionaries(
    st.sampled_from([f"m{n:02}" for n in range(16)]), st.integers(0, ALL), min_size=1
)


@settings(max_examples=scale_examples(40))
@given(before=owners, loads=loads_of_slots)
def test_a_division_tiles_the_hashes_and_is_final(before: dict[str, int], loads: list[int]) -> None:
    """Whatever the members had before. The same loads move nothing more."""
    parts = balance(before, loads)
    check_tiles(parts)
    assert parts.keys() == before.keys()
    assert balance(parts, loads) == parts


@settings(max_examples=scale_examples(40))
@given(count=st.integers(2, 16), loads=loads_of_slots)
def test_a_division_is_never_worse(count: int, loads: list[int]) -> None:
    """A tolerance is left: owners with almost equal loads keep what they have."""
    before = equal(count)
    mean = sum(loads) / count
    assert (
        compute_busiest_load(balance(before, loads), loads)
        <= compute_busiest_load(before, loads) + 0.15 * mean
    )


@pytest.mark.parametrize("keys", [300, 1_000, 10_000])
def test_the_goal_of_zipf_keys(keys: int) -> None:
    loads, before = zipf(keys), equal(8)
    after = balance(before, loads)
    aside = list(loads)
    aside[slot_of(1)] -= int(1_000_000 / sum(1 / k for k in range(1, keys + 1)))
    assert busiest_against_mean(before, aside) > GOAL
    assert is_worth_it(before, after, loads)
    assert busiest_against_mean(after, aside) <= GOAL
    moved = sum((after[m] & ~before[m]).bit_count() for m in after)
    assert moved <= SLOTS // 6


def test_a_member_that_joins_gets_its_share_of_the_load() -> None:
    """Nothing else moves, but for slots that even out the rest."""
    loads = zipf(1_000)
    before = balance(equal(4), loads)
    after = balance(before | {"new": 0}, loads)
    check_tiles(after)
    assert busiest_against_mean(after, loads) <= 1.3
    assert sum((after[m] & ~before[m]).bit_count() for m in before) <= 4


def test_one_hot_key_moves_the_others_away() -> None:
    """Its owner cannot get rid of it, and the rest is divided evenly."""
    before = equal(4)
    loads = [10] * SLOTS
    loads[3] = 1_000
    after = balance(before, loads)
    assert is_worth_it(before, after, loads)
    (owner,) = (m for m, slots in after.items() if slots >> 3 & 1)
    assert after[owner] == 1 << 3
    counts = sorted(slots.bit_count() for m, slots in after.items() if m != owner)
    assert counts[-1] - counts[0] <= 10


class Measured:
    """The loads of one partition, with reports of its owners."""

    def __init__(self, owners: dict[str, int]) -> None:
        self.owners = owners
        self.loads = KeyRangeLoads()
        self.now_ms = 0
        self.look()

    def look(self) -> bool:
        self.loads.close_windows({WHERE: self.owners}, self.now_ms, INTERVAL_MS)
        return bool(self.loads.due_partitions)

    def window(self, loads: Sequence[int]) -> bool:
        """Report a window; return whether the partition is due."""
        for slots in self.owners.values():
            rows = [
                KeyRangeLoad(*to_ranges(1 << slot)[0], loads[slot]) for slot in iterate_slots(slots)
            ]
            self.loads.add({WHERE: rows}, {WHERE: slots})
        before = bool(self.loads.due_partitions)
        self.now_ms += INTERVAL_MS - 1
        assert self.look() is before
        self.now_ms += 1
        return self.look()


def test_only_a_lasting_imbalance_moves_boundaries() -> None:
    measured, skewed = Measured(equal(8)), zipf(1_000)
    even = [100] * SLOTS
    assert not any(measured.window(some) for some in [skewed, skewed, even, skewed, skewed])
    assert measured.window(skewed)
    assert measured.loads.measured_loads[WHERE] == [WINDOWS * n for n in skewed]
    # Once the boundaries have moved, the same load moves nothing.
    measured.loads.due_partitions.clear()
    measured.owners = balance(measured.owners, skewed)
    measured.look()
    assert not any(measured.window(skewed) for _ in range(3 * WINDOWS))


def test_random_differences_move_nothing(seed: int) -> None:
    """Equal keys, and as few records as are looked at."""
    draw, measured = random.Random(seed), Measured(equal(8))
    for _ in range(20):
        loads = [0] * SLOTS
        for _ in range(8 * RECORDS_MIN):
            loads[draw.randrange(SLOTS)] += 1
        assert not measured.window(loads)


def test_windows_with_few_records_or_other_owners_do_not_count() -> None:
    measured = Measured(equal(8))
    few = [0] * SLOTS
    few[0] = 8 * RECORDS_MIN - 1
    assert not any(measured.window(few) for _ in range(2 * WINDOWS))
    skewed = zipf(1_000)
    measured.window(skewed)
    measured.window(skewed)
    measured.owners = equal(7)
    assert not measured.window(skewed)


def test_a_member_speaks_for_its_own_slots_only() -> None:
    measured = Measured(equal(2))
    half = to_ranges(equal(2)["m01"])[0]
    measured.loads.add({WHERE: [KeyRangeLoad(*half, 10**6)]}, {WHERE: equal(2)["m00"]})
    measured.now_ms += INTERVAL_MS
    measured.look()
    assert WHERE not in measured.loads.measured_loads


@pytest.mark.parametrize(
    ("loads", "message"),
    [
        ([KeyRangeLoad(5, 4, 1)], "a key range outside"),
        ([KeyRangeLoad(0, KEY_HASH_MAX + 1, 1)], "a key range outside"),
        ([KeyRangeLoad(0, 1, -1)], "fewer than 0 records"),
        ([KeyRangeLoad(0, 1, 1)] * 1_001, "1001 key ranges, at most 1000 are allowed"),
    ],
)
def test_bad_reports_are_named(loads: list[KeyRangeLoad], message: str) -> None:
    with pytest.raises(ApiError, match="Report the records of assigned ranges") as refused:
        check({WHERE: loads})
    assert message in (refused.value.message or "")


class Group:
    """Members of one coordinator that share a partition, and heartbeat once a second."""

    def __init__(self, members: int, loads: Sequence[int]) -> None:
        image = image_of({"a": 1}, frozenset({"a"}), 1)
        self.sim = Simulation(lambda: GroupShard(GroupSettings(), image))
        self.loads = loads
        self.clients = {f"m{n}": Client(f"m{n}") for n in range(members)}
        self.count = 0

    def run(self, seconds: int, *, loads: Sequence[int] | None = None) -> None:
        for _ in range(seconds):
            self.sim.advance(1_000)
            for client in self.clients.values():
                client.reconcile()
                self.beat(client, loads)

    def beat(self, client: Client, loads: Sequence[int] | None) -> None:
        request = client.request(None if loads is None else report_of(loads))
        self.count += 1
        token = f"t{self.count}"
        self.sim.submit(token, lambda s, now_ms, t: s.consumer.heartbeat(request, now_ms, t))
        client.take(dict(self.sim.delivered[token]))

    @property
    def parts(self) -> dict[str, int]:
        found = {m: sum(client.owned.values()) for m, client in self.clients.items()}
        check_tiles(found)
        return found

    @property
    def busiest(self) -> float:
        """The busiest against the mean, without the hottest slot."""
        hottest = max(self.loads)
        aside = [0 if load == hottest else load for load in self.loads]
        return busiest_against_mean(self.parts, aside)


def test_the_boundaries_of_a_group_follow_the_load() -> None:
    """They move once, after three windows. They stay where they are while the load does, when the
    coordinator moves, and without a load. Who joins or leaves does not undo it."""
    loads = zipf(1_000, total=5_000)
    group = Group(8, loads)
    group.run(10)
    equal_parts = group.parts
    assert group.busiest > GOAL
    group.run(3 * 10 - 1, loads=loads)
    assert group.parts == equal_parts
    group.run(8, loads=loads)
    moved = group.parts
    assert moved != equal_parts
    assert group.busiest <= GOAL
    group.run(100, loads=loads)
    assert group.parts == moved
    group.sim.restart()
    group.run(60)
    assert group.parts == moved
    group.run(12, loads=loads)
    group.clients["new"] = Client("new")
    group.run(8, loads=loads)
    assert group.busiest <= GOAL
    assert group.parts["new"]


def test_a_load_that_is_not_skewed_moves_nothing() -> None:
    group = Group(8, [5] * SLOTS)
    group.run(10)
    parts = group.parts
    group.run(100, loads=group.loads)
    assert group.parts == parts
