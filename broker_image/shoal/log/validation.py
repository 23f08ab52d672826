"""Validation of a producer's batch before its append.

`validate` checks the header, the CRC and every record, and returns the batch as the log stores it.
The usual batch, valid and not compressed, is recognised in C. For all others, `validate` finds
out what is wrong or what has to change. It decompresses into a buffer of its caller, or into memory
that it frees at once. A batch that expands beyond `EXPANDED_BYTES_MAX` is refused. The error lists
invalid records (KIP-467). Batches of coordinators and of leaders are not validated
(docs/adr/0051-validate-records-on-produce.md).
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, NamedTuple

from shoal.log.errors import AppendRefused
from shoal.protocol.errors import ErrorCode
from shoal.record import batch_validation
from shoal.record.batch import (
    COMPRESSION_MASK,
    CONTROL_BIT,
    HEADER,
    HEADER_SIZE,
    LOG_APPEND_TIME_BIT,
    MAGIC,
    MAGIC_AT,
    OVERHEAD,
    RECORD_COUNT_AT,
    BatchHeader,
    Buffer,
    CorruptBatch,
    TimestampType,
    check_crc,
    read_header,
    seal,
    sign,
)
from shoal.record.compression import (
    EXPANDED_BYTES_MAX,
    Compression,
    OutputFull,
    compress,
    decompress_into,
    output_buffer,
)
from shoal.record.dedup_ids import DedupId, find_ids
from shoal.record.records import decompress_records

if TYPE_CHECKING:
    from shoal.log.config import LogConfig

_LONG_MIN, _LONG_MAX = -(2**63), 2**63 - 1
#: Record errors in one response. librdkafka batches have at most 10,000 messages by default.
RECORD_ERRORS_MAX = 10_000
#: Records that the Python walker checks in about a millisecond.
_PYTHON_RECORDS_MAX = 1_000
_NO_KEY = "This record has no key, and the topic is compacted."


class CutBatch(NamedTuple):
    """A batch as it is stored without the records at the offset deltas `left_out`."""

    left_out: frozenset[int]
    header: BatchHeader
    data: Buffer


class ValidatedBatch(NamedTuple):
    """A valid batch as it is stored. `data` are the received bytes if nothing had to change.
    `expanded_bytes` is what its compressed records expanded to, 0 without compression. `ids` are
    those of its records, None if the topic has no deduplication. `in_worker` is set if a worker
    thread validated it, because that is too long for the event loop. If records of it were known
    then, the worker has made `cut`."""

    header: BatchHeader
    data: Buffer
    expanded_bytes: int = 0
    ids: tuple[DedupId, ...] | None = None
    in_worker: bool = False
    cut: CutBatch | None = None


def is_large(data: Buffer, inline_bytes_max: int) -> bool:
    """Whether an uncompressed batch takes too long to validate on an event loop."""
    if len(data) > inline_bytes_max:
        return True
    if batch_validation.native is not None or len(data) < HEADER_SIZE:
        return False
    return int.from_bytes(data[RECORD_COUNT_AT:HEADER_SIZE], "big") > _PYTHON_RECORDS_MAX


def validate(
    data: Buffer, config: LogConfig, now_ms: int, out: memoryview | None = None
) -> ValidatedBatch:
    """Validate the one batch that a produce request may hold for a partition.

    Compressed records are expanded into `out`; `OutputFull` is raised if it is too small. Without
    `out` they may take up to `EXPANDED_BYTES_MAX` of memory. Raises `AppendRefused`.
    """
    if batch_validation.native is not None:
        size_max, before, after, keyed, create_time, keeps = config.batch_rules
        if keeps:
            fields = batch_validation.native.sound(
                data, size_max, now_ms, before, after, keyed, create_time
            )
            if fields is not None:
                return ValidatedBatch(BatchHeader._make(fields), data)
    header = _read_header(data, config)
    _check_header(header)
    raw = memoryview(data)[HEADER_SIZE:]
    codec = header.attributes & COMPRESSION_MASK
    if codec == Compression.NONE:
        validation = _check_records(raw, header, config, now_ms)
        stored = _to_stored_batch(data, header, raw, validation, config)
        return _add_ids(stored, raw, header) if config.deduplicates else stored
    with output_buffer(EXPANDED_BYTES_MAX) if out is None else nullcontext(out) as space:
        try:
            size = decompress_into(codec, raw, space)
        except OutputFull:
            if out is not None:
                raise
            raise _build_invalid_error(
                f"the records expand past {EXPANDED_BYTES_MAX} bytes"
            ) from None
        except CorruptBatch as error:
            raise _build_invalid_error(f"the records cannot be decompressed: {error}") from None
        with space[:size] as body:
            validation = _check_records(body, header, config, now_ms)
            stored = _to_stored_batch(data, header, body, validation, config)
            if config.deduplicates:
                stored = _add_ids(stored, body, header)
            return stored._replace(expanded_bytes=size)


def _add_ids(batch: ValidatedBatch, body: Buffer, header: BatchHeader) -> ValidatedBatch:
    return batch._replace(ids=find_ids(body, header.record_count))


def _read_header(data: Buffer, config: LogConfig) -> BatchHeader:
    """Return the header of a whole batch of magic 2 with valid sizes and a correct CRC."""
    if not len(data):
        raise _build_invalid_error("A partition has no record batch; produce exactly one.")
    if len(data) > MAGIC_AT and (magic := data[MAGIC_AT]) != MAGIC:
        code = ErrorCode.invalid_record if magic < MAGIC else ErrorCode.corrupt_message
        raise AppendRefused(code, f"The batch has magic {magic}; only magic 2 is supported.")
    if len(data) < HEADER_SIZE:
        raise _build_invalid_error(f"The batch has {len(data)} bytes, less than its header.")
    header = BatchHeader._make(HEADER.unpack_from(data))
    size = header.batch_length + OVERHEAD
    if size < HEADER_SIZE:
        raise AppendRefused(
            ErrorCode.corrupt_message, f"The batch has length {header.batch_length}."
        )
    if size > len(data):
        raise _build_invalid_error(f"The batch states {size} bytes, but {len(data)} were sent.")
    if size < len(data):
        raise _build_invalid_error("A partition has several record batches; produce exactly one.")
    if header.base_offset:
        raise _build_invalid_error(
            f"The batch has base offset {header.base_offset}; producers send 0."
        )
    _check_sizes(size, config)
    if not check_crc(data, 0, header):
        raise AppendRefused(
            ErrorCode.corrupt_message,
            f"The batch does not match the CRC {header.crc:#x} in its header.",
        )
    return header


def _check_sizes(size: int, config: LogConfig) -> None:
    if size > config.max_message_bytes:
        raise AppendRefused(
            ErrorCode.message_too_large,
            f"The batch has {size} bytes; max.message.bytes is {config.max_message_bytes}.",
        )
    if size > config.segment_bytes:
        raise AppendRefused(
            ErrorCode.record_list_too_large,
            f"The batch has {size} bytes; segment.bytes is {config.segment_bytes}.",
        )


def _check_header(header: BatchHeader) -> None:
    count = header.record_count
    if count <= 0 or count != header.last_offset_delta + 1:
        raise _build_invalid_error(
            f"The batch has {count} records for {header.last_offset_delta + 1} offsets."
        )
    if header.attributes & CONTROL_BIT:
        raise _build_invalid_error("Clients cannot write control records.")
    if header.producer_id >= 0 and header.base_sequence < 0:
        raise _build_invalid_error(
            f"Producer {header.producer_id} sent sequence {header.base_sequence}."
        )
    if header.producer_id < 0 and header.is_transactional:
        raise _build_invalid_error("A transactional batch needs a producer id.")
    codec = header.attributes & COMPRESSION_MASK
    if codec > Compression.ZSTD:
        raise AppendRefused(
            ErrorCode.unsupported_compression_type, f"Compression type {codec} does not exist."
        )


def _check_records(
    body: Buffer, header: BatchHeader, config: LogConfig, now_ms: int
) -> batch_validation.BatchValidation:
    """Check the records. Raises `AppendRefused` for malformed or invalid records."""
    oldest, newest = _LONG_MIN, _LONG_MAX
    if config.timestamp_type is TimestampType.CREATE_TIME:
        oldest = max(_LONG_MIN, now_ms - config.message_timestamp_before_max_ms)
        newest = min(_LONG_MAX, now_ms + config.message_timestamp_after_max_ms)
    validation = batch_validation.validate_records(
        body,
        header.record_count,
        base_timestamp=header.base_timestamp,
        oldest=oldest,
        newest=newest,
        keyed=config.compact,
        flags_max=RECORD_ERRORS_MAX,
    )
    if validation.fault:
        meaning = batch_validation.MEANINGS[batch_validation.Fault(validation.fault)]
        raise _build_invalid_error(
            f"Record {validation.record} of {header.record_count}, at byte {validation.place}, "
            f"{meaning}."
        )
    if validation.flagged:
        raise _build_records_error(validation, header.record_count, oldest, newest)
    return validation


def _build_records_error(
    validation: batch_validation.BatchValidation, count: int, oldest: int, newest: int
) -> AppendRefused:
    """Return the error that lists records without a key and timestamps out of bounds."""
    errors, late = [], False
    for index, timestamp in validation.flags:
        if timestamp is None:
            errors.append((index, _NO_KEY))
            continue
        late = True
        message = f"Timestamp {timestamp} is not within {max(0, oldest)} and {newest}."
        errors.append((index, message))
    message = f"{validation.flagged} of {count} records were refused, so none was appended."
    if late:
        message += " message.timestamp.before.max.ms and message.timestamp.after.max.ms bound the"
        message += " timestamps."
    if validation.flagged > len(errors):
        message += f" The first {len(errors)} are listed."
    code = ErrorCode.invalid_timestamp if late else ErrorCode.invalid_record
    return AppendRefused(code, message, errors)


def _build_invalid_error(message: str) -> AppendRefused:
    return AppendRefused(ErrorCode.invalid_record, message)


def _to_stored_batch(
    data: Buffer,
    header: BatchHeader,
    body: Buffer,
    validation: batch_validation.BatchValidation,
    config: LogConfig,
) -> ValidatedBatch:
    """Return the batch as it is stored: in the topic's compression.type, and under create time
    with the largest timestamp of its records in the header. The bytes stay if they fit. Raises
    `AppendRefused`."""
    attributes, latest = header.attributes, header.max_timestamp
    codec = target = attributes & COMPRESSION_MASK
    if config.compression_type != "producer":
        target = Compression.from_name(config.compression_type)
    if config.timestamp_type is TimestampType.CREATE_TIME:
        attributes &= ~LOG_APPEND_TIME_BIT
        latest = validation.max_timestamp
    if target == codec and attributes == header.attributes and latest == header.max_timestamp:
        return ValidatedBatch(header, data)
    attributes = attributes & ~COMPRESSION_MASK | target
    header = header._replace(attributes=attributes, max_timestamp=latest)
    if target == codec:
        out = bytearray(data)
        HEADER.pack_into(out, 0, *header)
        sign(out)
    else:
        out = seal(header, compress(target, body, config.compression_level))
        _check_sizes(len(out), config)
    return ValidatedBatch(read_header(out), out)


def recompress(data: Buffer, header: BatchHeader, config: LogConfig) -> tuple[Buffer, BatchHeader]:
    """Return a coordinator's batch in the topic's compression.type. Raises `AppendRefused`."""
    target = config.compression_type
    if target == "producer" or header.attributes & CONTROL_BIT:
        return data, header
    codec = Compression.from_name(target)
    if codec == header.attributes & COMPRESSION_MASK:
        return data, header
    try:
        body = decompress_records(data, 0, header)
    except CorruptBatch as error:
        raise AppendRefused(ErrorCode.corrupt_message, str(error)) from None
    attributes = header.attributes & ~COMPRESSION_MASK | codec
    out = seal(
        header._replace(attributes=attributes), compress(codec, body, config.compression_level)
    )
    return out, read_header(out)


def check_follower_batch(
    data: Buffer, position: int, header: BatchHeader, next_offset: int
) -> None:
    """Check a batch from the leader: whole, with a correct CRC, and behind the log end offset.

    Raises `AppendRefused`.
    """
    if not check_crc(data, position, header):
        raise AppendRefused(
            ErrorCode.corrupt_message, f"The batch at byte {position} has a wrong CRC."
        )
    if header.base_offset < next_offset:
        raise AppendRefused(
            ErrorCode.offset_out_of_range,
            f"The batch begins at offset {header.base_offset}, below the log end {next_offset}.",
        )
