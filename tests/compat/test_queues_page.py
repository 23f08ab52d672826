"""Every command of docs/queues.md, in its order, prints what the page says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from clusters import free_ports
from console import steps
from servers import ShoalProcess

PAGE = Path(__file__).parents[2] / "docs" / "queues.md"


def test_the_page_says_what_happens(start_broker: Callable[..., ShoalProcess]) -> None:
    broker = start_broker(metrics=f"127.0.0.1:{free_ports(1)[0]}")
    tried = steps(PAGE)
    assert len(tried) > 20
    for step in tried:
        printed = step.run(broker.bootstrap)
        assert step.matches(printed), (
            f"$ {step.command}\n--- docs/queues.md says\n{step.prints}\n--- it says\n{printed}"
        )
