"""Times as users type them, with the errors of commands; see `shoal.client.timestamps`."""

from __future__ import annotations

from shoal.cli.session import USAGE, Failed
from shoal.client import timestamps
from shoal.client.timestamps import duration_ms as duration_ms


def timestamp(text: str, now_ms: int | None = None) -> int:
    """Return epoch milliseconds. Raises `Failed` with the text."""
    try:
        return timestamps.timestamp(text, now_ms)
    except ValueError as error:
        raise Failed(str(error), USAGE) from None
