"""Requirements of a test that a machine may lack. Such a test is skipped with the reason on a
developer's machine, and fails in CI."""

from __future__ import annotations

import os
from typing import NoReturn

import pytest


def lacking(reason: str) -> NoReturn:
    """Skip this test with a reason, or fail in CI."""
    if os.environ.get("CI", "").lower() in {"", "0", "false"}:
        pytest.skip(reason)
    pytest.fail(reason)
