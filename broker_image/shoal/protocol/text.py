"""Strings on the wire, which are UTF-8, or should be.

Java replaces what is not UTF-8 and never fails, so Kafka accepts every string: the client id of a
host whose name is in Latin-1, or binary metadata of a commit. Shoal reads such strings as Java
does, so that a name has the same characters for both.
"""

from __future__ import annotations

import re

#: An encoded surrogate, of which Java makes one U+FFFD, and Python one for each byte.
_SURROGATE = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]?")


def decode(data: bytes | bytearray | memoryview) -> str:
    """Return the text of `data`, with U+FFFD for what is not UTF-8."""
    try:
        return str(data, "utf-8")
    except UnicodeDecodeError:
        return _SURROGATE.sub(b"\xff", bytes(data)).decode("utf-8", "replace")
