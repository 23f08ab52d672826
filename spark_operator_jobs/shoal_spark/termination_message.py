"""What a driver died of, in one line, where Kubernetes looks for it.

Without help a pod's status has the end of the driver's log: 2048 bytes, and after an error Spark
writes more than that, the query's plan and offsets and the end of its own parts. So the line that
names the error goes into the container's termination log, and from there into the pod's status and
the operator's condition.
"""

from __future__ import annotations

import contextlib
import re
import sys
from pathlib import Path
from types import TracebackType

#: Made by the kubelet in every container, writable for all (`terminationMessagePath`).
PLACE = Path("/dev/termination-log")
#: Characters; a pod's status has room for 4096 bytes.
LENGTH_MAX = 1000
#: Where Spark begins to describe the query that failed.
_PLAN = "=== Streaming Query ==="
#: `ValueError: …`, `shoal_spark.range_reader.DataLoss: …`, `Caused by: java.….SomeException: …`
_NAMED = re.compile(
    r"(Caused by: )?(([\w$]+\.)+[\w$]+|\w*(Error|Exception|Exit|Warning)): (?!.*Traceback \(most)\S"
)


def summary(error: BaseException) -> str:
    """Of an error that went through Python, the JVM and Python again: the line it began with.

    Spark puts the text of each into that of the next, so the last line that names one is the first
    that was raised.
    """
    kind = type(error)
    text = f"{kind.__module__}.{kind.__qualname__}: {error}".removeprefix("builtins.")
    lines = [line.strip() for line in text.partition(_PLAN)[0].splitlines()]
    named = [line for line in lines if _NAMED.match(line)]
    return (named or [lines[0]])[-1][:LENGTH_MAX]


def install(place: Path = PLACE) -> None:
    """Have what ends this program written down, where there is a place for it."""
    if not place.is_file():
        return
    before = sys.excepthook

    def note(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        with contextlib.suppress(OSError):
            place.write_text(summary(error))
        before(kind, error, trace)

    sys.excepthook = note
