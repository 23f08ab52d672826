"""The bearer token in a request to the metrics listener, which everybody may send."""

from __future__ import annotations

import time

from shoal.server.network.health import find_token
from support.runs.conditions import fits_cpu


def make_head(*lines: str) -> bytes:
    return "\r\n".join(["GET /metrics HTTP/1.1", *lines, "", ""]).encode()


def test_the_token_is_found() -> None:
    tokens = {
        ("Host: a", "Authorization: Bearer abc"): b"abc",
        ("authorization:bearer   abc  ",): b"abc",
        ("Authorization:\tBEARER\ta b",): b"a b",
        ("Authorization: Basic abc",): b"",
        ("Authorization: Bearer",): b"",
        ("Authorization:",): b"",
        ("X: y",): b"",
        ("Authorization: Basic abc", "Authorization: Bearer def"): b"def",
    }
    assert {lines: find_token(make_head(*lines)) for lines in tokens} == tokens


def test_no_head_takes_long() -> None:
    """A pattern with three repetitions of blanks took minutes for 8 KB, and all clients waited."""
    heads = (
        b"GET / HTTP/1.1\r\nauthorization:bearer" + b" " * 8_000 + b"\0",
        b"GET / HTTP/1.1" + b"\r\nauthorization: bearer \t" * 300,
    )
    began = time.thread_time()
    for head in heads:
        find_token(head)
    assert fits_cpu(time.thread_time() - began, 0.1)
