"""Warnings of delays and priorities that a group ignores, because its settings do not ask for them.

A producer cannot know which groups will read its topic, so the worker says it: once for each topic,
by the first job that comes without what it asked for.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from shoal.client.queues.queue_settings import DELAY_MAX_MS, PRIORITY, PRIORITY_HEADER
from shoal.worker.queue import DELIVER_AFTER

if TYPE_CHECKING:
    from collections.abc import Iterable

    from shoal.record.records import Record
    from shoal.worker.group_setup import GroupFacts

log = logging.getLogger("shoal.worker")

#: The largest `share.delay.max.ms`: 7 days.
_LONGEST_DELAY_MS = 7 * 86_400_000
#: Priorities that have an effect: a job without one has 0.
_PRIORITIES = frozenset(b"%d" % priority for priority in range(1, 10))


class HeaderWatch:
    """Looks at the headers of first deliveries, until it has warned of their topic."""

    def __init__(self, group: str, facts: GroupFacts) -> None:
        self._group = group
        self._delay_max_ms = facts.header_delay_max_ms
        self._ignores_priorities = facts.priority_header == ""
        self._warned: set[tuple[str, str]] = set()

    def check(self, topic: str, partition: int, records: Iterable[Record]) -> None:
        """Warn if the broker delivers one of these records too early or without its priority."""
        for record in records:
            for name, value in record.headers:
                if name == DELIVER_AFTER:
                    if self._delay_max_ms is not None and (topic, name) not in self._warned:
                        self._check_delay(topic, partition, record, value or b"")
                elif name == PRIORITY and value in _PRIORITIES and self._ignores_priorities:
                    self._warn_of_priority(topic, partition, record)

    def _check_delay(self, topic: str, partition: int, record: Record, value: bytes) -> None:
        """Warn if a delay is over the group's limit, and not over yet. A shorter one is kept, even
        if this machine's clock is behind the broker's."""
        if not value.isdigit() or len(value) > 18 or int(value) <= (self._delay_max_ms or 0):
            return
        early_ms = record.timestamp_ms + int(value) - time.time_ns() // 1_000_000
        if early_ms > 0:
            self._warned.add((topic, DELIVER_AFTER))
            log.warning(
                "job %s-%d@%d runs %g s before its delay is over, as do others of topic %s: group"
                " %s had %s=%d when this worker started. Allow delays up to 7 days with"
                " `shoal configs set group %s %s=%d` (not on Apache Kafka).",
                *(topic, partition, record.offset, early_ms / 1000, topic),
                *(self._group, DELAY_MAX_MS, self._delay_max_ms),
                *(self._group, DELAY_MAX_MS, _LONGEST_DELAY_MS),
            )

    def _warn_of_priority(self, topic: str, partition: int, record: Record) -> None:
        if (topic, PRIORITY) in self._warned:
            return
        self._warned.add((topic, PRIORITY))
        log.warning(
            "the priority of job %s-%d@%d has no effect, nor that of others of topic %s: group %s"
            " had no %s when this worker started. Set it with `shoal configs set group %s %s=%s`"
            " (not on Apache Kafka).",
            *(topic, partition, record.offset, topic),
            *(self._group, PRIORITY_HEADER, self._group, PRIORITY_HEADER, PRIORITY),
        )
