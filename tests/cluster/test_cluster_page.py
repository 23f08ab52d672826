"""Every command of docs/cluster.md, in order, prints what the page shows."""

from __future__ import annotations

from pathlib import Path

from console import Console, steps
from ports import free_run

PAGE = Path(__file__).parents[2] / "docs" / "cluster.md"


def test_the_examples_of_the_page_do_what_it_states(tmp_path: Path) -> None:
    port = free_run(6)
    page = PAGE.read_text().replace("cluster start ", f"cluster start --port {port} ")
    for number in range(3):
        page = page.replace(f"127.0.0.1:{9092 + number}", f"127.0.0.1:{port + number}")
    bootstrap = ",".join(f"127.0.0.1:{port + number}" for number in range(3))
    tried = steps(page)
    assert len(tried) >= 12
    with Console(tmp_path, bootstrap) as console:
        try:
            console.try_all(tried)
        finally:
            console.run("shoal cluster stop")
