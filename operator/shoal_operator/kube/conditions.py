"""Conditions of a resource, for people, `kubectl wait`, Argo CD and Flux.

`Ready`: the resource matches its spec. `Progressing`: the operator is still changing it.
`Degraded`: the resource serves less than its spec requires. `Paused`: the operator does not change
it. All four are always present, with the status True or False.

`Reconciling` and `Stalled` follow the convention of kstatus (sigs.k8s.io/cli-utils), which Flux
reads. Each is present only while it is true, and at most one of them is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

TYPES = ("Ready", "Progressing", "Degraded", "Paused")
#: `status.observedGeneration` before the first reconciliation: the schema's default, as in Flux.
UNSEEN = -1
#: The reasons of resources whose topic, group or user an older resource has.
CLAIMED = frozenset({"TopicClaimed", "GroupClaimed", "UserClaimed"})


class ExtraCondition(NamedTuple):
    """A condition beside those of the verdict. `holds` is None if it is unknown."""

    type: str
    holds: bool | None
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of a reconciliation, from which the conditions are built.

    `reason` is one CamelCase word; `message` is a sentence that names the problem and the remedy.
    `warning` is the reason and message of `Degraded` for a resource that is not degraded otherwise.
    `alarm` asks for a warning event.
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
    def make_reconciled(cls, message: str) -> Verdict:
        """The resource matches its spec."""
        return cls(True, "Reconciled", message)

    @classmethod
    def make_waiting(cls, reason: str, message: str) -> Verdict:
        """The resource is not ready yet, and the operator continues."""
        return cls(False, reason, message, progressing=True)

    @classmethod
    def make_blocked(cls, reason: str, message: str) -> Verdict:
        """The resource is not ready for an external reason; the operator continues and alarms."""
        return cls(False, reason, message, progressing=True, alarm=True)

    @classmethod
    def make_refused(cls, reason: str, message: str) -> Verdict:
        """The resource is not ready until a person changes something."""
        return cls(False, reason, message, degraded=True, alarm=True)

    @property
    def is_stalled(self) -> bool:
        """Whether the resource is not ready until a person changes something."""
        return self.degraded and not self.ready and not self.progressing

    def with_warning(self, warning: tuple[str, str] | None) -> Verdict:
        """Return the verdict with this warning."""
        return replace(self, warning=warning)


def is_claimed(resource: Mapping[str, Any]) -> bool:
    """Return whether an older resource has the topic, group or user that this one names."""
    return get_ready_reason(resource) in CLAIMED


def is_ready(resource: Mapping[str, Any]) -> bool:
    """Return whether the condition Ready is true; works for Kubernetes' own kinds too."""
    return get_ready_condition(resource).get("status") == "True"


def get_ready_reason(resource: Mapping[str, Any]) -> str:
    """Return the reason of the condition `Ready`, empty without it."""
    return str(get_ready_condition(resource).get("reason", ""))


def get_ready_condition(resource: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the condition `Ready`, empty without it."""
    conditions = resource.get("status", {}).get("conditions", [])
    return next((c for c in conditions if c["type"] == "Ready"), {})


def build_conditions(
    verdict: Verdict,
    generation: int,
    now: str,
    before: Sequence[Mapping[str, Any]] | None,
    further: Sequence[ExtraCondition] = (),
) -> list[dict[str, Any]]:
    """Return the list for `status.conditions`: `TYPES`, those of kstatus that are true, `further`.

    `now` is an RFC 3339 time. `before` is the previous list; a condition whose status is unchanged
    keeps its transition time.
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
        ("Stalled", verdict.is_stalled, verdict.reason, verdict.message),
    )
    own_conditions = [ExtraCondition._make(row) for row in rows if row[0] in TYPES or row[1]]
    out = []
    for kind, holds, reason, message in (*own_conditions, *further):
        status = "Unknown" if holds is None else "True" if holds else "False"
        if kind in TYPES[1:] and not holds:
            reason, message = f"Not{kind}", ""
        previous = old.get(kind)
        transition_time = (
            previous["lastTransitionTime"] if previous and previous["status"] == status else now
        )
        out.append(
            {
                "type": kind,
                "status": status,
                "reason": reason,
                "message": message,
                "observedGeneration": generation,
                "lastTransitionTime": transition_time,
            }
        )
    return out


def is_seen(resource: Mapping[str, Any]) -> bool:
    """Return whether the operator has written a status of the resource."""
    generation: int = resource.get("status", {}).get("observedGeneration", UNSEEN)
    return generation != UNSEEN


def is_same(first: Any, second: Any) -> bool:
    """Return whether two statuses are equal, ignoring transition times and key order."""
    if isinstance(first, Mapping) and isinstance(second, Mapping):
        keys = (first.keys() | second.keys()) - {"lastTransitionTime"}
        return all(is_same(first.get(k), second.get(k)) for k in keys)
    if isinstance(first, list) and isinstance(second, list):
        return len(first) == len(second) and all(map(is_same, first, second))
    return bool(first == second)
