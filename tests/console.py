"""Runs the commands of documentation pages exactly as they are written.

A block marked `console` has commands after `$ `; a backslash at the end of a line continues one.
The lines below a command are its output on both streams. `...` stands for any text; alone on a
line, for any lines. The widths of columns are ignored. A command that only reads is repeated until
its output matches, as a reader would.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from conditions import eventually

TIMEOUT_S = 120
_BLOCK = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LOOKS = re.compile(r"(shoal \w+ (describe|status|list|lag|health|peek|inspect)|sort)( |$)")


class Step(NamedTuple):
    """A command and the output that the page shows."""

    command: str
    prints: str

    def matches(self, printed: str) -> bool:
        wanted = re.escape(_narrow(self.prints)).replace(re.escape("..."), ".*")
        return re.fullmatch(wanted, _narrow(printed), re.DOTALL) is not None


def _narrow(text: str) -> str:
    return "\n".join(" ".join(line.split()) for line in text.splitlines())


def steps(text: str) -> list[Step]:
    """Return all commands of a page, in their order."""
    found: list[Step] = []
    for block in _BLOCK.findall(text):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, prints = part.replace("\\\n", "").partition("\n")
            found.append(Step(re.sub(r"\s+", " ", command), prints.strip("\n")))
    return found


class Console:
    """A user's shell in a folder, with the project's commands on its PATH. As a context manager it
    ends background jobs on exit."""

    def __init__(self, folder: Path, bootstrap: str) -> None:
        self._folder = folder
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self._environment = {**os.environ, "PATH": path, "SHOAL_BOOTSTRAP_SERVERS": bootstrap}
        self._sessions: list[int] = []

    def __enter__(self) -> Console:
        return self

    def __exit__(self, *error: object) -> None:
        for session in self._sessions:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(session, signal.SIGKILL)

    def try_all(self, tried: list[Step]) -> None:
        """Check that each command prints what the page shows."""
        for step in tried:
            if _LOOKS.match(f"{step.command} "):
                eventually(lambda step=step: self._tried(step))
            else:
                self._tried(step)

    def _tried(self, step: Step) -> bool:
        printed = self.run(step.command)
        assert step.matches(printed), (
            f"$ {step.command}\n--- the page shows\n{step.prints}\n--- the output is\n{printed}"
        )
        return True

    def run(self, command: str) -> str:
        """Return what a command prints, on both streams."""
        with tempfile.TemporaryFile("w+") as printed:
            process = subprocess.Popen(
                ["bash", "-c", command],
                cwd=self._folder,
                env=self._environment,
                stdout=printed,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            self._sessions.append(process.pid)
            process.wait(TIMEOUT_S)
            printed.seek(0)
            return printed.read().strip("\n")
