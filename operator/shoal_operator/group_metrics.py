"""What a ShareGroup has beyond Kafka's share groups: what its brokers' metrics say of dead letters
and back-off, what that means for its status, and the dead-letter topic that it may ask for."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from shoal_operator.quantities import duration_ms

ORDERING = "share.ordering"
ENABLE = "errors.deadletterqueue.group.enable"
_COUNTS = {
    "shoal_share_group_dead_letters_total": "dead_lettered",
    "shoal_share_group_redriven_total": "redriven",
    "shoal_share_partition_archiving_records": "archiving",
    "shoal_share_partition_backing_off_records": "backing_off",
    "shoal_share_partition_delayed_records": "delayed",
    "shoal_share_partition_held_by_key_records": "held_by_key",
    "shoal_share_partition_keys_held_by_dead_letters": "keys_held",
    "shoal_share_partition_behind_dead_letters_records": "behind_dead_letters",
    "shoal_share_partition_unavailable_records": "unavailable",
}
_NOT_DUE = "shoal_share_partition_not_due_records"
_NEXT_DUE = "shoal_share_partition_next_due_timestamp_seconds"
_OLDEST_LOCK = "shoal_share_partition_oldest_lock_age_seconds"
_HELD = "shoal_share_group_held"
_NAMES = "|".join([*_COUNTS, _HELD, _OLDEST_LOCK, _NOT_DUE, _NEXT_DUE])
_SAMPLE = re.compile(
    rf'^({_NAMES}){{(.*?group="((?:[^"\\]|\\.)*)".*)}} (\S+)$',
    re.M,
)
_WHY = re.compile(r'why="([^"]*)"')
_WITHIN = re.compile(r'within="(\d+)"')
#: As much is in flight as may be, as it often is where there is work.
_AT_WORK = "window-full"
_ESCAPED = re.compile(r"\\(.)")


@dataclass(slots=True)
class QueueNumbers:
    """Of one group, over all brokers. Counters run since each broker's start; `held` are the
    reasons why share partitions are not delivered, or their dead letters not written.

    `unavailable` records are in no member's hands and cannot be delivered now. `not_due` maps a
    time in seconds to the number of records that are due later than that; `next_due_s` is when the
    first of them is due, in Unix time, 0 without any."""

    dead_lettered: int = 0
    redriven: int = 0
    archiving: int = 0
    backing_off: int = 0
    delayed: int = 0
    held_by_key: int = 0
    keys_held: int = 0
    behind_dead_letters: int = 0
    oldest_lock_s: int = 0
    unavailable: int = 0
    not_due: Counter[int] = field(default_factory=Counter)
    next_due_s: float = 0.0
    held: frozenset[str] = frozenset()

    def due_later(self, within_s: float) -> int:
        """Return how many records a delay or a back-off holds back for longer than `within_s`.

        Brokers count them for some times only: that of the shortest one not below `within_s`.
        """
        times = sorted(self.not_due)
        return self.not_due[next((t for t in times if t >= within_s), times[-1])] if times else 0

    @property
    def delivery(self) -> str:
        """`Running`, `Paused`, `Flooded`, `KeysHeld`, `LookAheadFull`, or `DeadLettersFail`."""
        if "paused" in self.held:
            return "Paused"
        if "flood" in self.held:
            return "Flooded"
        if "held-keys" in self.held:
            return "KeysHeld"
        if self.held == {"look-ahead"}:
            return "LookAheadFull"
        return "DeadLettersFail" if self.held else "Running"

    def status(self) -> dict[str, Any]:
        """The fields of a ShareGroup's status."""
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

    def warning(self) -> tuple[str, str] | None:
        """A reason and a sentence where somebody has to act."""
        if "flood" in self.held:
            return (
                "Flooded",
                "Delivery is held: more records were dead-lettered in a minute than"
                " deadLetters.floodPerMinute allows. It goes on by itself when the rate has"
                " fallen; look at what the consumers fail on.",
            )
        if "held-keys" in self.held:
            return (
                "KeysHeld",
                "Delivery is held: as many dead-lettered records hold their keys as"
                " share.ordering.key.dead.letter.max.held allows. Put them back with `shoal share"
                " redrive`, or go on without them with `shoal share skip`.",
            )
        if failures := sorted(self.held - {"paused", "look-ahead"}):
            return (
                "DeadLettersFail",
                f"Dead letters cannot be written ({', '.join(failures)}); records wait for them."
                " The brokers' logs name the topic and the remedy.",
            )
        return None


