"""What a log refuses, and what it finds broken."""

from __future__ import annotations

from collections.abc import Sequence

from shoal.protocol.errors import ErrorCode


class AppendRefused(Exception):
    """Nothing was appended; `code` is Kafka's, `message` a sentence for the producer.

    `record_errors` holds (index in the batch, message) of the records to blame (KIP-467).
    """

    def __init__(
        self, code: ErrorCode, message: str, record_errors: Sequence[tuple[int, str]] = ()
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.record_errors = record_errors


class OffsetOutOfRange(Exception):
    """An offset outside [log start offset, the bound of the read]."""

    def __init__(self, offset: int, start: int, end: int) -> None:
        super().__init__(f"offset {offset} is not within {start} to {end}")
        self.offset = offset
        self.start = start
        self.end = end


class LogOffline(Exception):
    """The disk failed under the log, and it could not be put right again."""


class CorruptLog(Exception):
    """Files that recovery must not repair by itself: damage below the recovery point."""


class DirectoryInUse(Exception):
    """Another broker holds the data directory, or it belongs to another broker or cluster."""
