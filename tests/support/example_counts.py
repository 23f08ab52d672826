"""How many examples Hypothesis tries: a moderate number in `make test`, ten times as many at night.

`HYPOTHESIS_PROFILE=nightly` chooses the larger number (`conftest`). Tests without a number of their
own have the profile's.
"""

from __future__ import annotations

import hypothesis

#: Examples of a test by day, unless it sets another number.
BY_DAY = 50


def scale_examples(count: int) -> int:
    """Return how many examples a test tries that tries `count` by day."""
    return count * hypothesis.settings().max_examples // BY_DAY
