"""Conditions: what a resource says of itself to people, `kubectl wait`, Argo CD and Flux.

`Ready` is whether it does what its spec asks; `Progressing` whether the operator is still at work
on it; `Degraded` whether it serves, but less well than asked; `Paused` whether the operator leaves
it alone. All four are always there, so that a tool never has to guess from an absence.

`Reconciling` and `Stalled` follow the convention of kstatus (sigs.k8s.io/cli-utils), which Flux
reads: each is there only while it is true, and at most one of them is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

TYPES = ("Ready", "Progressing", "Degraded", "Paused")
#: The `status.observedGeneration` of a resource that the operator has not seen. The schema's
#: default, as in Flux.
UNSEEN = -1


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the operator has to say about a resource.

    `reason` is one CamelCase word, `message` a sentence that names what is wrong and what to do.
    `alarm` is whether somebody should hear of it, by an event.
    """

    ready: bool
    reason: str
    message: str
    progressing: bool = False
    degraded: bool = False
    paused: bool = False
    warning: tuple[str, str] | None = None
    alarm: bool = False

    @classmethod
    def fine(cls, message: str) -> Verdict:
        return cls(True, "Reconciled", message)

    @classmethod
    def waiting(cls, reason: str, message: str) -> Verdict:
        """Not ready yet; the operator goes on by itself."""
        return cls(False, reason, message, progressing=True)

    @classmethod
    def blocked(cls, reason: str, message: str) -> Verdict:
        """Not ready, for a reason that lies outside; the operator goes on when it is gone."""
        return cls(False, reason, message, progressing=True, alarm=True)

    @classmethod
    def refused(cls, reason: str, message: str) -> Verdict:
        """Not ready, and it will not be before somebody changes something."""
        return cls(False, reason, message, degraded=True, alarm=True)

    @property
    def stalled(self) -> bool:
        """Whether the resource stays not ready until a person changes something."""
        return self.degraded and not self.ready and not self.progressing

    def warned(self, warning: tuple[str, str] | None) -> Verdict:
        """The same, with a reason and a sentence on what falls short of the spec."""
        return replace(self, warning=warning)


def is_ready(resource: Mapping[str, Any]) -> bool:
    """Whether its status says so; of Kubernetes' own resources too."""
    said = resource.get("status", {}).get("conditions", [])
    return any(c["type"] == "Ready" and c["status"] == "True" for c in said)


def ready_reason(resource: Mapping[str, Any]) -> str:
    """Return the reason of the condition `Ready`, empty without it."""
    found = resource.get("status", {}).get("conditions", [])
    return next((str(c["reason"]) for c in found if c["type"] == "Ready"), "")


def conditions(
    verdict: Verdict, generation: int, now: str, before: Sequence[Mapping[str, Any]] | None
) -> list[dict[str, Any]]:
    """Return the list for `status.conditions`: `TYPES`, then those of kstatus that hold.

    `now` is an RFC 3339 time; `before` is the list as it stands, whose transition times are kept
    where the status did not change.
    """
    old = {c["type"]: c for c in before or ()}
    degraded = ("Degraded", verdict.degraded, verdict.reason, verdict.message)
    if verdict.warning and not verdict.degraded:
        degraded = ("Degraded", True, *verdict.warning)
    rows = (
        ("Ready", verdict.ready, verdict.reason, verdict.message),
        ("Progressing", verdict.progressing, verdict.reason, verdict.message),
        degraded,
        ("Paused", verdict.paused, verdict.reason, verdict.message),
        ("Reconciling", verdict.progressing, verdict.reason, verdict.message),
        ("Stalled", verdict.stalled, verdict.reason, verdict.message),
    )
    out = []
    for kind, holds, reason, message in rows:
        if kind not in TYPES and not holds:
            continue
        status = "True" if holds else "False"
        if kind != "Ready" and not holds:
            reason, message = f"Not{kind}", ""
        kept = old.get(kind)
        since = kept["lastTransitionTime"] if kept and kept["status"] == status else now
        out.append(
            {
                "type": kind,
                "status": status,
                "reason": reason,
                "message": message,
                "observedGeneration": generation,
                "lastTransitionTime": since,
            }
        )
    return out


def is_seen(resource: Mapping[str, Any]) -> bool:
    """Return whether the operator has written a status of the resource."""
    seen: int = resource.get("status", {}).get("observedGeneration", UNSEEN)
    return seen != UNSEEN


def same(one: Any, other: Any) -> bool:
    """Whether two statuses say the same, transition times and key order aside."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        keys = (one.keys() | other.keys()) - {"lastTransitionTime"}
        return all(same(one.get(k), other.get(k)) for k in keys)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)
