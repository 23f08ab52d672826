"""Java properties files, the format of Kafka's configuration files."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Environment variables with client properties start with this: SHOAL_CLIENT_SASL_PASSWORD.
CLIENT_PREFIX = "SHOAL_CLIENT_"
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def parse_properties(text: str) -> Iterator[tuple[str, str]]:
    """Yield the names and values of a Java properties file."""
    joined_text = re.sub(r"(?<!\\)((?:\\\\)*)\\\r?\n[ \t\f]*", r"\1", text)
    for line in joined_text.splitlines():
        line = line.lstrip(" \t\f")
        if not line or line[0] in "#!":
            continue
        match = re.match(r"((?:\\.|[^\\=: \t\f])*)[ \t\f]*[=: \t\f]?[ \t\f]*(.*)", line, re.DOTALL)
        assert match is not None
        yield _unescape(match[1]), _unescape(match[2]).rstrip()


def _unescape(text: str) -> str:
    def unescape_match(match: re.Match[str]) -> str:
        code = match[1]
        return chr(int(code[1:], 16)) if len(code) == 5 else _ESCAPES.get(code, code)

    return re.sub(r"\\(u[0-9a-fA-F]{4}|.)", unescape_match, text)
