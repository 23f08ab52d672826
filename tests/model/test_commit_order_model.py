"""The order of commits against a plain twin, which looks at one key and one offset at a time.

Members read partitions by key, in transactions that are interleaved, aborted, timed out and
abandoned, while keys move. Each transaction that may commit has its records after those that are
done. In the end, every record is done: no members wait for each other for ever.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
from shoal.coordinator.group.offsets import commit_order
from shoal.coordinator.group.offsets.commit_order import (
    NO_OWNER,
    NO_RECORD,
    PartitionKeyRanges,
    TransactionCommit,
    WaitingTransaction,
)
from shoal.protocol.features import KEY_HASH_MAX
from shoal.record import key_range_map
from support.runs.seeding import drawn_seeds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

CELLS = 6
WIDTH = (KEY_HASH_MAX + 1) // CELLS
RECORDS = 30
#: Steps of a run with faults, and rounds afterwards in which every record must get done.
STEPS, ROUNDS = 120, 400
RUNS = 60


def hashes(cell: int) -> tuple[int, int]:
    last = KEY_HASH_MAX if cell == CELLS - 1 else (cell + 1) * WIDTH - 1
    return cell * WIDTH, last


@dataclass
class Transaction:
    """What a member has read since its last transaction: positions of its cells, and records."""

    id: int
    member: str
    positions: dict[tuple[int, int], int] = field(default_factory=dict)
    records: set[tuple[int, int]] = field(default_factory=set)

    def first(self, partition: int) -> int:
        return min((o for p, o in self.records if p == partition), default=NO_RECORD)

    @property
    def partitions(self) -> list[int]:
        return sorted({p for p, _ in self.positions})

    def waiting(self) -> WaitingTransaction:
        claims = [
            TransactionCommit(
                partition,
                self.first(partition),
                key_range_map.join_ranges(
                    (*hashes(cell), at)
                    for (p, cell), at in self.positions.items()
                    if p == partition
                ),
            )
            for partition in self.partitions
        ]
        return WaitingTransaction(self.id, self.member, tuple(claims))


class World:
    """A group, its transactions, and what the twin knows of them."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.partitions = range(self.random.randint(1, 3))
        self.members = [f"m{i}" for i in range(self.random.randint(2, 4))]
        self.logs = [
            [self.random.randrange(CELLS) for _ in range(RECORDS)] for _ in self.partitions
        ]
        self.cells = [(p, c) for p in self.partitions for c in range(CELLS)]
        self.owners = {cell: self.random.choice(self.members) for cell in self.cells}
        self.committed = dict.fromkeys(self.cells, -1)
        self.done: set[tuple[int, int]] = set()
        self.open: dict[str, Transaction] = {}
        self.waiting: dict[int, Transaction] = {}
        self.decided: dict[int, Transaction] = {}
        self.alone: dict[str, int] = {}
        #: The most offsets that a read has: few, or all.
        self.reads_max = self.random.choice((3, 4, 6, RECORDS))
        self.reads_min = self.random.choice((1, self.reads_max))
        self.next_id = 0

    # What members do.

    def busy(self) -> dict[str, Transaction]:
        theirs = (*self.waiting.values(), *self.decided.values())
        return self.open | {t.member: t for t in theirs}

    def read(self, member: str) -> None:
        """Read some offsets of each partition, or of one after an abort, from the lowest position
        on. Commit positions that passed no record."""
        txn = self.open.pop(member, None)
        if txn is None:
            self.next_id += 1
            txn = Transaction(self.next_id, member)
        for partition in self.partitions:
            mine = [c for c in self.cells if c[0] == partition and self.owners[c] == member]
            alone = self.alone.get(member)
            if mine and (alone is None or alone % len(self.logs) == partition):
                self.read_some(txn, partition, mine)
        if txn.records:
            self.open[member] = txn
        elif member in self.alone:
            self.alone[member] += 1

    def read_some(self, txn: Transaction, partition: int, mine: list[tuple[int, int]]) -> None:
        for _ in range(self.random.randint(self.reads_min, self.reads_max)):
            at = {c: txn.positions.get(c, max(0, self.committed[c])) for c in mine}
            offset = min(at.values())
            together = [c for c in mine if at[c] == offset]
            txn.positions |= at
            if offset < RECORDS:
                txn.positions |= dict.fromkeys(together, offset + 1)
                if (partition, self.logs[partition][offset]) in together:
                    txn.records.add((partition, offset))
        if txn.first(partition) == NO_RECORD:
            for cell in mine:
                self.committed[cell] = max(self.committed[cell], txn.positions.pop(cell))

    def commit(self, member: str) -> None:
        txn = self.open.pop(member)
        self.waiting[txn.id] = txn

    def abort(self, txn: Transaction) -> None:
        """A member reads one partition next. It commits the positions up to its first records, so
        that others that are first there need not wait for it."""
        self.drop(txn)
        self.alone[txn.member] = self.alone.get(txn.member, -1) + 1
        self.pass_(txn)

    def pass_(self, txn: Transaction) -> None:
        for cell, position in txn.positions.items():
            first = txn.first(cell[0])
            passed = position if first == NO_RECORD else min(position, first)
            self.committed[cell] = max(self.committed[cell], passed)

    def drop(self, txn: Transaction) -> None:
        for found in (self.waiting, self.decided):
            found.pop(txn.id, None)
        self.open.pop(txn.member, None)

    def end(self, txn: Transaction) -> None:
        del self.decided[txn.id]
        for cell, position in txn.positions.items():
            self.committed[cell] = max(self.committed[cell], position)
        self.done |= txn.records
        self.alone.pop(txn.member, None)

    def die(self, member: str) -> None:
        """Another member gets the cells, perhaps later."""
        txn = self.busy().get(member)
        if txn is not None:
            self.drop(txn)
        heirs = [*(m for m in self.members if m != member), NO_OWNER]
        for cell, owner in self.owners.items():
            if owner == member:
                self.owners[cell] = self.random.choice(heirs)

    def move(self) -> None:
        """A cell moves. Its owner does not wait, and reads its other cells again."""
        cell = self.random.choice(self.cells)
        owner = self.owners[cell]
        if owner in self.open:
            self.abort(self.open[owner])
        if owner not in self.busy():
            self.owners[cell] = self.random.choice(self.members)

    # What the coordinator does.

    def partition_of(self, partition: int) -> PartitionKeyRanges:
        mine = [c for c in self.cells if c[0] == partition]
        return PartitionKeyRanges(
            key_range_map.join_ranges((*hashes(c[1]), self.committed[c]) for c in mine),
            [(*hashes(c[1]), self.owners[c]) for c in mine if self.owners[c] != NO_OWNER],
        )

    def decide(self) -> bool:
        """Let one transaction continue, if one can."""
        asked = [txn.waiting() for txn in self.waiting.values()]
        verdict = commit_order.decide(asked, self.partition_of)
        assert (verdict.ready, list(verdict.refused)) == self.twin()
        assert {*verdict.ready, *verdict.refused, *verdict.blocked} == self.waiting.keys()
        for id in verdict.refused:
            self.abort(self.waiting[id])
            return True
        for id in verdict.ready:
            txn = self.waiting.pop(id)
            self.check(txn)
            self.decided[id] = txn
            return True
        return False

    def check(self, txn: Transaction) -> None:
        """The promise: all records below the first one are done."""
        for partition in txn.partitions:
            below = {(partition, offset) for offset in range(max(0, txn.first(partition)))}
            assert below <= self.done | txn.records, (partition, below - self.done)

    # The twin.

    def twin(self) -> tuple[list[int], list[int]]:
        """Return the transactions that may commit, and those that are refused."""
        ready, refused = [], []
        edges: set[tuple[str, str]] = set()
        for txn in self.waiting.values():
            owners = set(self.waits_for(txn))
            if not owners:
                ready.append(txn.id)
            elif txn.member in reachable(owners, edges):
                refused.append(txn.id)
            else:
                edges |= {(txn.member, owner) for owner in owners}
        return ready, refused

    def waits_for(self, txn: Transaction) -> Iterator[str]:
        """Yield the owners of cells in which an offset below the first record is not finished."""
        for partition in txn.partitions:
            for offset in range(txn.first(partition)):
                for cell in self.cells:
                    if cell[0] == partition and not self.is_finished(txn, cell, offset):
                        yield self.owners[cell]

    def is_finished(self, txn: Transaction, cell: tuple[int, int], offset: int) -> bool:
        if self.committed[cell] > offset:
            return True
        first = txn.first(cell[0])
        if txn.positions.get(cell, -1) >= first:
            return True
        for other in self.waiting.values():
            if other is not txn and cell in other.positions:
                known = other.first(cell[0])
                read = other.positions[cell]
                if (read if known == NO_RECORD else min(read, known)) >= first:
                    return True
        return self.committed[cell] >= first

    # Runs.

    def step(self) -> None:
        """Do something at random."""
        member = self.random.choice(self.members)
        waiting = list(self.waiting.values())
        decided = list(self.decided.values())
        action = self.random.random()
        if action < 0.45:
            if member not in self.busy():
                self.read(member)
            elif member in self.open:
                (self.commit if self.random.random() < 0.7 else self.read)(member)
        elif action < 0.7:
            self.decide()
        elif action < 0.85 and decided:
            self.end(self.random.choice(decided))
        elif action < 0.88 and decided:
            self.abort(self.random.choice(decided))
        elif action < 0.91 and waiting:
            self.abort(self.random.choice(waiting))
        elif action < 0.94:
            self.die(member)
        else:
            self.move()

    def finish(self) -> None:
        """Without more faults, every record gets done."""
        for cell, owner in self.owners.items():
            if owner == NO_OWNER:
                self.owners[cell] = self.random.choice(self.members)
        everything = {(p, o) for p in self.partitions for o in range(RECORDS)}
        for _ in range(ROUNDS):
            if self.done == everything:
                return
            for member in self.random.sample(self.members, len(self.members)):
                if member not in self.busy():
                    self.read(member)
                if member in self.open:
                    self.commit(member)
            while self.decide():
                pass
            for txn in list(self.decided.values()):
                self.end(txn)
        raise AssertionError(f"not done: {sorted(everything - self.done)}")


