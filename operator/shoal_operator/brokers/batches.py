"""Splits long lists of names into requests of a bounded size."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

T = TypeVar("T")

#: Objects in one request; requests stay far below the brokers' limit of 100 MB.
BATCH_MAX = 250


def split_into_batches(names: Sequence[T]) -> Iterable[Sequence[T]]:
    """Yield the names in batches of `BATCH_MAX`."""
    for start in range(0, len(names), BATCH_MAX):
        yield names[start : start + BATCH_MAX]
