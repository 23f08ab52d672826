"""Records as text: bare values, JSON lines, or a template."""

from __future__ import annotations

import json
import string
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import typer

from shoal.cli.output import format_timestamp, to_text_or_hex
from shoal.cli.session import USAGE, CommandError
from shoal.client.consume.consumer import Record
from shoal.client.share.member import SharedRecord
from shoal.record.records import RecordHeaders, encode_header_key

FIELDS = (
    "topic",
    "partition",
    "offset",
    "timestamp",
    "key",
    "value",
    "headers",
    "delivery_count",
)
RecordFormat = Annotated[
    str,
    typer.Option(
        "--format",
        "-o",
        "-f",
        metavar="text|json|TEMPLATE",
        help="text, json, or a template such as '{partition}@{offset} {key}: {value}'.",
    ),
]
AnyRecord = Record | SharedRecord


def make_printer(format: str) -> Callable[[AnyRecord], str]:
    """Return the function that formats a record. Raises `CommandError` for an invalid template."""
    if format == "json":
        return lambda record: json.dumps(as_json(record), ensure_ascii=False)
    if format == "text":
        return lambda record: to_text_or_hex(record.value) or ""
    try:
        names = [name for _, name, _, _ in string.Formatter().parse(format) if name is not None]
    except ValueError as error:
        raise CommandError(f"--format {format!r}: {error}.", USAGE) from None
    unknown = [name for name in names if name not in FIELDS]
    if unknown or not names:
        is_offset = format.lstrip("-").isdigit()
        raise CommandError(
            f"--format must be text, json or a template, not {format!r}. A template has fields "
            f"in braces: {', '.join(FIELDS)}." + " An offset needs --offset." * is_offset,
            USAGE,
        )
    template = format.replace("\\t", "\t").replace("\\n", "\n")
    return lambda record: template.format_map(_as_text(record))


def as_json(record: AnyRecord) -> dict[str, Any]:
    """Return the record with key and value as text, or as `0x…` if they are not text."""
    fields = record._asdict()
    fields["timestamp"] = fields.pop("timestamp_ms")
    fields["key"], fields["value"] = to_text_or_hex(record.key), to_text_or_hex(record.value)
    fields["headers"] = headers_as_json(record.headers)
    return fields


def headers_as_json(headers: RecordHeaders) -> list[list[str | None]]:
    """Return the keys and values of headers as text, or as `0x…` if they are not text."""
    return [
        [to_text_or_hex(encode_header_key(name)), to_text_or_hex(value)] for name, value in headers
    ]


def _as_text(record: AnyRecord) -> Mapping[str, Any]:
    fields = record._asdict()
    fields["timestamp"] = format_timestamp(record.timestamp_ms) or "-"
    fields["key"] = _format_text(record.key)
    fields["value"] = _format_text(record.value)
    fields["headers"] = ",".join(
        f"{_format_text(encode_header_key(name))}={_format_text(value)}"
        for name, value in record.headers
    )
    fields.setdefault("delivery_count", 1)
    return fields


def _format_text(value: bytes | None) -> str:
    return "null" if value is None else str(to_text_or_hex(value))
