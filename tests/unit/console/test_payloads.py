"""Payloads of records as text that is safe to show."""

from __future__ import annotations

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from shoal.console.reading.payloads import (
    JSON_BYTES_MAX,
    SHOWN_BYTES_MAX,
    format_hex_dump,
    make_visible,
    preview,
    render_payload,
)
from shoal.console.render import render, render_prose


@pytest.mark.parametrize(
    ("payload", "format", "text"),
    [
        (None, "null", ""),
        (b"", "empty", ""),
        (b"plain", "text", "plain"),
        ("naïve ✓".encode(), "text", "naïve ✓"),
        (b'{"a":[1,{}],"b":"x"}', "json", '{\n  "a": [\n    1,\n    {}\n  ],\n  "b": "x"\n}'),
        (b"[]", "json", "[]"),
        (b"12", "text", "12"),
        (b'{"a":', "text", '{"a":'),
        (b"\xff\xfe\x00", "hex", "00000000  ff fe 00" + " " * 41 + "..."),
        (b"a\0b", "hex", "00000000  61 00 62" + " " * 41 + "a.b"),
        (b"a\x1b[2Jb\r\n", "text", "a␛[2Jb␍\n"),
        ("user\u202etxt.exe".encode(), "text", r"user\u{202e}txt.exe"),
    ],
)
def test_the_format_follows_the_bytes(payload: bytes | None, format: str, text: str) -> None:
    shown = render_payload(payload)
    assert (shown.format, shown.text) == (format, text)
    assert shown.size_bytes == len(payload or b"")


def test_json_keeps_digits_duplicates_and_escapes() -> None:
    text = r'{"n":1.00,"n":' + "9" * 6000 + r',"e":1e999,"s":"}\",\u202e"}'
    shown = render_payload(text.encode())
    assert shown.format == "json"
    assert "".join(shown.text.split()) == text


@pytest.mark.parametrize("wanted", ["text", "json"])
def test_a_chosen_format_shows_invalid_utf_8_too(wanted: str) -> None:
    assert render_payload(b"ok \xff", wanted).text == "ok \N{REPLACEMENT CHARACTER}"


def test_ten_megabytes_are_cut() -> None:
    for payload in (b"x" * 10_000_000, "é".encode() * 5_000_000, b"\xff" * 10_000_000):
        shown = render_payload(payload)
        assert shown.is_cut
        assert shown.size_bytes == 10_000_000
        assert len(shown.text) < SHOWN_BYTES_MAX * 6
        assert len(preview(payload)) <= 120


def test_a_character_that_the_cut_divides_is_left_out() -> None:
    shown = render_payload(b"x" + "é".encode() * SHOWN_BYTES_MAX)
    assert shown.format == "text"
    assert set(shown.text) == {"x", "é"}


@pytest.mark.parametrize("payload", [b"[" * JSON_BYTES_MAX, b"[" * 9_000 + b"0," * 9_000 + b"0"])
def test_deep_json_is_shown_as_text(payload: bytes) -> None:
    assert render_payload(payload).format == "text"
    closed = payload + b"]" * payload.count(b"[")
    assert len(render_payload(closed[:JSON_BYTES_MAX]).text) <= JSON_BYTES_MAX


def test_indentation_of_nested_json_is_bounded() -> None:
    deep = b"[" * 300 + b",".join([b"1"] * 20_000) + b"]" * 300
    assert render_payload(deep).format == "text"


@example("\N{NO-BREAK SPACE}".encode())
@given(st.binary(max_size=300))
def test_no_payload_shows_an_invisible_character(payload: bytes) -> None:
    for wanted in ("auto", "text", "json", "hex"):
        text = render_payload(payload, wanted).text
        assert all(c.isprintable() or c in "\n\t\u3000" for c in text), repr(text)
    assert preview(payload).replace("\u3000", "").isprintable()


@given(st.binary(max_size=100))
def test_a_dump_has_all_bytes(data: bytes) -> None:
    rows = [line[10:57] for line in format_hex_dump(data).splitlines()]
    assert bytes.fromhex("".join(rows)) == data


@given(
    st.recursive(
        st.none() | st.text() | st.integers(), lambda x: st.lists(x) | st.dictionaries(st.text(), x)
    )
)
def test_indented_json_has_the_same_value(value: object) -> None:
    text = json.dumps(value)
    shown = render_payload(text.encode())
    if shown.format == "json":
        assert json.loads(shown.text) == value


def test_templates_escape() -> None:
    assert str(render_prose("<b>`<i>`</b>")) == "&lt;b&gt;<code>&lt;i&gt;</code>&lt;/b&gt;"
    assert make_visible("a\nb", lines=False) == "a␊b"
    with pytest.raises(Exception, match="undefined"):
        render("error.html", {})
