"""A driver's fatal error, in one line, as the termination message of its container.

By default a pod's status has the last 2048 bytes of the driver's log. After an error Spark logs
more than that: the query's plan and offsets, and its own shutdown. So this module writes the line
that names the error into the container's termination log. From there it reaches the pod's status
and the operator's condition.
"""

from __future__ import annotations

import contextlib
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import TracebackType

#: Created by the kubelet in every container, writable for all (`terminationMessagePath`).
PLACE = Path("/dev/termination-log")
#: Maximum characters; a pod's status has room for 4096 bytes.
LENGTH_MAX = 1000
#: The text at which Spark starts to describe the failed query.
_PLAN = "=== Streaming Query ==="
#: `ValueError: …`, `shoal_spark.range_reader.DataLoss: …`, `Caused by: java.….SomeException: …`
_NAMED = re.compile(
    r"(Caused by: )?(([\w$]+\.)+[\w$]+|\w*(Error|Exception|Exit|Warning)): (?!.*Traceback \(most)\S"
)


def summarize(error: BaseException) -> str:
    """Return the original line of an error that passed through Python, the JVM and Python again.

    Spark embeds each error's text in the next one. So the last line that names an error is the
    first error.
    """
    kind = type(error)
    text = f"{kind.__module__}.{kind.__qualname__}: {error}".removeprefix("builtins.")
    lines = [line.strip() for line in text.partition(_PLAN)[0].splitlines()]
    named_lines = [line for line in lines if _NAMED.match(line)]
    return (named_lines or [lines[0]])[-1][:LENGTH_MAX]


def install(place: Path = PLACE) -> None:
    """Write a fatal error of this program to `place` if that exists."""
    if not place.is_file():
        return
    before = sys.excepthook

    def note(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        with contextlib.suppress(OSError):
            place.write_text(summarize(error))
        before(kind, error, trace)

    sys.excepthook = note
