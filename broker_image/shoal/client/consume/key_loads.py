"""The load of key ranges, as a member reports it to its coordinator in heartbeats.

A member counts the records that it gets of each of `PARTS` equal parts of the hashes. Of a large
fetch it looks at a sample. The coordinator moves the boundaries between members by the load.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shoal.protocol.features import KEY_HASH_MAX
from shoal.record.key_hash import hash_record

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from uuid import UUID

    from shoal.record.records import Record

PARTS = 256
_WIDTH = (KEY_HASH_MAX + 1) // PARTS
#: The most records of a fetch that are looked at. Each stands for as many as there are for it.
SAMPLES_MAX = 64
#: Milliseconds between reports.
REPORT_MS = 1_000


class KeyLoads:
    """The records of each part since the last report, by topic id and partition."""

    def __init__(self, now: Callable[[], float], draw: Callable[[int], int]) -> None:
        """`draw` returns a random number below its argument."""
        self._now, self._draw = now, draw
        self._counts: dict[tuple[UUID, int], list[int]] = {}
        self._due_s = 0.0

    def add(self, topic_partition: tuple[UUID, int], records: Sequence[Record]) -> None:
        step = -(-len(records) // SAMPLES_MAX)
        counts = self._counts.setdefault(topic_partition, [0] * PARTS)
        # Without a random start, keys that come in turn could be left out for ever.
        for record in records[self._draw(step) :: step]:
            counts[hash_record(record.key, record.offset) // _WIDTH] += step

    def report(self) -> list[dict[str, Any]]:
        """Return the field of the heartbeat, and begin again; nothing if no report is due."""
        if not self._counts or self._now() < self._due_s:
            return []
        self._due_s = self._now() + REPORT_MS / 1000
        counted, self._counts = self._counts, {}
        return [
            {
                "topic_id": topic,
                "partition": partition,
                "loads": [
                    {
                        "first_hash": part * _WIDTH,
                        "last_hash": (part + 1) * _WIDTH - 1,
                        "records": count,
                    }
                    for part, count in enumerate(counts)
                    if count
                ],
            }
            for (topic, partition), counts in counted.items()
        ]

    def clear(self) -> None:
        self._counts.clear()
