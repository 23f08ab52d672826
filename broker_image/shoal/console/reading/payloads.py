"""Keys, values and headers as text that is safe to show.

A payload is any bytes: scripts, control characters, text that runs right to left, a broken
encoding, many megabytes. Templates escape HTML. Here control and format characters become visible,
and at most `SHOWN_BYTES_MAX` are shown.
"""

from __future__ import annotations

import json
import re
import unicodedata
from dataclasses import dataclass, replace
from typing import Self

#: Bytes of a payload on its own page. The whole payload can be downloaded.
SHOWN_BYTES_MAX = 64 << 10
#: Bytes of a payload that is formatted as JSON. A longer one is shown as text.
JSON_BYTES_MAX = 64 << 10
#: Characters of a payload in a row of a table.
PREVIEW_CHARS = 120
#: Categories of characters that are invisible or change how others are shown: control, format,
#: surrogate, private use, unassigned, and separators of words, lines and paragraphs.
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zs", "Zl", "Zp"})
#: Spaces that text is written with.
_SPACES = " \N{IDEOGRAPHIC SPACE}"
FORMATS = ("auto", "text", "json", "hex")
#: A token of valid JSON.
TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]|[^\s{}\[\],:"]+')
#: Characters of indentation. JSON that needs more, because it is deep, is shown as text.
_INDENTATION_MAX = 1 << 18


@dataclass(frozen=True, slots=True)
class RenderedPayload:
    """A payload as text. `format` is text, json, hex, empty, null or masked; `size_bytes` is all
    of it. `masked_fields` of a payload are masked. `what` names the schema that decoded it, `note`
    says why none did."""

    format: str
    text: str
    size_bytes: int
    is_cut: bool = False
    masked_fields: int = 0
    what: str = ""
    note: str = ""


class DecodedPayload(bytes):
    """A payload as JSON. `get_raw` is the payload, `what` its format and schema."""

    raw: bytes
    what: str

    def __new__(cls, text: bytes, *, raw: bytes, what: str) -> Self:
        instance = super().__new__(cls, text)
        instance.raw, instance.what = raw, what
        return instance


class UndecodedPayload(bytes):
    """A payload in the format of a schema registry that cannot be decoded; `why` is a sentence."""

    why: str

    def __new__(cls, payload: bytes, why: str) -> Self:
        instance = super().__new__(cls, payload)
        instance.why = why
        return instance


class MaskedPayload(bytes):
    """What may be shown of a payload: the whole is masked, or `fields` of its JSON are.

    `size_bytes` is the size of the payload, `why` a sentence, `what` that of a decoded payload.
    """

    fields: int
    size_bytes: int
    why: str
    what: str

    def __new__(cls, shown: bytes, payload: bytes, why: str, *, fields: int = 0) -> Self:
        instance = super().__new__(cls, shown)
        instance.fields, instance.why = fields, why
        instance.size_bytes = len(get_raw(payload))
        instance.what = payload.what if isinstance(payload, DecodedPayload) else ""
        return instance

    @property
    def is_whole(self) -> bool:
        """Whether nothing of the payload is shown."""
        return not self.fields


def get_raw(payload: bytes) -> bytes:
    """Return a payload as it is in the log, if it was decoded."""
    return payload.raw if isinstance(payload, DecodedPayload) else payload


def render_payload(payload: bytes | None, text_format: str = "auto") -> RenderedPayload:
    """Return a payload in one of `FORMATS`. Auto is JSON if it is that, else text, else hex."""
    if not payload:
        return RenderedPayload("null" if payload is None else "empty", "", 0)
    size = len(get_raw(payload))
    if isinstance(payload, MaskedPayload):
        size, description = payload.size_bytes, payload.what
        if payload.is_whole:
            return RenderedPayload("masked", payload.why, size, what=description)
        return replace(
            _render(payload, text_format),
            size_bytes=size,
            masked_fields=payload.fields,
            what=description,
        )
    if isinstance(payload, DecodedPayload):
        rendered = _render(payload if text_format in ("auto", "json") else payload.raw, text_format)
        return replace(rendered, size_bytes=size, what=payload.what)
    if isinstance(payload, UndecodedPayload):
        return replace(_render(payload, text_format), note=payload.why)
    return _render(payload, text_format)


def _render(payload: bytes, text_format: str) -> RenderedPayload:
    size, cut = len(payload), len(payload) > SHOWN_BYTES_MAX
    head = payload[:SHOWN_BYTES_MAX]
    if text_format in ("auto", "json") and size <= JSON_BYTES_MAX:
        if (text := _indent_json(payload)) is not None:
            return RenderedPayload("json", text, size)
    if text_format == "hex":
        return RenderedPayload("hex", format_hex_dump(head), size, cut)
    text = _decode(head, is_cut=cut)
    if text is None and text_format == "auto":
        return RenderedPayload("hex", format_hex_dump(head), size, cut)
    if text is None:
        text = head.decode(errors="replace")
    return RenderedPayload("text", make_visible(text), size, cut)


def preview(payload: bytes | None, chars: int = PREVIEW_CHARS) -> str:
    """Return the start of a payload in one line, or its size if it is not text."""
    if payload is None:
        return "null"
    if not payload:
        return "empty"
    head = payload[: chars * 4]
    text = _decode(head, is_cut=len(head) < len(payload))
    if text is None:
        return f"{len(payload):,} bytes: {head[:16].hex(' ')}{' …' if len(payload) > 16 else ''}"
    line = make_visible(text, lines=False)
    return line if len(line) <= chars and len(head) == len(payload) else line[: chars - 1] + "…"


def make_visible(text: str, *, lines: bool = True) -> str:
    """Replace characters that are invisible or change the direction of others.

    Control characters become their pictures (U+2400), others `\\u{…}`, such as a no-break space.
    Spaces of Latin and of East Asian text stay. `lines` keeps line feeds and tabs.
    """
    allowed = _SPACES + "\n\t" if lines else _SPACES
    return "".join(
        c if c in allowed or unicodedata.category(c) not in _HIDDEN else _make_picture(c)
        for c in text
    )


def _make_picture(character: str) -> str:
    code = ord(character)
    if code < 0x20:
        return chr(0x2400 + code)
    return "\u2421" if code == 0x7F else f"\\u{{{code:x}}}"


def format_hex_dump(data: bytes) -> str:
    """Return offset, 16 bytes in hexadecimal, and their ASCII characters, a line each."""
    return "\n".join(
        f"{offset:08x}  {row.hex(' '):<47}  "
        + "".join(chr(byte) if 0x20 <= byte < 0x7F else "." for byte in row)
        for offset in range(0, len(data), 16)
        for row in [data[offset : offset + 16]]
    )


def _decode(data: bytes, *, is_cut: bool) -> str | None:
    """Return UTF-8 text, or None. The last character may be cut off."""
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        if not (is_cut and error.start >= len(data) - 3 and error.reason.startswith("unexpected")):
            return None
        text = data[: error.start].decode()
    # A byte 0 is valid UTF-8, but almost never in a text.
    return None if "\0" in text else text


def _indent_json(payload: bytes) -> str | None:
    """Return JSON with line breaks, or None if it is not an object or array.

    The tokens stay as they are: numbers keep their digits, and objects their duplicate names.
    """
    try:
        text = payload.decode()
        if text.lstrip()[:1] not in ("{", "["):
            return None
        # Only validated. A number with many digits need not become one.
        json.loads(text, parse_int=len, parse_float=len)
    except (ValueError, RecursionError):
        return None
    out: list[str] = []
    depth = indentation = 0
    before = ""
    for token in TOKEN.findall(text):
        if token in "}]":
            depth -= 1
        if (token in "}]" and before not in ("{", "[")) or (
            token not in "}]" and before in ("{", "[", ",")
        ):
            out.append("\n" + "  " * depth)
            indentation += depth * 2
            if indentation > _INDENTATION_MAX:
                return None
        out.append(token + " " if token == ":" else token)
        depth += token in "{["
        before = token
    return make_visible("".join(out))
