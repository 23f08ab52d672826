"""Reasons of releases and rejections: their layout, their limits, and how long they are kept."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shoal.coordinator.share.acquisition import AcquireRequest, acquire
from shoal.coordinator.share.batches import scan
from shoal.coordinator.share.dead_letters import count_within_reasons
from shoal.coordinator.share.delivery_failure import DeadLetterRange, FailureCause, FailurePolicy
from shoal.coordinator.share.failure_reasons import (
    PARTITION_BYTES_MAX,
    FailureReasons,
    ReasonBudget,
)
from shoal.coordinator.share.settings import ShareSettings
from shoal.coordinator.share.share_partition import SharePartition
from shoal.protocol import codec, share
from shoal.protocol.api import ApiKey
from shoal.protocol.errors import ErrorCode, WireError
from shoal.protocol.reasons import (
    ENCODED_BYTES_MAX,
    REASON_BYTES_MAX,
    REASONS_MAX,
    REQUEST_BYTES_MAX,
    FailureReason,
    decode_reason,
    encode_reason,
)
from shoal.record.records import build_batch
from shoal.server.share.acknowledge import validate

ACCEPT, RELEASE, REJECT = (bytes([kind]) for kind in (1, 2, 3))
WHY = FailureReason("ValueError", "naïve", "line 7", "E42", "pod-1")
SETTINGS = ShareSettings(dead_letters=True)
ON_FAILURE = FailurePolicy(0, lambda: 0.5, dead_letters=True)
texts = st.text(alphabet=st.characters(codec=None), max_size=6_000)


def write(batches: list[dict[str, Any]]) -> memoryview:
    partition = {"partition_index": 0, "acknowledgement_batches": batches}
    topics = [{"topic_id": uuid.UUID(int=7), "partitions": [partition]}]
    body = {"group_id": "g", "member_id": "m", "topics": topics}
    return memoryview(bytes(codec.write_request(ApiKey.SHARE_ACKNOWLEDGE, 1, body)))


def release(offset: int, reason: FailureReason | None = None, delay_ms: int = -1) -> dict[str, Any]:
    return {
        "first_offset": offset,
        "last_offset": offset,
        "acknowledge_types": [2],
        "release_delay_ms": delay_ms,
        "reason": None if reason is None else reason._asdict(),
    }


def read(frame: memoryview) -> list[Any]:
    ((_, ((_, batches),)),) = share.read_acknowledge(1, frame, 0).topics
    return batches


def test_a_request_carries_reasons_and_delays() -> None:
    encoded = encode_reason(WHY)
    assert read(write([release(0, WHY), release(1, WHY, 5), release(2, None, 5), release(3)])) == [
        (0, 0, RELEASE, None, encoded),
        (1, 1, RELEASE, 5, encoded),
        (2, 2, RELEASE, 5),
        (3, 3, RELEASE),
    ]
    assert decode_reason(encoded) == WHY


@given(st.builds(FailureReason, texts, texts, texts, texts, texts))
def test_what_a_sender_fits_is_accepted(reason: FailureReason) -> None:
    fitted = reason.fit()
    encoded = encode_reason(fitted)
    assert sum(len(text.encode()) for text in fitted) <= REASON_BYTES_MAX
    assert validate([(0, 0, RELEASE, None, encoded)], version=1, is_renew=False) is None
    assert decode_reason(encoded) == fitted


@given(st.integers(0, len(encode_reason(WHY)) - 1))
def test_a_reason_that_ends_early_is_refused(size: int) -> None:
    with pytest.raises(WireError):
        decode_reason(encode_reason(WHY)[:size])


def test_text_that_is_not_utf_8_is_replaced() -> None:
    data = encode_reason(FailureReason("E", "???")).replace(b"???", b"\xff\xed\xa0")
    found = decode_reason(data)
    assert found.message.startswith("�")
    found.message.encode()


@pytest.mark.parametrize(
    ("batch", "text"),
    [
        ((0, 0, ACCEPT, None, encode_reason(WHY)), "Only a release or a rejection"),
        ((0, 1, b"\2\1", None, encode_reason(WHY)), "Only a release or a rejection"),
        ((0, 0, REJECT, None, b"\1" + bytes(ENCODED_BYTES_MAX)), f"{REASON_BYTES_MAX} bytes"),
        ((0, 0, REJECT, None, b"\1\xff\xff\xff\xff\x07x"), "ends early"),
        ((0, 0, REJECT, None, b"\x00"), "absent"),
        ((0, 0, REJECT, 5, encode_reason(WHY)), "Only a release can have a delay"),
    ],
)
def test_invalid_reasons_are_refused(batch: Any, text: str) -> None:
    refusal = validate([batch], version=1, is_renew=False)
    assert refusal is not None
    assert refusal.code is ErrorCode.invalid_request
    assert text in str(refusal.message)


@pytest.mark.parametrize(
    ("reason", "kept"),
    [
        (FailureReason("E"), REASONS_MAX),
        (large := FailureReason("E" * 8_000), REQUEST_BYTES_MAX // len(encode_reason(large))),
    ],
)
def test_a_request_has_only_so_many_reasons_and_its_outcomes_apply(
    reason: FailureReason, kept: int
) -> None:
    batches = read(write([release(i, reason) for i in range(kept + 2)]))
    assert [len(batch) for batch in batches] == [5] * kept + [3] * 2


def test_the_oldest_reasons_go_beyond_the_limit_of_a_partition() -> None:
    reasons = FailureReasons()
    for offset in range(300):
        reasons.note(offset, offset, bytes([1]) * 8_000)
        assert reasons.size_bytes <= PARTITION_BYTES_MAX
    first = next(offset for offset in range(300) if reasons.get(offset))
    assert 100 < first < 300
    assert all(reasons.get(offset) for offset in range(first, 300))
    reasons.forget(0, 300)
    assert (len(reasons), reasons.size_bytes) == (0, 0)


def test_a_reason_of_many_records_counts_once() -> None:
    reasons = FailureReasons()
    reasons.note(0, 999, b"x" * 8_000)
    assert reasons.size_bytes < 200_000
    reasons.note(500, 500, b"other")
    assert (reasons.get(499), reasons.get(500)) == (b"x" * 8_000, b"other")
    reasons.forget(0, 10**15)
    assert reasons.size_bytes == 0


def test_partitions_share_the_limit_of_the_broker() -> None:
    budget = ReasonBudget(10_000)
    one, two = FailureReasons(budget), FailureReasons(budget)
    one.note(0, 0, bytes(9_000))
    two.note(0, 0, bytes(2_000))
    assert (len(one), len(two)) == (1, 0)
    one.clear()
    two.note(0, 0, bytes(2_000))
    assert (len(two), budget.used) == (1, two.size_bytes)


def hold(records: int) -> SharePartition:
    partition = SharePartition(0)
    data = bytes(build_batch([(0, None, b"x", ())] * records, base_offset=0))
    acquire(partition, 0, AcquireRequest("m", records, records), scan(data, 0), SETTINGS, 0)
    return partition


def settle(partition: SharePartition, *batches: Any) -> None:
    outcome = partition.acknowledge(0, "m", batches, SETTINGS, ON_FAILURE)
    assert outcome.error is ErrorCode.none


def fail(partition: SharePartition, records: int) -> None:
    """Release all records with a reason, and acquire them again."""
    settle(partition, (0, records - 1, RELEASE, None, b"why"))
    data = bytes(build_batch([(0, None, b"x", ())] * records, base_offset=0))
    acquire(partition, 0, AcquireRequest("m", records, records), scan(data, 0), SETTINGS, 0)
    assert len(partition.reasons) == records


@pytest.mark.parametrize(
    "batches",
    [
        pytest.param([(0, 0, ACCEPT)], id="one record"),
        pytest.param([(0, 0, ACCEPT), (2, 2, ACCEPT)], id="a few"),
        pytest.param([(2 * i, 2 * i, ACCEPT) for i in range(60)], id="many"),
        pytest.param([(0, 1, b"\1\0")], id="a gap"),
    ],
)
def test_an_accepted_record_has_no_reason_any_more(batches: list[Any]) -> None:
    partition = hold(120)
    fail(partition, 120)
    settle(partition, *batches)
    ended = {offset for first, last, _ in batches for offset in range(first, last + 1)}
    assert {o for o in range(120) if partition.reasons.get(o) is None} == ended


def test_a_reason_stays_until_the_dead_letter_is_written() -> None:
    partition = hold(2)
    settle(partition, (0, 1, REJECT, None, b"why"))
    assert partition.reasons.get(1) == b"why"
    partition.complete_archiving(0, 0)
    assert [partition.reasons.get(0), partition.reasons.get(1)] == [None, b"why"]
    partition.advance_log_start(2)
    assert not partition.reasons


def test_a_batch_of_dead_letters_ends_before_its_reasons_are_too_large() -> None:
    ranges = [DeadLetterRange(0, 99, 1, FailureCause.LIMIT, "")]
    assert count_within_reasons(ranges, lambda _: None, 60) == 60
    assert count_within_reasons(ranges, lambda _: bytes(8 << 10), 100) == 64
    assert count_within_reasons(ranges, lambda _: bytes(1 << 20), 100) == 1
