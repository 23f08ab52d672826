"""When a closed segment may be copied to the object store (KIP-1241)."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from shoal.log.config import LogConfig
from shoal.tiered.retention import may_copy
from support.storage.log_material import NOW_MS
from support.storage.tiered_world import CONFIG, World

DAY_MS = 86_400_000
#: Lags in milliseconds and bytes, age of the latest record, newer bytes -> whether it is copied.
CASES = [
    (0, -1, 0, 0, True),
    (-1, 0, 0, 0, True),
    (100, 1_000, 99, 999, False),
    (100, 1_000, 100, 0, True),
    (100, 1_000, 0, 1_000, True),
    (100, -1, -1, 0, True),
    # The lags of local.retention.*: a day, and no size.
    (-1, -1, DAY_MS - 1, 1 << 40, False),
    (-1, -1, DAY_MS, 0, True),
]


@pytest.mark.parametrize(("lag_ms", "lag_bytes", "age_ms", "newer_bytes", "copied"), CASES)
def test_one_of_both_lags_is_enough(
    lag_ms: int, lag_bytes: int, age_ms: int, newer_bytes: int, copied: bool
) -> None:
    config = LogConfig(
        local_retention_ms=DAY_MS,
        local_retention_bytes=-1,
        remote_copy_lag_ms=lag_ms,
        remote_copy_lag_bytes=lag_bytes,
    )
    assert may_copy(config, NOW_MS - age_ms, newer_bytes, NOW_MS) is copied


def copied_ends(config: LogConfig, *ages_ms: int) -> list[int]:
    """Produce; return how many segments are in the store after a pass at each age of the
    records."""

    async def main() -> list[int]:
        world, counts = World(1, config=config), []
        world.produce(20)
        for age_ms in ages_ms:
            world.node.clock.ms = NOW_MS + age_ms
            await world.run_pass()
            counts.append(len(world.segment_keys()))
        return counts

    return asyncio.run(main())


def test_remote_copy_lag_ms() -> None:
    config = replace(CONFIG, remote_copy_lag_ms=1_000, local_retention_bytes=-1)
    (total,) = copied_ends(CONFIG, 0)
    assert total > 2
    assert copied_ends(config, 0, 500, 1_000) == [0, 0, total]


def test_remote_copy_lag_bytes() -> None:
    """The newest closed segments have too few bytes behind them."""
    (total,) = copied_ends(CONFIG, 0)
    config = replace(CONFIG, remote_copy_lag_ms=DAY_MS, remote_copy_lag_bytes=1_000)
    assert 0 < copied_ends(config, 0)[0] < total
