"""Queues in which every record waits for its time, by the numbers of the brokers' metrics."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from shoal.client.cluster import TopicPartition
    from shoal.client.lag import Position
    from shoal.client.scrape import ShareNumbers


def is_known(
    group: str,
    positions: Iterable[Position],
    partitions: Mapping[tuple[str, TopicPartition], ShareNumbers],
) -> bool:
    """Return whether the brokers report the records of a share group by their states.

    A broker that has just started reports nothing of a share partition until it has loaded it.
    """
    return all((group, one.where) in partitions for one in positions if one.lag)


def is_only_delayed(depth: int | None, numbers: ShareNumbers) -> bool:
    """Return whether all records of a queue are delayed or in back-off, some of them delayed."""
    return bool(depth and numbers.delayed and numbers.delayed + numbers.backing_off >= depth)


def describe(numbers: ShareNumbers, now_ms: int) -> str:
    """Return what a queue waits for in which no record can be delivered yet."""
    facts = [f"{numbers.delayed:,} {'is' if numbers.delayed == 1 else 'are'} delayed"]
    if numbers.backing_off:
        back_off = "is" if numbers.backing_off == 1 else "are"
        facts.append(f"{numbers.backing_off:,} {back_off} in retry back-off")
    return f"No record can be delivered yet: {' and '.join(facts)}. {_next_due(numbers, now_ms)}"


def _next_due(numbers: ShareNumbers, now_ms: int) -> str:
    if numbers.next_due_s is None:
        return "When the next one is due is not known."
    due = datetime.fromtimestamp(numbers.next_due_s, UTC).isoformat(timespec="seconds")
    left_s = int(numbers.next_due_s - now_ms / 1000)
    if left_s <= 0:
        return "The next one is due now."
    hours, rest = divmod(left_s, 3600)
    left = f"{hours} h {rest // 60} min" if hours else f"{rest // 60} min {rest % 60} s"
    return f"The next one is due at {due.replace('+00:00', 'Z')}, in {left}."
