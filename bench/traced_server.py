"""`shoal server` that notes when its calls are in a room: `python traced_server.py FILE ARGUMENT…`.

At the end the file has three numbers of 8 bytes for each call: the room's place in `ROOMS`, and the
monotonic clock in ns at its begin and its end.
"""

from __future__ import annotations

import atexit
import runpy
import sys
import time
from array import array
from pathlib import Path
from typing import Any

from record_rooms import ROOMS, find_method


def trace(calls: array[int]) -> None:
    """Make each room's method note its calls."""
    for number, place in enumerate(ROOMS.values()):
        owner, name = find_method(place)
        setattr(owner, name, _trace(getattr(owner, name), number, calls))


def _trace(method: Any, number: int, calls: array[int]) -> Any:
    def call(*words: Any, **more: Any) -> Any:
        began = time.monotonic_ns()
        try:
            return method(*words, **more)
        finally:
            calls.extend((number, began, time.monotonic_ns()))

    return call


def main() -> None:
    path = Path(sys.argv.pop(1))
    calls = array("q")
    trace(calls)
    atexit.register(lambda: path.write_bytes(calls.tobytes()))
    runpy.run_module("shoal.cli", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
