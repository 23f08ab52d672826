"""Committed positions of key ranges against a twin with one position for each of eight cells.

A member that owns a whole partition commits random key ranges of it, with finished offsets and
plain offsets, also in several transactions at once. The log of the group is cut after any batch,
and compacted. After every step the live shard and one that is rebuilt from the log have the twin's
positions. Their stable offset is the lowest one, which is never above an unfinished record of any
cell.
"""

from __future__ import annotations

import copy
from typing import Any
from uuid import UUID

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from shoal.coordinator.contract import ProducerIdAndEpoch
from shoal.coordinator.group.consumer.heartbeat import ConsumerGroupHeartbeatRequest
from shoal.coordinator.group.offsets.individual_commit import KeyRangeRequest
from shoal.coordinator.group.offsets.requests import (
    CommitRequest,
    PartitionCommit,
    TopicCommit,
    TopicQuery,
)
from shoal.coordinator.group.settings import GroupSettings
from shoal.coordinator.group.shard import GroupShard
from shoal.metadata.image import MetadataImage, PartitionImage, TopicImage
from shoal.protocol.errors import ErrorCode
from shoal.protocol.features import KEY_HASH_MAX
from shoal.record.finished_offsets import FinishedOffsets
from shoal.record.offset_set import OffsetSet, to_ranges
from support.brokers.coordinator_sim import Simulation
from support.runs.example_counts import scale_examples

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
#: 0 commits without a transaction.
producers = st.integers(0, 3)
OWN_CELLS = ((0, 1), (2, 4), (5, 7))
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
    return sum(len(to_ranges(sorted(c[1]))) for c in pieces if c is not None)


class Open:
    """An open transaction in the partition: what it adds to cells, and the state that it has
    written of the whole partition, each with the offset of its record."""

    def __init__(self) -> None:
        self.added: dict[int, list[tuple[int, list[int]]]] = {}
        self.added_at = -1
        self.whole: Cells | None = None
        self.whole_at = -1


class Twin:
    """The cells, and the transactions by producer."""

    def __init__(self) -> None:
        self.committed = NONE
        #: The offsets of the last record of the partition, and of the last that replaced all cells.
        self.at = self.replaced_at = -1
        self.open: dict[int, Open] = {}
        #: Producers whose last transaction with key ranges is not settled.
        self.unsettled: set[int] = set()

    def is_taken(self, producer: int, cells: set[int]) -> bool:
        """Whether another transaction has some of the cells, or the last one is not settled."""
        return producer in self.unsettled or any(
            other != producer and (found.whole is not None or cells & found.added.keys())
            for other, found in self.open.items()
        )

    def before(self, producer: int) -> Cells:
        """The cells as a producer sees them, which is 0 for a commit without a transaction."""
        found = self.open.get(producer, Open())
        cells, since = self.committed, self.replaced_at
        if found.whole is not None and found.whole_at > self.at:
            cells, since = found.whole, found.whole_at
        return _sum(cells, found.added) if found.added_at > since else cells

    def write(self, producer: int, cells: Cells, at: int, *, replaces: bool) -> None:
        """Write the state of the whole partition."""
        if producer:
            found = self.open.setdefault(producer, Open())
            found.whole, found.whole_at = cells, at
            return
        self.committed, self.at = cells, at
        if replaces:
            self.replaced_at = at

    def add(self, producer: int, added: dict[int, tuple[int, list[int]]], at: int) -> None:
        found = self.open.setdefault(producer, Open())
        if found.added_at < self.replaced_at:
            found.added = {}
        found.added_at = at
        for cell, one in added.items():
            found.added.setdefault(cell, []).append(one)

    def end(self, producer: int, *, committed: bool) -> None:
        found = self.open.pop(producer, Open())
        if committed and found.whole is not None and found.whole_at > self.at:
            self.committed = found.whole
            self.at = self.replaced_at = found.whole_at
        if committed and found.added:
            self.unsettled.add(producer)
            if found.added_at > self.replaced_at:
                self.committed = _sum(self.committed, found.added)

    def settle(self) -> None:
        if not any(found.whole is not None for found in self.open.values()):
            self.unsettled.clear()


def _sum(cells: Cells, added: dict[int, list[tuple[int, list[int]]]]) -> Cells:
    found = list(cells)
    for cell, some in added.items():
        for position, finished in some:
            found[cell] = after(found[cell], position, finished)
    return tuple(found)


