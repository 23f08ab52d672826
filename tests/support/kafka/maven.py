"""Programs of tests that Maven fetches once, into `build`."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from typing import TYPE_CHECKING

from support.runs.machine import lacking

if TYPE_CHECKING:
    from pathlib import Path


def fetched(artifact: str, folder: Path, name: str, sha256: str) -> Path:
    """Copy an artifact from Maven Central into a folder; return its file, which has this `name` and
    digest."""
    if shutil.which("mvn") is None:
        lacking("no mvn on the PATH: apt-get install maven")
    words = ["mvn", "-q", "-B", "dependency:copy"]
    words += [f"-Dartifact={artifact}", f"-DoutputDirectory={folder}"]
    subprocess.run(words, check=True)
    found = folder / name
    assert hashlib.sha256(found.read_bytes()).hexdigest() == sha256
    return found
