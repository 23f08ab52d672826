"""Questions at the terminal, and other reads that block a command.

While an event loop runs, Ctrl-C only cancels the command's task, which cannot notice before the
read returns. Reads therefore happen in `interruptible`.
"""

from __future__ import annotations

import signal
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer

from shoal.cli.terminal import make_visible

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def interruptible() -> Iterator[None]:
    """Let Ctrl-C raise `KeyboardInterrupt` in a blocking read.

    A shell that starts a job in the background makes it ignore Ctrl-C, and it stays so.
    """
    handler = signal.getsignal(signal.SIGINT)
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or not callable(handler):
        yield
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)


def confirm(question: str) -> None:
    """Ask on standard error. Raises `typer.Abort` unless the answer is yes."""
    with interruptible():
        typer.confirm(make_visible(question), abort=True, err=True)


def ask(question: str, default: str) -> str:
    """Ask on standard error, and return the answer. Raises `typer.Abort` at the end of input."""
    with interruptible():
        return str(typer.prompt(make_visible(question), default=default, err=True))


def is_interrupt(aborted: typer.Abort) -> bool:
    """Return whether Ctrl-C, and not an answer, has ended a question."""
    return isinstance(aborted.__context__, KeyboardInterrupt)
