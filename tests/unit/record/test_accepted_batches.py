"""What the broker accepts, every reader reads.

Clients in C and Go write header keys that are not UTF-8, some write timestamps in nanoseconds, and
a compressed batch is opaque until somebody reads it. Behind a record that a reader takes for
corrupt, its queue would stop, or lose records. Spark's columns are in `test_spark_columns`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import example, given, settings
from shoal.cli.records import make_printer
from shoal.client.consume.consumer import Record
from shoal.console import figures
from shoal.console.reading import payloads
from shoal.coordinator.share.dead_letters import RecordSource, build_dead_letters
from shoal.coordinator.share.delivery_failure import DeadLetterRange, FailureCause
from shoal.coordinator.share.record_facts import BatchFacts, HeaderReader, compute_key_hashes
from shoal.dead_letters.records import make_redriven_headers, parse_dead_letter
from shoal.log.validation import validate
from shoal.protocol.features import KEY_HASH_MAX
from shoal.record.hashed_batches import HashedBatches
from shoal.record.key_ranges import KeyRanges
from shoal.record.records import build_batch, format_header_key, read_records
from support.attacks.accepted_batches import CONFIG, NOW_MS, Accepted, batches, build
from support.runs.example_counts import scale_examples

if TYPE_CHECKING:
    from collections.abc import Callable

ALL_KEYS = KeyRanges([(0, KEY_HASH_MAX)])
GO_CLIENT = build(
    [
        (NOW_MS, b"k", b"v", [("priority", b"1")]),
        (NOW_MS, b"k", b"v", [("h\udcff\udcfe", b"x")]),
        (1_700_000_000_000_000_000, None, None, [("\x1b[2J", None)]),
    ],
    "none",
)


def read_as_client(batch: Accepted) -> None:
    """Keys of headers keep their bytes, so that a copy of the record has them."""
    read = list(read_records(batch.data))
    for record, (timestamp_ms, key, value, headers) in zip(read, batch.records, strict=True):
        assert record[1:] == (timestamp_ms, key, value, tuple(headers))


def read_as_selection(batch: Accepted) -> None:
    found = BatchFacts(batch.data, 0, keys=True).take(1 << 20, HeaderReader(10**9, "priority"))
    assert [offset for offset, *_ in found] == list(range(len(batch.records)))
    hashes, _ = compute_key_hashes(batch.data, 0, len(batch.data))
    assert hashes == [key for _, key, *_ in found]


def read_as_key_ranges(batch: Accepted) -> None:
    hashed = HashedBatches(batch.data, 0)
    assert hashed.record_count == len(batch.records)
    selected = hashed.select(0, 1, ALL_KEYS, 1 << 20, min_one=True)
    assert list(read_records(selected.data)) == list(read_records(batch.data))


def read_as_dead_letters(batch: Accepted) -> None:
    """A record is copied whole, and the copy is a batch that the log accepts."""
    read = {record.offset: record for record in read_records(batch.data)}
    failed = DeadLetterRange(0, len(read) - 1, 5, FailureCause.LIMIT, "member")
    copies = build_dead_letters(RecordSource("g", "t", 0), [failed], read, now_ms=NOW_MS)
    written = bytes(validate(bytes(build_batch(copies)), CONFIG, NOW_MS).data)
    for letter_record in read_records(written):
        original = read[letter_record.offset]
        assert letter_record[:4] == original[:4]
        assert letter_record.headers[: len(original.headers)] == original.headers
        letter = parse_dead_letter("dlq", 0, letter_record)
        assert letter is not None
        headers = make_redriven_headers(letter, original, now_ms=NOW_MS)
        redriven = build_batch([(*original[1:4], headers)])
        validate(bytes(redriven), CONFIG, NOW_MS)


def read_as_command_line(batch: Accepted) -> None:
    """No byte of a header's name controls the terminal."""
    for record in read_records(batch.data):
        consumed = Record("t", 0, *record)
        for format in ("json", "{offset} {timestamp} {headers}"):
            line = make_printer(format)(consumed)
            assert "\x1b" not in line
            line.encode()


def read_as_console(batch: Accepted) -> None:
    for record in read_records(batch.data):
        figures.format_instant(record.timestamp_ms)
        for name, value in record.headers:
            format_header_key(name).encode()
            payloads.render_payload(value)


READERS = (
    read_as_client,
    read_as_selection,
    read_as_key_ranges,
    read_as_dead_letters,
    read_as_command_line,
    read_as_console,
)


@pytest.mark.parametrize("read", READERS, ids=lambda read: read.__name__)
@settings(max_examples=scale_examples(40))
@example(GO_CLIENT)
@given(batches)
def test_every_reader_reads_it(read: Callable[[Accepted], None], batch: Accepted) -> None:
    read(batch)
