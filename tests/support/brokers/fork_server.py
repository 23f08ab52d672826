"""`python fork_server.py SOCKET`: a process that has imported `shoal` and starts commands as forks.

A new interpreter takes half a second of CPU until it has imported a broker; a fork has it at once.
`forks` starts this process and asks it. A request is a JSON object with the descriptors of the
child's standard streams and of a pipe. On this pipe the asker reads the child's id, and its wait
status when it has ended.

A child is as if started by `python -m MODULE`, with its own id, streams, environment, folder and
arguments. Three things differ: the kernel shows this process' arguments and environment for it, its
modules were imported with this environment, and strings have the same hashes in all children. They
end with the asker.
"""

from __future__ import annotations

import array
import contextlib
import fcntl
import gc
import importlib
import io
import json
import os
import runpy
import select
import signal
import socket
import struct
import sys
import termios
import time
from typing import Any

from shoal.cli.main import app
from shoal.protocol.hidden_modules import hide_modules
from shoal.server import logs

#: A request with its environment and arguments is shorter.
REQUEST_BYTES_MAX = 100_000
NUMBER = struct.Struct("<i")
_DESCRIPTORS = 4


def main(asker: socket.socket) -> None:
    """Serve until the asker ends. Each child returns from `serve` and runs its module."""
    _import_broker()
    at_interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN)
    request = _Server(asker).serve()
    signal.signal(
        signal.SIGINT,
        signal.default_int_handler if request["can_be_interrupted"] else at_interrupt,
    )
    _become(request)
    runpy.run_module(request["module"], run_name="__main__", alter_sys=True)


def _import_broker() -> None:
    """Import what a broker imports, as its command does."""
    with contextlib.redirect_stderr(io.StringIO()), contextlib.suppress(SystemExit):
        app(["server", "--log-level=a level that ends it before it starts"])
    logs.import_structlog()
    with hide_modules("rich"):
        for name in ("shoal.server.process", "encodings.idna"):
            importlib.import_module(name)


class _Server:
    """The children that run, each with the pipe for its end."""

    def __init__(self, asker: socket.socket) -> None:
        self._asker = asker
        self._pipes: dict[int, int] = {}
        self._ended, wakeup = os.pipe()
        for end in (self._ended, wakeup):
            os.set_blocking(end, False)
        self._at_end = signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)

    def serve(self) -> Any:
        """Return a request in the child that it made. End this process when the asker has ended."""
        gc.collect()
        gc.freeze()
        space = socket.CMSG_SPACE(_DESCRIPTORS * array.array("i").itemsize)
        while True:
            readable = select.select([self._asker.fileno(), self._ended], [], [])[0]
            if self._ended in readable:
                os.read(self._ended, 4096)
                self._report_ends()
            if self._asker.fileno() in readable:
                message, received, _, _ = self._asker.recvmsg(REQUEST_BYTES_MAX, space)
                if not message:
                    self._end()
                if self._is_child_of_fork(array.array("i", received[0][2])):
                    return json.loads(message)

    def _is_child_of_fork(self, descriptors: array.array[int]) -> bool:
        """Fork. The child has its standard streams and no other descriptors."""
        *streams, pipe = descriptors
        child = os.fork()
        if child:
            for stream in streams:
                os.close(stream)
            self._pipes[child] = pipe
            os.write(pipe, NUMBER.pack(child))
            return False
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, self._at_end)
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
        self._asker.detach()
        os.closerange(len(streams), 1 + max(map(int, os.listdir("/proc/self/fd"))))
        return True

    def _report_ends(self) -> None:
        while self._pipes:
            child, status = os.waitpid(-1, os.WNOHANG)
            if not child:
                return
            pipe = self._pipes.pop(child)
            try:
                os.write(pipe, NUMBER.pack(status))
            except BrokenPipeError:  # Nobody asks any more.
                pass
            os.close(pipe)

    def _end(self) -> None:
        for child in self._pipes:
            os.kill(child, signal.SIGKILL)
        os._exit(0)


def _become(request: Any) -> None:
    """Give this process the environment, folder, arguments and streams of a request."""
    if request["has_terminal"]:
        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    time.tzset()
    sys.path[0] = request["folder"]
    sys.orig_argv[:] = request["words"]
    sys.argv[:] = ["", *request["arguments"]]
    _open_stream("stdin", 0, "r")
    _open_stream("stdout", 1, "w")
    _open_stream("stderr", 2, "w", buffering=1, errors="backslashreplace")


def _open_stream(name: str, number: int, mode: str, **options: Any) -> None:
    """Replace a standard stream of `sys`. As Python does, read and write at a terminal by lines."""
    stream = os.fdopen(
        number, mode, **{"buffering": 1 if os.isatty(number) else -1} | options, closefd=False
    )
    setattr(sys, name, stream)
    setattr(sys, f"__{name}__", stream)


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])))
