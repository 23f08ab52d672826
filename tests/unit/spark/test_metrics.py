"""Numbers in a query's progress."""

from __future__ import annotations

import json
from typing import NamedTuple

from shoal_spark import metrics


class SourceProgress(NamedTuple):
    """A source in the progress of a query."""

    latestOffset: str | None


def test_counts_in_a_querys_progress() -> None:
    offset = {"group": "g", **dict.fromkeys(metrics.NAMES, 3)}
    sources = [
        SourceProgress(json.dumps(offset)),
        SourceProgress(None),
        SourceProgress('{"topic": {"0": 5}}'),
        SourceProgress("5"),
    ]
    assert list(metrics.parse_counts(sources)) == [("g", dict.fromkeys(metrics.NAMES, 3))]
