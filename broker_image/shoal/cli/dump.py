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
from shoal.cli.session import USAGE, Failed, command, new_app, warn
from shoal.cli.terminal import say
from shoal.client.client import Client
from shoal.client.cluster import TopicPartition
from shoal.client.consumer import Reset, starts
from shoal.client.fetcher import CHUNK_BYTES
from shoal.coordinator.contract import Record as StoredRecord
from shoal.coordinator.group import records as group_records
from shoal.coordinator.share import records as share_records
from shoal.metadata import records as metadata_records
from shoal.metadata.names import METADATA_TOPIC
from shoal.metadata.secret_fields import masked
from shoal.protocol.errors import WireError
from shoal.record.batch import BatchHeader, Buffer, CorruptBatch, check_crc, headers
from shoal.record.compression import Compression
from shoal.record.control import ControlType
from shoal.record.finished_offsets import FinishedOffsets
from shoal.record.records import Record, read_records

app = new_app("Print log segments and internal topics as JSON.")

Decode = Callable[[Record], dict[str, Any]]
_OFFSET_ENTRY, _TIME_ENTRY = struct.Struct(">ii"), struct.Struct(">qi")


class As(StrEnum):
    """The contents of records."""

    AUTO = "auto"
    RAW = "raw"
    OFFSETS = "offsets"
    SHARE_STATE = "share-state"
    METADATA = "metadata"


_TOPICS = {
    "__consumer_offsets": As.OFFSETS,
    "__share_group_state": As.SHARE_STATE,
    METADATA_TOPIC: As.METADATA,
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
        As, typer.Option("--as", help="Contents of the records. Default: by the topic's name.")
    ] = As.AUTO,
) -> None:
    """Print every record or every batch as a line of JSON."""
    if bool(paths) == bool(topic):
        raise Failed("give either paths of segments, or --topic to read from a broker.", USAGE)
    if topic is not None:
        await _dump_topic(client, topic, decode, batches)
        return
    files = [file for path in paths or () for file in _files(path)]
    sound = True
    with output.progress(len(files), "Dumping", prints=True) as advance:
        for file in files:
            sound &= _dump_file(file, decode, batches)
            advance(1)
    if not sound:
        raise Failed("some data is corrupt; see above.")


async def _dump_topic(client: Client, word: str, decode: As, batches: bool) -> None:
    name, _, numbers = word.partition(":")
    topic = await client.cluster.topic(name)
    indexes = [int(n) for n in numbers.split(",") if n.isdigit()]
    where = [
        TopicPartition(name, topic.partition(i).index)
        for i in indexes or range(len(topic.partitions))
    ]
    first = await starts(client.cluster, where, Reset.EARLIEST)
    ends = await starts(client.cluster, where, Reset.LATEST)
    total = sum(ends.values()) - sum(first.values())
    with output.progress(total, f"Dumping {name}", prints=True) as advance:
        for one in where:
            if first[one] == ends[one]:
                continue
            chunks = client.fetcher.range(*one, first[one], ends[one] - 1, chunk_bytes=CHUNK_BYTES)
            async for fetched in chunks:
                rows = _rows(fetched.data, _decoder(decode, name), batches)
                for row in rows:
                    _print({"partition": one.partition, **row})
                advance(fetched.next_offset - fetched.first)


def _files(path: Path) -> list[Path]:
    """Return the files to print: a file itself, or a partition directory's segments in order."""
    if path.is_dir():
        found = sorted(path.glob("*.log"))
        if not found:
            raise Failed(
                f"{path} has no log segments. Name a partition's directory, such as "
                f"{path / 'tasks-0'}.",
                USAGE,
            )
        return found
    if not path.is_file():
        raise Failed(f"{path} does not exist.", USAGE)
    if path.suffix not in (".log", ".index", ".timeindex", ".checkpoint"):
        raise Failed(f"{path} is not a .log, .index, .timeindex or .checkpoint file.", USAGE)
    return [path]


def _dump_file(path: Path, decode: As, batches: bool) -> bool:
    """Print one file; return whether it is intact."""
    try:
        if path.stat().st_size == 0:
            return True
        with path.open("rb") as file:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise Failed(f"cannot read {path}: {error.strerror}.") from None
    with data:
        if path.suffix in (".log", ".checkpoint"):
            return _dump_segment(path, data, decode, batches)
        _dump_index(path, data)
        return True


