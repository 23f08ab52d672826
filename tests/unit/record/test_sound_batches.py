"""The check in C for the usual batch: it accepts only what the long way stores unchanged."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shoal.log.config import LogConfig
from shoal.log.errors import AppendRefused
from shoal.log.validation import ValidatedBatch, validate
from shoal.record import batch_validation
from shoal.record.batch import CRC_FROM, HEADER_SIZE, sign
from shoal.record.layout import FIELDS, OFFSETS
from shoal.record.records import build_batch
from support.runs.example_counts import scale_examples
from support.runs.machine import lacking

if TYPE_CHECKING:
    from collections.abc import Callable

NOW = 1_800_000_000_000
HOUR = 3_600_000
CONFIGS = [
    LogConfig(),
    LogConfig(cleanup_policy=("compact",)),
    LogConfig(message_timestamp_type="LogAppendTime"),
    LogConfig(compression_type="uncompressed"),
    LogConfig(compression_type="gzip"),
    LogConfig(max_message_bytes=150),
    LogConfig(message_timestamp_before_max_ms=HOUR, message_timestamp_after_max_ms=2**63 - 1),
]
timestamps = st.sampled_from([NOW, NOW - 2 * HOUR, NOW + 2 * HOUR, -1, 0])
records = st.tuples(
    timestamps,
    st.none() | st.binary(max_size=3),
    st.none() | st.binary(max_size=40),
    st.lists(st.tuples(st.text(max_size=2), st.none() | st.binary(max_size=2)), max_size=2),
)


@pytest.fixture(autouse=True, scope="module")
def compiled() -> None:
    if batch_validation.native is None:
        lacking("the walk is not compiled: python -m shoal.compile, with a C compiler")


def outcome(data: bytes, config: LogConfig) -> Any:
    """Return what the log stores, or the error."""
    try:
        found = validate(data, config, NOW)
    except AppendRefused as error:
        return error.code, error.message, error.record_errors
    return found.header, bytes(found.data)


def compare(data: bytes, config: LogConfig) -> bool:
    """Check that both ways come to the same result. Return whether C accepted the batch."""
    native = batch_validation.native
    assert native is not None
    rules = config.batch_rules
    sound = native.sound(data, rules.size_max, NOW, *rules[1:3], rules.keyed, rules.create_time)
    accepted = sound is not None and rules.keeps_uncompressed
    short = outcome(data, config)
    with pytest.MonkeyPatch.context() as patch:
        # The long way, with the same walk of the records.
        patch.setattr(native, "sound", lambda *_: None)
        assert outcome(data, config) == short
    if accepted:
        assert short == (tuple(sound), data)
    return accepted


def signed(data: bytearray) -> bytes:
    if len(data) > CRC_FROM:
        sign(data)
    return bytes(data)


@settings(max_examples=scale_examples(150))
@given(
    st.lists(records, min_size=1, max_size=4),
    st.sampled_from(CONFIGS),
    st.sampled_from(["none", "gzip"]),
    st.booleans(),
)
def test_whole_batches(
    given_records: list[Any], config: LogConfig, codec: str, with_producer: bool
) -> None:
    producer: dict[str, Any] = {}
    if with_producer:
        producer = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 3}
    data = build_batch(given_records, compression=codec, **producer)
    compare(bytes(data), config)


@settings(max_examples=scale_examples(300))
@given(
    st.lists(records, min_size=1, max_size=3),
    st.sampled_from(CONFIGS),
    st.lists(
        st.tuples(st.integers(0, HEADER_SIZE + 40), st.sampled_from([0, 1, 2, 0x7F, 0x80, 0xFF])),
        max_size=3,
    ),
    st.integers(-3, 3),
    st.booleans(),
)
def test_spoiled_batches(
    given_records: list[Any],
    config: LogConfig,
    changes: list[tuple[int, int]],
    cut: int,
    valid_crc: bool,
) -> None:
    data = bytearray(build_batch(given_records))
    for at, value in changes:
        data[at % len(data)] = value
    data = data[:cut] if cut < 0 else data + bytes(cut)
    compare(signed(data) if valid_crc else bytes(data), config)


@pytest.mark.parametrize("field", [name for name, _ in FIELDS])
def test_each_field_of_the_header(field: str) -> None:
    """With a valid CRC, so that the field itself decides."""
    for value in (b"\xff", b"\0", b"\x01", b"\x20"):
        data = bytearray(build_batch([(NOW, b"k", b"v", [])]))
        data[OFFSETS[field]] = value[0]
        if field != "crc":
            data = bytearray(signed(data))
        for config in CONFIGS:
            compare(bytes(data), config)


def test_a_batch_without_records() -> None:
    """Its counts agree with each other, and there is nothing to walk."""
    data = bytearray(build_batch([(NOW, b"k", b"v", [])]))[:HEADER_SIZE]
    for field, value in (("record_count", 0), ("last_offset_delta", -1), ("max_timestamp", -1)):
        size = 8 if field == "max_timestamp" else 4
        data[OFFSETS[field] : OFFSETS[field] + size] = value.to_bytes(size, "big", signed=True)
    data[OFFSETS["batch_length"] : OFFSETS["batch_length"] + 4] = (HEADER_SIZE - 12).to_bytes(4)
    assert not compare(signed(data), LogConfig())


@pytest.mark.parametrize("producer", [{}, {"producer_id": 7, "producer_epoch": 0}])
@pytest.mark.parametrize("sequence", [-1, 0])
def test_each_bit_of_the_attributes(producer: dict[str, Any], sequence: int) -> None:
    """Codec, timestamp type, transaction, control and delete horizon, and those without meaning."""
    accepted = set()
    for bit in (None, *range(16)):
        data = build_batch([(NOW, b"k", b"v", [])], base_sequence=sequence, **producer)
        if bit is not None:
            data[OFFSETS["attributes"] + 1 - bit // 8] |= 1 << bit % 8
        accepted |= {(bit, n) for n, c in enumerate(CONFIGS) if compare(signed(data), c)}
    bits = {bit for bit, config in accepted if config == 0}
    everything_but_codecs_and_control = {None, 4, 6, 7, *range(8, 16)}
    if not producer:
        assert bits == everything_but_codecs_and_control - {4}
    else:
        assert bits == (everything_but_codecs_and_control if sequence == 0 else set())


@pytest.mark.parametrize(
    "change",
    [
        lambda config: config,
        lambda config: dataclasses.replace(config, compression_type="uncompressed"),
        lambda config: dataclasses.replace(config, message_timestamp_type="LogAppendTime"),
    ],
)
def test_the_usual_batch_is_accepted(change: Callable[[LogConfig], LogConfig]) -> None:
    data = bytes(build_batch([(NOW + n, b"k", b"v", []) for n in range(3)]))
    config = change(LogConfig())
    assert compare(data, config)
    assert isinstance(validate(memoryview(data), config, NOW), ValidatedBatch)
    assert not compare(data, dataclasses.replace(config, compression_type="lz4"))
