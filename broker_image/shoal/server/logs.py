"""Structured logs by structlog, one line an event on standard error, as JSON or for people.

`configure` is called once by the command line. Below the shell nothing logs. The logger of a line
is the module that logs it, and each logger has a level, which changes while the broker runs
(KIP-412).
"""

from __future__ import annotations

import importlib
import inspect
import sys
import weakref
from enum import IntEnum
from typing import Any, Protocol

from shoal.protocol.hidden_modules import hide_modules

ROOT = "root"
#: The package whose modules are loggers.
PACKAGE = "shoal.server"


class LogLevel(IntEnum):
    """Kafka's log levels."""

    TRACE = 5
    DEBUG = 10
    INFO = 20
    WARN = 30
    ERROR = 40
    FATAL = 50


class LevelObserver(Protocol):
    """A part that depends on levels."""

    def on_levels_changed(self) -> None: ...


class LogLevels:
    """The level of each logger. One without a level of its own has that of the nearest package
    above it, and in the end that of the root logger."""

    def __init__(self) -> None:
        self._own = {ROOT: LogLevel.INFO}
        self._effective: dict[str, LogLevel] = {}
        self._observers: weakref.WeakSet[LevelObserver] = weakref.WeakSet()

    def get_level(self, logger: str) -> LogLevel:
        """Return the level that is in effect for a logger."""
        level = self._effective.get(logger)
        if level is None:
            name = logger
            while name and name not in self._own:
                name = name.rpartition(".")[0]
            level = self._effective[logger] = self._own[name or ROOT]
        return level

    def set(self, logger: str, level: LogLevel) -> None:
        self._own[logger] = level
        self._notify()

    def unset(self, logger: str) -> None:
        """Remove the level of a logger, other than the root logger."""
        assert logger != ROOT
        self._own.pop(logger, None)
        self._notify()

    def subscribe(self, observer: LevelObserver) -> None:
        """Report each change to the observer as long as it exists."""
        self._observers.add(observer)

    def _notify(self) -> None:
        self._effective = {}
        for observer in list(self._observers):
            observer.on_levels_changed()

    def list_loggers(self) -> list[str]:
        """Return the root logger, and the loaded modules and packages of the broker."""
        loaded = [n for n in list(sys.modules) if n == PACKAGE or n.startswith(f"{PACKAGE}.")]
        return [ROOT, *sorted(loaded)]


#: The levels as the command line has them.
WORDS = {
    "debug": LogLevel.DEBUG,
    "info": LogLevel.INFO,
    "warning": LogLevel.WARN,
    "error": LogLevel.ERROR,
    "critical": LogLevel.FATAL,
}
#: The levels of this process.
LEVELS = LogLevels()


def import_structlog() -> Any:
    """Return the module, imported without rich."""
    with hide_modules("rich"):
        return importlib.import_module("structlog")


def configure(*, json: bool, level: str = "info") -> None:
    """Log to standard error; `level` is that of the root logger, one of `WORDS`."""
    module = import_structlog()
    LEVELS.set(ROOT, WORDS[level])
    renderer = (
        module.processors.JSONRenderer()
        if json
        else module.dev.ConsoleRenderer(
            colors=sys.stderr.isatty(), exception_formatter=module.dev.plain_traceback
        )
    )
    exceptions = [module.processors.format_exc_info] if json else []
    module.configure(
        processors=[
            module.processors.add_log_level,
            module.processors.TimeStamper(fmt="iso", utc=True),
            *exceptions,
            renderer,
        ],
        wrapper_class=_make_wrapper(module.BoundLoggerBase, has_name=json),
        logger_factory=module.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )


def _make_wrapper(base: Any, *, has_name: bool) -> Any:
    """Return the class of loggers. With `has_name`, their lines have the name of the logger."""

    def make_method(name: str, level: LogLevel, **defaults: Any) -> Any:
        def log(self: Any, event: str, **values: Any) -> None:
            logger = _find_caller()
            if level >= LEVELS.get_level(logger):
                own = {"logger": logger} if has_name else {}
                self._proxy_to_logger(name, event, **{**own, **defaults, **values})

        return log

    def is_enabled_for(_: Any, level: int) -> bool:
        return bool(level >= LEVELS.get_level(_find_caller()))

    methods = {
        "debug": make_method("debug", LogLevel.DEBUG),
        "info": make_method("info", LogLevel.INFO),
        "warning": make_method("warning", LogLevel.WARN),
        "error": make_method("error", LogLevel.ERROR),
        "exception": make_method("error", LogLevel.ERROR, exc_info=True),
        "is_enabled_for": is_enabled_for,
    }
    return type("Logger", (base,), methods)


def _find_caller() -> str:
    """Return the module that called the caller of this function."""
    frame = inspect.currentframe()
    assert frame is not None
    assert frame.f_back is not None
    assert frame.f_back.f_back is not None
    return str(frame.f_back.f_back.f_globals["__name__"])


def get(**context: Any) -> Any:
    """A logger bound to `context`."""
    return import_structlog().get_logger(**context)
