"""Acknowledgements of one request: some thousand at a time, and whole in the end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from uuid import UUID

from shoal.server.share.acknowledge import STEP_TYPES, Acks
from shoal.server.share.leader import Phase

TOPIC = UUID(int=3)


class Leaders:
    """A service whose share partitions note what is acknowledged, and commit it when told."""

    def __init__(self) -> None:
        self.applied: list[int] = []
        self.commits: list[Callable[[None], None]] = []
        self.counted = 0

    def find(self, group_id: str, topic_id: UUID, index: int) -> Any:
        def acknowledge(member_id: str, batches: Any, waiter: Callable[[None], None]) -> None:
            self.applied.append(index)
            self.commits.append(waiter)

        meter = SimpleNamespace(acknowledgements=0, failed_acknowledgements=0)
        return SimpleNamespace(phase=Phase.ACTIVE, acknowledge=acknowledge, meter=meter)

    def count_acknowledged(self, batches: Any) -> None:
        self.counted += sum(last - first + 1 for first, last, *_ in batches)


def test_many_are_applied_in_several_turns_of_the_loop() -> None:
    async def main() -> None:
        each = STEP_TYPES // 2
        types = bytes(1 + n % 2 for n in range(each))
        leaders, told = Leaders(), []
        acks = Acks(leaders)  # type: ignore[arg-type]
        topics = [(TOPIC, [(index, [(0, each - 1, types)]) for index in range(5)])]
        acks.apply("g", "m", topics, version=1, is_renew=False)
        acks.then(lambda: told.append(("applied", list(leaders.applied))))
        acks.on_settled = lambda: told.append(("settled", leaders.counted))
        assert (leaders.applied, acks.settled) == ([0, 1], False)
        for commit in leaders.commits:
            commit(None)
        await asyncio.sleep(0)
        assert (leaders.applied, told) == ([0, 1, 2, 3], [])
        await asyncio.sleep(0)
        assert told == [("applied", [0, 1, 2, 3, 4])]
        for commit in leaders.commits[2:]:
            commit(None)
        assert told[1:] == [("settled", 5 * each)]
        assert acks.partitions == [(TOPIC, index) for index in range(5)]

    asyncio.run(main())


def test_few_are_applied_at_once() -> None:
    leaders, told = Leaders(), []
    acks = Acks(leaders)  # type: ignore[arg-type]
    topics = [(TOPIC, [(0, [(0, 9_999, b"\x01")]), (1, []), (2, [(0, 0, b"\x02")])])]
    acks.apply("g", "m", topics, version=1, is_renew=False)
    acks.then(lambda: told.append("applied"))
    assert (leaders.applied, told, acks.settled) == ([0, 2], ["applied"], False)
    for commit in leaders.commits:
        commit(None)
    assert acks.settled
