"""What a producer's batch must be before it may stand in a log.

The header tells nearly all, and the CRC that the header is what was sent, so records are walked
only where Kafka's rules ask for something that no header holds: a key in every record of a
compacted topic, and the oldest timestamp when message.timestamp.before.max.ms is set.
"""

from __future__ import annotations

from shoal.log.config import LogConfig
from shoal.log.errors import AppendRefused
from shoal.protocol.errors import ErrorCode
from shoal.record.batch import (
    COMPRESSION_MASK,
    CONTROL_BIT,
    HEADER_SIZE,
    LOG_APPEND_TIME_BIT,
    NO_TIMESTAMP,
    BatchHeader,
    Buffer,
    CorruptBatch,
    TimestampType,
    UnsupportedMagic,
    check_crc,
    read_header,
    seal,
)
from shoal.record.compression import Compression, compress
from shoal.record.records import records_body, spans

_LONG_MAX = 2**63 - 1
#: Bytes of the smallest record: its length, attributes, two deltas, two lengths, header count.
_RECORD_SIZE_MIN = 7


def client_batch(data: Buffer, config: LogConfig, now_ms: int) -> BatchHeader:
    """The header of the one batch that a produce request may hold for a partition.

    Raises `AppendRefused`. The batch keeps its bytes, see `stored`.
    """
    if not len(data):
        raise _invalid("a produce request holds one record batch for each partition, this has none")
    try:
        header = read_header(data)
    except UnsupportedMagic as error:
        raise _invalid(f"only batches of magic 2 are taken: {error}") from None
    except CorruptBatch as error:
        raise AppendRefused(ErrorCode.corrupt_message, f"no record batch: {error}") from None
    size = header.batch_length + 12
    if size != len(data):
        if size > len(data):
            raise AppendRefused(
                ErrorCode.corrupt_message, f"a batch of {size} bytes in {len(data)}"
            )
        raise _invalid("a produce request holds exactly one record batch for each partition")
    _check_sizes(size, config)
    if not check_crc(data, 0, header):
        raise AppendRefused(
            ErrorCode.corrupt_message, f"the batch's CRC is not {header.crc:#x} as its header says"
        )
    _check_header(header)
    _check_times(header, config, now_ms)
    if config.compact or config.message_timestamp_before_max_ms != _LONG_MAX:
        _check_records(data, header, config, now_ms)
    return header


def _check_sizes(size: int, config: LogConfig) -> None:
    if size > config.max_message_bytes:
        raise AppendRefused(
            ErrorCode.message_too_large,
            f"a batch of {size} bytes, max.message.bytes is {config.max_message_bytes}",
        )
    if size > config.segment_bytes:
        raise AppendRefused(
            ErrorCode.record_list_too_large,
            f"a batch of {size} bytes, segment.bytes is {config.segment_bytes}",
        )


def _check_header(header: BatchHeader) -> None:
    count = header.record_count
    if count <= 0 or count != header.last_offset_delta + 1:
        raise _invalid(f"{count} records over {header.last_offset_delta + 1} offsets")
    if header.attributes & CONTROL_BIT:
        raise _invalid("clients may not write control records")
    if header.producer_id >= 0 and header.base_sequence < 0:
        raise _invalid(f"sequence {header.base_sequence} of producer {header.producer_id}")
    if header.producer_id < 0 and header.is_transactional:
        raise _invalid("a transactional batch without a producer id")
    codec = header.attributes & COMPRESSION_MASK
    if codec > Compression.ZSTD:
        raise AppendRefused(
            ErrorCode.unsupported_compression_type, f"no codec has the number {codec}"
        )
    if codec == 0 and count * _RECORD_SIZE_MIN > header.size - HEADER_SIZE:
        raise _invalid(f"{count} records in {header.size - HEADER_SIZE} bytes")


def _check_times(header: BatchHeader, config: LogConfig, now_ms: int) -> None:
    if header.attributes & LOG_APPEND_TIME_BIT:
        raise AppendRefused(
            ErrorCode.invalid_timestamp, "producers may not set the timestamp type LogAppendTime"
        )
    latest = header.max_timestamp
    if (
        latest - now_ms > config.message_timestamp_after_max_ms
        and config.timestamp_type is TimestampType.CREATE_TIME
    ):
        raise _out_of_time(latest, config, now_ms)


def _check_records(data: Buffer, header: BatchHeader, config: LogConfig, now_ms: int) -> None:
    keyed = config.compact
    timed = config.timestamp_type is TimestampType.CREATE_TIME
    oldest = now_ms - config.message_timestamp_before_max_ms
    try:
        body = records_body(data, 0, header)
        for span in spans(body, header.record_count):
            if keyed and span.key_size < 0:
                raise _invalid("a record without a key, and the topic is compacted")
            timestamp = header.base_timestamp + span.timestamp_delta
            if timed and timestamp < oldest and timestamp != NO_TIMESTAMP:
                raise _out_of_time(timestamp, config, now_ms)
    except CorruptBatch as error:
        raise AppendRefused(ErrorCode.corrupt_message, str(error)) from None


def _out_of_time(timestamp: int, config: LogConfig, now_ms: int) -> AppendRefused:
    earliest = now_ms - config.message_timestamp_before_max_ms
    return AppendRefused(
        ErrorCode.invalid_timestamp,
        f"timestamp {timestamp} is not within {max(0, earliest)} and "
        f"{now_ms + config.message_timestamp_after_max_ms}, which message.timestamp.before.max.ms "
        "and message.timestamp.after.max.ms allow",
    )


def _invalid(message: str) -> AppendRefused:
    return AppendRefused(ErrorCode.invalid_record, message)


def stored(data: Buffer, header: BatchHeader, config: LogConfig) -> tuple[Buffer, BatchHeader]:
    """The batch in the topic's compression.type: the very bytes where the codec is right or
    "producer", else compressed anew. Raises `AppendRefused`."""
    target = config.compression_type
    if target == "producer" or header.attributes & CONTROL_BIT:
        return data, header
    codec = Compression.of(target)
    if codec == header.attributes & COMPRESSION_MASK:
        return data, header
    try:
        body = records_body(data, 0, header)
    except CorruptBatch as error:
        raise AppendRefused(ErrorCode.corrupt_message, str(error)) from None
    attributes = header.attributes & ~COMPRESSION_MASK | codec
    out = seal(
        header._replace(attributes=attributes), compress(codec, body, config.compression_level)
    )
    return out, read_header(out)


def follower_batch(data: Buffer, at: int, header: BatchHeader, next_offset: int) -> None:
    """A batch that a leader has validated: whole, sound, and behind what is there.

    Raises `AppendRefused`.
    """
    if not check_crc(data, at, header):
        raise AppendRefused(ErrorCode.corrupt_message, f"the CRC of the batch at byte {at}")
    if header.base_offset < next_offset:
        raise AppendRefused(
            ErrorCode.offset_out_of_range,
            f"a batch at offset {header.base_offset} behind the log's end at {next_offset}",
        )
