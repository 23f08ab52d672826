"""The seed of one run of the tests: all inputs that tests draw come from it.

Each run draws a new one, in CI too, and prints it in pytest's header and beside each failure.
`SEED=n` in the environment repeats a run's drawn inputs: those of the `seed` fixture, of Hypothesis
and of the simulations that run drawn seeds.
"""

from __future__ import annotations

import os
import secrets

#: Seeds of simulations from here on are drawn; those below are recorded.
DRAWN_FROM = 1 << 32
#: Drawn seeds that one simulation may run at most.
DRAWN_MAX = 1_000


def base_seed() -> int:
    """Return `SEED` of the environment, or a new seed of 32 bits.

    Raises `ValueError` if `SEED` is not a number.
    """
    given = os.environ.get("SEED", "")
    if not given:
        return secrets.randbelow(1 << 32)
    if not given.isdecimal():
        raise ValueError(
            f"SEED={given} is not a number. Set SEED to the number that a run printed."
        )
    return int(given)


#: This run's.
SEED = base_seed()


def drawn_seeds(count: int) -> range:
    """Return `count` seeds for a simulation, other ones for each `SEED`."""
    assert count <= DRAWN_MAX
    first = DRAWN_FROM + SEED * DRAWN_MAX
    return range(first, first + count)
