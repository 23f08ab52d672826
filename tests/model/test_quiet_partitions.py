"""A leader that skips quiet partitions behaves as one that checks all.

Two leaders get the same writes, fetches, changes of leadership and time. One tracks the quiet
partitions of the follower's session, the other checks every partition in each fetch. Their
responses, proposed ISRs and high watermarks are the same.
"""

from __future__ import annotations

from datetime import timedelta
from itertools import count
from types import SimpleNamespace
from typing import Any, NamedTuple
from uuid import UUID

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from shoal.log.config import LogConfig
from shoal.log.log import Log
from shoal.log.memory import MemoryStorage
from shoal.protocol.errors import ErrorCode
from shoal.record.batch import iter_headers
from shoal.record.records import build_batch
from shoal.replication.partition import Partition
from shoal.server.network.fetch_sessions import FetchSessions
from shoal.server.replication.replica_fetch import FetchPorts, FollowerFetch
from support.runs.example_counts import scale_examples

COUNT = 4
INDEXES = st.integers(0, COUNT - 1)
LAG_MS = 1_000
FOLLOWER = 2


class Registered(NamedTuple):
    leader_epoch: int
    partition_epoch: int
    leader: int = 1
    isr: tuple[int, ...] = (1, 2, 3)
    replicas: tuple[int, ...] = (1, 2, 3)


class FetchPartition(NamedTuple):
    """One partition of a Fetch request."""

    partition: int
    fetch_offset: int
    partition_max_bytes: int
    current_leader_epoch: int
    last_fetched_epoch: int
    log_start_offset: int


class FetchTopic(NamedTuple):
    topic: str
    topic_id: UUID
    partitions: list[FetchPartition]


class ReplicaState(NamedTuple):
    replica_id: int
    replica_epoch: int


class FetchBody(NamedTuple):
    """A Fetch request of a follower."""

    session_id: int
    session_epoch: int
    forgotten_topics_data: list[Any]
    topics: list[FetchTopic]
    max_bytes: int
    min_bytes: int
    max_wait: timedelta
    replica_state: ReplicaState


class Time:
    """The clock of one leader."""

    def __init__(self, leader: Leader) -> None:
        self._leader = leader

    def now_ms(self) -> int:
        return self._leader.now_ms


class NoFollowers:
    """No follower has yet to fetch a partition."""

    def is_fetch_awaited(self, replica_id: int, now_ms: int) -> bool:
        return False


class Unthrottled:
    """Throttles nothing."""

    active = False

    def is_throttled(self, partition: Partition) -> bool:
        return False

    def get_available_bytes(self, now_ms: int) -> int:
        raise AssertionError("nothing is throttled")

    def record(self, size_bytes: int, now_ms: int) -> None:
        raise AssertionError("nothing is throttled")

    def get_wait_ms(self, now_ms: int) -> int:
        raise AssertionError("nothing is throttled")


class Leader:
    """Partitions led by broker 1, and the session with broker 2."""

    def __init__(self, *, knows_quiet: bool) -> None:
        self.knows_quiet = knows_quiet
        self.now_ms = 0
        self.asked: list[tuple[int, tuple[int, ...]]] = []
        self.partitions = [self._partition(index) for index in range(COUNT)]
        ids = count(1)
        self.sessions = FetchSessions(1_000, random_id=lambda: next(ids))
        self.ports = FetchPorts(Time(self), self, NoFollowers(), Unthrottled())
        self.session_id, self.epoch = 0, 0
        self.positions: dict[int, tuple[int, int]] = {}
        self.parked: FollowerFetch | None = None

    def find(self, name: str, topic_id: UUID | None, index: int) -> Partition:
        return self.partitions[index]

    def _partition(self, index: int) -> Partition:
        log = Log.open(MemoryStorage(), f"t-{index}", LogConfig(), now_ms=0, clean=False)
        made = Partition(
            "t",
            UUID(int=9),
            index,
            log,
            node_id=1,
            leader_id=1,
            leader_epoch=1,
            isr=(1, 2, 3),
            replicas=(1, 2, 3),
            partition_epoch=0,
            alter_isr=lambda p, change: self.asked.append((p.index, change.members)),
            broker_epoch_of=lambda broker: 10,
        )
        made.lag_time_max_ms = LAG_MS
        return made

    def fetch(self, offsets: list[int], *, broker_epoch: int, wait: bool) -> Any:
        """Return the response, or None while the fetch waits."""
        asked = [(offset, self.partitions[i].leader_epoch) for i, offset in enumerate(offsets)]
        if not self.epoch:
            self.positions.clear()
        rows = [
            FetchPartition(
                partition=index,
                fetch_offset=offset,
                partition_max_bytes=10_000,
                current_leader_epoch=epoch,
                last_fetched_epoch=-1,
                log_start_offset=0,
            )
            for index, (offset, epoch) in enumerate(asked)
            if self.positions.get(index) != (offset, epoch)
        ]
        self.positions = dict(enumerate(asked))
        body = FetchBody(
            session_id=self.session_id,
            session_epoch=self.epoch,
            forgotten_topics_data=[],
            topics=[FetchTopic("t", UUID(int=9), rows)],
            max_bytes=100_000,
            min_bytes=1,
            max_wait=timedelta(milliseconds=500 if wait else 0),
            replica_state=ReplicaState(FOLLOWER, broker_epoch),
        )
        session, incremental, cursors = self.sessions.begin(
            body, 17, self.now_ms, follower=self.knows_quiet
        )
        # A version whose response is a mapping.
        request = SimpleNamespace(body=body, version=12)
        fetch = FollowerFetch(self.ports, request, FOLLOWER, session, incremental, cursors)
        found = fetch.begin()
        self.parked = fetch if found is None else None
        return self._answered(found)

    def _answered(self, found: Any) -> Any:
        if found is not None:
            self.session_id, self.epoch = found["session_id"], self.epoch + 1
        return found

    def attempt(self) -> Any:
        """Return the response of a waiting fetch after an append."""
        if self.parked is None:
            return None
        found = self.parked.attempt()
        self.parked = self.parked if found is None else None
        return self._answered(found)

    def expire(self) -> Any:
        if self.parked is None:
            return None
        found, self.parked = self.parked.expire(), None
        return self._answered(found)

    def seen(self) -> Any:
        # Requests to the controller for several partitions at once have no order.
        asked = sorted(self.asked, key=lambda one: one[0])
        return [(p.high_watermark, p.isr, p.leader_epoch, asked) for p in self.partitions]


