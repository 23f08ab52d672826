"""Numbers of share groups from the brokers' metrics: records in flight, held back, dead-lettered.

Kafka's protocol does not have them. They go into a ShareGroup's status, into its `Degraded`
condition and into the scaler's signals.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from shoal.monitoring.exposition import parse_samples

if TYPE_CHECKING:
    from collections.abc import Iterable

    from prometheus_client.samples import Sample

    from shoal_operator.model.resources.share_group import ShareGroupStatusPatch

#: Metrics that are summed over share partitions and brokers, with the field of each.
_SUMS = {
    "shoal_share_group_dead_letters_total": "dead_lettered",
    "shoal_share_group_redriven_total": "redriven",
    "shoal_share_partition_archiving_records": "archiving",
    "shoal_share_partition_backing_off_records": "backing_off",
    "shoal_share_partition_delayed_records": "delayed",
    "shoal_share_partition_held_by_key_records": "held_by_key",
    "shoal_share_partition_keys_held_by_dead_letters": "keys_held",
    "shoal_share_partition_behind_dead_letters_records": "behind_dead_letters",
    "shoal_share_partition_locked_records": "in_flight",
    "shoal_share_partition_redelivered_records_total": "redelivered",
    "shoal_share_partition_unavailable_records": "unavailable",
}
_NOT_DUE = "shoal_share_partition_not_due_records"
_NEXT_DUE = "shoal_share_partition_next_due_timestamp_seconds"
_OLDEST_LOCK = "shoal_share_partition_oldest_lock_age_seconds"
_HELD = "shoal_share_group_held"
_NAMES = (*_SUMS, _NOT_DUE, _NEXT_DUE, _OLDEST_LOCK, _HELD)
#: The hold reason of a full window, which is normal while consumers work.
_WINDOW_FULL = "window-full"


@dataclass(slots=True)
class GroupMetrics:
    """Numbers of one share group over all brokers. Counters start at 0 with each broker.

    `hold_reasons` has the reasons for which share partitions are not delivered or their dead
    letters are not written. `unavailable` records are not in flight and cannot be delivered now.
    `not_due` maps a time in seconds to the number of records that are due later than that.
    `next_due_s` is the Unix time at which the first of them is due, 0 without any.
    """

    dead_lettered: int = 0
    redriven: int = 0
    archiving: int = 0
    backing_off: int = 0
    delayed: int = 0
    held_by_key: int = 0
    keys_held: int = 0
    behind_dead_letters: int = 0
    in_flight: int = 0
    redelivered: int = 0
    oldest_lock_s: int = 0
    unavailable: int = 0
    not_due: Counter[int] = field(default_factory=Counter)
    next_due_s: float = 0.0
    hold_reasons: frozenset[str] = frozenset()

    def add(self, sample: Sample) -> None:
        """Add one sample of the group."""
        if sample.name == _NEXT_DUE:
            self.next_due_s = min(self.next_due_s or sample.value, sample.value)
        elif sample.name == _NOT_DUE:
            self.not_due[int(sample.labels.get("within", 0))] += int(sample.value)
        elif sample.name == _OLDEST_LOCK:
            self.oldest_lock_s = max(self.oldest_lock_s, int(sample.value))
        elif sample.name == _HELD:
            self.hold_reasons |= {sample.labels.get("why", "unknown")} - {_WINDOW_FULL}
        else:
            name = _SUMS[sample.name]
            setattr(self, name, getattr(self, name) + int(sample.value))

    def count_due_later(self, within_s: float) -> int:
        """Return how many records a delay or a back-off holds back for longer than `within_s`.

        Brokers report the number for a few times only; the shortest time that is not below
        `within_s` counts.
        """
        times = sorted(self.not_due)
        return self.not_due[next((t for t in times if t >= within_s), times[-1])] if times else 0

    @property
    def delivery(self) -> str:
        """`Running`, or why it is held: `Paused`, `DeadLetterLimitReached`, `KeysHeld`,
        `LookAheadFull` or `DeadLettersFail`."""
        if "paused" in self.hold_reasons:
            return "Paused"
        if "flood" in self.hold_reasons:
            return "DeadLetterLimitReached"
        if "held-keys" in self.hold_reasons:
            return "KeysHeld"
        if self.hold_reasons == {"look-ahead"}:
            return "LookAheadFull"
        return "DeadLettersFail" if self.hold_reasons else "Running"

    def build_status(self) -> ShareGroupStatusPatch:
        """Return the fields of a ShareGroup's status."""
        return {
            "delivery": self.delivery,
            "deadLettered": self.dead_lettered,
            "redriven": self.redriven,
            "archiving": self.archiving,
            "backingOff": self.backing_off,
            "delayed": self.delayed,
            "heldByKey": self.held_by_key,
            "keysHeldByDeadLetters": self.keys_held,
            "oldestLockSeconds": self.oldest_lock_s,
        }

    def find_warning(self) -> tuple[str, str] | None:
        """Return the reason and message of a condition that needs attention, if any."""
        if "flood" in self.hold_reasons:
            return (
                "DeadLetterLimitReached",
                "Delivery is held: more records were dead-lettered in a minute than "
                "deadLetters.floodPerMinute allows. Find out why the consumers fail. Delivery "
                "resumes when the rate has fallen.",
            )
        if "held-keys" in self.hold_reasons:
            return (
                "KeysHeld",
                "Delivery is held: dead-lettered records hold as many keys as "
                "share.ordering.key.dead.letter.max.held allows. Redrive the records with `shoal "
                "share redrive`, or skip them with `shoal dlq skip`.",
            )
        if failures := sorted(self.hold_reasons - {"paused", "look-ahead"}):
            return (
                "DeadLettersFail",
                f"Dead letters cannot be written ({', '.join(failures)}), and their records wait. "
                "The brokers' logs name the topic and the remedy.",
            )
        return None


def parse_group_metrics(pages: Iterable[str]) -> dict[str, GroupMetrics]:
    """Return the numbers by group from the texts of the brokers' `/metrics`.

    Raises `ValueError` for text that is not in Prometheus' format.
    """
    groups: dict[str, GroupMetrics] = {}
    for page in pages:
        for sample in parse_samples(page, _NAMES, zeros=(_NOT_DUE,)):
            if "group" in sample.labels:
                groups.setdefault(sample.labels["group"], GroupMetrics()).add(sample)
    return groups
