"""Committed positions of key ranges against a twin with one position for each of eight cells.

A member that owns a whole partition commits random key ranges of it, with finished offsets, plain
offsets and transactions, and the log of the group is cut after any batch. After every step the live
shard and one that is rebuilt from the log have the twin's positions. Their stable offset is the
lowest one, which is never above an unfinished record of any cell.
"""

from __future__ import annotations

import copy
from typing import Any
from uuid import UUID

from coordinator_sim import Simulation
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from shoal.coordinator.contract import ProducerIdAndEpoch
from shoal.coordinator.group.consumer_heartbeat import HeartbeatRequest
from shoal.coordinator.group.individual_commit import KeyRange
from shoal.coordinator.group.offsets import CommitRequest, PartitionCommit, TopicCommit, TopicQuery
from shoal.coordinator.group.settings import GroupSettings
from shoal.coordinator.group.shard import GroupShard
from shoal.metadata.image import MetadataImage, PartitionImage, TopicImage
from shoal.protocol.errors import ErrorCode
from shoal.protocol.features import KEY_HASH_MAX
from shoal.record.finished_offsets import FinishedOffsets
from shoal.record.offset_set import OffsetSet, ranges_of

TOPIC = UUID(int=1)
CELLS = 8
WIDTH = (KEY_HASH_MAX + 1) // CELLS
MAX_RANGES = 8
SETTINGS = GroupSettings(shoal_group_consumer_individual_commit_max_ranges=MAX_RANGES)
IMAGE = MetadataImage(
    topics={"t": TopicImage("t", TOPIC, (PartitionImage((0,), (0,), 0, 0, 0),))},
    topics_by_id={TOPIC: TopicImage("t", TOPIC, (PartitionImage((0,), (0,), 0, 0, 0),))},
)
#: Position and finished offsets above it; None if nothing was committed.
Cell = tuple[int, frozenset[int]] | None
Cells = tuple[Cell, ...]
NONE: Cells = (None,) * CELLS

positions = st.integers(0, 12)
finished_sets = st.sets(st.integers(0, 14), max_size=3).map(sorted)


@st.composite
def cuts(draw: st.DrawFn) -> list[tuple[int, int]]:
    """Disjoint runs of cells, as first and last one."""
    bounds = sorted(draw(st.sets(st.integers(0, CELLS), min_size=2, max_size=6)))
    runs = [(a, b - 1) for a, b in zip(bounds[::2], bounds[1::2], strict=False)]
    return draw(st.permutations(runs))


def after(cell: Cell, position: int, finished: list[int]) -> Cell:
    stable, above = (position, frozenset[int]()) if cell is None else cell
    stable = max(stable, position)
    done = {o for o in (*above, *finished) if o >= stable}
    while stable in done:
        stable += 1
    return stable, frozenset(o for o in done if o > stable)


def finished_ranges(cells: Cells) -> int:
    """The number of ranges of finished offsets in pieces of equal cells."""
    pieces = [c for n, c in enumerate(cells) if n == 0 or c != cells[n - 1]]
    return sum(len(ranges_of(sorted(c[1]))) for c in pieces if c is not None)


