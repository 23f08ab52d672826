"""`docs/compat.md` matches the table of handlers. Tests of the other pages that `make docs` makes
are beside those of the configs and of the custom resources."""

from __future__ import annotations

from pathlib import Path

import compat_page

ROOT = Path(__file__).parents[2]


def test_the_page_of_apis_is_made_of_the_table_of_handlers() -> None:
    assert (ROOT / "docs" / "compat.md").read_text() == compat_page.page(), "make docs"
