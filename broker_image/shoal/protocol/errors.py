"""Errors by cause: invalid bytes from the peer, and refused requests.

`ErrorCode` is Kafka's table (kio generates it from Kafka's sources). Its numbers never change.
"""

from kio.schema.errors import ErrorCode

__all__ = ["ApiError", "ErrorCode", "WireError"]


class WireError(Exception):
    """The peer sent bytes that are not a valid frame; its connection is closed."""


class ApiError(Exception):
    """A whole request is refused. Errors of single partitions are `ErrorCode` values, not
    exceptions.

    `message` is a sentence for the user: it names the object and, if there is one, the remedy.
    """

    def __init__(self, code: ErrorCode, message: str | None = None) -> None:
        super().__init__(message or code.name)
        self.code = code
        self.message = message
