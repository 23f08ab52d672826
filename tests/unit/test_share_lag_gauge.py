"""The lag gauge of share partitions right after an election (KIP-207)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from shoal.server.metrics.queue import lags


def partition(index: int, *, is_behind: bool) -> Any:
    return SimpleNamespace(topic="t", index=index, high_watermark=10, is_behind=is_behind)


def test_a_leader_that_is_behind_has_no_lag() -> None:
    share = SimpleNamespace(start_offset=12, complete=0)
    behind = SimpleNamespace(partition=partition(0, is_behind=True), share=share)
    current = SimpleNamespace(
        partition=partition(1, is_behind=False), share=SimpleNamespace(start_offset=4, complete=1)
    )
    service: Any = SimpleNamespace(
        leaders={"g": {0: behind, 1: current}},
        unloaded=lambda: [
            ("g", partition(2, is_behind=True), 3),
            ("g", partition(3, is_behind=False), 3),
        ],
    )
    found = {dict(labels)["partition"]: lag for labels, lag in lags(service)}
    assert found == {"1": 5, "3": 3}