def numbers_of(texts: Iterable[str]) -> dict[str, QueueNumbers]:
    """By group, from brokers' metrics pages."""
    found: dict[str, QueueNumbers] = {}
    for text in texts:
        for metric, labels, escaped, value in _SAMPLE.findall(text):
            group = _ESCAPED.sub(lambda m: "\n" if m[1] == "n" else m[1], escaped)
            one = found.setdefault(group, QueueNumbers())
            if metric == _NEXT_DUE:
                one.next_due_s = min(one.next_due_s or float(value), float(value))
            elif metric == _NOT_DUE:
                if within := _WITHIN.search(labels):
                    one.not_due[int(within[1])] += int(float(value))
            elif metric == _OLDEST_LOCK:
                one.oldest_lock_s = max(one.oldest_lock_s, int(float(value)))
            elif metric != _HELD:
                name = _COUNTS[metric]
                setattr(one, name, getattr(one, name) + int(float(value)))
            elif float(value) and (why := _WHY.search(labels)) and why[1] != _AT_WORK:
                one.held |= {why[1]}
    return found


def config(spec: Mapping[str, Any]) -> dict[str, str]:
    """The group configs that a spec asks for beyond Kafka 4.3's; none unless it does."""
    made = {}
    if spec.get("pauseDelivery"):
        made["share.delivery.paused"] = "true"
    if spec.get("ordering", "none") != "none":
        made[ORDERING] = spec["ordering"]
    if order := spec.get("keyOrder"):
        prefix = "share.ordering.key."
        made[f"{prefix}batch"] = str(order["batch"])
        made[f"{prefix}dead.letter"] = order["deadLetter"].lower()
        made[f"{prefix}dead.letter.max.held"] = str(order["maxHeld"])
    if delay := spec.get("delay"):
        made["share.delay.max.ms"] = str(duration_ms(delay["max"]))
        made["share.delay.max.records"] = str(delay["maxRecords"])
    if priority := spec.get("priority"):
        made["share.priority.header"] = priority["header"]
        made["share.priority.ageing.ms"] = str(duration_ms(priority["ageing"]))
    if backoff := spec.get("redeliveryBackoff"):
        prefix = "share.redelivery.backoff."
        made[f"{prefix}ms"] = str(duration_ms(backoff["initial"]))
        made[f"{prefix}max.ms"] = str(duration_ms(backoff["max"]))
        made[f"{prefix}multiplier"] = str(float(backoff["multiplier"]))
        made[f"{prefix}jitter"] = str(backoff["jitterPercent"] / 100)
    if letters := spec.get("deadLetters"):
        prefix = "errors.deadletterqueue."
        made[f"{prefix}topic.name"] = letters["topic"]
        made[f"{prefix}copy.record.enable"] = str(letters["copyRecords"]).lower()
        if letters.get("dropAfter"):
            made[f"shoal.{prefix}drop.after.ms"] = str(duration_ms(letters["dropAfter"]))
        if letters.get("floodPerMinute"):
            made[f"shoal.{prefix}flood.per.minute"] = str(letters["floodPerMinute"])
    return made


def dead_letter_topic(spec: Mapping[str, Any]) -> tuple[str, dict[str, Any]] | None:
    """The dead-letter topic that a spec asks to be created: its name, and it as a QueueTopic's
    spec."""
    letters = spec.get("deadLetters")
    if not letters or "create" not in letters:
        return None
    wanted = letters["create"]
    settings = {ENABLE: "true"}
    if wanted.get("retention"):
        settings["retention.ms"] = str(duration_ms(wanted["retention"]))
    asked = {"partitions": wanted["partitions"], "config": settings}
    if wanted.get("replicas"):
        asked["replicas"] = wanted["replicas"]
    return letters["topic"], asked
