"""How soon other members read the key ranges of one that was killed, with the default configs."""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING, Any

import pytest
from compat.own_client.test_key_range_groups import Topic, share
from support.brokers.servers import ShoalProcess
from support.runs.conditions import ceiling, eventually, standstills
from support.workers.range_worker import Member

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

KEYS = 40
KILLS = 2
#: docs/cooperative.md: other members read the ranges of a killed one within this time.
TAKEOVER_S = 1.0
#: A record of a range that does not move is read within this time meanwhile, as at any other time.
PAUSE_S = 0.2
#: Longer than group.consumer.assignment.interval.ms.
SETTLED_S = 1.2


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[ShoalProcess]:
    process = ShoalProcess(tmp_path / "data").start()
    yield process
    assert process.stop() == 0, "\n".join(process.log[-40:])


class Rounds:
    """Produces one record of each key after the other rounds were read."""

    def __init__(self, topic: Topic) -> None:
        self.topic = topic
        self.count = 0
        #: The longest time until a round was read by members that stay.
        self.longest_s = 0.0

    def until(self, over: Callable[[], bool], members: list[Member], keys: set[str]) -> None:
        """Produce rounds until the condition holds. The members get `keys` of each round before the
        next one."""
        self.longest_s = 0.0
        while not over():
            first = self.topic.counts[0]
            began_s = time.monotonic()
            self.topic.produce(KEYS)
            wanted = {n for n in range(first, first + KEYS) if f"k{n % KEYS}" in keys}

            def read(wanted: set[int] = wanted, first: int = first) -> bool:
                return wanted <= {one.offset for m in members for one in since(m, first)}

            eventually(read, timeout_s=20, what=f"the records of {len(keys)} keys from {first} on")
            got = [one.at_s for m in members for one in since(m, first) if one.offset in wanted]
            self.longest_s = max(self.longest_s, max(got, default=began_s) - began_s)
            self.count += 1


def since(member: Member, first: int) -> list[Any]:
    """The records from `first` on, at the end of what a member got."""
    return [one for one in member.got[-100 * KEYS :] if one.offset >= first]


def keys_of(member: Member, first: int) -> set[str]:
    return {one.key for one in since(member, first)}


def killed_once(rounds: Rounds, members: list[Member], victim: Member) -> tuple[float, float]:
    """Kill a member of a settled group. Return the seconds until others have got records of all its
    keys, and the longest wait for a record of another key meanwhile."""
    everyone = {f"k{n}" for n in range(KEYS)}
    share(members)
    settled_s = max(m.changed_s for m in members) + SETTLED_S
    rounds.until(lambda: time.monotonic() > settled_s, members, everyone)
    first = rounds.topic.counts[0]
    count = rounds.count
    rounds.until(lambda: rounds.count > count, members, everyone)
    lost = keys_of(victim, first)
    others = [m for m in members if m is not victim]
    assert lost
    assert lost.isdisjoint(set().union(*(keys_of(m, first) for m in others)))
    with standstills() as stood_still_s:
        victim.kill9()
        killed_s = time.monotonic()
        first = rounds.topic.counts[0]
        rounds.until(
            lambda: lost <= {one.key for m in others for one in since(m, first)},
            others,
            everyone - lost,
        )
        stood_s = stood_still_s()
    taken = [
        min(one.at_s for m in others for one in since(m, first) if one.key == key) for key in lost
    ]
    return max(taken) - killed_s - stood_s, rounds.longest_s - stood_s


@pytest.mark.nightly
def test_a_killed_member_is_replaced_within_a_second(broker: ShoalProcess) -> None:
    """Three members share a partition under load. The ranges of the others are read on without a
    pause."""
    topic = Topic(broker, 1)
    rounds = Rounds(topic)
    members = [Member(broker.bootstrap, "g", topic.name) for _ in range(3)]
    found = []
    try:
        for number in range(KILLS):
            found.append(killed_once(rounds, members, members[number]))
            members[number] = Member(broker.bootstrap, "g", topic.name)
    finally:
        for member in members:
            member.kill9()
    print("takeover and pause in seconds:", found)
    takeovers, pauses = zip(*found, strict=True)
    assert statistics.mean(takeovers) <= ceiling(TAKEOVER_S)
    assert statistics.mean(pauses) <= ceiling(PAUSE_S)
