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
from contextlib import contextmanager
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = "root"
#: The package whose modules are loggers.
PACKAGE = "shoal.server"


class Level(IntEnum):
    """Kafka's log levels."""

    TRACE = 5
    DEBUG = 10
    INFO = 20
    WARN = 30
    ERROR = 40
    FATAL = 50


class Observer(Protocol):
    """A part that depends on levels."""

    def levels_changed(self) -> None: ...


class Levels:
    """The level of each logger. One without a level of its own has that of the nearest package
    above it, and in the end that of the root logger."""

    def __init__(self) -> None:
        self._own = {ROOT: Level.INFO}
        self._effective: dict[str, Level] = {}
        self._observers: weakref.WeakSet[Observer] = weakref.WeakSet()

    def of(self, logger: str) -> Level:
        """Return the level that is in effect for a logger."""
        found = self._effective.get(logger)
        if found is None:
            name = logger
            while name and name not in self._own:
                name = name.rpartition(".")[0]
            found = self._effective[logger] = self._own[name or ROOT]
        return found

    def set(self, logger: str, level: Level) -> None:
        self._own[logger] = level
        self._changed()

    def unset(self, logger: str) -> None:
        """Remove the level of a logger, other than the root logger."""
        assert logger != ROOT
        self._own.pop(logger, None)
        self._changed()

    def subscribe(self, observer: Observer) -> None:
        """Report each change to the observer as long as it exists."""
        self._observers.add(observer)

    def _changed(self) -> None:
        self._effective = {}
        for observer in list(self._observers):
            observer.levels_changed()

    def loggers(self) -> list[str]:
        """Return the root logger, and the loaded modules and packages of the broker."""
        loaded = [n for n in list(sys.modules) if n == PACKAGE or n.startswith(f"{PACKAGE}.")]
        return [ROOT, *sorted(loaded)]


#: The levels as the command line has them.
WORDS = {
    "debug": Level.DEBUG,
    "info": Level.INFO,
    "warning": Level.WARN,
    "error": Level.ERROR,
    "critical": Level.FATAL,
}
#: The levels of this process.
LEVELS = Levels()


@contextmanager
def absent(*names: str) -> Iterator[None]:
    """Let imports of these modules fail inside the context.

    Some libraries import large optional ones that a broker never uses: structlog imports rich, and
    kio imports hypothesis if it is installed. They cost 80 and 110 ms of start-up and 25 MB.
    """
    hidden = {name: sys.modules.get(name) for name in names if name not in sys.modules}
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]
    try:
        yield
    finally:
        for name in hidden:
            del sys.modules[name]


def structlog() -> Any:
    """Return the module, imported without rich."""
    with absent("rich"):
        return importlib.import_module("structlog")


def configure(*, json: bool, level: str = "info") -> None:
    """Log to standard error; `level` is that of the root logger, one of `WORDS`."""
    module = structlog()
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
        wrapper_class=_wrapper(module.BoundLoggerBase, named=json),
        logger_factory=module.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )


def _wrapper(base: Any, *, named: bool) -> Any:
    """Return the class of loggers. With `named`, their lines have the name of the logger."""

    def method(name: str, level: Level, **defaults: Any) -> Any:
        def log(self: Any, event: str, **values: Any) -> None:
            logger = _caller()
            if level >= LEVELS.of(logger):
                own = {"logger": logger} if named else {}
                self._proxy_to_logger(name, event, **{**own, **defaults, **values})

        return log

    def is_enabled_for(_: Any, level: int) -> bool:
        return bool(level >= LEVELS.of(_caller()))

    methods = {
        "debug": method("debug", Level.DEBUG),
        "info": method("info", Level.INFO),
        "warning": method("warning", Level.WARN),
        "error": method("error", Level.ERROR),
        "exception": method("error", Level.ERROR, exc_info=True),
        "is_enabled_for": is_enabled_for,
    }
    return type("Logger", (base,), methods)


def _caller() -> str:
    """Return the module that called the caller of this function."""
    frame = inspect.currentframe()
    assert frame is not None
    assert frame.f_back is not None
    assert frame.f_back.f_back is not None
    return str(frame.f_back.f_back.f_globals["__name__"])


def get(**context: Any) -> Any:
    """A logger bound to `context`."""
    return structlog().get_logger(**context)
