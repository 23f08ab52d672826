"""Samples of the Prometheus text that a broker serves at `/metrics`.

`prometheus_client` parses the lines. Its parser takes about 25 µs a sample, so only the lines of
the requested metrics reach it.
"""

from __future__ import annotations

import re
from functools import cache
from itertools import takewhile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from prometheus_client.samples import Sample

_ZEROS = (" 0", " 0.0")


def parse_samples(
    text: str, names: Collection[str], *, zeros: Collection[str] = ()
) -> Iterator[Sample]:
    """Yield the samples of the metrics `names`.

    Samples with the value 0 are left out, except those of the metrics `zeros`: most counters of
    an idle share partition are 0. Raises `ValueError` for a malformed line.
    """
    # Importing prometheus_client takes tens of milliseconds, which most commands do not need.
    from prometheus_client.parser import text_string_to_metric_families

    lines = make_pattern(frozenset(names)).findall(f"\n{text}")
    zero_prefixes = _make_line_starts(zeros)
    # Label values may contain the other line separators of `str.splitlines`.
    page = "\n".join(
        line
        for line in (line.rstrip("\r") for line in lines)
        if not line.endswith(_ZEROS) or line.startswith(zero_prefixes)
    )
    for family in text_string_to_metric_families(page):
        yield from family.samples


def _make_line_starts(names: Collection[str]) -> tuple[str, ...]:
    """Return the prefixes of sample lines: a name ends at its labels or at its value."""
    return tuple(f"{name}{end}" for name in names for end in ("{", " "))


@cache
def make_pattern(names: frozenset[str]) -> re.Pattern[str]:
    """Return the pattern of the lines of these metrics. Their common beginning stands before the
    alternatives, so that the search skips all other lines at once."""
    pairs = zip(min(names), max(names), strict=False)
    common = "".join(first for first, _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    rest = "|".join(sorted(re.escape(name.removeprefix(common)) for name in names))
    return re.compile(rf"\n({re.escape(common)}(?:{rest})[{{ ][^\n]*)")
