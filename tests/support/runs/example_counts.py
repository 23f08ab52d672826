"""How many examples Hypothesis tries: a few in `make test`, which draws others in each run, and 25
times as many at night.

`HYPOTHESIS_PROFILE=nightly` chooses the larger number (`conftest`). Tests without a number of their
own have the profile's.
"""

from __future__ import annotations

import hypothesis

#: Examples of a test by day and at night, unless it has a number of its own.
BY_DAY, AT_NIGHT = 20, 500
#: The profile in which a test tries as many examples as its own number.
USUAL = 50


def scale_examples(count: int) -> int:
    """Return how many examples a test tries in this profile if it tries `count` in one of `USUAL`
    examples."""
    return max(1, count * hypothesis.settings().max_examples // USUAL)
