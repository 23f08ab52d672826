"""Texts and bytes that stay out of logs, messages and tracebacks."""

from __future__ import annotations

_HIDDEN = "(hidden)"


class Secret(str):
    """A text whose `repr`, `str` and format are `(hidden)`; `reveal` returns it."""

    __slots__ = ()

    def __repr__(self) -> str:
        return _HIDDEN

    def __str__(self) -> str:
        return _HIDDEN

    def __format__(self, _spec: str) -> str:
        return _HIDDEN

    def reveal(self) -> str:
        return str.__str__(self)


NO_SECRET = Secret()


class SecretBytes(bytes):
    """Bytes whose `repr` and `str` are `(hidden)`."""

    __slots__ = ()

    def __repr__(self) -> str:
        return _HIDDEN

    def __str__(self) -> str:
        return _HIDDEN
