"""Individual commits of two partitions against a twin of plain sets.

Two members' commits, plain commits, transactions, expiry, deletion, compaction, reloads and crashes
after any batch of the log come in random order. After every step the live shard and one that is
rebuilt from the log have the twin's stable offsets and finished offsets.
"""

from __future__ import annotations

import copy
from typing import Any
from uuid import UUID

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from shoal.coordinator.contract import ProducerIdAndEpoch
from shoal.coordinator.group.consumer.membership import ConsumerGroupHeartbeatRequest
from shoal.coordinator.group.offsets.individual_commit import KeyRangeRequest
from shoal.coordinator.group.offsets.requests import (
    CommitRequest,
    PartitionCommit,
    TopicCommit,
    TopicQuery,
)
from shoal.coordinator.group.settings import GroupSettings
from shoal.coordinator.group.shard import GroupShard
from shoal.protocol.errors import ErrorCode
from shoal.protocol.features import KEY_HASH_MAX
from shoal.record.finished_offsets import FinishedOffsets
from shoal.record.offset_set import OffsetSet, to_ranges
from support.brokers.coordinator_sim import Simulation
from support.runs.example_counts import scale_examples

MAX_RANGES = 4
SETTINGS = GroupSettings(
    offsets_retention_minutes=60,
    shoal_group_consumer_individual_commit_max_ranges=MAX_RANGES,
)
TOPIC = UUID(int=1)

partitions = st.integers(0, 1)
producers = st.integers(1, 2)
#: Low positions and odd offsets leave many ranges.
positions = st.sampled_from([0, 0, 0, 1, 2, 3, 5, 9, 15, 20])
finished_sets = st.sets(
    st.one_of(st.sampled_from(range(1, 20, 2)), st.integers(0, 20)), max_size=6
).map(sorted)

#: Stable offset and finished offsets above it, by partition.
State = dict[int, tuple[int, frozenset[int]]]


class Twin:
    """Committed state, and pending state by producer and partition, with its place in the log."""

    def __init__(self) -> None:
        self.committed: State = {}
        self.pending: dict[int, State] = {}
        #: When each state was written, committed and pending.
        self.at: dict[tuple[int, int], int] = {}

    def busy(self, partition: int, producer: int) -> bool:
        """Whether another transaction than that of `producer` has the partition."""
        return any(partition in some for p, some in self.pending.items() if p != producer)


