"""Errors by cause: invalid bytes from the peer, and refused requests.

`ErrorCode` is Kafka's table (kio generates it from Kafka's sources). Its numbers never change.
"""

from kio.schema.errors import ErrorCode

__all__ = ["ApiError", "ErrorCode", "WireError", "get_error_name", "to_error_code"]

#: An error of Kafka 4.4, after the end of kio's table.
CONTROLLER_ID_NOT_REGISTERED = 136
_NEWER = {CONTROLLER_ID_NOT_REGISTERED: "CONTROLLER_ID_NOT_REGISTERED"}


def to_error_code(code: int) -> ErrorCode:
    """Return an error of Kafka's table; UNKNOWN_SERVER_ERROR for one that is newer than kio's."""
    if not code:
        return ErrorCode.none  # In most responses, and a call of an Enum takes 0.5 µs.
    try:
        return ErrorCode(code)
    except ValueError:
        return ErrorCode.unknown_server_error


def get_error_name(code: int) -> str:
    """Return Kafka's name of an error code, or the code itself if it is newer than we are."""
    try:
        return ErrorCode(code).name.upper()
    except ValueError:
        return _NEWER.get(int(code), f"error {int(code)}")


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
