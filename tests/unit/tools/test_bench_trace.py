"""The rooms of `bench/trace_record.py`."""

from __future__ import annotations

import pytest
from record_rooms import ROOMS, Span, find_method, medians_of


@pytest.mark.parametrize("place", ROOMS.values(), ids=list(ROOMS))
def test_each_room_is_a_method_of_the_broker(place: str) -> None:
    owner, name = find_method(place)
    assert callable(vars(owner)[name])


def test_a_room_has_the_medians_of_the_records_that_visit_it() -> None:
    """One of three calls visits the second room, and nothing between two calls counts."""
    calls = [Span(-1, at, at + 50_000) for at in (0, 100_000, 200_000)]
    spans = [
        Span(0, 10_000, 12_000),
        Span(0, 20_000, 30_000),
        Span(0, 70_000, 99_000),
        Span(0, 104_000, 108_000),
        Span(0, 212_000, 214_000),
        Span(1, 213_000, 213_500),
    ]
    assert medians_of(calls, spans) == {next(iter(ROOMS)): (10, 14, 4, 1)}
