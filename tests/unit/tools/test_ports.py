"""The ports that tests choose before processes listen there."""

from __future__ import annotations

from support.brokers.ports import SHARE, free_ports, free_run


def test_ports_are_not_given_twice() -> None:
    """Nobody listens at the ports of earlier calls yet."""
    runs = [range(first, first + 3) for first in (free_run(3), free_run(3))]
    found = [*free_ports(2), *free_ports(1), *free_ports(2), *(p for run in runs for p in run)]
    assert len(set(found)) == len(found)
    assert max(found) - min(found) < SHARE
