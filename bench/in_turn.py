"""Rounds of a load that alternate between the sides of a comparison."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Protocol, TypeVar

from confluent_kafka import KafkaException
from load_checks import LoadFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from results import Figures, Results


class Side(Protocol):
    """A broker or a cluster."""

    @property
    def name(self) -> str: ...
    def start(self) -> None: ...
    def kill9(self) -> None: ...


S = TypeVar("S", bound=Side)


def in_turn(
    what: str,
    rounds: int,
    sides: Sequence[S],
    results: Results,
    load: Callable[[S], Mapping[str, Figures]],
    prepare: Callable[[S], object] = lambda _: None,
) -> None:
    """Start and prepare the sides, and run a load on each in turn; kill them at the end.

    `load` returns the figures by row. The first round warms up and does not count. If a load fails,
    the row `what` is a failed one.
    """
    side = sides[0]
    try:
        for side in sides:
            side.start()
            prepare(side)
        for number in range(-1, rounds):
            for side in sides if number % 2 == 0 else sides[::-1]:
                for row, figures in load(side).items():
                    if number >= 0:
                        results.add(row, side.name, figures)
                        print(f"{row:45} {side.name:6} {json.dumps(figures)}", flush=True)
    except (LoadFailed, KafkaException, OSError) as error:
        results.fail(what, side.name, error)
    finally:
        for side in sides:
            side.kill9()
