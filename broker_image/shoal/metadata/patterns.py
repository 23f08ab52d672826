"""Regular expressions that clients send, in RE2's syntax.

Consumers subscribe with them (KIP-848), ListTransactions filters with them (KIP-1152), and client
metrics choose clients with them (KIP-714). RE2 matches in time linear in the length of the text. So
no client stalls the broker by an expression that is slow in a backtracking engine. The library is
imported on first use.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from shoal.protocol.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from collections.abc import Iterable

#: The longest accepted expression, in characters. RE2 bounds the memory of its compiled form.
REGEX_SIZE_MAX = 4_096


class InvalidPattern(ValueError):
    """The expression is too long, or RE2 does not accept it. The argument is the reason."""


def check_pattern(regex: str) -> None:
    """Raises INVALID_REGULAR_EXPRESSION with the reason."""
    _compile_subscription(regex)


def find_matching(regex: str, names: Iterable[str]) -> frozenset[str]:
    """The names that match the whole expression."""
    pattern = _compile_subscription(regex)
    return frozenset(name for name in names if pattern.fullmatch(name) is not None)


@lru_cache(maxsize=256)
def compile_pattern(regex: str) -> Any:
    """Return the compiled expression, whose `fullmatch` takes a text. Raises `InvalidPattern`."""
    import re2

    if len(regex) > REGEX_SIZE_MAX:
        raise InvalidPattern(f"it has more than {REGEX_SIZE_MAX} characters")
    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(regex, options)
    except re2.error as error:
        reason = error.args[0] if error.args else ""
        text = reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
        raise InvalidPattern(text) from None


def _compile_subscription(regex: str) -> Any:
    try:
        return compile_pattern(regex)
    except InvalidPattern as error:
        shown = regex if len(regex) <= REGEX_SIZE_MAX else f"{regex[:40]}..."
        raise ApiError(
            ErrorCode.invalid_regular_expression,
            f"SubscribedTopicRegex `{shown}` is not a valid regular expression: {error}.",
        ) from None
