"""Regular expressions in subscriptions of consumers (KIP-848), in RE2's syntax as in Kafka.

RE2 matches in time linear in the length of the topic name. So a client cannot stall the broker by
an expression that is slow in a backtracking engine. The library is imported on first use.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from shoal.protocol.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from collections.abc import Iterable

#: The longest accepted expression, in characters. RE2 bounds the memory of its compiled form.
REGEX_SIZE_MAX = 4_096


def check(regex: str) -> None:
    """Raises INVALID_REGULAR_EXPRESSION with the reason."""
    _compiled(regex)


def matching(regex: str, names: Iterable[str]) -> frozenset[str]:
    """The names that match the whole expression."""
    pattern = _compiled(regex)
    return frozenset(name for name in names if pattern.fullmatch(name) is not None)


@lru_cache(maxsize=256)
def _compiled(regex: str) -> Any:
    import re2

    if len(regex) > REGEX_SIZE_MAX:
        raise _invalid(f"{regex[:40]}...", f"it has more than {REGEX_SIZE_MAX} characters")
    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(regex, options)
    except re2.error as error:
        reason = error.args[0] if error.args else ""
        text = reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
        raise _invalid(regex, text) from None


def _invalid(regex: str, reason: str) -> ApiError:
    return ApiError(
        ErrorCode.invalid_regular_expression,
        f"SubscribedTopicRegex `{regex}` is not a valid regular expression: {reason}.",
    )
