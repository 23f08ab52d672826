"""The audit log: failed logins, refused requests, sessions that the broker ends, and changes of
ACLs, users, tokens and quotas.

Each is one line with named values. A value comes from the network, so it is escaped and shortened:
no input can begin a line, or look like another value. Changes are always logged. Of similar failed
logins or refusals, only the first ones of an interval are; a summary with their number follows at
its end. The number of lines per interval is bounded too, since an attacker can come from many
addresses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Milliseconds after which the lines that were left out are summed up.
INTERVAL_MS = 10_000
#: Similar lines of one interval, and all lines of one interval.
SIMILAR_MAX = 10
LINES_MAX = 1_000
#: Characters of a value.
VALUE_SIZE_MAX = 256
LOGIN_FAILED, REFUSED, CHANGED = "login failed", "request refused", "security changed"
LOGGED_IN, ALLOWED = "logged in", "request allowed"
SESSIONS_ENDED = "sessions ended"
OTHERS = "others"

Value = str | int


class AuditEntry(NamedTuple):
    """One line: the event, and its values in order, as they came. `similar` has the names of the
    values that similar entries share; without any, the entry is never left out."""

    event: str
    raw: Mapping[str, Value]
    similar: tuple[str, ...] = ()

    @property
    def values(self) -> dict[str, Value]:
        """The values to log. Escaping them takes ten times as long as counting the entry, and one
        request may be refused 40,000 names, so it waits until the entry is logged."""
        return {n: clean(v) if isinstance(v, str) else v for n, v in self.raw.items()}


def build_login_failure(
    *, listener: str, mechanism: str, user: str, host: str, reason: str, again: bool = False
) -> AuditEntry:
    """Return the entry of a failed login. Nobody has verified `user`. `again` is whether the
    client had logged in before on its connection."""
    values = {
        "listener": listener,
        "mechanism": mechanism,
        "user": user,
        "host": host,
        "reason": reason,
        "reauthentication": str(again).lower(),
    }
    return AuditEntry(LOGIN_FAILED, values, ("listener", "mechanism", "host", "reason"))


def build_refusal(
    *, principal: str, host: str, listener: str, api: str, operation: str, resource: str, name: str
) -> AuditEntry:
    """Return the entry of a request that an ACL, or the lack of one, refuses. `resource` is the
    type of the resource."""
    values = {
        "principal": principal,
        "host": host,
        "listener": listener,
        "api": api,
        "operation": operation,
        "resource": resource,
        "name": name,
    }
    return AuditEntry(
        REFUSED, values, ("principal", "host", "listener", "api", "operation", "resource")
    )


def build_allowance(
    *, principal: str, host: str, listener: str, api: str, operation: str, resource: str, name: str
) -> AuditEntry:
    """Return the entry of a request that is allowed, for the debug level."""
    entry = build_refusal(
        principal=principal,
        host=host,
        listener=listener,
        api=api,
        operation=operation,
        resource=resource,
        name=name,
    )
    return AuditEntry(ALLOWED, entry.raw)


def build_change(*, principal: str, host: str, api: str, description: str) -> AuditEntry:
    """Return the entry of a change of ACLs, users, tokens or quotas. `description` describes it,
    without secrets."""
    return AuditEntry(
        CHANGED, {"principal": principal, "host": host, "api": api, "what": description}
    )


def build_login(*, listener: str, mechanism: str, principal: str, host: str) -> AuditEntry:
    """Return the entry of a login, for the debug level."""
    values = {"listener": listener, "mechanism": mechanism, "principal": principal, "host": host}
    return AuditEntry(LOGGED_IN, values)


def build_sessions_ended(*, principal: str, reason: str, connections: int) -> AuditEntry:
    """Return the entry of connections that the broker closes because their user may no longer log
    in."""
    values: dict[str, Value] = {"principal": principal, "reason": reason}
    values["connections"] = connections
    return AuditEntry(SESSIONS_ENDED, values)


def clean(text: str, size_max: int = VALUE_SIZE_MAX) -> str:
    """Return a text in printable characters, on one line, of bounded length.

    Backslashes are doubled, so that an escape in the log is never the client's own text.
    """
    shown = "".join(map(_escape, text[:size_max]))
    return shown if len(text) <= size_max else f"{shown}… ({len(text)} characters)"


def _escape(character: str) -> str:
    if character == "\\":
        return "\\\\"
    # Not printable: control and format characters, separators of lines, halves of pairs.
    if character.isprintable():
        return character
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{{{code:x}}}"


class _Group:
    """Similar entries of one interval: the values that they share, and their numbers."""

    __slots__ = ("event", "left_out", "logged", "values")

    def __init__(self, event: str, values: Mapping[str, Value]) -> None:
        self.event, self.values = event, values
        self.logged = self.left_out = 0


class AuditTrail:
    """Decides which entries are logged at once, and sums up the others."""

    def __init__(self) -> None:
        self._groups: dict[tuple[Value, ...], _Group] = {}
        self._lines = 0
        self._ends_at_ms = 0
        #: When `summarize` is due: the end of the interval, if an entry was left out, or None.
        self.due_ms: int | None = None

    def note(self, entry: AuditEntry, now_ms: int) -> bool:
        """Note an entry. Return whether it is logged at once."""
        if not entry.similar:
            return True
        if now_ms >= self._ends_at_ms and self.due_ms is None:
            self._begin(now_ms)
        group = self._find_group(entry)
        if group.logged < SIMILAR_MAX and self._lines < LINES_MAX:
            group.logged += 1
            self._lines += 1
            return True
        group.left_out += 1
        self.due_ms = self._ends_at_ms
        return False

    def summarize(self, now_ms: int) -> list[AuditEntry]:
        """End the interval. Return an entry for each group of which entries were left out, with
        the number of those."""
        entries = [
            AuditEntry(group.event, {**group.values, "similar": group.left_out})
            for group in self._groups.values()
            if group.left_out
        ]
        self._begin(now_ms)
        return entries

    def _begin(self, now_ms: int) -> None:
        self._groups.clear()
        self._lines = 0
        self._ends_at_ms = now_ms + INTERVAL_MS
        self.due_ms = None

    def _find_group(self, entry: AuditEntry) -> _Group:
        values = {name: entry.raw[name] for name in entry.similar}
        key = (entry.event, *values.values())
        if key not in self._groups and len(self._groups) >= LINES_MAX:
            # All lines are used up. One group for each event counts the rest.
            values = {"host": OTHERS}
            key = (entry.event, OTHERS)
        return self._groups.setdefault(key, _Group(entry.event, values))
