"""Why a record was released or rejected: Shoal's extension of an acknowledgement.

Sender and broker bound a reason: its texts have at most `REASON_BYTES_MAX` bytes together, and a
request at most `REASONS_MAX` reasons of `REQUEST_BYTES_MAX` bytes. A broker keeps reasons encoded,
and decodes one only for a dead letter or for an admin. Texts are shown to people: what is not UTF-8
is replaced.
"""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING, NamedTuple

from shoal.protocol.compiler import get_uvarint, put_uvarint
from shoal.protocol.errors import WireError
from shoal.protocol.text import decode

if TYPE_CHECKING:
    Buffer = bytes | bytearray | memoryview

#: The most that a reason may hold, in bytes of UTF-8: all its texts together.
REASON_BYTES_MAX = 8 << 10
#: The same as it is sent: a byte, lengths, and an empty list of tags.
ENCODED_BYTES_MAX = REASON_BYTES_MAX + 16
#: The reasons of one request that a broker keeps. It ignores others, and applies their outcomes.
REASONS_MAX = 1_000
REQUEST_BYTES_MAX = 1 << 20
#: Bytes of a class, a code and the name of a worker; and of a message, which leaves room for the
#: stacktrace.
NAME_BYTES_MAX = 512
MESSAGE_BYTES_MAX = 2 << 10
#: Characters of a reason in a list of records.
SUMMARY_CHARACTERS_MAX = 200
#: The end of the names of a reason's headers in a dead letter, in the order of `FailureReason`.
REASON_HEADERS = ("exception.class", "exception.message", "exception.stacktrace", "code", "worker")
_CUT = " …"
#: A tagged field begins with 1 unless it is null.
_PRESENT = 1


class FailureReason(NamedTuple):
    """Why a worker gave a record back. Every text may be empty.

    `code` is the application's word or number for programs; `worker` names the process or pod.
    """

    exception_class: str = ""
    message: str = ""
    stacktrace: str = ""
    code: str = ""
    worker: str = ""

    @classmethod
    def from_exception(
        cls, error: BaseException, *, trace: bool = True, code: str = "", worker: str = ""
    ) -> FailureReason:
        """Return the reason that an exception gives, within its limits: its class as programs
        import it, its text, and with `trace` its traceback."""
        module, name = type(error).__module__, type(error).__qualname__
        name = name if module in ("builtins", "__main__") else f"{module}.{name}"
        stacktrace = "".join(traceback.format_exception(error)) if trace else ""
        return cls(name, _read_message(error), stacktrace, code, worker).fit()

    def fit(self) -> FailureReason:
        """Return the reason within its limits. The end of the stacktrace is kept, which names the
        failed line."""
        names = (cut_end(text, NAME_BYTES_MAX) for text in (self[0], *self[3:]))
        exception_class, code, worker = names
        message = cut_end(self.message, MESSAGE_BYTES_MAX)
        used = sum(len(text.encode()) for text in (exception_class, message, code, worker))
        stacktrace = cut_start(self.stacktrace, REASON_BYTES_MAX - used)
        return FailureReason(exception_class, message, stacktrace, code, worker)

    def __str__(self) -> str:
        """One line for people, such as `ValueError: the image is empty`."""
        text = ": ".join(text for text in (self.exception_class, self.message) if text)
        text = " ".join((text or self.code).split())
        if len(text) > SUMMARY_CHARACTERS_MAX:
            return text[: SUMMARY_CHARACTERS_MAX - len(_CUT)] + _CUT
        return text


def _read_message(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as broken:  # An exception of the application whose own text fails.
        return f"(its message cannot be shown: {type(broken).__name__})"


def encode_reason(reason: FailureReason) -> bytes:
    """Return the content of the tagged field."""
    out = bytearray((_PRESENT,))
    for text in reason:
        data = text.encode(errors="replace")
        put_uvarint(out, len(data) + 1)
        out += data
    out.append(0)
    return bytes(out)


def decode_reason(data: Buffer) -> FailureReason:
    """Return the reason of a tagged field. Raises `WireError` for another layout."""
    try:
        view = memoryview(data)
        if view[0] != _PRESENT:
            raise WireError("a reason is absent")
        texts, at = [], 1
        for _ in FailureReason._fields:
            size, at = get_uvarint(view, at)
            end = at + max(size - 1, 0)
            if end > len(view):
                raise WireError("a text of a reason ends early")
            texts.append(decode(view[at:end]))
            at = end
        view[at]  # The number of tags within the reason, which later versions may add.
    except (IndexError, ValueError) as error:
        raise WireError(f"a reason that does not fit its layout: {error}") from None
    return FailureReason(*texts)


def cut_end(text: str, size_bytes: int) -> str:
    """Return the beginning of a text that has at most this number of bytes."""
    encoded = text.encode(errors="replace")
    if len(encoded) <= size_bytes:
        return encoded.decode()
    return encoded[: size_bytes - len(_CUT.encode())].decode(errors="ignore") + _CUT


def cut_start(text: str, size_bytes: int) -> str:
    """Return the end of a text that has at most this number of bytes."""
    encoded = text.encode(errors="replace")
    if len(encoded) <= size_bytes:
        return encoded.decode()
    keep = max(size_bytes - len(_CUT.encode()), 0)
    return _CUT + encoded[len(encoded) - keep :].decode(errors="ignore")
