"""Batches behind a refused one, as a producer with five under way sends them."""

from __future__ import annotations

import pytest
from shoal.log.producers import BATCHES_MAX, ProducerStateManager
from shoal.protocol.errors import ErrorCode
from shoal.record.batch import SEQUENCE_MAX, read_header
from shoal.record.records import build_batch
from shoal.server.replication import rejected_batches
from shoal.server.replication.rejected_batches import REMEMBERED_MS, PartitionKey, RejectedBatches

WHERE: PartitionKey = ("work", None, 0)
NOT_LEADER = ErrorCode.not_leader_or_follower
NOW_MS = 1_000


def batch(sequence: int, *, records: int = 1, producer: int = 7, epoch: int = 0) -> bytes:
    rows = [(NOW_MS, None, b"value", ())] * records
    made = build_batch(rows, producer_id=producer, producer_epoch=epoch, base_sequence=sequence)
    return bytes(made)


class Broker:
    """The producers of one log, and what was refused."""

    def __init__(self) -> None:
        self.refused, self.producers = RejectedBatches(), ProducerStateManager()
        self.end = 0

    def refuse(self, data: bytes, code: ErrorCode = NOT_LEADER, now_ms: int = NOW_MS) -> None:
        self.refused.note(WHERE, data, code, now_ms)

    def ahead_of(self, data: bytes, now_ms: int = NOW_MS) -> ErrorCode | None:
        return self.refused.predecessor_error(WHERE, data, self.producers, now_ms)

    def overtook(self, data: bytes, start_offset: int) -> bool:
        return self.refused.is_reordered(WHERE, data, self.producers, start_offset)

    def write(self, data: bytes) -> None:
        header = read_header(data)
        self.producers.note(header, self.end, NOW_MS)
        self.end += header.record_count


def test_batches_that_can_be_under_way_share_the_error_of_a_refused_one() -> None:
    broker = Broker()
    broker.refuse(batch(0, records=3), ErrorCode.not_enough_replicas)
    for sequence in range(3, 3 + BATCHES_MAX - 1):
        assert broker.ahead_of(batch(sequence)) is ErrorCode.not_enough_replicas
        broker.refuse(batch(sequence), ErrorCode.not_enough_replicas)
    # The log judges the next one: the producer does not send the refused one again.
    assert broker.ahead_of(batch(7)) is None
    assert not broker.refused


def test_the_refused_batch_is_judged_by_the_log_when_it_comes_again() -> None:
    broker = Broker()
    broker.refuse(batch(5))
    assert broker.ahead_of(batch(6)) is NOT_LEADER
    assert broker.ahead_of(batch(5)) is None
    assert broker.ahead_of(batch(6)) is None


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(batch(6, producer=8), id="producer"),
        pytest.param(batch(6, epoch=1), id="epoch"),
        pytest.param(batch(4), id="earlier"),
        pytest.param(bytes(build_batch([(NOW_MS, None, b"value", ())])), id="no producer"),
        pytest.param(b"short", id="short"),
    ],
)
def test_other_batches_are_not_behind_it(other: bytes) -> None:
    broker = Broker()
    broker.refuse(batch(5))
    assert broker.ahead_of(other) is None


def test_a_refused_batch_that_the_log_has_is_not_missing() -> None:
    """The answer to its first send was lost, and a leader before this one had written it."""
    broker = Broker()
    broker.write(batch(5))
    broker.refuse(batch(5))
    broker.refuse(batch(6))
    assert broker.ahead_of(batch(7)) is NOT_LEADER
    assert broker.ahead_of(batch(6)) is None
    broker.write(batch(6))
    assert broker.ahead_of(batch(8)) is None


def test_sequences_start_again_after_the_largest() -> None:
    broker = Broker()
    broker.refuse(batch(SEQUENCE_MAX))
    assert broker.ahead_of(batch(0)) is NOT_LEADER
    assert broker.ahead_of(batch(SEQUENCE_MAX - 1)) is None


def test_only_errors_after_which_a_batch_is_sent_again_count() -> None:
    broker = Broker()
    broker.refuse(batch(5), ErrorCode.invalid_record)
    assert broker.ahead_of(batch(6)) is None


def test_refusals_are_forgotten() -> None:
    """By their age, and the oldest first when there are too many."""
    broker = Broker()
    broker.refuse(batch(5))
    assert broker.ahead_of(batch(6), NOW_MS + REMEMBERED_MS) is NOT_LEADER
    assert broker.ahead_of(batch(6, producer=8), NOW_MS + REMEMBERED_MS + 1) is None
    assert not broker.refused


def test_the_oldest_of_too_many_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rejected_batches, "REMEMBERED_MAX", 3)
    broker = Broker()
    for producer in range(4):
        broker.refuse(batch(0, producer=producer))
    assert len(broker.refused) == 3
    assert broker.ahead_of(batch(1, producer=0)) is None
    assert broker.ahead_of(batch(1, producer=3)) is NOT_LEADER


def test_a_batch_may_overtake_others_until_its_producer_has_written_to_this_leader() -> None:
    broker = Broker()
    broker.write(batch(5))
    assert broker.overtook(batch(7), start_offset=1)
    broker.write(batch(6))
    assert not broker.overtook(batch(8), start_offset=1)


def test_a_batch_is_taken_once_for_one_that_overtook_others() -> None:
    broker = Broker()
    broker.write(batch(5))
    assert [broker.overtook(batch(7), 1) for _ in range(3)] == [True, False, False]
    assert broker.overtook(batch(9), 1)


def test_a_producer_that_the_log_does_not_know_overtakes_nothing() -> None:
    """The log takes its first batch with any sequence."""
    assert not Broker().overtook(batch(7), start_offset=0)


def test_the_oldest_of_too_many_that_overtook_others_is_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rejected_batches, "REMEMBERED_MAX", 2)
    broker = Broker()
    for producer in range(3):
        broker.write(batch(0, producer=producer))
        assert broker.overtook(batch(2, producer=producer), start_offset=3)
    assert broker.overtook(batch(2, producer=0), start_offset=3)
    assert not broker.overtook(batch(2, producer=2), start_offset=3)