def reachable(owners: set[str], edges: set[tuple[str, str]]) -> set[str]:
    while more := {b for a, b in edges if a in owners} - owners:
        owners = owners | more
    return owners


def run(seed: int) -> None:
    world = World(seed)
    for _ in range(STEPS):
        world.step()
    world.finish()


@pytest.mark.parametrize("seed", drawn_seeds(RUNS))
def test_seeds(seed: int) -> None:
    run(seed)


def blind(_self: TransactionCommit, _offset: int) -> Any:
    return iter(())


def trusting(self: TransactionCommit, offset: int) -> Any:
    return ((first, last) for first, last, position in self.range_positions if position >= offset)


def greedy(self: TransactionCommit, _offset: int) -> Any:
    return ((first, last) for first, last, _ in self.range_positions)


def late(self: TransactionCommit, offset: int) -> Any:
    return ((a, b) for a, b, position in self.range_positions if position > offset + 1)


def patient(_members: Any, _waits_for: Any) -> set[str]:
    return set()


def short_sighted(members: Any, _waits_for: Any) -> set[str]:
    return set(members)


decide, behind = commit_order.decide, commit_order.find_blocked_commits


def oldest_refused(waiting: Any, partition_of: Any) -> Any:
    return decide(waiting[::-1], partition_of)


