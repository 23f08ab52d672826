"""A Redrive as a plan for the client, and its progress as fields of the status. Pure."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Any

from shoal.client.dead_letters import DeadLetterFilter
from shoal.client.redrive import Plan

from shoal_operator.conditions import Verdict

if TYPE_CHECKING:
    from shoal.client.redrive import Redriven

    from shoal_operator.model.names import Manifest

#: Fields of the status that count letters or records.
COUNTS = (
    "lookedAt",
    "sent",
    "refused",
    "doubted",
    "recordsMissing",
    "topicsMissing",
    "keysNotFreed",
)


def plan(resource: Manifest, started: str = "") -> Plan:
    """Return the plan of a Redrive that began at `started`, an RFC 3339 time; empty if it is new.

    A Redrive that continues leaves out letters written after its start, so that records that fail
    again are not redriven in circles.
    """
    spec = resource["spec"]
    letters = spec.get("letters", {})
    until = [_ms(letters["until"])] if "until" in letters else []
    if started:
        # Times in a status are whole seconds.
        until.append(_ms(started) + 1000)
    return Plan(
        spec["topic"],
        spec.get("to") or None,
        DeadLetterFilter(
            reasons=letters.get("reasons", []),
            groups=letters.get("groups", []),
            source_topics=letters.get("sourceTopics", []),
            keys=[key.encode() for key in letters.get("keys", [])],
            headers={h["name"]: _value(h) for h in letters.get("headers", [])},
            since_ms=_ms(letters["since"]) if "since" in letters else None,
            until_ms=min(until, default=None),
            partitions=letters.get("partitions", []),
        ),
        rate=spec.get("lettersPerSecond"),
        note=spec.get("note", ""),
        dry_run=_is_dry(resource),
    )


def asked(resource: Manifest) -> Manifest:
    """Return the part of the spec whose change begins another run."""
    return {name: value for name, value in resource["spec"].items() if name != "paused"}


def counts(result: Redriven, looked_at: int, sent_before: int) -> dict[str, int]:
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


def is_complete(resource: Manifest) -> bool:
    """Return whether the Redrive has ended for its `spec.id`. A dry run counts as another one."""
    return _is_of_this_run(resource) and bool(resource["status"].get("completionTime"))


def started(resource: Manifest) -> dict[str, Any]:
    """Return the start time and the letters sent of a Redrive that was interrupted, else none."""
    if not _is_of_this_run(resource):
        return {"startTime": "", "sent": 0}
    status = resource["status"]
    return {"startTime": status["startTime"], "sent": status.get("sent", 0)}


def fields(resource: Manifest, start: str, total: int, found: dict[str, int]) -> dict[str, Any]:
    """Return the fields of the status of a Redrive that runs."""
    return {
        "id": _id(resource),
        "dryRun": _is_dry(resource),
        "startTime": start,
        "completionTime": "",
        "total": total,
        **found,
    }


def verdict(resource: Manifest, total: int, found: dict[str, int], *, ended: bool) -> Verdict:
    """Return the conditions of a Redrive that runs or has ended."""
    would = "would be sent" if _is_dry(resource) else "sent"
    text = f"{found['lookedAt']} of {total} records looked at, {found['sent']} letters {would}."
    if not ended:
        return Verdict.waiting("Redriving", text)
    left = [
        f"{found[name]} {words}"
        for name, words in (
            ("refused", "letters were refused by the brokers"),
            ("doubted", "letters are of a group with another dead-letter topic"),
            ("recordsMissing", "letters have lost their record"),
            ("topicsMissing", "letters have lost their topic"),
            ("keysNotFreed", "letters may still hold their keys"),
        )
        if found.get(name)
    ]
    fine = Verdict.fine(text)
    if left:
        return fine.warned(("LettersLeft", f"{', '.join(left)}. See shoal dlq list."))
    return fine


def _is_of_this_run(resource: Manifest) -> bool:
    """Return whether the status describes a run that the spec asks for."""
    status = resource.get("status", {})
    return (
        bool(status.get("startTime"))
        and status.get("id", "") == _id(resource)
        and status.get("dryRun", False) == _is_dry(resource)
    )


def _id(resource: Manifest) -> str:
    return str(resource["spec"].get("id", ""))


def _is_dry(resource: Manifest) -> bool:
    return bool(resource["spec"].get("dryRun"))


def _value(header: Manifest) -> bytes | None:
    return header["value"].encode() if "value" in header else None


def _ms(stamp: str) -> int:
    return int(datetime.datetime.fromisoformat(stamp).timestamp() * 1000)
