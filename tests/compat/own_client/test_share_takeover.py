"""Records of killed members are with others within a second, whatever partitions each one read.

Kafka takes 43 to 48 s if a dead member was the only reader of a partition, since the assignment
stays until the member's session ends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from shoal.client.client import SyncClient
from support.brokers.queues import Queue
from support.runs.conditions import ceiling, eventually, standstills
from support.workers.share_worker import Member

if TYPE_CHECKING:
    from support.brokers.servers import ShoalProcess

TAKEOVER_S = 1.0


@pytest.mark.parametrize(
    ("members", "victims", "partitions"),
    [
        (2, 1, 1),
        (4, 3, 4),
        *(
            pytest.param(*n, marks=pytest.mark.nightly)
            for n in ((2, 1, 2), (2, 1, 6), (3, 2, 1), (4, 2, 2))
        ),
    ],
)
def test_records_of_killed_members(
    shared_broker: ShoalProcess, members: int, victims: int, partitions: int
) -> None:
    with SyncClient(shared_broker.bootstrap) as client:
        queue = Queue(client, shared_broker.bootstrap, partitions=partitions)
        words = (shared_broker.bootstrap, queue.group, queue.topic)
        killed = [Member(*words, "hold") for _ in range(victims)]
        others: list[Member] = []
        try:
            eventually(lambda: all(m.events for m in killed), what="they have joined")
            others += [Member(*words, str(seed)) for seed in range(members - victims)]
            eventually(lambda: all(m.events for m in others), what="the others, too")

            def hold() -> bool:
                for partition in range(partitions):
                    queue.produce(["x"], partition=partition)
                return all(m.got() for m in killed) and all(m.got() for m in others)

            eventually(hold, timeout_s=120, what="each has taken something")
            held = {key for m in killed for key in m.got()}
            with standstills() as stood_still_s:
                for member in killed:
                    member.kill9()
                died = max(m.died for m in killed)

                def again() -> dict[tuple[int, int], float]:
                    got = [(k, t) for m in others for k, t in m.got().items()]
                    return {k: t - died for k, t in got if k in held and t > died - TAKEOVER_S}

                eventually(lambda: set(again()) == held, timeout_s=120, what="all came again")
                print("took", {key: round(took, 3) for key, took in again().items()})
                assert max(again().values()) < ceiling(TAKEOVER_S, stood_still_s())
        finally:
            for member in others:
                member.kill9()
            for member in killed:
                if member.died == float("inf"):
                    member.kill9()


def test_records_of_the_last_member_go_to_the_next_one(
    shared_broker: ShoalProcess,
) -> None:
    with SyncClient(shared_broker.bootstrap) as client:
        queue = Queue(client, shared_broker.bootstrap)
        queue.produce(range(10))
        words = (shared_broker.bootstrap, queue.group, queue.topic)
        last = Member(*words, "hold")
        eventually(lambda: len(last.got()) == 10)
        with standstills() as stood_still_s:
            last.kill9()
            next_ = Member(*words, "1")
            try:
                eventually(lambda: len(next_.got()) == 10)
                joined = next(e["t"] for e in next_.events if e["e"] == "joined")
                took = [t - max(joined, last.died) for t in next_.got().values()]
                print("took", [round(t, 3) for t in took])
                assert min(took) < ceiling(TAKEOVER_S, stood_still_s())
            finally:
                next_.kill9()
