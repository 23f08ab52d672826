"""Everything that a command prints: at a terminal, no character of others controls it.

Names of clients, groups and topics, records and errors of brokers are foreign text. An escape in
them could set a terminal's title, hide lines or type commands. So all output goes through `say` or
`Console`, which escape at the end of all paths; the linter refuses `print` in commands. Pipes and
files get the text as it is.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from typing import Any

#: Characters without a picture that text is written with: separators of lines, columns and words.
_KEPT = frozenset("\n\t\N{NO-BREAK SPACE}\N{NARROW NO-BREAK SPACE}\N{IDEOGRAPHIC SPACE}")


def make_visible(text: str) -> str:
    """Return the text with `\\uXXXX` for characters that control a terminal or are invisible.

    JSON stays the same JSON: its texts have the same escapes. Text without such characters, and
    text that was escaped, stays as it is.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in _KEPT else _escape(c) for c in text)


def say(*parts: Any, file: TextIO | None = None, end: str = "\n", flush: bool = False) -> None:
    """Print as `print` does, to standard output by default; at a terminal `make_visible` text
    only."""
    stream = sys.stdout if file is None else file
    text = " ".join(map(str, parts))
    print(make_visible(text) if stream.isatty() else text, file=stream, end=end, flush=flush)


def _escape(character: str) -> str:
    code = ord(character)
    if code < 0x10000:
        return f"\\u{code:04x}"
    high, low = divmod(code - 0x10000, 0x400)
    return f"\\u{0xD800 + high:04x}\\u{0xDC00 + low:04x}"
