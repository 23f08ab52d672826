"""The text of the metrics: made once for all who ask, while others have their turns."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from shoal.server.metrics import exposition
from shoal.server.metrics.exposition import Exposition
from shoal.server.metrics.registry import PART_SAMPLES, MetricRegistry, Samples, label

if TYPE_CHECKING:
    import pytest

#: Samples of one family: tens of milliseconds of text.
MANY = 20_000


class Family:
    """A family of many samples that counts how often it was asked."""

    def __init__(self) -> None:
        self.asked = 0

    def collect(self) -> Samples:
        self.asked += 1
        return ((label(n=str(n)), n) for n in range(MANY))


def make_registry(family: Family) -> MetricRegistry:
    metrics = MetricRegistry()
    metrics.add("many", "gauge", "Many samples.", family.collect)
    return metrics


def test_a_part_has_few_samples() -> None:
    parts = list(make_registry(Family()).render_parts())
    assert max(part.count("\n") for part in parts) <= PART_SAMPLES
    lines = "".join(parts).splitlines()
    assert 'many{n="19999"} 19999' in lines
    assert len([line for line in lines if line.startswith("many{")]) == MANY


def test_readers_share_a_text_and_others_have_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every machine is slow: a turn makes one part."""
    monkeypatch.setattr(exposition, "STEP_S", 0)
    family = Family()

    async def run() -> int:
        text = Exposition(make_registry(family), asyncio.get_running_loop())
        readers = [asyncio.create_task(text.render()) for _ in range(3)]
        turns = 0
        while not all(reader.done() for reader in readers):
            turns += 1
            await asyncio.sleep(0)
            readers[0].cancel()
        texts = {reader.result() for reader in readers[1:]}
        assert len(texts) == 1
        assert texts.pop().count("many{") == MANY
        assert family.asked == 1
        await text.render()
        assert family.asked == 2, "a later reader gets new numbers"
        return turns

    assert asyncio.run(run()) >= MANY / PART_SAMPLES
