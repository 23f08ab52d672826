"""Label selectors as `kubectl get -l` takes them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

_COMMA = re.compile(r",(?![^()]*\))")
_KEY = r"(?P<key>[\w./-]+)"
_EXISTS = re.compile(rf"(?P<no>!?)\s*{_KEY}")
_EQUALS = re.compile(rf"{_KEY}\s*(?P<no>!?)={{1,2}}\s*(?P<values>[\w.-]*)")
_IN = re.compile(rf"{_KEY}\s+(?P<no>not)?in\s+\((?P<values>[\w.,\s-]*)\)")


class LabelRequirement(NamedTuple):
    """A condition on a label: it has one of the values, or any if that is None. `negated` turns it
    round, so that an object without the label matches."""

    key: str
    values: frozenset[str] | None
    negated: bool

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Return whether labels meet the condition."""
        value = labels.get(self.key)
        holds = value is not None and (self.values is None or value in self.values)
        return holds != self.negated


def parse_selector(text: str) -> tuple[LabelRequirement, ...]:
    """Return the requirements of a selector such as `app=jobs,tier in (a, b),!old`.

    Raises `ValueError` for text that is none.
    """
    return tuple(_parse_requirement(part.strip()) for part in _COMMA.split(text) if text.strip())


def _parse_requirement(text: str) -> LabelRequirement:
    for pattern in (_EXISTS, _EQUALS, _IN):
        if match := pattern.fullmatch(text):
            fields = match.groupdict()
            values = fields.get("values")
            allowed = None if values is None else frozenset(v.strip() for v in values.split(","))
            return LabelRequirement(fields["key"], allowed, bool(fields["no"]))
    raise ValueError(f"unable to parse requirement: {text!r}")