def rows_of(answer: Any) -> dict[int, tuple[Any, ...]]:
    return {
        row["partition_index"]: (
            row["error_code"],
            row["high_watermark"],
            row["log_start_offset"],
            bytes(row["records"]),
            row.get("diverging_epoch"),
        )
        for topic in answer["responses"]
        for row in topic["partitions"]
    }


class QuietPartitions(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.leaders = [Leader(knows_quiet=True), Leader(knows_quiet=False)]
        self.offsets = [0] * COUNT
        self.partition_epoch, self.broker_epoch = 0, 10

    def _both(self, call: Any) -> Any:
        first, second = (call(leader) for leader in self.leaders)
        assert (first is None) == (second is None)
        assert self.leaders[0].seen() == self.leaders[1].seen()
        if first is None:
            return None
        assert rows_of(first) == rows_of(second)
        for index, row in rows_of(first).items():
            if row[0] is ErrorCode.none:
                for _, header in iter_headers(row[3]):
                    self.offsets[index] = header.next_offset
        return first

    @rule(wait=st.booleans())
    def fetch(self, wait: bool) -> None:
        self.expire()
        offsets, epoch = list(self.offsets), self.broker_epoch
        self._both(lambda leader: leader.fetch(offsets, broker_epoch=epoch, wait=wait))

    @rule(times=st.integers(2, 4))
    def settle(self, times: int) -> None:
        """Fetch until the follower has everything, the usual case."""
        for _ in range(times):
            self.fetch(False)

    @rule()
    def expire(self) -> None:
        self._both(lambda leader: leader.expire())

    @rule(index=INDEXES)
    def append(self, index: int) -> None:
        batch = bytes(build_batch([(1, None, b"v", ())]))

        def one(leader: Leader) -> Any:
            partition = leader.partitions[index]
            if partition.is_leader:
                partition.append(batch, now_ms=leader.now_ms)
            return leader.attempt()

        self._both(one)

    @rule(ms=st.integers(1, LAG_MS))
    def time_passes(self, ms: int) -> None:
        for leader in self.leaders:
            leader.now_ms += ms

    @rule()
    def tick(self) -> None:
        def one(leader: Leader) -> None:
            for partition in leader.partitions:
                partition.tick(leader.now_ms)

        self._both(one)

    @rule(index=INDEXES)
    def isr_is_taken(self, index: int) -> None:
        self.partition_epoch += 1

        def one(leader: Leader) -> None:
            partition = leader.partitions[index]
            if partition.leadership and partition.leadership.proposed:
                asked = partition.leadership.proposed.members
                partition.complete_isr_change(tuple(sorted(asked)), self.partition_epoch)

        self._both(one)

    @rule(index=INDEXES, isr=st.sampled_from([(1,), (1, 2), (1, 3), (1, 2, 3)]))
    def registered(self, index: int, isr: tuple[int, ...]) -> None:
        """A new registration in the same leader epoch."""
        self.partition_epoch += 1

        def one(leader: Leader) -> None:
            partition = leader.partitions[index]
            row = Registered(partition.leader_epoch, self.partition_epoch, isr=isr)
            partition.register(row, leader.now_ms)

        self._both(one)

    @rule(index=INDEXES, leads=st.booleans())
    def new_epoch(self, index: int, leads: bool) -> None:
        self.partition_epoch += 1

        def one(leader: Leader) -> None:
            partition = leader.partitions[index]
            row = Registered(
                partition.leader_epoch + 1, self.partition_epoch, leader=1 if leads else 3
            )
            partition.register(row, leader.now_ms)

        self._both(one)

    @rule(index=INDEXES)
    def records_are_deleted(self, index: int) -> None:
        def one(leader: Leader) -> None:
            partition = leader.partitions[index]
            if partition.is_leader:
                partition.delete_records(partition.high_watermark)

        self._both(one)

    @rule(index=INDEXES)
    def the_third_follows(self, index: int) -> None:
        """Broker 3 fetches up to the log end offset."""

        def one(leader: Leader) -> None:
            partition = leader.partitions[index]
            if partition.leadership is not None:
                end = partition.log.log_end_offset
                partition.leadership.update_follower(3, 10, end, 0, leader.now_ms)
                partition.tick(leader.now_ms)

        self._both(one)

    @rule()
    def another_connection(self) -> None:
        for leader in self.leaders:
            leader.parked = None
            leader.session_id, leader.epoch = 0, 0

    @rule(epoch=st.sampled_from([10, 11]))
    def another_incarnation(self, epoch: int) -> None:
        self.broker_epoch = max(self.broker_epoch, epoch)


TestQuietPartitions = QuietPartitions.TestCase
TestQuietPartitions.settings = settings(
    max_examples=scale_examples(60), stateful_step_count=50, deadline=None
)
