"""Errors by fault: what the peer's bytes did wrong, and what a request is refused with.

`ErrorCode` is Kafka's own table (kio generates it from Kafka's sources): numbers never change.
"""

from kio.schema.errors import ErrorCode

__all__ = ["ApiError", "ErrorCode", "WireError"]


class WireError(Exception):
    """The peer sent bytes that are no Kafka frame; its connection is closed."""


class ApiError(Exception):
    """A whole request is refused. Per-partition refusals are `ErrorCode` values, not exceptions.

    `message` is a sentence for the user: it names the thing and, where there is one, the remedy.
    """

    def __init__(self, code: ErrorCode, message: str | None = None) -> None:
        super().__init__(message or code.name)
        self.code = code
        self.message = message
