"""`python -m shoal.testing.bound_server ARGUMENTS`: `shoal server`, for as long as its parent runs.

The parent holds the other end of standard input. The pipe closes when the parent has ended, also if
it was killed. The kernel's signal for that (PR_SET_PDEATHSIG) comes already when the thread ends
that started this process, and only Linux has it.

REMOVED in the environment names a directory that is then removed.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import threading

#: The variable with the directory of the data, if it is temporary.
REMOVED = "_SHOAL_REMOVED_DIRECTORY"
#: What the broker gets to stop in order, in seconds.
_STOP_S = 10.0


def _watch_parent(alone: threading.Event, ended: threading.Event, directory: str) -> None:
    """Stop this process when the parent has ended. `alone` is set then."""
    while os.read(0, 1):
        pass
    alone.set()
    os.kill(os.getpid(), signal.SIGTERM)
    ended.wait(_STOP_S)
    if directory:
        shutil.rmtree(directory, ignore_errors=True)
    os._exit(1)


def main() -> None:
    """Run the server; return when it has ended."""
    alone, ended = threading.Event(), threading.Event()
    # Until the broker handles it. By default the process would end without removing anything.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    directory = os.environ.pop(REMOVED, "")
    watch = threading.Thread(target=_watch_parent, args=(alone, ended, directory), daemon=True)
    watch.start()
    try:
        from shoal.cli.__main__ import main as run_command

        sys.argv = ["shoal", "server", *sys.argv[1:]]
        run_command()
    finally:
        ended.set()
        if alone.is_set():
            watch.join()


if __name__ == "__main__":
    main()
