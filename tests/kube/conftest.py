"""Fixtures of tests of the operator."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from kube.folder_twin import compare_calls
from shoal_operator import clock

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture(autouse=True)
def folder_twin(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the folder of `shoal up` answer each request of a test's operator, too."""
    compare_calls(tmp_path_factory.getbasetemp() / "no objects", monkeypatch)


@pytest.fixture
def pass_time(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Stop the operator's monotonic clock. Return what moves it on by milliseconds."""
    now_ms = 1_000_000
    monkeypatch.setattr(clock, "now_ms", lambda: now_ms)

    def go_on(by_ms: int) -> None:
        nonlocal now_ms
        now_ms += by_ms

    return go_on