def _dump_segment(path: Path, data: mmap.mmap, decode: As, batches: bool) -> bool:
    topic = re.sub(r"-\d+(\.[0-9a-f]+-\w+)?$", "", path.resolve().parent.name)
    view = memoryview(data)
    try:
        end = 0
        for at, header in headers(view):
            end = at + header.size
            for row in _batch_rows(view, at, header, _decoder(decode, topic), batches):
                _print(row)
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
    whole = len(data) - len(data) % entry.size
    for number, (first, second) in enumerate(entry.iter_unpack(data[:whole])):
        if number and not first:
            return  # The rest is preallocated.
        if entry is _OFFSET_ENTRY:
            _print({"offset": base + first, "position": second})
        else:
            _print({"timestamp": output.when(first), "offset": base + second})


def _rows(data: Buffer, decode: Decode, batches: bool) -> Iterator[dict[str, Any]]:
    for at, header in headers(data):
        yield from _batch_rows(data, at, header, decode, batches)


def _batch_rows(
    data: Buffer, at: int, header: BatchHeader, decode: Decode, batches: bool
) -> Iterator[dict[str, Any]]:
    sound = check_crc(data, at, header)
    if batches or not sound:
        yield _header_row(at, header, sound)
        return
    for record in read_records(data, at):
        row: dict[str, Any] = {
            "offset": record.offset,
            "timestamp": output.when(record.timestamp_ms),
        }
        yield row | (_control(record) if header.is_control else decode(record))


def _header_row(at: int, header: BatchHeader, sound: bool) -> dict[str, Any]:
    try:
        compression = Compression(header.compression).name.lower()
    except ValueError:
        compression = str(header.compression)
    return {
        "base_offset": header.base_offset,
        "last_offset": header.last_offset,
        "position": at,
        "size_bytes": header.size,
        "records": header.record_count,
        "leader_epoch": header.leader_epoch,
        "compression": compression,
        "timestamp_type": header.timestamp_type.name.lower(),
        "max_timestamp": output.when(header.max_timestamp),
        "producer_id": header.producer_id,
        "producer_epoch": header.producer_epoch,
        "base_sequence": header.base_sequence,
        "transactional": header.is_transactional,
        "control": header.is_control,
        "crc": f"{header.crc:08x}",
        "crc_is_right": sound,
    }


def _control(record: Record) -> dict[str, Any]:
    number = int.from_bytes((record.key or b"")[2:4], "big")
    known = number in ControlType._value2member_map_
    return {"control": ControlType(number).name if known else number}


def _decoder(chosen: As, topic: str) -> Decode:
    if chosen is As.AUTO:
        chosen = _TOPICS.get(topic, As.RAW)
    if chosen is As.RAW and topic == METADATA_TOPIC:
        return _raw_metadata
    return {
        As.OFFSETS: _offsets,
        As.SHARE_STATE: _share_state,
        As.METADATA: _metadata,
        As.RAW: _raw,
    }[chosen]


def _raw(record: Record) -> dict[str, Any]:
    return {
        "key": output.text_or_hex(record.key),
        "value": output.text_or_hex(record.value),
        "headers": headers_as_json(record.headers),
    }


def _offsets(record: Record) -> dict[str, Any]:
    try:
        found = group_records.decode(StoredRecord(record.key or b"", record.value))
    except WireError:
        found = None
    if found is None:
        return _raw(record)
    value = found.value
    if value is not None and value.get("key_ranges"):
        value = value | {"key_ranges": [_key_range(one) for one in value["key_ranges"]]}
    return {"type": found.type.name, "key": found.key, "value": value}


def _key_range(stored: dict[str, Any]) -> dict[str, Any]:
    """Return a key range with its finished offsets as text, such as `7-9,11`."""
    try:
        finished = str(FinishedOffsets.decode(stored["finished"]))
    except ValueError:
        finished = output.text_or_hex(stored["finished"]) or ""
    return stored | {"finished": finished}


def _share_state(record: Record) -> dict[str, Any]:
    found = share_records.decode(StoredRecord(record.key or b"", record.value))
    if found is None:
        return _raw(record)
    key = {
        "group_id": found.key.group_id,
        "topic_id": found.key.topic_id,
        "partition": found.key.partition,
    }
    return {"type": found.type.name, "key": key, "value": found.value}


def _metadata(record: Record) -> dict[str, Any]:
    try:
        found = metadata_records.decode(record.value or b"")
    except WireError:
        return _raw(record)
    return {"type": found.kind, "value": masked(found)}


def _raw_metadata(record: Record) -> dict[str, Any]:
    """Return the bytes of a metadata record, unless there are secrets in it."""
    try:
        found = metadata_records.decode(record.value or b"")
    except WireError:
        return _raw(record)
    is_secret = masked(found) != found.fields
    return _raw(record) | ({"value": metadata_records.HIDDEN} if is_secret else {})


def _print(row: dict[str, Any]) -> None:
    say(json.dumps(row, default=output.plain, ensure_ascii=False))
