"""The tests on the page about tests pass: docs/testing.md. They start brokers of their own."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.pages.console import Console, files, steps

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/testing.md").read_text()


@pytest.mark.nightly
@pytest.mark.java
def test_the_commands_of_the_page_print_what_it_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)  # It changes what the page's pytest prints.
    # The page's producer ends before better code would have paid for itself.
    monkeypatch.setenv("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
    (tmp_path / "lib").symlink_to(ROOT / "tests/compat/lib")
    with Console(tmp_path, "") as console:
        console.try_page(PAGE)


def test_the_page_runs_each_of_its_tests() -> None:
    run = {step.command.split()[-1] for step in steps(PAGE)}
    assert run == {name for name in files(PAGE) if name.startswith("test_")}
