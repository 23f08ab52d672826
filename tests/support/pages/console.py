"""Runs the commands of documentation pages exactly as they are written.

A block of the language `console` has commands after `$ `; a backslash at the end of a line
continues one. The lines below a command are its output on both streams. `...` stands for any text;
alone on a line, for any lines. The widths of columns are ignored. A command that only reads is
repeated until its output matches, as a reader would.

A command that needs no shell, or only one before its pipe, is called in this process, which is
quicker by half a second.

A block with a title (```python title="worker.py") is a file that the reader saves under this name.

A comment `<!-- console: MARK -->` before a block says how to run it. `terminal` means a terminal of
its own, where the last command keeps running. Other marks are for the tests that call `steps`; a
page is not run without its unmarked blocks.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import IO, NamedTuple

from support.brokers import commands
from support.brokers.servers import without_configs
from support.runs.conditions import eventually

#: Ends a hang; it is not a limit on speed.
TIMEOUT_S = 500
#: How long a command that keeps running may take until it has printed what the page shows.
STARTED_WITHIN_S = 60.0
#: How long such a command may take to end in order, before it is killed.
ENDED_WITHIN_S = 20.0
_BLOCK = re.compile(
    r"^(?:<!-- console: (?P<mark>\S+) -->\n+)?```console\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
_FILE = re.compile(r'^```\w+ title="(?P<name>[^"]+)"\n(?P<text>.*?)^```$', re.MULTILINE | re.DOTALL)
#: The mark of a block that runs in a terminal of its own.
TERMINAL = "terminal"
_LOOKS = re.compile(r"(shoal \w+ (describe|status|list|lag|health|peek|inspect)|sort)( |$)")


class Step(NamedTuple):
    """A command and the output that the page shows."""

    command: str
    prints: str
    mark: str = ""

    def check(self, printed: str) -> None:
        """Raise `AssertionError` if the command has printed anything else than the page shows."""
        wanted = re.escape(_narrow(self.prints)).replace(re.escape("..."), ".*")
        assert re.fullmatch(wanted, _narrow(printed), re.DOTALL), (
            f"$ {self.command}\n--- the page shows\n{self.prints}\n--- the output is\n{printed}"
        )


def _narrow(text: str) -> str:
    return "\n".join(" ".join(line.split()) for line in text.splitlines())


def steps(text: str, *marks: str) -> list[Step]:
    """Return the commands in the blocks of a page with these marks, in their order; without marks,
    in those that a plain broker and its clients can run."""
    found: list[Step] = []
    for block in _BLOCK.finditer(text):
        mark = block["mark"] or ""
        if mark not in (marks or ("", TERMINAL)):
            continue
        for part in re.split(r"^\$ ", block["text"], flags=re.MULTILINE)[1:]:
            command, _, prints = part.replace("\\\n", "").partition("\n")
            found.append(Step(re.sub(r"\s+", " ", command), prints.strip("\n"), mark))
    return found


def _without_shell(command: str) -> list[str]:
    """Return the words after `shoal` if it needs no shell and no process, or nothing."""
    lexer = shlex.shlex(command, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    words = list(lexer)
    is_plain = not any(set(word) <= set(lexer.punctuation_chars) for word in words)
    if words[0] != "shoal" or not is_plain or set(command) & set("$`*?~"):
        return []
    return words[1:] if commands.is_callable(*words[1:]) else []


def _split_input(command: str) -> tuple[str, str]:
    """Return what is before the last pipe, or nothing, and the command after it."""
    before, _, last = command.rpartition(" | ")
    try:
        shlex.split(last)
    except ValueError:
        return "", command  # The pipe is within quotes.
    return before, last


def marks(text: str) -> set[str]:
    """Return the marks of a page's blocks; "" for blocks without a mark."""
    return {block["mark"] or "" for block in _BLOCK.finditer(text)}


def files(text: str) -> dict[str, str]:
    """Return the files that a page asks its reader to save, by their names."""
    return {block["name"]: block["text"] for block in _FILE.finditer(text)}


class Console:
    """A user's shell in a folder, with the project's commands on its PATH. As a context manager it
    ends background jobs on exit."""

    def __init__(self, folder: Path, bootstrap: str, timeout_s: float = TIMEOUT_S) -> None:
        """`timeout_s` limits each command."""
        self._folder, self._timeout_s = folder, timeout_s
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        named = {"PATH": path, "SHOAL_BOOTSTRAP_SERVERS": bootstrap}
        self._environment = without_configs() | named
        # Unbuffered, Python writes a line's end apart from the line: outputs of workers would mix.
        self._environment.pop("PYTHONUNBUFFERED", None)
        self._sessions: list[int] = []
        #: The commands that keep running, each in a terminal of its own.
        self._terminals: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Console:
        return self

    def __exit__(self, *error: object) -> None:
        # A worker's processes are sessions of their own, which it ends, the broker after it.
        for process in reversed(self._terminals):
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(ENDED_WITHIN_S)
        for session in self._sessions:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(session, signal.SIGKILL)

    def try_page(self, page: str) -> None:
        """Save the files of a page, and check its commands."""
        for name, content in files(page).items():
            (self._folder / name).write_text(content)
        self.try_all(steps(page))

    def try_all(self, tried: list[Step]) -> None:
        """Check that each command prints what the page shows."""
        for step in tried:
            if step.mark == TERMINAL:
                self._start(step)
            elif _LOOKS.match(f"{step.command} "):
                eventually(lambda step=step: self._tried(step))
            else:
                self._tried(step)

    def _tried(self, step: Step) -> bool:
        step.check(self.run(step.command))
        return True

    def run(self, command: str) -> str:
        """Return what a command prints, on both streams."""
        before, last = _split_input(command)
        if words := _without_shell(last):
            piped = self._run_shell(before) + "\n" if before else ""
            with contextlib.chdir(self._folder):
                done = commands.call(
                    *words, stdin=piped, environment=self._environment, errors_to_output=True
                )
            return done.stdout.strip("\n")
        return self._run_shell(command)

    def _run_shell(self, command: str) -> str:
        """Return what a command prints, on both streams."""
        with tempfile.TemporaryFile("w+") as printed:
            self._popen(command, printed).wait(self._timeout_s)
            printed.seek(0)
            return printed.read().strip("\n")

    def _start(self, step: Step) -> None:
        """Start a command that keeps running, and wait until it has printed what the page shows."""
        path = self._folder / f".terminal-{len(self._sessions)}"
        with path.open("w") as printed:
            process = self._popen(step.command, printed)
        self._terminals.append(process)

        def shown() -> bool:
            assert process.poll() is None, f"$ {step.command} has ended:\n{path.read_text()}"
            step.check(path.read_text().strip("\n"))
            return True

        eventually(shown, timeout_s=STARTED_WITHIN_S)

    def _popen(self, command: str, printed: IO[str]) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            ["bash", "-c", command],
            cwd=self._folder,
            env=self._environment,
            stdout=printed,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self._sessions.append(process.pid)
        return process
