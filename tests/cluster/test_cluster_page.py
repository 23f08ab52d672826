"""Every command of the pages about clusters, in order, prints what the page shows."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.brokers.ports import free_run
from support.pages.console import Console, steps

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize(
    "page", ["cluster.md", pytest.param("backup.md", marks=pytest.mark.nightly)]
)
def test_the_examples_of_the_page_do_what_it_states(page: str, tmp_path: Path) -> None:
    port = free_run(6)
    text = (DOCS / page).read_text()
    text = text.replace("cluster start ", f"cluster start --port {port} ")
    for number in range(3):
        text = text.replace(f"127.0.0.1:{9092 + number}", f"127.0.0.1:{port + number}")
    bootstrap = ",".join(f"127.0.0.1:{port + number}" for number in range(3))
    assert len(steps(text)) >= 12
    with Console(tmp_path, bootstrap) as console:
        try:
            console.try_page(text)
        finally:
            console.run("shoal cluster stop")