def first_claim_alone(one: Any, waiting: Any, partitions: Any) -> Any:
    return behind(one._replace(commits=one.commits[:1]), waiting, partitions)


def free_if_unowned(one: Any, waiting: Any, partitions: Any) -> Any:
    return (b for b in behind(one, waiting, partitions) if b.owners != {NO_OWNER})


def read_all_again(self: World, txn: Transaction) -> None:
    """After an abort, a member reads all of its partitions, not one of them."""
    abort(self, txn)
    self.alone.clear()


def pass_nothing(_self: World, _txn: Transaction) -> None:
    """A member that aborts commits nothing."""


abort = World.abort
#: The night tries those whose runs take seconds.
MUTANTS: list[Any] = [
    (TransactionCommit, "find_finished_ranges", blind),
    (TransactionCommit, "find_finished_ranges", trusting),
    (TransactionCommit, "find_finished_ranges", greedy),
    (TransactionCommit, "find_processed_ranges", blind),
    pytest.param(TransactionCommit, "find_processed_ranges", greedy, marks=pytest.mark.nightly),
    (TransactionCommit, "find_processed_ranges", late),
    (commit_order, "find_reachable", patient),
    (commit_order, "find_reachable", short_sighted),
    (commit_order, "decide", oldest_refused),
    (commit_order, "find_blocked_commits", first_claim_alone),
    (commit_order, "find_blocked_commits", free_if_unowned),
    pytest.param(World, "abort", read_all_again, marks=pytest.mark.nightly),
    pytest.param(World, "pass_", pass_nothing, marks=pytest.mark.nightly),
]


@pytest.mark.parametrize(
    ("where", "name", "mutant"), MUTANTS, ids=lambda one: getattr(one, "__name__", one)
)
def test_mutants_are_found(
    where: Any, name: str, mutant: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(where, name, mutant)
    for seed in range(400):
        try:
            run(seed)
        except AssertionError:
            return
    pytest.fail("no run finds it")
