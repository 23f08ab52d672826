"""Coverage by files of tests, for `make coverage-map` (tools/coverage_map.py).

coverage.py also measures the processes that a test starts: they read `TEST_FILE` as their context.
"""

from __future__ import annotations

import os
import sys

VARIABLE = "TEST_FILE"
#: The context of what several files of tests share.
SHARED = "shared"


def is_measuring() -> bool:
    """Return whether coverage.py measures this process."""
    if "coverage" not in sys.modules:
        return False
    import coverage

    return coverage.Coverage.current() is not None


def enter(file: str) -> None:
    """Begin the context of a file of tests, here and in the processes that it starts."""
    if file != os.environ.get(VARIABLE) and is_measuring():
        import coverage

        measuring = coverage.Coverage.current()
        assert measuring is not None
        measuring.switch_context(file)
        os.environ[VARIABLE] = file
