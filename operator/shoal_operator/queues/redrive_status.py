"""A Redrive as a plan for the client, and its progress as fields of the status. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypedDict

from shoal.dead_letters.records import DeadLetterFilter
from shoal.dead_letters.redrive import RedrivePlan

from shoal_operator import clock
from shoal_operator.kube.conditions import Verdict

if TYPE_CHECKING:
    from shoal.dead_letters.redrive import RedriveResult

    from shoal_operator.model.names import Manifest
    from shoal_operator.model.resources import redrive as resources


class RedriveCounts(TypedDict):
    """The fields of the status that count letters or records."""

    lookedAt: int
    sent: int
    refused: int
    doubted: int
    recordsMissing: int
    topicsMissing: int
    keysNotFreed: int


class RedriveStart(NamedTuple):
    """When a Redrive that was interrupted had begun, and the letters that it has sent."""

    time: str = ""
    sent: int = 0


def build_plan(resource: resources.Redrive, started: str = "") -> RedrivePlan:
    """Return the plan of a Redrive that began at `started`, an RFC 3339 time; empty if it is new.

    A Redrive that continues leaves out letters written after its start, so that records that fail
    again are not redriven in circles.
    """
    spec = resource["spec"]
    dead_letters = spec.get("letters", {})
    deadlines = [clock.parse_time_ms(dead_letters["until"])] if "until" in dead_letters else []
    if started:
        # Times in a status are whole seconds.
        deadlines.append(clock.parse_time_ms(started) + 1000)
    return RedrivePlan(
        spec["topic"],
        spec.get("to") or None,
        DeadLetterFilter(
            reasons=dead_letters.get("reasons", []),
            exceptions=dead_letters.get("exceptions", []),
            groups=dead_letters.get("groups", []),
            source_topics=dead_letters.get("sourceTopics", []),
            keys=[key.encode() for key in dead_letters.get("keys", [])],
            headers={h["name"]: _encode_value(h) for h in dead_letters.get("headers", [])},
            since_ms=clock.parse_time_ms(dead_letters["since"])
            if "since" in dead_letters
            else None,
            until_ms=min(deadlines, default=None),
            partitions=dead_letters.get("partitions", []),
        ),
        rate=spec.get("lettersPerSecond"),
        note=spec.get("note", ""),
        dry_run=_is_dry(resource),
    )


def get_run_spec(resource: resources.Redrive) -> Manifest:
    """Return the part of the spec whose change begins another run."""
    return {name: value for name, value in resource["spec"].items() if name != "paused"}


def build_counts(result: RedriveResult, looked_at: int, sent_before: int) -> RedriveCounts:
    """Return the counts of the status.

    `looked_at` records were read or skipped; `sent_before` letters were sent before an
    interruption.
    """
    return {
        "lookedAt": looked_at,
        "sent": sent_before + result.total,
        "refused": result.refused,
        "doubted": result.doubted,
        "recordsMissing": result.records_missing,
        "topicsMissing": result.topics_missing.total(),
        "keysNotFreed": result.not_freed,
    }


def read_counts(resource: resources.Redrive) -> RedriveCounts:
    """Return the counts of a Redrive that has ended."""
    status = resource["status"]
    return {
        "lookedAt": status.get("lookedAt", 0),
        "sent": status.get("sent", 0),
        "refused": status.get("refused", 0),
        "doubted": status.get("doubted", 0),
        "recordsMissing": status.get("recordsMissing", 0),
        "topicsMissing": status.get("topicsMissing", 0),
        "keysNotFreed": status.get("keysNotFreed", 0),
    }


def is_complete(resource: resources.Redrive) -> bool:
    """Return whether the Redrive has ended for its `spec.id`. A dry run counts as another one."""
    return _is_of_this_run(resource) and bool(resource["status"].get("completionTime"))


def get_start(resource: resources.Redrive) -> RedriveStart:
    """Return the start of a Redrive that was interrupted, an empty one for a new Redrive."""
    if not _is_of_this_run(resource):
        return RedriveStart()
    status = resource["status"]
    return RedriveStart(status["startTime"], status.get("sent", 0))


def build_fields(
    resource: resources.Redrive, start: str, total: int, counts: RedriveCounts
) -> resources.RedriveStatusPatch:
    """Return the fields of the status of a Redrive that runs."""
    return {
        "id": _get_id(resource),
        "dryRun": _is_dry(resource),
        "startTime": start,
        "completionTime": "",
        "total": total,
        **counts,
    }


def decide_verdict(
    resource: resources.Redrive, total: int, counts: RedriveCounts, *, ended: bool
) -> Verdict:
    """Return the conditions of a Redrive that runs or has ended."""
    would = "would be sent" if _is_dry(resource) else "sent"
    text = f"{counts['lookedAt']} of {total} records looked at, {counts['sent']} letters {would}."
    if not ended:
        return Verdict.make_waiting("Redriving", text)
    remarks = [
        f"{count} {words}"
        for count, words in (
            (counts["refused"], "letters were refused by the brokers"),
            (counts["doubted"], "letters are of a group with another dead-letter topic"),
            (counts["recordsMissing"], "letters have lost their record"),
            (counts["topicsMissing"], "letters have lost their topic"),
            (counts["keysNotFreed"], "letters may still hold their keys"),
        )
        if count
    ]
    fine = Verdict.make_reconciled(text)
    if remarks:
        return fine.with_warning(
            ("DeadLettersRemaining", f"{', '.join(remarks)}. See shoal dlq list.")
        )
    return fine


def _is_of_this_run(resource: resources.Redrive) -> bool:
    """Return whether the status describes a run that the spec asks for."""
    status = resource.get("status", {})
    return (
        bool(status.get("startTime"))
        and status.get("id", "") == _get_id(resource)
        and status.get("dryRun", False) == _is_dry(resource)
    )


def _get_id(resource: resources.Redrive) -> str:
    return resource["spec"].get("id", "")


def _is_dry(resource: resources.Redrive) -> bool:
    return bool(resource["spec"].get("dryRun"))


def _encode_value(header: resources.RedriveSpecLettersHeaders) -> bytes | None:
    return header["value"].encode() if "value" in header else None
