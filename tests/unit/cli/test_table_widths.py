"""Which columns of a table are shortened or left out on a narrow terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st
from shoal.cli.output import GAP, SHORT_MIN, TableColumn, fit_columns, print_table

if TYPE_CHECKING:
    import pytest

NAME = TableColumn("name", 10, True)
COUNT = TableColumn("count", 5, False)
TEXT = TableColumn("text", 40, True)
LAG = TableColumn("lag", 4, False)
ALL = (NAME, COUNT, TEXT, LAG)


def test_a_table_that_fits_keeps_its_widths() -> None:
    room = 10 + 5 + 40 + 4 + 3 * GAP
    assert fit_columns(ALL, room) == {"name": 10, "count": 5, "text": 40, "lag": 4}


def test_text_is_shortened_before_a_column_is_left_out() -> None:
    assert fit_columns(ALL, 50) == {"name": 10, "count": 5, "text": 22, "lag": 4}
    least = 10 + 5 + SHORT_MIN + 4 + 3 * GAP
    assert fit_columns(ALL, least)["text"] == SHORT_MIN
    assert "lag" not in fit_columns(ALL, least - 1)


def test_the_widest_text_shrinks_most() -> None:
    columns = (NAME, TableColumn("a", 20, True), TableColumn("b", 40, True))
    assert fit_columns(columns, 10 + 20 + 24 + 2 * GAP) == {"name": 10, "a": 20, "b": 24}
    assert fit_columns(columns, 10 + 18 + 18 + 2 * GAP) == {"name": 10, "a": 18, "b": 18}


def test_expendable_columns_are_left_out_first_and_then_the_last_ones() -> None:
    assert [*fit_columns(ALL, 38, ["text", "count"])] == ["name", "count", "lag"]
    assert [*fit_columns(ALL, 20, ["text", "count"])] == ["name", "lag"]
    assert [*fit_columns(ALL, 20)] == ["name", "count"]
    assert fit_columns(ALL, 8) == {"name": 8}


@given(
    st.lists(st.tuples(st.integers(1, 90), st.booleans()), min_size=1, max_size=9),
    st.integers(1, 200),
)
def test_a_table_never_exceeds_the_terminal(widths: list[tuple[int, bool]], room: int) -> None:
    columns = [TableColumn(str(at), width, short) for at, (width, short) in enumerate(widths)]
    found = fit_columns(columns, room)
    assert next(iter(found)) == "0"
    assert sum(found.values()) + GAP * (len(found) - 1) <= room
    assert all(found[c.name] == c.width for c in columns[1:] if c.name in found and not c.shortens)


def test_nothing_is_cut_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    value = "v" * 5_000
    print_table([{"key": "k" * 3_000, "value": value, "count": 7}], ["key", "value", "count"])
    said = capsys.readouterr()
    assert "k" * 3_000 in said.out
    assert value in said.out
    assert said.err == ""
