"""Errors of a log: refused operations and damaged files."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shoal.protocol.errors import ErrorCode


class AppendRefused(Exception):
    """Nothing was appended. `code` is Kafka's error code, `message` a sentence for the producer.

    `record_errors` holds (index in the batch, message) of the invalid records (KIP-467).
    """

    def __init__(
        self, code: ErrorCode, message: str, record_errors: Sequence[tuple[int, str]] = ()
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.record_errors = record_errors


class OffsetOutOfRange(Exception):
    """An offset below the log start offset, or above the upper bound of the read."""

    def __init__(self, offset: int, start: int, end: int) -> None:
        super().__init__(f"offset {offset} is not within {start} to {end}")
        self.offset = offset
        self.start = start
        self.end = end


class LogOffline(Exception):
    """The log is offline after a disk failure that it could not repair."""


class CorruptLog(Exception):
    """Damage below the recovery point, which recovery must not repair automatically."""


class DirectoryInUse(Exception):
    """Another process has locked the data directory, or it belongs to another broker or cluster."""
