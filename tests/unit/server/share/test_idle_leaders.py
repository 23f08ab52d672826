"""The share partitions that a broker may drop when a group has no members."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest
from shoal.coordinator.share.acquisition import AcquireRequest
from shoal.coordinator.share.backoff import RedeliveryBackoff
from shoal.coordinator.share.records import ShareKey
from shoal.coordinator.share.settings import SelectionPolicy, ShareSettings
from shoal.log.memory import MemoryStorage
from shoal.protocol.errors import ErrorCode
from shoal.replication.partition import Partition
from shoal.server.share.admin import CANCELLED_AT_ONCE, ShareAdmin
from shoal.server.share.leader import LeaderPhase, ShareLeader
from shoal.server.share.state_write import Failure
from support.brokers.share_leaders import FakePorts
from support.storage.log_material import NOW_MS, batch, open_log

if TYPE_CHECKING:
    from collections.abc import Callable

MEMBER = "m"
ACCEPT, RELEASE, REJECT = b"\x01", b"\x02", b"\x03"
HOLDING = SelectionPolicy(key_order=True, key_held_by_dead_letter=True)


def run(settings: ShareSettings, check: Callable[[ShareLeader, FakePorts], None]) -> None:
    """Load a share partition whose member has acquired its only record, and check it."""

    async def main() -> None:
        partition = Partition(
            "t",
            UUID(int=1),
            0,
            open_log(MemoryStorage()),
            node_id=1,
            leader_id=1,
            leader_epoch=3,
            isr=(1,),
            replicas=(1,),
        )
        partition.append(batch(b"value", key=b"key"), now_ms=NOW_MS)
        ports = FakePorts(settings)
        leader = ShareLeader(ports, ShareKey("g", partition.topic_id, 0), partition)
        assert not leader.may_be_dropped, "it is loading"
        leader.load()
        assert leader.may_be_dropped
        assert leader.fetch(AcquireRequest(MEMBER, 10, 10), 1 << 20).acquired.total == 1
        assert not leader.may_be_dropped, "a member holds a record"
        check(leader, ports)

    asyncio.run(main())


def settle(leader: ShareLeader, types: bytes) -> list[Failure | None]:
    results: list[Failure | None] = []
    assert leader.acknowledge(MEMBER, [(0, 0, types)], results.append) is None
    return results


def test_a_leader_is_kept_until_its_writes_are_committed() -> None:
    def check(leader: ShareLeader, ports: FakePorts) -> None:
        results = settle(leader, ACCEPT)
        assert not leader.may_be_dropped
        ports.commit()
        assert (results, leader.may_be_dropped) == ([None], True)

    run(ShareSettings(), check)


def test_a_leader_is_kept_while_records_are_in_back_off() -> None:
    """Only a leader has the due times of delayed records."""

    def check(leader: ShareLeader, ports: FakePorts) -> None:
        settle(leader, RELEASE)
        ports.commit()
        assert not leader.may_be_dropped
        ports.time_ms += 2_000
        leader.tick()
        assert leader.may_be_dropped

    run(ShareSettings(backoff=RedeliveryBackoff(1_000, 1_000, 1, 0)), check)


def test_a_leader_is_kept_while_a_dead_letter_holds_its_key() -> None:
    def check(leader: ShareLeader, ports: FakePorts) -> None:
        settle(leader, REJECT)
        ports.commit()
        assert not leader.may_be_dropped, "a dead letter is to be written"
        ranges, ports.dead_letters.ranges = ports.dead_letters.ranges, []
        leader.on_dead_letters_written(ranges)
        ports.commit()
        assert not leader.may_be_dropped
        leader.free([(0, 0)], lambda _: None)
        ports.commit()
        assert leader.may_be_dropped

    run(ShareSettings(dead_letters=True, selection=HOLDING), check)


@pytest.mark.parametrize("is_closed", [True, False])
def test_the_waiters_of_a_dropped_leader_are_called_once(is_closed: bool) -> None:
    """A write in flight still gets a result; one that is not in flight is never sent."""

    def check(leader: ShareLeader, ports: FakePorts) -> None:
        results = settle(leader, ACCEPT)
        (write,) = ports.writes
        write.is_closed = is_closed
        failure = Failure(ErrorCode.not_leader_or_follower)
        leader.drop(failure)
        assert results == ([] if is_closed else [failure])
        assert write.is_closed
        if is_closed:
            write.set_result({"refusal": None})
            assert results == [None]
        assert ports.dropped_keys == [leader.key]

    run(ShareSettings(), check)


class CancellingLeader:
    """A share partition whose writes are committed at once, and which is dropped then."""

    def __init__(self) -> None:
        self.phase, self.failure = LeaderPhase.ACTIVE, None
        self.ranges: list[tuple[int, int]] = []

    def cancel(
        self, ranges: list[tuple[int, int]], waiter: Callable[[Failure | None], None], **_: bool
    ) -> list[tuple[int, int]]:
        self.ranges += ranges
        waiter(None)
        self.phase = LeaderPhase.DROPPED
        return ranges


class CancellingPartitions:
    """The broker's share partitions: a next leader takes the place of each that was dropped. It is
    the node, too."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.leaders = [CancellingLeader(), CancellingLeader()]

    def find(self, *_: object) -> CancellingLeader:
        return self.leaders[0]

    def lead(self, *_: object) -> CancellingLeader:
        return next(leader for leader in self.leaders if leader.phase is LeaderPhase.ACTIVE)


def test_a_cancellation_goes_on_with_the_next_leader() -> None:
    """A leader without members may be dropped between the pieces of a cancellation, and after."""

    ranges = [(n, n) for n in range(CANCELLED_AT_ONCE + 1)]

    async def cancel_all() -> list[int]:
        here: Any = CancellingPartitions()
        admin = ShareAdmin(here, here, here, here, here)
        records: Any = await admin.cancel("g", UUID(int=1), 0, ranges, dead_letter=False)
        assert records == ranges
        return [len(leader.ranges) for leader in here.leaders]

    assert asyncio.run(cancel_all()) == [CANCELLED_AT_ONCE, 1]
