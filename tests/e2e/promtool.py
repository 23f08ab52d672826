"""Prometheus itself and promtool, its test of rules: the installed ones, or Debian's."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from e2e.cluster.commands import run
from e2e.cluster.layout import CACHE, ClusterError
from support.runs.machine import lacking


def promtool() -> Path:
    """Return the path of promtool; skip the test without it, except in CI."""
    return _program("promtool")


def prometheus() -> Path:
    """Return the path of the server; skip the test without it, except in CI."""
    return _program("prometheus")


def _program(name: str) -> Path:
    if installed := shutil.which(name):
        return Path(installed)
    path = CACHE / "bin" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        if not path.exists():
            _unpack(path)
    except ClusterError as error:
        lacking(f"{name} is not installed: {error}")
    return path


def _unpack(path: Path) -> None:
    """Take only the program out of Debian's package, which would start a server."""
    with tempfile.TemporaryDirectory(dir=path.parent) as directory:
        # The sandbox user of apt may not write here.
        download = ("apt-get", "-o", "APT::Sandbox::User=root", "download", "prometheus")
        if run(*download, cwd=Path(directory), check=False).returncode:
            run("apt-get", "update", "-q")
            run(*download, cwd=Path(directory))
        (package,) = Path(directory).glob("prometheus_*.deb")
        run("dpkg-deb", "-x", package, Path(directory) / "files")
        (Path(directory) / "files/usr/bin" / path.name).replace(path)
