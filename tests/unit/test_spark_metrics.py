"""Numbers in a query's progress."""

from __future__ import annotations

import json
from types import SimpleNamespace

from shoal_spark import metrics


def test_counts_in_a_querys_progress() -> None:
    offset = {"group": "g", **dict.fromkeys(metrics.NAMES, 3)}
    sources = [
        SimpleNamespace(latestOffset=json.dumps(offset)),
        SimpleNamespace(latestOffset=None),
        SimpleNamespace(latestOffset='{"topic": {"0": 5}}'),
        SimpleNamespace(latestOffset="5"),
    ]
    assert list(metrics.counts(sources)) == [("g", dict.fromkeys(metrics.NAMES, 3))]
