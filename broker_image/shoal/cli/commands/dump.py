"""`shoal dump`: log segments, their indexes and internal topics as JSON, one object per line.

Reads the files of a stopped or running broker, of Shoal or of Kafka, or reads a topic from a
broker. Decodes the records of `__consumer_offsets`, `__share_group_state` and `__cluster_metadata`,
with secrets masked. Prints records of a newer release as bytes.
"""

from __future__ import annotations

import json
import mmap
import re
import struct
from collections.abc import Callable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from shoal.cli import output
from shoal.cli.records import headers_as_json
from shoal.cli.session import USAGE, CommandError, command, make_app, warn
from shoal.cli.terminal import say
from shoal.client.client import Client
from shoal.client.consume.fetcher import CHUNK_BYTES
from shoal.client.consume.start_offsets import Reset, find_start_offsets
from shoal.client.net.cluster import TopicPartition
from shoal.coordinator.contract import CoordinatorRecord as StoredRecord
from shoal.coordinator.group import records as group_records
from shoal.coordinator.share import records as share_records
from shoal.metadata import listener_configs
from shoal.metadata import records as metadata_records
from shoal.metadata.image import ConfigResourceType
from shoal.metadata.names import METADATA_TOPIC
from shoal.protocol.errors import WireError
from shoal.record.batch import BatchHeader, Buffer, CorruptBatch, check_crc, iter_headers
from shoal.record.compression import Compression
from shoal.record.control import ControlType
from shoal.record.finished_offsets import FinishedOffsets
from shoal.record.records import Record, read_records

app = make_app("Print log segments and internal topics as JSON.")

Decode = Callable[[Record], dict[str, Any]]
_OFFSET_ENTRY, _TIME_ENTRY = struct.Struct(">ii"), struct.Struct(">qi")


class RecordContents(StrEnum):
    """The contents of records."""

    AUTO = "auto"
    RAW = "raw"
    OFFSETS = "offsets"
    SHARE_STATE = "share-state"
    METADATA = "metadata"


_TOPICS = {
    "__consumer_offsets": RecordContents.OFFSETS,
    "__share_group_state": RecordContents.SHARE_STATE,
    METADATA_TOPIC: RecordContents.METADATA,
}


@command(app)
async def dump(
    client: Client,
    paths: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="PATH", help="Segments, snapshots, indexes, or partition directories."
        ),
    ] = None,
    topic: Annotated[
        str | None,
        typer.Option("--topic", "-t", metavar="TOPIC[:0,1]", help="Read a topic from a broker."),
    ] = None,
    batches: Annotated[
        bool, typer.Option("--batches", help="Print batch headers instead of records.")
    ] = False,
    decode: Annotated[
        RecordContents,
        typer.Option("--as", help="Contents of the records. Default: by the topic's name."),
    ] = RecordContents.AUTO,
) -> None:
    """Print every record or every batch as a line of JSON."""
    if bool(paths) == bool(topic):
        raise CommandError(
            "give either paths of segments, or --topic to read from a broker.", USAGE
        )
    if topic is not None:
        await _dump_topic(client, topic, decode, batches)
        return
    files = [file for path in paths or () for file in _find_files(path)]
    sound = True
    with output.progress(len(files), "Dumping", prints=True) as advance:
        for file in files:
            sound &= _dump_file(file, decode, batches)
            advance(1)
    if not sound:
        raise CommandError("some data is corrupt; see above.")


async def _dump_topic(client: Client, word: str, decode: RecordContents, batches: bool) -> None:
    name, _, numbers = word.partition(":")
    topic = await client.cluster.get_topic(name)
    indexes = [int(n) for n in numbers.split(",") if n.isdigit()]
    partitions = [
        TopicPartition(name, topic.get_partition(i).index)
        for i in indexes or range(len(topic.partitions))
    ]
    first = await find_start_offsets(client.cluster, partitions, Reset.EARLIEST)
    ends = await find_start_offsets(client.cluster, partitions, Reset.LATEST)
    total = sum(ends.values()) - sum(first.values())
    with output.progress(total, f"Dumping {name}", prints=True) as advance:
        for partition in partitions:
            if first[partition] == ends[partition]:
                continue
            chunks = client.fetcher.fetch_range(
                *partition, first[partition], ends[partition] - 1, chunk_bytes=CHUNK_BYTES
            )
            async for fetched in chunks:
                rows = _iterate_rows(fetched.data, _choose_decoder(decode, name), batches)
                for row in rows:
                    _print_row({"partition": partition.partition, **row})
                advance(fetched.next_offset - fetched.first)


