"""The transaction shard answers every request in every state as Kafka's coordinator does.

The table is `transaction_answers`. After it come the states of a producer whose epochs are used up.
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from shoal.coordinator.contract import CoordinatorResult, ProducerIdAndEpoch, Reply
from shoal.protocol.errors import ErrorCode
from shoal.transaction.records import build_record
from shoal.transaction.shard import (
    ProducerIdentity,
    TransactionSettings,
    TransactionShard,
    WriteMarkers,
)
from shoal.transaction.transactions import LAST_EPOCH, TV_0, TV_2
from support.brokers.coordinator_sim import Simulation
from support.scenarios.transaction_answers import ANSWERS

ID = "writer"
PARTITION = ("t", 0)
TIMEOUT_MS = 10_000


class Coordinator:
    """One shard, whose markers are written when the test says so."""

    def __init__(self) -> None:
        producer_ids = itertools.count(100)
        self.sim = Simulation(
            lambda: TransactionShard(TransactionSettings(), lambda: next(producer_ids))
        )
        self._tokens = (f"token-{i}" for i in itertools.count())

    def ask(self, request: str, writer: ProducerIdentity) -> Any:
        """Return the response, or the error."""
        token = next(self._tokens)
        self.sim.submit(token, lambda s, now_ms, t: _decide(s, request, writer, now_ms, t))
        if token in self.sim.failed:
            return self.sim.failed[token]
        reply = self.sim.delivered[token]
        (error,) = reply["errors"].values() if "errors" in reply else (reply["error_code"],)
        return error or reply

    def writer(self) -> ProducerIdentity:
        """The producer that the state names."""
        found = self.sim.shard.get(ID)
        assert found is not None
        return ProducerIdentity(ID, found.producer_id, found.producer_epoch)

    def init(self) -> ProducerIdentity:
        """Initialize the next producer of the id."""
        given = self.ask("init", ProducerIdentity(ID, -1, -1))
        return ProducerIdentity(ID, given["producer_id"], given["producer_epoch"])

    def reach(self, state: str) -> None:
        """Bring the id to a state, with an epoch that has two before it."""
        for _ in range(3):
            self.init()
        if state == "Empty":
            return
        assert self.ask("add", self.writer())
        if state == "Ongoing":
            return
        assert self.ask("commit2" if state.endswith("Commit") else "abort2", self.writer())
        if state.startswith("Complete"):
            self.write_markers()

    def write_markers(self) -> None:
        markers = self.sim.performed[-1]
        assert isinstance(markers, WriteMarkers)
        self.sim.runtime.apply(0, lambda s, now_ms: s.complete(markers, now_ms), self.sim.now_ms)
        self.sim.runtime.flush()

    def wear_out(self) -> ProducerIdentity:
        """Advance the id to its last epoch, as many transactions would."""
        self.init()
        found = self.sim.shard.get(ID)
        assert found is not None
        worn = build_record(ID, found._replace(producer_epoch=LAST_EPOCH))
        self.sim.submit("worn", lambda s, now_ms, t: CoordinatorResult((worn,), (Reply(t, {}),)))
        return self.writer()


def _decide(
    shard: TransactionShard, request: str, writer: ProducerIdentity, now_ms: int, token: Any
) -> CoordinatorResult:
    match request:
        case "init":
            expected = ProducerIdAndEpoch(*writer[1:]) if writer.producer_id >= 0 else None
            return shard.init_producer_id(ID, TIMEOUT_MS, expected, now_ms, token)
        case "add":
            return shard.add_partitions(writer, [PARTITION], TV_2, now_ms, token)
        case "verify":
            return shard.verify_partitions(writer, [PARTITION], token)
    version = TV_2 if request.endswith("2") else TV_0
    committed = request.startswith("commit")
    return shard.end(writer, committed=committed, version=version, now_ms=now_ms, token=token)


def _named(writer: ProducerIdentity, name: str) -> ProducerIdentity:
    if name == "other":
        return writer._replace(producer_id=writer.producer_id + 1)
    by = {"older": -2, "before": -1, "current": 0, "next": 1}[name]
    return writer._replace(producer_epoch=writer.producer_epoch + by)


@pytest.mark.parametrize(("state", "request_", "name"), ANSWERS)
def test_a_request_in_a_state(state: str, request_: str, name: str) -> None:
    coordinator = Coordinator()
    coordinator.reach(state)
    found = coordinator.sim.shard.get(ID)
    assert found is not None
    assert found.state.title == state
    answer = coordinator.ask(request_, _named(coordinator.writer(), name))
    error = answer if isinstance(answer, ErrorCode) else ErrorCode.none
    assert error is ANSWERS[(state, request_, name)]
    if error:
        # A refused request changes nothing, but that InitProducerId ends an open transaction.
        aborted = (state, request_) == ("Ongoing", "init") and name != "other"
        assert (coordinator.sim.shard.get(ID) == found) is not aborted


@pytest.mark.parametrize("request_", ["init", "add", "commit2", "abort2"])
def test_the_producer_after_a_rollover_waits_for_the_markers(request_: str) -> None:
    """It has its new id from the response of EndTxn, before the state has it."""
    coordinator = Coordinator()
    worn = coordinator.wear_out()
    coordinator.ask("add", worn)
    given = coordinator.ask("commit2", worn)
    successor = ProducerIdentity(ID, given["producer_id"], given["producer_epoch"])
    assert (successor.producer_id != worn.producer_id, successor.producer_epoch) == (True, 0)
    assert coordinator.ask(request_, successor) is ErrorCode.concurrent_transactions
    coordinator.write_markers()
    assert coordinator.writer() == successor
    expected = ErrorCode.invalid_txn_state if request_ == "commit2" else None
    answer = coordinator.ask(request_, successor)
    assert (answer if isinstance(answer, ErrorCode) else None) is expected


@pytest.mark.parametrize("is_worn", [False, True])
def test_a_commit_after_the_coordinators_own_abort_is_fenced(is_worn: bool) -> None:
    coordinator = Coordinator()
    writer = coordinator.wear_out() if is_worn else coordinator.init()
    coordinator.ask("add", writer)
    coordinator.sim.advance(TIMEOUT_MS)
    assert coordinator.ask("commit2", writer) is ErrorCode.concurrent_transactions
    coordinator.write_markers()
    assert coordinator.ask("commit2", writer) is ErrorCode.producer_fenced
    assert coordinator.ask("commit", writer) in (
        ErrorCode.producer_fenced,
        ErrorCode.invalid_producer_id_mapping,
    )
    # Its abort is done, so it is only answered.
    assert coordinator.ask("abort2", writer)["error_code"] is ErrorCode.none
