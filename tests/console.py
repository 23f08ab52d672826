"""Pages for users whose commands are tried as they stand.

A block marked `console` has commands behind `$ `, which a backslash at the end of a line continues,
and below each what it prints, on either stream. `...` stands for any text, on a line of its own for
any lines.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

TIMEOUT_S = 120
_BLOCK = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Step:
    """A command and what it is said to print."""

    command: str
    prints: str

    def run(self, bootstrap: str) -> str:
        """What it does print, with the project's commands on the PATH."""
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        done = subprocess.run(
            ["bash", "-c", self.command],
            env={**os.environ, "PATH": path, "SHOAL_BOOTSTRAP": bootstrap},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        return "\n".join(line.rstrip() for line in done.stdout.splitlines())

    def matches(self, printed: str) -> bool:
        wanted = re.escape(self.prints).replace(re.escape("..."), ".*")
        return re.fullmatch(wanted, printed, re.DOTALL) is not None


def steps(page: Path) -> list[Step]:
    """All commands of a page, in their order."""
    found: list[Step] = []
    for block in _BLOCK.findall(page.read_text()):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, prints = part.replace("\\\n", "").partition("\n")
            found.append(Step(re.sub(r"\s+", " ", command), prints.strip("\n")))
    return found
