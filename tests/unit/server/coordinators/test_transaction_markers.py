"""The wait until the markers of a transaction are committed."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from shoal.server.coordinators import transaction_markers
from shoal.server.coordinators.transaction_markers import TransactionMarkerChannel
from shoal.server.network.purgatory import Purgatory
from shoal.transaction.shard import WriteMarkers
from support.runs.conditions import eventually_async

if TYPE_CHECKING:
    from collections.abc import Callable

COUNT = 200


class LedPartition:
    """A partition that this broker leads, its log, and its entry in the image."""

    is_leader = True
    leader = leader_epoch = 1
    log_end_offset = 1

    def __init__(self, key: int) -> None:
        self.key = key
        self.log = self.producers = self
        self.committed = self.lost = False
        self.looks = self.appends = 0

    def get(self, _producer_id: int) -> None:
        """No producer has written to it."""

    def append(self, _batch: bytes, **_options: Any) -> None:
        self.appends += 1
        self.lost = False

    def has_lost_leadership_since(self, _leader_epoch: int) -> bool:
        self.looks += 1
        return self.lost

    def is_committed(self, _offset: int) -> bool:
        return self.committed


class Led:
    """A broker that leads all partitions, whose clock stands still. It is node, image and cache."""

    id = 1

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.clock = self.timers = self.image = self
        self.partitions = [LedPartition(key) for key in range(COUNT)]
        self.completed: list[WriteMarkers] = []
        self.purgatory = Purgatory(self.loop, self)  # type: ignore[arg-type]
        here: Any = self
        self.channel = TransactionMarkerChannel(
            here,
            here,
            here,
            purgatory=self.purgatory,
            peers=here,
            groups=here,
            coordinator_epoch=lambda _markers: 0,
            completed=self.completed.append,
        )

    def now_ms(self) -> int:
        return 0

    def call_at(self, _due_ms: int, _call: Callable[[], None], *, leeway: float = 0.0) -> Led:
        del leeway
        return self

    def cancel(self) -> None:
        """No time passes."""

    def find_partition(self, _topic: str, index: int) -> LedPartition:
        return self.partitions[index]

    find_by_name = find_partition

    async def write_all(self) -> None:
        """Write the markers of a transaction in all partitions."""
        partitions = tuple(("t", index) for index in range(COUNT))
        self.channel.write(WriteMarkers("x", 1, 0, True, partitions, 2))
        await eventually_async(lambda: self.purgatory.size == 1)

    async def commit(self, partition: LedPartition) -> None:
        partition.committed = True
        self.purgatory.wake(partition.key)
        await asyncio.sleep(0)


@pytest.fixture(autouse=True)
def _in_one_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction_markers, "MARKERS_AT_ONCE", COUNT)


@pytest.mark.parametrize("order", [1, -1])
def test_each_commit_looks_at_few_markers(order: int) -> None:
    """Whichever partition is committed first. Looking at all of them each time is quadratic."""

    async def scenario() -> tuple[int, int]:
        led = Led()
        await led.write_all()
        for partition in led.partitions[::order]:
            assert not led.completed
            await led.commit(partition)
        await eventually_async(lambda: led.completed)
        return sum(p.looks for p in led.partitions), max(p.appends for p in led.partitions)

    looks, appends = asyncio.run(scenario())
    assert appends == 1
    assert looks < 6 * COUNT


def test_a_lost_marker_is_written_again_while_others_wait() -> None:
    async def scenario() -> None:
        led = Led()
        await led.write_all()
        lost = led.partitions[COUNT // 2]
        lost.lost, led.image = True, LostLeader(led)  # type: ignore[assignment]
        led.purgatory.wake(lost.key)
        await eventually_async(lambda: lost.appends == 2)
        for partition in led.partitions:
            await led.commit(partition)
        await eventually_async(lambda: led.completed)

    asyncio.run(scenario())


class LostLeader:
    """The next image."""

    def __init__(self, led: Led) -> None:
        self.find_partition = led.find_partition
