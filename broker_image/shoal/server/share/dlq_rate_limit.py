"""Holds delivery to groups whose dead letters flood, and lets it go on when the flood has passed.

What counts as one is the group's `shoal.errors.deadletterqueue.flood.per.minute`, of the letters of
its share partitions on this broker. Members keep what they hold and may settle it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.coordinator.share.dead_letter_rate import DeadLetterRate

if TYPE_CHECKING:
    from shoal.server.broker import Broker


class DlqRateLimit:
    """The floods of one broker, by group."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._rates: dict[str, DeadLetterRate] = {}
        #: Groups that are held, with the timers that look again.
        self._limited: set[str] = set()

    def note(self, group_id: str, dead_letters: int) -> None:
        """Count dead letters of a group, and hold it if they are too many."""
        rate = self._rates.get(group_id)
        if rate is None:
            rate = self._rates[group_id] = DeadLetterRate()
        rate.note(self._broker.clock.now_ms(), dead_letters)
        limit = self._broker.share.settings(group_id).flood_per_minute
        if limit and self.is_exceeded(group_id, limit) and group_id not in self._limited:
            self._limited.add(group_id)
            self._broker.log.warning(
                "delivery to a group is held: its dead letters flood",
                group=group_id,
                dead_letters_last_minute=self.last_minute(group_id),
                limit=limit,
            )
            self._check_again(group_id)

    def is_exceeded(self, group_id: str, limit: int) -> bool:
        """Whether the group had so many dead letters in the last minute; never with limit 0."""
        return limit > 0 and self.last_minute(group_id) >= limit

    def last_minute(self, group_id: str) -> int:
        """Dead letters of the group in the last minute."""
        rate = self._rates.get(group_id)
        return 0 if rate is None else rate.total(self._broker.clock.now_ms())

    def groups(self) -> list[str]:
        """Groups that had dead letters since the start."""
        return list(self._rates)

    def _check_again(self, group_id: str) -> None:
        now_ms = self._broker.clock.now_ms()
        limit = self._broker.share.settings(group_id).flood_per_minute
        ends_ms = self._rates[group_id].ends_ms(now_ms, limit)
        if ends_ms is not None:
            self._broker.timers.at(ends_ms, lambda: self._check_again(group_id))
            return
        self._limited.discard(group_id)
        self._broker.log.info("delivery to a group goes on: the flood has passed", group=group_id)
        for leader in self._broker.share.leaders.get(group_id, {}).values():
            self._broker.share.wake(leader)
