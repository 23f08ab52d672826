"""Stops delivery to groups with too many dead letters, and resumes it later.

The limit is the group's `shoal.errors.deadletterqueue.flood.per.minute`. It counts the dead letters
of the group's share partitions on this broker. Members keep their records and may settle them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.coordinator.share.dead_letter_rate import DeadLetterRate

if TYPE_CHECKING:
    from collections.abc import Callable

    from shoal.server.node import Node
    from shoal.server.share.group_settings import ShareGroupSettings


class DlqRateLimit:
    """The rates of one broker's groups, and the groups whose delivery is stopped."""

    def __init__(
        self, node: Node, settings: ShareGroupSettings, resume: Callable[[str], None]
    ) -> None:
        """`resume` is called with a group whose rate has fallen below its limit."""
        self._node = node
        self._settings = settings
        self._resume = resume
        self._rates: dict[str, DeadLetterRate] = {}
        #: Groups whose delivery is stopped; a timer checks each of them.
        self._stopped: set[str] = set()

    def note(self, group_id: str, dead_letters: int) -> None:
        """Count dead letters of a group, and stop its delivery if they are too many."""
        rate = self._rates.get(group_id)
        if rate is None:
            rate = self._rates[group_id] = DeadLetterRate()
        rate.note(self._node.clock.now_ms(), dead_letters)
        limit = self._settings.get(group_id).flood_per_minute
        if limit and self.is_exceeded(group_id, limit) and group_id not in self._stopped:
            self._stopped.add(group_id)
            self._node.log.warning(
                "delivery to a group is held: its dead letters flood",
                group=group_id,
                dead_letters_last_minute=self.count_last_minute(group_id),
                limit=limit,
            )
            self._check_again(group_id)

    def is_exceeded(self, group_id: str, limit: int) -> bool:
        """Whether the group had `limit` dead letters or more in the last minute; 0 is no limit."""
        return limit > 0 and self.count_last_minute(group_id) >= limit

    def count_last_minute(self, group_id: str) -> int:
        """Return the number of the group's dead letters in the last minute."""
        rate = self._rates.get(group_id)
        return 0 if rate is None else rate.get_total(self._node.clock.now_ms())

    def list_groups(self) -> list[str]:
        """Return the groups that had dead letters since the start."""
        return list(self._rates)

    def _check_again(self, group_id: str) -> None:
        now_ms = self._node.clock.now_ms()
        limit = self._settings.get(group_id).flood_per_minute
        ends_ms = self._rates[group_id].find_end_ms(now_ms, limit)
        if ends_ms is not None:
            self._node.timers.call_at(ends_ms, lambda: self._check_again(group_id))
            return
        self._stopped.discard(group_id)
        self._node.log.info("delivery to a group goes on: the flood has passed", group=group_id)
        self._resume(group_id)
