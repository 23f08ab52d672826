"""A follower's incremental fetches request what a check of every partition would request.

The machine derives the leader's side of the session only from the requests. It compares that with a
follower that checks all its partitions before each fetch.
"""

from __future__ import annotations

from uuid import UUID

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule
from shoal.log.config import LogConfig
from shoal.log.log import Log
from shoal.log.memory import MemoryStorage
from shoal.protocol.errors import ErrorCode
from shoal.record.records import build_batch
from shoal.replication.partition import Partition, ReplicaFetch, ReplicaFetchResult
from shoal.replication.replica_fetcher import (
    BACKOFF_MAX_MS,
    BACKOFF_MS,
    FetchSessionResponse,
    Key,
    ReplicaFetcher,
)
from support.runs.example_counts import scale_examples

PARTITIONS = st.integers(0, 4)


class Held:
    """A throttle that stops some topics, or none."""

    def __init__(self) -> None:
        self.topics: set[str] = set()
        self.until_ms = 0
        self.took_bytes = 0

    @property
    def active(self) -> bool:
        return bool(self.topics)

    def is_throttled(self, partition: Partition) -> bool:
        return partition.topic in self.topics

    def get_wait_ms(self, now_ms: int) -> int:
        return max(0, self.until_ms - now_ms)

    def record(self, size_bytes: int, now_ms: int) -> None:
        self.took_bytes += size_bytes


class Plain:
    """One partition of the twin."""

    def __init__(self, index: int) -> None:
        log = Log.open(MemoryStorage(), f"t{index}-0", LogConfig(), now_ms=0, clean=False)
        self.partition = Partition(
            f"t{index}",
            UUID(int=index + 1),
            0,
            log,
            node_id=2,
            leader_id=1,
            leader_epoch=1,
            isr=(1,),
            replicas=(1, 2),
        )
        self.followed = False
        #: Followed again: its position is sent again, and responses to earlier requests are stale.
        self.is_new = False
        self.ready()

    def ready(self) -> None:
        self.not_before_ms, self.backoff_ms = 0, BACKOFF_MS

    def pause(self, now_ms: int) -> None:
        self.not_before_ms = now_ms + self.backoff_ms
        self.backoff_ms = min(2 * self.backoff_ms, BACKOFF_MAX_MS)


class FollowerSession(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now_ms, self.session_id = 0, 0
        self.throttle = Held()
        self.fetcher = ReplicaFetcher(1, throttle=self.throttle)
        self.plain = [Plain(index) for index in range(5)]
        self.at_leader: dict[Key, ReplicaFetch] = {}
        self.under_way = False
        for index in range(3):
            self.follow(index)

    @rule(index=PARTITIONS)
    def follow(self, index: int) -> None:
        one = self.plain[index]
        one.followed = True
        one.ready()
        self.fetcher.follow(one.partition)

    @rule(index=PARTITIONS)
    def forget(self, index: int) -> None:
        one = self.plain[index]
        one.followed, one.is_new = False, True
        self.fetcher.forget(one.partition)

    @rule(index=PARTITIONS)
    def new_epoch(self, index: int) -> None:
        one = self.plain[index]
        one.partition.leader_epoch += 1
        if one.followed:
            one.ready()
            self.fetcher.follow(one.partition)

    @rule(index=PARTITIONS)
    def local_retention(self, index: int) -> None:
        partition = self.plain[index].partition
        partition.log.advance_log_start(partition.high_watermark)
        partition.notify_changed()

    @rule(ms=st.integers(1, 60))
    def time_passes(self, ms: int) -> None:
        self.now_ms += ms

    @rule(indexes=st.sets(PARTITIONS), ms=st.integers(0, 50))
    def throttled(self, indexes: set[int], ms: int) -> None:
        self.throttle.topics = {f"t{index}" for index in indexes}
        self.throttle.until_ms = self.now_ms + ms

    def _wanted(self) -> dict[Key, ReplicaFetch]:
        found = {}
        for one in self.plain:
            if one.followed and one.not_before_ms <= self.now_ms:
                if self.throttle.is_throttled(one.partition):
                    one.not_before_ms = self.now_ms + self.throttle.get_wait_ms(self.now_ms)
                if one.not_before_ms <= self.now_ms:
                    found[one.partition.key] = one.partition.get_fetch_position()
        return found

    @precondition(lambda self: not self.under_way)
    @rule()
    def fetch(self) -> None:
        wanted = self._wanted()
        request = self.fetcher.build_next_fetch(self.now_ms)
        assert (request is not None) == bool(wanted)
        if request is None:
            followed = [one.not_before_ms for one in self.plain if one.followed]
            assert self.fetcher.find_next_due_ms() == min(followed, default=None)
            return
        self.under_way = True
        assert request.session_id == self.session_id
        if not request.session_id:
            assert not request.forgotten
            self.at_leader.clear()
        for key in request.forgotten:
            del self.at_leader[key]
        for key, asked in request.partitions:
            (one,) = [one for one in self.plain if one.partition.key == key]
            assert one.is_new or self.at_leader.get(key) != asked, "answered again"
            one.is_new = False
            self.at_leader[key] = asked
        assert self.at_leader == wanted

    @precondition(lambda self: not self.under_way)
    @rule(answered=st.sets(PARTITIONS), refusing=st.sets(PARTITIONS, max_size=1))
    def exchange(self, answered: set[int], refusing: set[int]) -> None:
        """The usual exchange."""
        self.fetch()
        if self.under_way:
            self.answer(answered, 7, refusing)

    @precondition(lambda self: self.under_way)
    @rule(
        answered=st.sets(PARTITIONS),
        session_id=st.sampled_from([7, 7, 7, 0]),
        refusing=st.sets(PARTITIONS),
    )
    def answer(self, answered: set[int], session_id: int, refusing: set[int]) -> None:
        rows = {}
        for index in sorted(answered):
            one = self.plain[index]
            asked = self.at_leader.get(one.partition.key)
            if asked is None:
                continue
            at = asked.fetch_offset
            batch = build_batch([(1, None, b"v", ())], base_offset=at, leader_epoch=1)
            found = ReplicaFetchResult(
                ErrorCode.none, at, asked.log_start_offset, None, bytes(batch)
            )
            if index in refusing:
                found = ReplicaFetchResult(ErrorCode.unknown_leader_epoch)
            rows[one.partition.key] = found
            if one.followed and not one.is_new and asked == one.partition.get_fetch_position():
                if index in refusing:
                    one.pause(self.now_ms)
                else:
                    one.backoff_ms = BACKOFF_MS
        self.fetcher.complete_fetch(
            FetchSessionResponse(ErrorCode.none, session_id, rows), self.now_ms
        )
        self.under_way, self.session_id = False, session_id

    @precondition(lambda self: self.under_way)
    @rule()
    def no_answer(self) -> None:
        self.fetcher.fail_fetch()
        self.under_way, self.session_id = False, 0

    @precondition(lambda self: self.under_way)
    @rule()
    def refused_as_a_whole(self) -> None:
        for one in self.plain:
            if one.followed and one.partition.key in self.at_leader:
                one.pause(self.now_ms)
        response = FetchSessionResponse(ErrorCode.fetch_session_id_not_found, 0, {})
        self.fetcher.complete_fetch(response, self.now_ms)
        self.under_way, self.session_id = False, 0


TestFollowerSession = FollowerSession.TestCase
TestFollowerSession.settings = settings(
    max_examples=scale_examples(80), stateful_step_count=50, deadline=None
)
