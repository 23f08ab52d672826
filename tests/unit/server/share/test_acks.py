"""Acknowledgements of one request: applied some thousand at a time, and completely."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Any
from uuid import UUID

from shoal.server.metrics.share_meters import ShareTopicMeter
from shoal.server.share.acknowledge import STEP_TYPES, PendingAcknowledgements
from shoal.server.share.leader import LeaderPhase

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shoal.protocol.share import AcknowledgementBatch, Acknowledgements
    from shoal.server.share.state_write import Failure, Waiter

TOPIC = UUID(int=3)


class FakeLeader:
    """A share partition that records acknowledgements, and commits them on request."""

    phase = LeaderPhase.ACTIVE

    def __init__(self, index: int, partitions: Partitions) -> None:
        self.meter = ShareTopicMeter()
        self._index = index
        self._partitions = partitions

    def acknowledge(
        self, member_id: str, acknowledgements: Sequence[AcknowledgementBatch], waiter: Waiter
    ) -> None:
        self._partitions.applied.append(self._index)
        self._partitions.commits.append(waiter)


class Partitions:
    """The share partitions of a broker; every requested one exists."""

    def __init__(self) -> None:
        self.applied: list[int] = []
        self.commits: list[Waiter] = []
        self.acknowledged: Counter[int] = Counter()

    def find(self, group_id: str, topic_id: UUID, index: int) -> FakeLeader:
        return FakeLeader(index, self)

    def make_unknown_failure(self, topic_id: UUID) -> Failure:
        raise AssertionError("all are known")


def test_many_are_applied_in_several_turns_of_the_loop() -> None:
    async def main() -> None:
        each = STEP_TYPES // 2
        types = bytes(1 + n % 2 for n in range(each))
        partitions, calls = Partitions(), list[Any]()
        acks = PendingAcknowledgements(partitions)
        topics: Acknowledgements = [
            (TOPIC, [(index, [(0, each - 1, types)]) for index in range(5)])
        ]
        acks.apply("g", "m", topics, version=1, is_renew=False)
        acks.on_applied(lambda: calls.append(("applied", list(partitions.applied))))
        acks.on_settled(lambda: calls.append(("settled", partitions.acknowledged.total())))
        assert (partitions.applied, acks.settled) == ([0, 1], False)
        for commit in partitions.commits:
            commit(None)
        await asyncio.sleep(0)
        assert (partitions.applied, calls) == ([0, 1, 2, 3], [])
        await asyncio.sleep(0)
        assert calls == [("applied", [0, 1, 2, 3, 4])]
        for commit in partitions.commits[2:]:
            commit(None)
        assert calls[1:] == [("settled", 5 * each)]
        assert acks.partitions == [(TOPIC, index) for index in range(5)]

    asyncio.run(main())


def test_few_are_applied_at_once() -> None:
    partitions, calls = Partitions(), list[Any]()
    acks = PendingAcknowledgements(partitions)
    topics: Acknowledgements = [
        (TOPIC, [(0, [(0, 9_999, b"\x01")]), (1, []), (2, [(0, 0, b"\x02")])])
    ]
    acks.apply("g", "m", topics, version=1, is_renew=False)
    acks.on_applied(lambda: calls.append("applied"))
    assert (partitions.applied, calls, acks.settled) == ([0, 2], ["applied"], False)
    for commit in partitions.commits:
        commit(None)
    assert acks.settled