def _find_files(path: Path) -> list[Path]:
    """Return the files to print: a file itself, or a partition directory's segments in order."""
    if path.is_dir():
        segments = sorted(path.glob("*.log"))
        if not segments:
            raise CommandError(
                f"{path} has no log segments. Name a partition's directory, such as "
                f"{path / 'tasks-0'}.",
                USAGE,
            )
        return segments
    if not path.is_file():
        raise CommandError(f"{path} does not exist.", USAGE)
    if path.suffix not in (".log", ".index", ".timeindex", ".checkpoint"):
        raise CommandError(f"{path} is not a .log, .index, .timeindex or .checkpoint file.", USAGE)
    return [path]


def _dump_file(path: Path, decode: RecordContents, batches: bool) -> bool:
    """Print one file; return whether it is intact."""
    try:
        if path.stat().st_size == 0:
            return True
        with path.open("rb") as file:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise CommandError(f"cannot read {path}: {error.strerror}.") from None
    with data:
        if path.suffix in (".log", ".checkpoint"):
            return _dump_segment(path, data, decode, batches)
        _dump_index(path, data)
        return True


def _dump_segment(path: Path, data: mmap.mmap, decode: RecordContents, batches: bool) -> bool:
    topic = re.sub(r"-\d+(\.[0-9a-f]+-\w+)?$", "", path.resolve().parent.name)
    view = memoryview(data)
    try:
        end = 0
        for position, header in iter_headers(view):
            end = position + header.size
            for row in _iterate_batch_rows(
                view, position, header, _choose_decoder(decode, topic), batches
            ):
                _print_row(row)
        if end < len(data) and any(view[end : end + 4096]):
            warn(f"{path}: the {len(data) - end} bytes after byte {end} are not a whole batch.")
            return False
        return True
    except CorruptBatch as error:
        warn(f"{path}: {error}.")
        return False
    finally:
        view.release()


def _dump_index(path: Path, data: mmap.mmap) -> None:
    base = int(path.stem) if path.stem.isdigit() else 0
    entry = _OFFSET_ENTRY if path.suffix == ".index" else _TIME_ENTRY
    whole_size = len(data) - len(data) % entry.size
    for number, (first, second) in enumerate(entry.iter_unpack(data[:whole_size])):
        if number and not first:
            return  # The rest is preallocated.
        if entry is _OFFSET_ENTRY:
            _print_row({"offset": base + first, "position": second})
        else:
            _print_row({"timestamp": output.format_timestamp(first), "offset": base + second})


def _iterate_rows(data: Buffer, decode: Decode, batches: bool) -> Iterator[dict[str, Any]]:
    for position, header in iter_headers(data):
        yield from _iterate_batch_rows(data, position, header, decode, batches)


def _iterate_batch_rows(
    data: Buffer, position: int, header: BatchHeader, decode: Decode, batches: bool
) -> Iterator[dict[str, Any]]:
    sound = check_crc(data, position, header)
    if batches or not sound:
        yield _make_header_row(position, header, sound)
        return
    for record in read_records(data, position):
        row: dict[str, Any] = {
            "offset": record.offset,
            "timestamp": output.format_timestamp(record.timestamp_ms),
        }
        yield row | (_decode_control(record) if header.is_control else decode(record))


def _make_header_row(position: int, header: BatchHeader, sound: bool) -> dict[str, Any]:
    try:
        compression = Compression(header.compression).name.lower()
    except ValueError:
        compression = str(header.compression)
    return {
        "base_offset": header.base_offset,
        "last_offset": header.last_offset,
        "position": position,
        "size_bytes": header.size,
        "records": header.record_count,
        "leader_epoch": header.leader_epoch,
        "compression": compression,
        "timestamp_type": header.timestamp_type.name.lower(),
        "max_timestamp": output.format_timestamp(header.max_timestamp),
        "producer_id": header.producer_id,
        "producer_epoch": header.producer_epoch,
        "base_sequence": header.base_sequence,
        "transactional": header.is_transactional,
        "control": header.is_control,
        "crc": f"{header.crc:08x}",
        "crc_is_right": sound,
    }