class KeyRangePositions(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.sim = Simulation(lambda: GroupShard(SETTINGS, IMAGE))
        self.twin = Twin()
        self.count = 0
        self.history: list[tuple[int, Twin]] = []
        self.epoch = self._join()

    def _join(self) -> int:
        request = ConsumerGroupHeartbeatRequest(
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
        self.history.append((len(self.sim.log), copy.deepcopy(self.twin)))

    def _commit(self, producer: int, **fields: Any) -> Any:
        row = PartitionCommit(0, fields.pop("offset", 0), -1, None, **fields)
        request = CommitRequest(
            "g",
            "m",
            None,
            self.epoch,
            [TopicCommit("t", TOPIC, [row])],
            9,
            producer=ProducerIdAndEpoch(producer, 0) if producer else None,
        )
        answer = self._ask(lambda s, now_ms, t: s.offsets.commit(request, now_ms, t))
        if isinstance(answer, ErrorCode):
            return {"error_code": answer}
        return answer["topics"][0]["partitions"][0]

    @rule(producer=producers.filter(bool), position=positions, finished=finished_sets)
    def commit_own_cells(self, producer: int, position: int, finished: list[int]) -> None:
        """Commit cells that no other producer commits here, so that nothing is refused."""
        self.commit([OWN_CELLS[producer - 1]], position, finished, 0, producer)

    @rule(
        runs=cuts(),
        position=positions,
        finished=finished_sets,
        step=st.integers(0, 3),
        producer=producers,
    )
    def commit(
        self,
        runs: list[tuple[int, int]],
        position: int,
        finished: list[int],
        step: int,
        producer: int,
    ) -> None:
        added = {
            cell: (position + n * step, finished)
            for n, (first, last) in enumerate(runs)
            for cell in range(first, last + 1)
        }
        encoded = FinishedOffsets.from_ranges(to_ranges(finished)).encode()
        asked = [
            KeyRangeRequest(a * WIDTH, (b + 1) * WIDTH - 1, position + n * step, encoded)
            for n, (a, b) in enumerate(runs)
        ]
        twin = self.twin
        before = twin.before(producer)
        cells = _sum(before, {cell: [one] for cell, one in added.items()})
        row = self._commit(producer, key_ranges=asked)
        error = ErrorCode.none
        if sum(len(to_ranges(finished)) for _ in runs) > MAX_RANGES:
            error = ErrorCode.invalid_commit_offset_size
        elif twin.is_taken(producer, set(added)):
            error = ErrorCode.concurrent_transactions
        elif finished_ranges(cells) > max(MAX_RANGES, finished_ranges(before)):
            error = ErrorCode.invalid_commit_offset_size
        assert row["error_code"] is error, row
        if error:
            return
        stable = min(-1 if c is None else c[0] for c in cells)
        assert row["individual_commit"]["stable_offset"] == stable
        if cells == before:
            return
        at = len(self.sim.log) - 1
        own = twin.open.get(producer, Open())
        on_own = own.whole is not None and own.whole_at > twin.at
        if not producer or on_own or (len(added) == CELLS and len(runs) == 1):
            twin.write(producer, cells, at, replaces=False)
        else:
            twin.add(producer, added, at)
        self._note()

    @rule(offset=positions, producer=producers, rare=st.integers(0, 2))
    def commit_plainly(self, offset: int, producer: int, rare: int) -> None:
        """A reset, or a commit of a member that owns the whole partition, replaces everything."""
        if rare:
            return
        assert self._commit(producer, offset=offset)["error_code"] == 0
        cells = ((offset, frozenset[int]()),) * CELLS
        self.twin.write(producer, cells, len(self.sim.log) - 1, replaces=True)
        self._note()

    @rule(producer=producers.filter(bool), committed=st.booleans())
    def end_transaction(self, producer: int, committed: bool) -> None:
        self.sim.mark(producer, committed=committed)
        self.twin.end(producer, committed=committed)
        self._note()

    @rule()
    def settle(self) -> None:
        """The coordinator stores what transactions have committed, at once in a real broker."""
        self.sim.advance(0)
        self.twin.settle()
        self._note()

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

    @rule(tombstones=st.booleans())
    def compact(self, tombstones: bool) -> None:
        """Remove what compaction removes, old tombstones included."""
        self.sim.compact(tombstones=tombstones)
        # What a crash would bring back is what compaction may have removed.
        self.history = [(len(self.sim.log), copy.deepcopy(self.twin))]
        self.sim.restart()

    @invariant()
    def equals_the_twin(self) -> None:
        live, rebuilt = self.sim.shard, self.sim.rebuilt()
        for shard in (live, rebuilt):
            assert self._state(shard) == self.twin.committed
        assert live.offsets.get_hard_state() == rebuilt.offsets.get_hard_state()

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
    max_examples=scale_examples(25), stateful_step_count=30, deadline=None
)
TestKeyRangePositions = KeyRangePositions.TestCase
