"""Packages that tests take from npm, fetched once into `build` and pinned by a hash."""

from __future__ import annotations

import functools
import hashlib
import shutil
import subprocess
import tarfile
from pathlib import Path

from support.runs.machine import lacking

BUILD = Path(__file__).resolve().parents[3] / "build"
KAFKAJS = "kafkajs@2.2.4"
KAFKAJS_SHA256 = "c814f61afbb2b42e314a5e17780475e6a15aa47bbd33b126b81123e69b02a6f6"


def fetch_archive(package: str, folder: Path) -> Path:
    """Return the archive of NAME@VERSION, which npm checks and puts into a folder; skip the test,
    or fail in CI, without npm."""
    if shutil.which("npm") is None:
        lacking("no npm on the PATH: apt-get install npm")
    folder.mkdir(parents=True, exist_ok=True)
    command = ["npm", "pack", "--silent", package]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    return folder / done.stdout.strip()


@functools.cache
def find_kafkajs() -> Path:
    """Return a folder `node_modules` with kafkajs, which depends on no other package."""
    modules = BUILD / KAFKAJS / "node_modules"
    if not modules.exists():
        archive = fetch_archive(KAFKAJS, modules.parent)
        digest = hashlib.sha256(archive.read_bytes()).hexdigest()
        assert digest == KAFKAJS_SHA256, f"{archive} is not {KAFKAJS}"
        with tarfile.open(archive) as opened:
            opened.extractall(modules.parent / "new", filter="data")
        (modules.parent / "new" / "package").rename(modules.parent / "new" / "kafkajs")
        (modules.parent / "new").rename(modules)
    return modules
