"""Structured logs by structlog, one line an event on standard error, as JSON or for people.

`configure` is called once by the command line. Below the shell nothing logs.
"""

from __future__ import annotations

import importlib
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator


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
    """Log to standard error from `level` on."""
    module = structlog()
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
        wrapper_class=module.make_filtering_bound_logger(level),
        logger_factory=module.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )


def get(**context: Any) -> Any:
    """A logger bound to `context`."""
    return structlog().get_logger(**context)
