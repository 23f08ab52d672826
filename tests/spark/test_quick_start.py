"""The commands of the quick start for Spark print what the page shows."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.pages.page_runs import try_page

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.brokers.servers import ShoalProcess

PAGE = Path(__file__).parents[2] / "docs" / "quickstart" / "spark.md"


# Spark starts slowly on a busy machine.
@pytest.mark.timeout(1200)
def test_the_commands_of_the_page_print_what_it_shows(
    start_broker: Callable[..., ShoalProcess], tmp_path: Path
) -> None:
    try_page(PAGE.read_text(), start_broker, tmp_path)
