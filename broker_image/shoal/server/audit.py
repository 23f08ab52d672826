"""The audit log of a node: `security.audit` on its logger and its timers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.security.audit import ALLOWED, CHANGED, LOGGED_IN, SESSIONS_ENDED, AuditEntry, AuditTrail
from shoal.server import logs

if TYPE_CHECKING:
    from shoal.server.node import Node

_AT_DEBUG = frozenset({ALLOWED, LOGGED_IN})


class AuditLogger:
    """Logs entries: changes at the level info, failures at warning, and successes at debug."""

    def __init__(self, node: Node) -> None:
        self._log = node.log.bind(audit=True)
        self._clock = node.clock
        self._timers = node.timers
        self._trail = AuditTrail()
        self._is_armed = False
        #: Whether entries at the level debug are logged: callers need not make others.
        self.logs_successes = False
        self.on_levels_changed()
        logs.LEVELS.subscribe(self)

    def on_levels_changed(self) -> None:
        """Follow the level of this module's logger."""
        is_enabled = getattr(self._log, "is_enabled_for", None)
        self.logs_successes = is_enabled is None or is_enabled(logs.LogLevel.DEBUG)

    def note(self, entry: AuditEntry) -> None:
        """Log an entry, or count it for the summary of the interval."""
        if entry.event in _AT_DEBUG:
            self._log.debug(entry.event, **entry.values)
        elif entry.event in (CHANGED, SESSIONS_ENDED):
            self._log.info(entry.event, **entry.values)
        elif self._trail.note(entry, self._clock.now_ms()):
            self._log.warning(entry.event, **entry.values)
        elif not self._is_armed and self._trail.due_ms is not None:
            self._is_armed = True
            self._timers.call_at(self._trail.due_ms, self._sum_up)

    def close(self) -> None:
        """Log what is not summed up yet."""
        self._sum_up()

    def _sum_up(self) -> None:
        self._is_armed = False
        for entry in self._trail.summarize(self._clock.now_ms()):
            self._log.warning(entry.event, **entry.values)
