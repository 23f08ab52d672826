"""`shoal produce`: send records from standard input or a file, one per line."""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
from collections.abc import AsyncIterator, Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, BinaryIO, NamedTuple

import typer

from shoal.cli import output
from shoal.cli.client_properties import parse_pairs
from shoal.cli.session import USAGE, CommandError, command, make_app
from shoal.cli.terminal import say
from shoal.client.blocking_calls import run_in_thread
from shoal.client.client import Client
from shoal.client.errors import ClientError
from shoal.client.produce.producer import RecordMetadata

app = make_app("Send records from standard input or a file.")

READ_BYTES = 1 << 18
#: Longest line. No broker accepts a record of this size.
LINE_BYTES_MAX = 64 << 20


class Acks(StrEnum):
    """The replicas that must store a record before it counts as produced."""

    NONE = "0"
    LEADER = "1"
    ALL = "all"


class Input(StrEnum):
    """The format of a line."""

    TEXT = "text"
    JSON = "json"


class InputRecord(NamedTuple):
    """One record to send."""

    value: bytes | None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    partition: int | None = None
    timestamp_ms: int | None = None


File = Annotated[
    Path | None,
    typer.Option("--file", help="Read lines from this file instead of standard input."),
]
KeySeparator = Annotated[
    str | None,
    typer.Option("--key-separator", "-K", help="The text between a line's key and value."),
]
Header = Annotated[
    list[str] | None,
    typer.Option("--header", "-H", metavar="NAME=VALUE", help="A header of all records."),
]
Partition = Annotated[
    int | None,
    typer.Option("--partition", "-p", help="Send to this partition. Default: by key, or in turn."),
]
InputFormat = Annotated[
    Input,
    typer.Option(help="text, or json: objects with value, key, headers, partition, timestamp."),
]
AcksOption = Annotated[
    Acks, typer.Option(help="Replicas that must store a record: 0, 1 (the leader) or all.")
]


@command(app)
async def produce(
    client: Client,
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic to send to.")],
    file: File = None,
    key: Annotated[str | None, typer.Option("--key", "-k", help="One key for all records.")] = None,
    key_separator: KeySeparator = None,
    header: Header = None,
    partition: Partition = None,
    null_marker: Annotated[
        str | None, typer.Option(help="Send a value equal to this text as null.")
    ] = None,
    input: InputFormat = Input.TEXT,
    acks: AcksOption = Acks.ALL,
    compression: Annotated[str, typer.Option(help="none, gzip, snappy, lz4 or zstd.")] = "none",
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing at the end.")] = False,
) -> None:
    """Send one record per line. An empty line is an empty record.

    shoal produce tasks -K: <<< 'order-7:{"total": 12}'
    """
    if compression not in ("none", "gzip", "snappy", "lz4", "zstd"):
        raise CommandError(
            f"--compression must be none, gzip, snappy, lz4 or zstd, not {compression!r}.", USAGE
        )
    defaults = InputRecord(None, _to_bytes(key), _parse_headers(header), partition)
    read = _make_reader(input, defaults, key_separator, null_marker)
    topic_metadata = await client.cluster.get_topic(topic)
    topic_metadata.get_partition(partition or 0)
    turn = itertools.cycle(range(len(topic_metadata.partitions)))
    producer = client.producer(
        acks={"0": 0, "1": 1, "all": -1}[acks], compression=compression, linger_ms=5
    )
    counts = _Counts()
    types = file is None and sys.stdin.isatty()
    if types and not quiet:
        say("One record per line. Press Ctrl-D to end.", file=sys.stderr)
    source, size = _open(file)
    try:
        with output.progress(size, f"Producing to {topic}", types=types) as advance:
            async for line, length in _read_lines(source):
                record = read(line)
                if record.partition is None and record.key is None:
                    record = record._replace(partition=next(turn))
                future = await producer.send(
                    topic,
                    record.value,
                    key=record.key,
                    headers=record.headers,
                    partition=record.partition,
                    timestamp_ms=record.timestamp_ms,
                )
                counts.watch(future)
                advance(length)
                if counts.error is not None:
                    break
    finally:
        await producer.close()
        if file is not None:
            source.close()
        # After Ctrl-C, too: what was sent is stored.
        if counts.error is None and not quiet:
            say(
                f"Produced {counts.stored} record{'s' * (counts.stored != 1)} to {topic}.",
                file=sys.stderr,
            )
    if counts.error is not None:
        raise CommandError(f"{counts.stored} of {counts.sent} records were stored: {counts.error}.")


