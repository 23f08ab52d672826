"""Times as users type them, with the errors of commands; see `shoal.client.queues.timestamps`."""

from __future__ import annotations

from shoal.cli.session import USAGE, CommandError
from shoal.client.queues import timestamps
from shoal.client.queues.timestamps import parse_duration_ms as parse_duration_ms


def parse_timestamp(text: str, now_ms: int | None = None) -> int:
    """Return epoch milliseconds. Raises `CommandError` with the text."""
    try:
        return timestamps.parse_timestamp(text, now_ms)
    except ValueError as error:
        raise CommandError(str(error), USAGE) from None
