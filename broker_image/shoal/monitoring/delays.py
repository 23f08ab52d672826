"""Queues in which every record waits for its time, by the numbers of the brokers' metrics."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from shoal.client.net.cluster import TopicPartition
    from shoal.client.queues.lag import Position
    from shoal.monitoring.scrape import ShareNumbers


def is_known(
    group: str,
    positions: Iterable[Position],
    partitions: Mapping[tuple[str, TopicPartition], ShareNumbers],
) -> bool:
    """Return whether the brokers report the records of a share group by their states.

    A broker that has just started reports nothing of a share partition until it has loaded it.
    """
    return all((group, position.partition) in partitions for position in positions if position.lag)


def is_only_delayed(depth: int | None, numbers: ShareNumbers) -> bool:
    """Return whether all records of a queue are delayed or in back-off, some of them delayed."""
    return bool(depth and numbers.delayed and numbers.delayed + numbers.backing_off >= depth)


def describe(numbers: ShareNumbers, now_ms: int) -> str:
    """Return what a queue waits for in which no record can be delivered yet."""
    facts = [f"{numbers.delayed:,} {'is' if numbers.delayed == 1 else 'are'} delayed"]
    if numbers.backing_off:
        back_off = "is" if numbers.backing_off == 1 else "are"
        facts.append(f"{numbers.backing_off:,} {back_off} in retry back-off")
    reasons = " and ".join(facts)
    return f"No record can be delivered yet: {reasons}. {_describe_next_due(numbers, now_ms)}"


def _describe_next_due(numbers: ShareNumbers, now_ms: int) -> str:
    if numbers.next_due_s is None:
        return "When the next one is due is not known."
    due = datetime.fromtimestamp(numbers.next_due_s, UTC).isoformat(timespec="seconds")
    left_s = int(numbers.next_due_s - now_ms / 1000)
    if left_s <= 0:
        return "The next one is due now."
    hours, seconds_left = divmod(left_s, 3600)
    duration = (
        f"{hours} h {seconds_left // 60} min"
        if hours
        else f"{seconds_left // 60} min {seconds_left % 60} s"
    )
    return f"The next one is due at {due.replace('+00:00', 'Z')}, in {duration}."