class KeyRangePositions(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.sim = Simulation(lambda: GroupShard(SETTINGS, IMAGE))
        self.committed = NONE
        #: The state of the open transaction of producer 1, if it has committed the partition.
        self.pending: Cells | None = None
        self.count = 0
        self.history: list[tuple[int, Any]] = []
        self.epoch = self._join()

    def _join(self) -> int:
        request = HeartbeatRequest(
            "g",
            "m",
            0,
            rebalance_timeout_ms=60_000,
            subscribed_topic_names=frozenset({"t"}),
            owned={},
            key_hash_version=1,
        )
        answer = self._ask(lambda s, now_ms, t: s.consumer.heartbeat(request, now_ms, t))
        self._note()
        return int(answer["member_epoch"])

    def _ask(self, decide: Any) -> Any:
        self.count += 1
        self.sim.submit(self.count, decide)
        return self.sim.delivered.get(self.count) or self.sim.failed[self.count]

    def _note(self) -> None:
        self.history.append((len(self.sim.log), copy.copy((self.committed, self.pending))))

    def _commit(self, *, transactional: bool, **fields: Any) -> Any:
        row = PartitionCommit(0, fields.pop("offset", 0), -1, None, **fields)
        request = CommitRequest(
            "g",
            "m",
            None,
            self.epoch,
            [TopicCommit("t", TOPIC, [row])],
            9,
            producer=ProducerIdAndEpoch(1, 0) if transactional else None,
        )
        answer = self._ask(lambda s, now_ms, t: s.offsets.commit(request, now_ms, t))
        if isinstance(answer, ErrorCode):
            return {"error_code": answer}
        return answer["topics"][0]["partitions"][0]

    def _write(self, cells: Cells, *, transactional: bool) -> None:
        if transactional:
            self.pending = cells
        else:
            self.committed = cells
        self._note()

    @rule(
        runs=cuts(),
        position=positions,
        finished=finished_sets,
        step=st.integers(0, 3),
        txn=st.booleans(),
    )
    def commit(
        self, runs: list[tuple[int, int]], position: int, finished: list[int], step: int, txn: bool
    ) -> None:
        cells = self.committed if self.pending is None else self.pending
        before = cells
        asked = []
        for n, (first, last) in enumerate(runs):
            at = position + n * step
            encoded = FinishedOffsets.of(ranges_of(finished)).encode()
            asked.append(KeyRange(first * WIDTH, (last + 1) * WIDTH - 1, at, encoded))
            cells = tuple(
                after(c, at, finished) if first <= i <= last else c for i, c in enumerate(cells)
            )
        row = self._commit(transactional=txn, key_ranges=asked)
        error = ErrorCode.none
        if sum(len(ranges_of(finished)) for _ in runs) > MAX_RANGES:
            error = ErrorCode.invalid_commit_offset_size
        elif self.pending is not None and not txn:
            error = ErrorCode.concurrent_transactions
        elif finished_ranges(cells) > max(MAX_RANGES, finished_ranges(before)):
            error = ErrorCode.invalid_commit_offset_size
        assert row["error_code"] is error, row
        if error:
            return
        stable = min(-1 if c is None else c[0] for c in cells)
        assert row["individual_commit"]["stable_offset"] == stable
        if cells != before:
            self._write(cells, transactional=txn)

    @rule(offset=positions)
    def commit_plainly(self, offset: int) -> None:
        """A reset, or a commit of a member that owns the whole partition, replaces everything."""
        if self.pending is None:
            assert self._commit(transactional=False, offset=offset)["error_code"] == 0
            self._write(((offset, frozenset()),) * CELLS, transactional=False)

    @rule(committed=st.booleans())
    def end_transaction(self, committed: bool) -> None:
        self.sim.mark(1, committed=committed)
        if self.pending is not None and committed:
            self.committed = self.pending
        self.pending = None
        self._note()

    @rule(back=st.integers(0, 5))
    def crash(self, back: int) -> None:
        """The log ends after one of its last batches, as on another leader."""
        at = max(0, len(self.history) - 1 - back)
        del self.history[at + 1 :]
        length, (self.committed, self.pending) = self.history[at]
        del self.sim.log[length:]
        self.sim.committed_offset = length
        self.sim.restart()

    @invariant()
    def equals_the_twin(self) -> None:
        for shard in (self.sim.shard, self.sim.rebuilt()):
            assert self._state(shard) == self.committed

    def _state(self, shard: GroupShard) -> Cells:
        answer = shard.offsets.fetch(
            "g",
            [TopicQuery("t", TOPIC, [0])],
            member_id=None,
            member_epoch=-1,
            require_stable=False,
            key_ranges_wanted=True,
        )
        (row,) = answer["topics"][0]["partitions"]
        stable, ranges = row["committed_offset"], row.get("key_ranges", ())
        if not ranges:
            return NONE if stable < 0 else ((stable, frozenset()),) * CELLS
        cells: list[Cell] = []
        for one in ranges:
            assert one["first_hash"] == len(cells) * WIDTH
            encoded = str(FinishedOffsets.decode(one["finished"]))
            above = frozenset(OffsetSet.parse(encoded)) if encoded else frozenset()
            cell = None if one["position"] < 0 else (one["position"], above)
            cells += [cell] * ((one["last_hash"] + 1) // WIDTH - len(cells))
        assert len(cells) == CELLS
        assert stable == min(one["position"] for one in ranges)
        return tuple(cells)


KeyRangePositions.TestCase.settings = settings(
    max_examples=30, stateful_step_count=25, deadline=None
)
TestKeyRangePositions = KeyRangePositions.TestCase
