"""Records as text: bare values, JSON lines, or a template."""

from __future__ import annotations

import json
import string
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import typer

from shoal.cli.output import text_or_hex, when
from shoal.cli.session import USAGE, Failed
from shoal.client.consumer import ConsumedRecord
from shoal.client.share import SharedRecord
from shoal.record.records import RecordHeaders, header_bytes

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
AnyRecord = ConsumedRecord | SharedRecord


def printer(format: str) -> Callable[[AnyRecord], str]:
    """Return the function that formats a record. Raises `Failed` for an invalid template."""
    if format == "json":
        return lambda record: json.dumps(as_json(record), ensure_ascii=False)
    if format == "text":
        return lambda record: text_or_hex(record.value) or ""
    try:
        names = [name for _, name, _, _ in string.Formatter().parse(format) if name is not None]
    except ValueError as error:
        raise Failed(f"--format {format!r}: {error}.", USAGE) from None
    unknown = [name for name in names if name not in FIELDS]
    if unknown or not names:
        is_offset = format.lstrip("-").isdigit()
        raise Failed(
            f"--format must be text, json or a template, not {format!r}. A template has fields "
            f"in braces: {', '.join(FIELDS)}." + " An offset needs --offset." * is_offset,
            USAGE,
        )
    template = format.replace("\\t", "\t").replace("\\n", "\n")
    return lambda record: template.format_map(_as_text(record))


def as_json(record: AnyRecord) -> dict[str, Any]:
    """Return the record with key and value as text, or as `0x…` if they are not text."""
    found = record._asdict()
    found["timestamp"] = found.pop("timestamp_ms")
    found["key"], found["value"] = text_or_hex(record.key), text_or_hex(record.value)
    found["headers"] = headers_as_json(record.headers)
    return found


def headers_as_json(headers: RecordHeaders) -> list[list[str | None]]:
    """Return the keys and values of headers as text, or as `0x…` if they are not text."""
    return [[text_or_hex(header_bytes(name)), text_or_hex(value)] for name, value in headers]


def _as_text(record: AnyRecord) -> Mapping[str, Any]:
    found = record._asdict()
    found["timestamp"] = when(record.timestamp_ms) or "-"
    found["key"] = _text(record.key)
    found["value"] = _text(record.value)
    found["headers"] = ",".join(
        f"{_text(header_bytes(name))}={_text(value)}" for name, value in record.headers
    )
    found.setdefault("delivery_count", 1)
    return found


def _text(value: bytes | None) -> str:
    return "null" if value is None else str(text_or_hex(value))