class _Counts:
    """Counts sent and stored records, and keeps the first error."""

    def __init__(self) -> None:
        self.sent = self.stored = 0
        self.error: BaseException | None = None

    def watch(self, future: asyncio.Future[RecordMetadata]) -> None:
        self.sent += 1
        future.add_done_callback(self._on_done)

    def _on_done(self, future: asyncio.Future[RecordMetadata]) -> None:
        error = future.exception()
        if error is None:
            self.stored += 1
        elif self.error is None or not isinstance(self.error, ClientError):
            self.error = error


def _open(file: Path | None) -> tuple[BinaryIO, int | None]:
    """Return the input and its size, if that is known.

    The input is unbuffered. A thread may still read when Ctrl-C ends the command, and a buffered
    reader would hold a lock, for which `close` waits and the end of the interpreter aborts.
    """
    if file is None:
        return getattr(sys.stdin.buffer, "raw", sys.stdin.buffer), None
    try:
        return file.open("rb", buffering=0), file.stat().st_size
    except OSError as error:
        raise CommandError(f"cannot read {file}: {error.strerror}.", USAGE) from None


async def _read_lines(source: BinaryIO) -> AsyncIterator[tuple[bytes, int]]:
    """Yield lines without their end, and their length including it. A thread reads the input."""
    tail = b""
    while chunk := await run_in_thread(lambda: source.read(READ_BYTES)):
        *lines, tail = (tail + chunk).split(b"\n")
        if len(tail) > LINE_BYTES_MAX:
            raise CommandError(f"a line is longer than {LINE_BYTES_MAX} bytes.")
        for line in lines:
            yield line.removesuffix(b"\r"), len(line) + 1
    if tail:
        yield tail, len(tail)


def _make_reader(
    input: Input, defaults: InputRecord, separator: str | None, null_marker: str | None
) -> Callable[[bytes], InputRecord]:
    """Return the function that parses a line into a record."""
    if input is Input.JSON:
        return lambda line: _parse_json_line(line, defaults)
    mark = separator.encode() if separator else None
    null = null_marker.encode() if null_marker is not None else None

    def read(line: bytes) -> InputRecord:
        key, value = defaults.key, line
        if mark is not None:
            first, delimiter, remainder = line.partition(mark)
            if not delimiter:
                raise CommandError(
                    f"the line {line[:60].decode(errors='replace')!r} has no key: "
                    f"it does not contain {separator!r}."
                )
            key, value = first, remainder
        return defaults._replace(key=key, value=None if value == null else value)

    return read


def _parse_json_line(line: bytes, defaults: InputRecord) -> InputRecord:
    try:
        fields = json.loads(line)
    except ValueError as error:
        raise CommandError(
            f"the line {line[:60].decode(errors='replace')!r} is not JSON: {error}."
        ) from None
    if not isinstance(fields, dict):
        raise CommandError(f"the line {line[:60].decode(errors='replace')!r} is not a JSON object.")
    unknown = sorted(set(fields) - {"value", "key", "headers", "partition", "timestamp"})
    if unknown:
        raise CommandError(
            f"unknown field {unknown[0]!r}. A record has value, key, headers, partition, timestamp."
        )
    headers = fields.get("headers") or ()
    header_pairs = headers.items() if isinstance(headers, dict) else headers
    return InputRecord(
        _to_bytes(fields.get("value")),
        _to_bytes(fields["key"]) if "key" in fields else defaults.key,
        tuple((str(n), _to_bytes(v)) for n, v in header_pairs) or defaults.headers,
        fields.get("partition", defaults.partition),
        fields.get("timestamp"),
    )


def _to_bytes(value: Any) -> bytes | None:
    """Encode text as UTF-8, and other JSON values as JSON."""
    if value is None:
        return None
    return (value if isinstance(value, str) else json.dumps(value)).encode()


def _parse_headers(words: list[str] | None) -> tuple[tuple[str, bytes | None], ...]:
    try:
        return tuple((n, v.encode()) for n, v in parse_pairs(words, "--header").items())
    except ValueError as error:
        raise CommandError(f"{error}.", USAGE) from None
