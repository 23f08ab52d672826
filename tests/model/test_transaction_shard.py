"""The transaction shard under random requests, time, crashes and failed writes, with a twin.

The twin keeps only the producers' responses: the holders of each transactional id, the content of
its open transaction, and each decision. After every step a shard that is rebuilt from the log
equals the live one, and no decision is ever reversed.
"""

from __future__ import annotations

import itertools
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from shoal.coordinator.contract import (
    CoordinatorRecord,
    CoordinatorResult,
    ProducerIdAndEpoch,
    Reply,
    Token,
)
from shoal.protocol.errors import ErrorCode
from shoal.transaction.records import build_record
from shoal.transaction.shard import (
    ProducerIdentity,
    TransactionSettings,
    TransactionShard,
    WriteMarkers,
)
from shoal.transaction.states import TransactionState
from shoal.transaction.transactions import LAST_EPOCH, TV_0, TV_2
from support.brokers.coordinator_sim import Simulation
from support.runs.example_counts import scale_examples

IDS = ("a", "b")
PARTITIONS = (("t", 0), ("t", 1), ("u", 0))
TIMEOUT_MS = 10_000
EXPIRATION_MS = 3_600_000
SETTINGS = TransactionSettings(
    transactional_id_expiration_ms=EXPIRATION_MS,
    transaction_remove_expired_transaction_cleanup_interval_ms=60_000,
)
PASSING = {
    ErrorCode.concurrent_transactions,
    ErrorCode.coordinator_not_available,
    ErrorCode.not_coordinator,
}

ids = st.sampled_from(IDS)
versions = st.sampled_from([TV_0, TV_2])
#: Which of the id's holders asks: 0 is the latest one.
holders = st.integers(0, 2)
partitions = st.lists(st.sampled_from(PARTITIONS), min_size=1, unique=True)


class Twin:
    """One transactional id, as its clients see it."""

    def __init__(self) -> None:
        #: Its producers so far, the last one first.
        self.holders: list[tuple[int, int]] = []
        self.open: dict[tuple[str, int], None] = {}


class TransactionMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.given_ids = itertools.count(100)
        self.sim = Simulation(
            lambda: TransactionShard(SETTINGS, lambda: next(self.given_ids)),
        )
        self.tokens = itertools.count()
        self.twins = {i: Twin() for i in IDS}
        self.performed = 0
        #: Markers that are not written yet, by id.
        self.owed: dict[str, WriteMarkers] = {}
        #: How each (id, producer, epoch of its markers) was decided.
        self.decided: dict[tuple[str, int, int], list[Any]] = {}

    def _ask(self, decide: Any) -> Any:
        token = f"token-{next(self.tokens)}"
        self.sim.submit(token, lambda shard, now_ms, t: decide(shard, now_ms, t))
        if token in self.sim.failed:
            return self.sim.failed[token]
        reply = self.sim.delivered[token]
        return reply["error_code"] or reply

    def _writer(self, id: str, holder: int) -> ProducerIdentity | None:
        holders = self.twins[id].holders
        return ProducerIdentity(id, *holders[holder]) if holder < len(holders) else None

    def _initialized(self, id: str, reply: Any) -> None:
        given = (reply["producer_id"], reply["producer_epoch"])
        assert given[1] <= LAST_EPOCH, "no epoch is left to fence with"
        twin = self.twins[id]
        if twin.holders[:1] != [given]:
            assert given not in twin.holders, "a producer's epoch was given to another one"
            twin.holders.insert(0, given)

    # Requests.

    @rule(id=ids, expected=st.booleans(), holder=holders)
    def init(self, id: str, expected: bool, holder: int) -> None:
        who = self._writer(id, holder) if expected else None
        asked = None if who is None else ProducerIdAndEpoch(*who[1:])
        before = self.sim.shard.get(id)
        reply = self._ask(
            lambda shard, now_ms, t: shard.init_producer_id(id, TIMEOUT_MS, asked, now_ms, t)
        )
        if isinstance(reply, ErrorCode):
            assert reply in PASSING or (reply is ErrorCode.producer_fenced and asked)
            return
        assert before is None or before.state.is_at_rest
        self.twins[id].open.clear()
        self._initialized(id, reply)

    @rule(id=ids, holder=holders, version=versions, parts=partitions)
    def add(self, id: str, holder: int, version: int, parts: list[tuple[str, int]]) -> None:
        writer = self._writer(id, holder)
        if writer is None:
            return
        reply = self._ask(lambda s, now_ms, t: s.add_partitions(writer, parts, version, now_ms, t))
        if isinstance(reply, ErrorCode):
            fenced = {ErrorCode.producer_fenced, ErrorCode.invalid_producer_id_mapping}
            assert reply in PASSING | fenced
            return
        assert holder == 0, "a fenced producer has added to a transaction"
        self.twins[id].open |= dict.fromkeys(parts)

    @rule(id=ids, holder=holders, version=versions, committed=st.booleans())
    def end(self, id: str, holder: int, version: int, committed: bool) -> None:
        writer = self._writer(id, holder)
        if writer is None:
            return
        before = self.sim.shard.get(id)
        reply = self._ask(
            lambda s, now_ms, t: s.end(
                writer, committed=committed, version=version, now_ms=now_ms, token=t
            )
        )
        if isinstance(reply, ErrorCode):
            return
        assert before is not None
        if before.state is TransactionState.ONGOING:
            assert holder == 0, "a fenced producer has ended a transaction"
            (markers,) = self._new_markers()
            assert markers.committed is committed
            assert set(markers.partitions) == set(self.twins[id].open)
        elif not before.state.is_at_rest:
            raise AssertionError("a decided transaction was decided again")
        self._initialized(id, reply)

    @rule(id=ids)
    def verify(self, id: str) -> None:
        writer = self._writer(id, 0)
        if writer is None:
            return
        reply = self._ask(
            lambda s, now_ms, t: _with_code(s.verify_partitions(writer, PARTITIONS, t), t)
        )
        if isinstance(reply, ErrorCode):
            return
        there = {p for p, error in reply["errors"].items() if not error}
        assert there == set(self.twins[id].open)

    # Actions of the broker.

    @rule()
    def write_markers(self) -> None:
        self._new_markers()
        for id, markers in sorted(self.owed.items()):

            def complete(shard: TransactionShard, now_ms: int, markers: Any = markers) -> Any:
                return shard.complete(markers, now_ms)

            self.sim.runtime.apply(0, complete, self.sim.now_ms)
            self.sim.runtime.flush()
            found = self.sim.shard.get(id)
            assert found is None or not found.state.is_prepared or self.sim.refuse_append is None
        self.owed.clear()

    @rule(ms=st.sampled_from([100, 2_000, TIMEOUT_MS, EXPIRATION_MS + 60_000]))
    def advance(self, ms: int) -> None:
        self.sim.advance(ms)

    @rule()
    def crash(self) -> None:
        self.sim.restart()

    @rule()
    def fail_next_append(self) -> None:
        self.sim.refuse_append = ErrorCode.not_leader_or_follower

    @precondition(lambda self: all(t.holders for t in self.twins.values()))
    @rule(id=ids)
    def wear_out(self, id: str) -> None:
        """Advance the id to its last epoch, as many fences would."""
        found = self.sim.shard.get(id)
        if found is None or not found.state.is_at_rest or found.is_epoch_exhausted:
            return
        worn = found._replace(producer_epoch=LAST_EPOCH)
        self.sim.refuse_append = None
        self._ask(lambda s, now_ms, t: _result(build_record(id, worn), t))
        self.twins[id].holders.insert(0, (worn.producer_id, LAST_EPOCH))

    def _new_markers(self) -> list[WriteMarkers]:
        new = self.sim.performed[self.performed :]
        self.performed = len(self.sim.performed)
        for markers in new:
            key = (markers.transactional_id, markers.producer_id, markers.producer_epoch)
            if markers.transaction_version >= TV_2:
                # Version 1 may use an epoch for many transactions; version 2 never does.
                decision = self.decided.setdefault(key, [markers.committed, markers.partitions])
                assert decision == [markers.committed, markers.partitions], "decided otherwise"
            self.owed[markers.transactional_id] = markers
        return new

    @invariant()
    def a_rebuilt_shard_is_equal(self) -> None:
        assert self.sim.rebuilt().get_hard_state() == self.sim.shard.get_hard_state()

    @invariant()
    def the_twin_knows_what_is_open(self) -> None:
        self._new_markers()
        for id, twin in self.twins.items():
            found = self.sim.shard.get(id)
            if found is None or found.state is not TransactionState.ONGOING:
                twin.open.clear()
            if found is None:
                continue
            assert set(twin.open) <= set(found.partitions)
            if found.state.is_at_rest:
                assert not found.partitions
            if found.state.is_prepared:
                assert self.sim.shard.next_deadline_ms is not None

    def teardown(self) -> None:
        """With time and markers, every transaction ends."""
        self.sim.refuse_append = None
        for _ in range(3):
            self.advance(TIMEOUT_MS)
            self.write_markers()
        for id in IDS:
            found = self.sim.shard.get(id)
            assert found is None or found.state.is_at_rest
        self.sim.advance(2 * EXPIRATION_MS)
        assert len(self.sim.shard) == 0


def _with_code(result: CoordinatorResult, token: Token) -> CoordinatorResult:
    (reply,) = result.replies
    return CoordinatorResult((), (Reply(token, {"error_code": ErrorCode.none, **reply.response}),))


def _result(record: CoordinatorRecord, token: Token) -> CoordinatorResult:
    return CoordinatorResult((record,), (Reply(token, {"error_code": ErrorCode.none}),))


TestTransactionShard = TransactionMachine.TestCase
TestTransactionShard.settings = settings(max_examples=scale_examples(60), stateful_step_count=40)
