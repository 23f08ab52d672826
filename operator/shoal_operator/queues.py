"""What a ShareGroup has beyond Kafka's share groups: what its brokers' metrics say of dead letters
and back-off, what that means for its status, and the dead-letter topic that it may ask for."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from shoal_operator.quantities import duration_ms

ORDERING = "share.ordering"
ENABLE = "errors.deadletterqueue.group.enable"
_COUNTS = {
    "shoal_share_group_dead_letters_total": "dead_lettered",
    "shoal_share_group_redriven_total": "redriven",
    "shoal_share_partition_archiving_records": "archiving",
    "shoal_share_partition_backing_off_records": "backing_off",
}
_HELD = "shoal_share_group_held"
_SAMPLE = re.compile(
    rf'^({"|".join([*_COUNTS, _HELD])}){{(.*?group="((?:[^"\\]|\\.)*)".*)}} (\S+)$', re.M
)
_WHY = re.compile(r'why="([^"]*)"')
_ESCAPED = re.compile(r"\\(.)")


@dataclass(slots=True)
class QueueNumbers:
    """Of one group, over all brokers. Counters run since each broker's start; `held` are the
    reasons why share partitions are not delivered, or their dead letters not written."""

    dead_lettered: int = 0
    redriven: int = 0
    archiving: int = 0
    backing_off: int = 0
    held: frozenset[str] = frozenset()

    @property
    def delivery(self) -> str:
        """`Running`, `Paused`, `Flooded`, or `DeadLettersFail`."""
        if "paused" in self.held:
            return "Paused"
        if "flood" in self.held:
            return "Flooded"
        return "DeadLettersFail" if self.held else "Running"

    def status(self) -> dict[str, Any]:
        """The fields of a ShareGroup's status."""
        return {
            "delivery": self.delivery,
            "deadLettered": self.dead_lettered,
            "redriven": self.redriven,
            "archiving": self.archiving,
            "backingOff": self.backing_off,
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
        if troubles := sorted(self.held - {"paused"}):
            return (
                "DeadLettersFail",
                f"Dead letters cannot be written ({', '.join(troubles)}); records wait for them."
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
            if metric != _HELD:
                name = _COUNTS[metric]
                setattr(one, name, getattr(one, name) + int(float(value)))
            elif float(value) and (why := _WHY.search(labels)):
                one.held |= {why[1]}
    return found


def config(spec: Mapping[str, Any]) -> dict[str, str]:
    """The group configs that a spec asks for beyond Kafka 4.3's; none unless it does."""
    made = {}
    if spec.get("pauseDelivery"):
        made["share.delivery.paused"] = "true"
    if spec.get("ordering", "none") != "none":
        made[ORDERING] = spec["ordering"]
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
