"""The quick start on a laptop, as its reader would try it: docs/quickstart/laptop.md."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from support.brokers.local_up import LocalUp
from support.pages.console import Console
from support.runs.conditions import eventually

PAGE = Path(__file__).parents[3] / "docs" / "quickstart" / "laptop.md"


@pytest.mark.nightly
def test_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The consumers and their events are looked at before the page goes on: they take seconds. By
    day, `cli/test_up.py` has the same commands."""
    for name in [name for name in os.environ if name.startswith("SHOAL_")]:
        monkeypatch.delenv(name)
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)  # The page shows pytest without options.
    before, _, after = PAGE.read_text().partition("The operator's own decision starts")
    up = LocalUp(tmp_path)
    try:
        with Console(tmp_path, "") as console:
            console.try_page(before)

            def is_done() -> bool:
                described = up.run("describe", "shareconsumer", "printers").stdout
                return bool(re.search(r" to 4: lag .* to 0: ", described, re.DOTALL))

            eventually(is_done)
            assert up.run("logs", "printers").stdout.count(" delivery 1: ") == 200
            console.try_page(after)
            assert not up.list_processes()
    finally:
        up.run("down")
