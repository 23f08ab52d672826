"""Every command of docs/queues.md, in order, prints what the page shows."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from console import Console, steps
from ports import free_ports

if TYPE_CHECKING:
    from collections.abc import Callable

    from servers import ShoalProcess

PAGE = Path(__file__).parents[2] / "docs" / "queues.md"


def test_the_examples_of_the_page_do_what_it_states(
    start_broker: Callable[..., ShoalProcess], tmp_path: Path
) -> None:
    broker = start_broker(metrics=f"127.0.0.1:{free_ports(1)[0]}")
    tried = steps(PAGE.read_text())
    assert len(tried) > 20
    with Console(tmp_path, broker.bootstrap) as console:
        console.try_all(tried)