def _decode_control(record: Record) -> dict[str, Any]:
    number = int.from_bytes((record.key or b"")[2:4], "big")
    is_known = number in ControlType._value2member_map_
    return {"control": ControlType(number).name if is_known else number}


def _choose_decoder(chosen: RecordContents, topic: str) -> Decode:
    if chosen is RecordContents.AUTO:
        chosen = _TOPICS.get(topic, RecordContents.RAW)
    if chosen is RecordContents.RAW and topic == METADATA_TOPIC:
        return _decode_raw_metadata
    return {
        RecordContents.OFFSETS: _decode_offsets,
        RecordContents.SHARE_STATE: _decode_share_state,
        RecordContents.METADATA: _decode_metadata,
        RecordContents.RAW: _decode_raw,
    }[chosen]


def _decode_raw(record: Record) -> dict[str, Any]:
    return {
        "key": output.to_text_or_hex(record.key),
        "value": output.to_text_or_hex(record.value),
        "headers": headers_as_json(record.headers),
    }


def _decode_offsets(record: Record) -> dict[str, Any]:
    try:
        decoded = group_records.decode(StoredRecord(record.key or b"", record.value))
    except WireError:
        decoded = None
    if decoded is None:
        return _decode_raw(record)
    value = decoded.value
    if value is not None and value.get("key_ranges"):
        value = value | {
            "key_ranges": [_decode_key_range(key_range) for key_range in value["key_ranges"]]
        }
    return {"type": decoded.type.name, "key": decoded.key, "value": value}


def _decode_key_range(stored: dict[str, Any]) -> dict[str, Any]:
    """Return a key range with its finished offsets as text, such as `7-9,11`."""
    try:
        finished = str(FinishedOffsets.decode(stored["finished"]))
    except ValueError:
        finished = output.to_text_or_hex(stored["finished"]) or ""
    return stored | {"finished": finished}


def _decode_share_state(record: Record) -> dict[str, Any]:
    decoded = share_records.decode(StoredRecord(record.key or b"", record.value))
    if decoded is None:
        return _decode_raw(record)
    key = {
        "group_id": decoded.key.group_id,
        "topic_id": decoded.key.topic_id,
        "partition": decoded.key.partition,
    }
    return {"type": decoded.type.name, "key": key, "value": decoded.value}


def _decode_metadata(record: Record) -> dict[str, Any]:
    try:
        decoded = metadata_records.decode(record.value or b"")
    except WireError:
        return _decode_raw(record)
    return {"type": decoded.kind, "value": mask_secrets(decoded)}


def _decode_raw_metadata(record: Record) -> dict[str, Any]:
    """Return the bytes of a metadata record, unless there are secrets in it."""
    try:
        decoded = metadata_records.decode(record.value or b"")
    except WireError:
        return _decode_raw(record)
    is_secret = mask_secrets(decoded) != decoded.fields
    return _decode_raw(record) | ({"value": metadata_records.HIDDEN} if is_secret else {})


def _print_row(row: dict[str, Any]) -> None:
    say(json.dumps(row, default=output.to_plain, ensure_ascii=False))


def mask_secrets(record: metadata_records.MetadataRecord) -> dict[str, Any]:
    """Return the fields of a record, with `[hidden]` in place of secrets.

    Secrets are the keys and the salt of a SCRAM credential, and passwords among broker configs.
    """
    fields = record.fields
    names: tuple[str, ...] = metadata_records.SECRETS.get(record.kind, ())
    if record.kind == "ConfigRecord" and fields["resource_type"] == ConfigResourceType.BROKER:
        key = listener_configs.find_key(fields["name"])
        # A newer release may have passwords that this one does not know.
        if fields["value"] is not None and (key is None or key.sensitive):
            names = ("value",)
    return fields | dict.fromkeys(names, metadata_records.HIDDEN)
