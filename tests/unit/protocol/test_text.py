"""Strings that are not UTF-8 have the characters that Java gives them."""

from __future__ import annotations

import pytest
from shoal.protocol.text import decode


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"na\xc3\xafve", "naïve"),
        (b"caf\xe9", "caf\ufffd"),
        (b"\xff\xfe", "\ufffd\ufffd"),
        # A cut sequence is one character, before others and at the end.
        (b"\xe2\x82 ", "\ufffd "),
        (b"\xe2\x82", "\ufffd"),
        (b"\xf0\x9f\x98", "\ufffd"),
        (b"\xf0\x9f\xe9", "\ufffd\ufffd"),
        # An overlong sequence has no valid beginning.
        (b"\xc0\x80", "\ufffd\ufffd"),
        (b"\xe0\x80\x80", "\ufffd\ufffd\ufffd"),
        # A surrogate is one character, also a cut one. Python alone makes one of each byte.
        (b"\xed\xa0\x80", "\ufffd"),
        (b"\xed\xa0\x80\xed\xb0\x80", "\ufffd\ufffd"),
        (b"\xed\xbf", "\ufffd"),
        (b"\xed\xa0A", "\ufffdA"),
        (b"\xed\x9f\xbf\xed", "\ud7ff\ufffd"),
    ],
)
def test_java_prints_the_same(data: bytes, text: str) -> None:
    """The right sides are those of Java 17: `new String(data, StandardCharsets.UTF_8)`."""
    assert decode(data) == decode(memoryview(data)) == text
