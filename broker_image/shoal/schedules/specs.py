"""A QueueSchedule as the engine reads it: its ticks, and the record that each of them makes. Pure.

Resources are manifests of `shoal.dev`, from the API server or from a file.
"""

from __future__ import annotations

import base64
import datetime
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from shoal.record.dedup_ids import DEDUP_ID
from shoal.schedules.ticks import Cron, InvalidSchedule, TickRules, format_tick

if TYPE_CHECKING:
    from collections.abc import Mapping

KIND = "QueueSchedule"
#: The topic config with the time, in milliseconds, for which a topic knows these ids.
DEDUPLICATION_WINDOW = "shoal.deduplication.window.ms"
#: The largest values of these fields, as in the definition of QueueSchedules.
DEADLINE_S_MAX, JITTER_S_MAX = 31_536_000, 86_400
#: Expressions that are kept, with the ticks that were found: those of a large cluster.
_make_cron = lru_cache(20_000)(Cron)
#: The header with the tick of a record, as RFC 3339 in UTC.
SCHEDULED_TIME = "shoal.scheduled.time"
_ALLOW, _FORBID, _REPLACE = "Allow", "Forbid", "Replace"
#: The fields of `spec`, and those of a header and of a payload, as in the definition.
SPEC_FIELDS = frozenset(
    "cluster topic user schedule timeZone concurrencyPolicy shareGroup startingDeadlineSeconds"
    " suspend jitterSeconds key headers payload".split()
)
PAYLOAD_FIELDS = frozenset(("inline", "configMapKeyRef", "secretKeyRef"))
#: Fields of `spec.payload` that name another object, with the kinds of the objects.
_REFERENCES = {"configMapKeyRef": "ConfigMap", "secretKeyRef": "Secret"}


class PayloadReference(NamedTuple):
    """The key of a ConfigMap or Secret that contains a payload."""

    kind: str
    name: str
    key: str


class PayloadMissing(ValueError):
    """The object or the key of a payload does not exist; the message names it."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """One schedule. `uid` identifies it in the ids of its records, and `name` in messages.

    `share_group` is the share group that has to complete a record before the next one is produced
    or, if that `replaces` it, for which it is cancelled then; empty if records are produced in any
    case (`concurrencyPolicy: Allow`).
    """

    uid: str
    name: str
    topic: str
    rules: TickRules
    key: bytes | None = None
    headers: Mapping[str, bytes] = field(default_factory=dict)
    suspended: bool = False
    share_group: str = ""
    replaces: bool = False

    def build_id(self, tick: datetime.datetime) -> str:
        """Return the id of the record of a tick: the same one in every process."""
        return f"{self.uid}/{format_tick(tick)}"

    def build_headers(self, tick: datetime.datetime) -> dict[str, bytes]:
        """Return the headers of the record of a tick."""
        return {
            **self.headers,
            DEDUP_ID: self.build_id(tick).encode(),
            SCHEDULED_TIME: format_tick(tick).encode(),
        }


def parse_schedule(resource: Mapping[str, Any]) -> Schedule:
    """Return the schedule of a QueueSchedule. Raises `InvalidSchedule`.

    A resource of a file has no uid, so that its namespace and its name take the place of it.
    """
    meta, spec = resource["metadata"], resource["spec"]
    name = str(meta["name"])
    uid = str(meta.get("uid") or f"{meta.get('namespace', 'default')}/{name}")
    policy = spec.get("concurrencyPolicy", _ALLOW)
    if policy not in (_ALLOW, _FORBID, _REPLACE):
        raise InvalidSchedule(
            f"concurrencyPolicy is {policy!r}. Write {_ALLOW}, {_FORBID} or {_REPLACE}."
        )
    if policy != _ALLOW and not spec.get("shareGroup"):
        raise InvalidSchedule(
            f"concurrencyPolicy is {policy}, and shareGroup names no share group. Name the group "
            "that completes the records."
        )
    deadline_s = _read_seconds(spec, "startingDeadlineSeconds", DEADLINE_S_MAX)
    rules = TickRules(
        _make_cron(spec["schedule"], spec.get("timeZone", "Etc/UTC")),
        uid,
        None if deadline_s is None else datetime.timedelta(seconds=deadline_s),
        datetime.timedelta(seconds=_read_seconds(spec, "jitterSeconds", JITTER_S_MAX) or 0),
    )
    return Schedule(
        uid,
        name,
        spec["topic"],
        rules,
        key=spec["key"].encode() if "key" in spec else None,
        headers={h["name"]: h["value"].encode() for h in spec.get("headers", [])},
        suspended=bool(spec.get("suspend")),
        share_group=spec["shareGroup"] if policy != _ALLOW else "",
        replaces=policy == _REPLACE,
    )


def check_fields(resource: Mapping[str, Any]) -> None:
    """Refuse fields that no QueueSchedule has, as kubectl does: `timezone` would mean UTC. Raises
    `InvalidSchedule`."""
    spec = resource["spec"]
    unknown = sorted(set(spec) - SPEC_FIELDS)
    unknown += sorted(f"payload.{name}" for name in set(spec.get("payload", {})) - PAYLOAD_FIELDS)
    if unknown:
        raise InvalidSchedule(f"{unknown[0]} is no field of a QueueSchedule.")


def _read_seconds(spec: Mapping[str, Any], field_name: str, seconds_max: int) -> int | None:
    """Return the seconds in a field, None without it. Raises `InvalidSchedule`."""
    seconds = spec.get(field_name)
    if seconds is None or (isinstance(seconds, int) and 0 <= seconds <= seconds_max):
        return seconds
    raise InvalidSchedule(f"{field_name} is {seconds!r:.50}. Write 0 to {seconds_max}.")


def find_reference(resource: Mapping[str, Any]) -> PayloadReference | None:
    """Return which object contains the payload, None if the resource itself does."""
    payload = resource["spec"].get("payload", {})
    for source, kind in _REFERENCES.items():
        if source in payload:
            return PayloadReference(kind, payload[source]["name"], payload[source]["key"])
    return None


def get_inline_payload(resource: Mapping[str, Any]) -> bytes | None:
    """Return the payload of the resource itself; None, a record without a value, without one."""
    payload = resource["spec"].get("payload", {})
    return payload["inline"].encode() if "inline" in payload else None


def read_payload(reference: PayloadReference, manifest: Mapping[str, Any] | None) -> bytes:
    """Return the payload in a ConfigMap or Secret, None if it does not exist. Raises
    `PayloadMissing`."""
    kind, name, key = reference
    if manifest is None:
        raise PayloadMissing(f"{kind} {name!r} does not exist. Create it, or correct spec.payload.")
    plain, encoded = ("data", "binaryData") if kind == "ConfigMap" else ("stringData", "data")
    if key in (manifest.get(plain) or {}):
        return str(manifest[plain][key]).encode()
    if key in (manifest.get(encoded) or {}):
        return base64.b64decode(manifest[encoded][key])
    raise PayloadMissing(f"{kind} {name!r} has no key {key!r}. Add it, or correct spec.payload.")
