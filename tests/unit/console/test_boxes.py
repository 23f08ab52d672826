"""The comparison of the console's screens with the stored boxes."""

from __future__ import annotations

import pytest
from support.console.console_screens import Boxes, misplaced

WANTED: Boxes = {"h1 1": [20, 60, 1260, 90], "table 1": [20, 1000, 1260, 1200]}


@pytest.mark.parametrize(
    ("found", "sentences"),
    [
        ({}, []),
        # 8 pixels and 2 %: 28 pixels at 1,000.
        ({"table 1": [20, 1028, 1260, 1232]}, []),
        (
            {"table 1": [20, 1029, 1260, 1229]},
            ["table 1 is at [20, 1029, 1260, 1229] and not at [20, 1000, 1260, 1200]"],
        ),
        (
            {"h1 1": [20, 60, 1300, 90]},
            ["h1 1 is at [20, 60, 1300, 90] and not at [20, 60, 1260, 90]"],
        ),
        ({"h2 1": [1, 2, 3, 4]}, ["h2 1 is new, at [1, 2, 3, 4]"]),
    ],
)
def test_what_is_not_in_its_place(found: Boxes, sentences: list[str]) -> None:
    assert misplaced(WANTED | found, WANTED) == sentences


def test_what_is_missing() -> None:
    assert misplaced({"h1 1": WANTED["h1 1"]}, WANTED) == ["table 1 is missing"]
