"""What a machine may lack for a test. At home such a test is skipped and says why; in CI, which has
to have all of it, that is a failure."""

from __future__ import annotations

import os
from typing import NoReturn

import pytest


def lacking(reason: str) -> NoReturn:
    """Skip this test for a reason, or fail in CI."""
    if os.environ.get("CI", "").lower() in {"", "0", "false"}:
        pytest.skip(reason)
    pytest.fail(reason)
