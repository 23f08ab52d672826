"""Key order while the end of a record's delivery is being written: if the write fails, the record
is delivered again, so no later record of its key may be delivered before."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING
from uuid import UUID

import pytest
from shoal.coordinator.share.acquisition import AcquireRequest
from shoal.coordinator.share.records import ShareKey
from shoal.coordinator.share.settings import SelectionPolicy, ShareSettings
from shoal.log.memory import MemoryStorage
from shoal.replication.partition import Partition
from shoal.server.share.leader import ShareLeader
from support.brokers.share_leaders import FakePorts
from support.storage.log_material import NOW_MS, batch, open_log

if TYPE_CHECKING:
    from collections.abc import Callable

MEMBER = "m"
ACCEPT, RELEASE, REJECT = b"\x01", b"\x02", b"\x03"


def run(settings: ShareSettings, check: Callable[[ShareLeader, FakePorts], None]) -> None:
    """Check a share partition of two records with the same key and one with another. No fetch has
    read them."""

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
        for key in (b"ann", b"ann", b"bob"):
            partition.append(batch(b"value", key=key), now_ms=NOW_MS)
        ports = FakePorts(settings)
        leader = ShareLeader(ports, ShareKey("g", partition.topic_id, 0), partition)
        leader.load()
        check(leader, ports)

    asyncio.run(main())


def settings(limit: int, *, dead_letters: bool) -> ShareSettings:
    return ShareSettings(
        delivery_count_limit=limit,
        dead_letters=dead_letters,
        selection=SelectionPolicy(key_order=True),
    )


def fetched(leader: ShareLeader, records: int = 10) -> list[int]:
    """Return the offsets that a fetch acquires."""
    acquired = leader.fetch(AcquireRequest(MEMBER, records, records), 1 << 20).acquired
    return [at for first, last, _ in acquired.records for at in range(first, last + 1)]


def acknowledge(leader: ShareLeader, types: bytes) -> None:
    assert leader.acknowledge(MEMBER, [(0, 0, types)], lambda _: None) is None


def reject(leader: ShareLeader, _ports: FakePorts) -> None:
    acknowledge(leader, REJECT)


def release(leader: ShareLeader, _ports: FakePorts) -> None:
    acknowledge(leader, RELEASE)


def let_the_lock_expire(leader: ShareLeader, ports: FakePorts) -> None:
    ports.time_ms += 31_000
    leader.tick()


def leave(leader: ShareLeader, _ports: FakePorts) -> None:
    leader.release(list(leader.share.locks.live))


@pytest.mark.parametrize("dead_letters", [False, True])
@pytest.mark.parametrize("end", [reject, release, let_the_lock_expire, leave])
def test_a_key_goes_on_once_the_end_of_its_record_is_committed(
    end: Callable[[ShareLeader, FakePorts], None], dead_letters: bool
) -> None:
    def check(leader: ShareLeader, ports: FakePorts) -> None:
        assert fetched(leader, 1) == [0]
        end(leader, ports)
        assert fetched(leader) == [2], "the record with another key alone"
        ports.woken.clear()
        ports.commit()
        assert leader.wake_key in ports.woken
        assert fetched(leader) == [1]

    run(settings(1, dead_letters=dead_letters), check)


@pytest.mark.parametrize("dead_letters", [False, True])
def test_a_key_goes_on_once_a_lowered_limit_has_ended_its_record(dead_letters: bool) -> None:
    def check(leader: ShareLeader, ports: FakePorts) -> None:
        assert fetched(leader, 1) == [0]
        release(leader, ports)
        ports.commit()
        ports.configure(settings(1, dead_letters=dead_letters))
        assert fetched(leader) == [2]
        ports.commit()
        assert fetched(leader) == [1]

    run(settings(5, dead_letters=dead_letters), check)


def test_a_key_goes_on_with_the_accept_of_its_record() -> None:
    """Its member has processed the record: a fetch that carries the accept gets the next."""

    def check(leader: ShareLeader, _ports: FakePorts) -> None:
        assert fetched(leader, 1) == [0]
        acknowledge(leader, ACCEPT)
        assert fetched(leader, 1) == [1]

    run(settings(5, dead_letters=False), check)