class IndividualCommits(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.sim = Simulation(lambda: GroupShard(SETTINGS))
        self.twin = Twin()
        self.count = 0
        self.epoch = 0
        #: The twin by length of the log at the end of each batch.
        self.history: list[tuple[int, Twin]] = []
        self._joined()

    # Requests.

    def _ask(self, decide: Any) -> Any:
        self.count += 1
        self.sim.submit(self.count, decide)
        return self.sim.delivered.get(self.count) or self.sim.failed[self.count]

    def _joined(self) -> None:
        """Have a member with a valid epoch. It subscribes to another topic, so that the offsets of
        this one may be deleted and expire."""
        request = ConsumerGroupHeartbeatRequest(
            "g",
            member_id="m",
            member_epoch=0,
            rebalance_timeout_ms=60_000,
            subscribed_topic_names=frozenset({"other"}),
            owned={},
        )
        answer = self._ask(lambda s, now_ms, t: s.consumer.heartbeat(request, now_ms, t))
        self.epoch = answer["member_epoch"]
        self._note()

    def _note(self) -> None:
        self.history.append((len(self.sim.log), copy.deepcopy(self.twin)))

    def _commit(self, partition: int, producer: int = 0, **fields: Any) -> Any:
        self._joined()
        row = PartitionCommit(partition, fields.pop("offset", 0), -1, None, **fields)
        of = ProducerIdAndEpoch(producer, 0) if producer else None
        request = CommitRequest(
            "g", "m", None, self.epoch, [TopicCommit("t", TOPIC, [row])], 9, producer=of
        )
        answer = self._ask(lambda s, now_ms, t: s.offsets.commit(request, now_ms, t))
        if isinstance(answer, ErrorCode):
            return {"error_code": answer}
        return answer["topics"][0]["partitions"][0]

    @rule(
        partition=partitions,
        producer=st.integers(0, 2),
        position=positions,
        finished=finished_sets,
    )
    def commit_individually(
        self, partition: int, producer: int, position: int, finished: list[int]
    ) -> None:
        encoded = FinishedOffsets.from_ranges(to_ranges(finished)).encode()
        key_range = KeyRangeRequest(0, KEY_HASH_MAX, position, encoded)
        row = self._commit(partition, producer, key_ranges=[key_range])
        twin = self.twin
        error = ErrorCode.none
        stable, above = self._base(partition, producer, position)
        before = stable, above
        stable = max(stable, position)
        done = {o for o in (*above, *finished) if o >= stable}
        while stable in done:
            stable += 1
        above = frozenset(o for o in done if o > stable)
        if len(to_ranges(finished)) > MAX_RANGES:
            error = ErrorCode.invalid_commit_offset_size
        elif twin.busy(partition, producer):
            error = ErrorCode.concurrent_transactions
        elif len(to_ranges(sorted(above))) > MAX_RANGES:
            error = ErrorCode.invalid_commit_offset_size
        assert row["error_code"] is error, (row, stable, above)
        if error:
            return
        assert row["individual_commit"]["stable_offset"] == stable
        if (stable, above) != before or not self._has(partition, producer):
            self._write(partition, producer, (stable, above))
        self._note()

    def _has(self, partition: int, producer: int) -> bool:
        return partition in self.twin.committed or partition in self.twin.pending.get(producer, {})

    def _base(self, partition: int, producer: int, position: int) -> tuple[int, frozenset[int]]:
        """The newer of the committed state and the producer's own pending one."""
        twin = self.twin
        found = [
            (twin.at[who, partition], state[partition])
            for who, state in ((0, twin.committed), (producer, twin.pending.get(producer, {})))
            if partition in state
        ]
        return max(found)[1] if found else (position, frozenset())

    def _write(self, partition: int, producer: int, state: tuple[int, frozenset[int]]) -> None:
        target = self.twin.pending.setdefault(producer, {}) if producer else self.twin.committed
        target[partition] = state
        self.twin.at[producer, partition] = len(self.sim.log) - 1

    @rule(partition=partitions, producer=st.integers(0, 2), offset=positions)
    def commit_plainly(self, partition: int, producer: int, offset: int) -> None:
        row = self._commit(partition, producer, offset=offset)
        assert row == {"partition_index": partition, "error_code": ErrorCode.none}
        self._write(partition, producer, (offset, frozenset()))
        self._note()

    @rule(producer=producers, committed=st.booleans())
    def end_transaction(self, producer: int, committed: bool) -> None:
        self.sim.mark(producer, committed=committed)
        twin = self.twin
        for partition, state in twin.pending.pop(producer, {}).items():
            at = twin.at[producer, partition]
            if committed and at > twin.at.get((0, partition), -1):
                twin.committed[partition] = state
                twin.at[0, partition] = at
        self._note()

    @rule(partition=partitions)
    def delete(self, partition: int) -> None:
        self._joined()
        self._ask(lambda s, _now_ms, t: s.offsets.delete("g", [("t", [partition])], t))
        self._forget([partition])
        self._note()

    def _forget(self, gone: list[int]) -> None:
        twin = self.twin
        for partition in gone:
            for who, state in ((0, twin.committed), *twin.pending.items()):
                state.pop(partition, None)
                twin.at.pop((who, partition), None)

    # Time, crashes and compaction.

    @rule()
    def expire(self) -> None:
        self.sim.advance(3 * 3_600_000)
        twin = self.twin
        self._forget([p for p in (0, 1) if not twin.busy(p, 0)])
        self._joined()

    @rule()
    def reload(self) -> None:
        self.sim.restart()

    @precondition(lambda self: self.history)
    @rule(back=st.integers(0, 5))
    def crash(self, back: int) -> None:
        """The log ends after one of its last batches, as on another leader."""
        at = max(0, len(self.history) - 1 - back)
        del self.history[at + 1 :]
        length, twin = self.history[at]
        self.twin = copy.deepcopy(twin)
        del self.sim.log[length:]
        self.sim.committed_offset = length
        self.sim.restart()

    @rule()
    def compact(self) -> None:
        """Remove what compaction removes."""
        self.sim.compact()
        # What a crash would bring back is what compaction may have removed.
        self.history = [(len(self.sim.log), copy.deepcopy(self.twin))]
        self.sim.restart()

    # Comparison.

    @invariant()
    def equals_the_twin(self) -> None:
        for shard in (self.sim.shard, self.sim.rebuilt()):
            assert self._state(shard) == self.twin.committed

    def _state(self, shard: GroupShard) -> State:
        found: State = {}
        answer = shard.offsets.fetch(
            "g",
            [TopicQuery("t", TOPIC, [0, 1])],
            member_id=None,
            member_epoch=-1,
            require_stable=False,
            key_ranges_wanted=True,
        )
        for row in answer["topics"][0]["partitions"]:
            if row["committed_offset"] < 0:
                continue
            finished: set[int] = set()
            for key_range in row["key_ranges"]:
                finished |= set(OffsetSet.parse(str(FinishedOffsets.decode(key_range["finished"]))))
                assert key_range["position"] == row["committed_offset"]
                assert key_range["gap_timestamp"] >= 0
            found[row["partition_index"]] = (row["committed_offset"], frozenset(finished))
        return found


IndividualCommits.TestCase.settings = settings(
    max_examples=scale_examples(60), stateful_step_count=40, deadline=None
)
TestIndividualCommits = IndividualCommits.TestCase
