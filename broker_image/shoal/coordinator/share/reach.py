"""Where in the log the records of one fetch may lie.

A fetch that could not read all of its records would give those back that are last in the log, which
are those of quiet tenants behind a backlog.
"""

from __future__ import annotations


class Reach:
    """Up to `spans_max` spans of the log, each of `span` offsets."""

    __slots__ = ("_spans", "span", "spans_max")

    def __init__(self, span: int, spans_max: int) -> None:
        self.span, self.spans_max = max(1, span), spans_max
        self._spans: set[int] = set()

    def has(self, offset: int) -> bool:
        """Add the span of a record, and return True, unless there are too many."""
        span = offset // self.span
        if len(self._spans) >= self.spans_max and span not in self._spans:
            return False
        self._spans.add(span)
        return True
