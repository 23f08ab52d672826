"""The state folder `.shoal` of a folder of manifests: objects, volumes, logs, ports, processes.

Only its owner may read it: it has keys. One `shoal up` at a time holds its lock.
"""

from __future__ import annotations

import fcntl
import json
import os
import tempfile
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shoal.cli.session import CommandError

if TYPE_CHECKING:
    from pathlib import Path

NAME = ".shoal"


@dataclass(frozen=True, slots=True)
class StateFolder:
    """The paths in a state folder."""

    root: Path

    @property
    def objects(self) -> Path:
        return self.root / "objects"

    @property
    def volumes(self) -> Path:
        return self.root / "volumes"

    @property
    def pods(self) -> Path:
        return self.root / "pods"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def ports(self) -> Path:
        return self.root / "ports.json"

    @property
    def processes(self) -> Path:
        return self.root / "processes.json"

    @property
    def up(self) -> Path:
        """The process of `shoal up` itself."""
        return self.root / "up.json"

    @property
    def socket(self) -> Path:
        """Where `shoal apply` and `shoal delete` reach a running `shoal up`."""
        return self.root / "up.sock"

    @property
    def users(self) -> Path:
        """What your own programs log in with, a folder for each QueueUser."""
        return self.root / "users"

    @property
    def client_properties(self) -> Path:
        """The properties with which other `shoal` commands reach the cluster."""
        return self.root / "client.properties"

    def create(self) -> None:
        """Create the folder, which git ignores. Raises `CommandError` for that of another user."""
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self.root.stat().st_uid != os.geteuid():
            raise CommandError(
                f"{self.root} belongs to another user, who could read the keys in it. Remove it, "
                "or name another folder with --state."
            )
        # It may have been there before, or have come with a copy. The socket relies on this.
        self.root.chmod(0o700)
        write_text(self.root / ".gitignore", "*\n")

    def acquire(self) -> int | None:
        """Return the descriptor that holds the lock, None if another process holds it."""
        descriptor = os.open(self.root / "lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        return descriptor


def find(start: Path) -> StateFolder | None:
    """Return the state folder of a folder, or of the nearest one above that has one.

    A folder of somebody else, or that others may change, could take the Secrets that a command
    applies, as anybody may make one in `/tmp`. It does not count.
    """
    for folder in (start, *start.parents):
        root = folder / NAME
        if (root / "objects").is_dir():
            status = root.stat()
            if status.st_uid == os.geteuid() and not status.st_mode & 0o022:
                return StateFolder(root)
    return None


def write_text(file: Path, text: str) -> None:
    """Replace a file as a whole, readable for its owner alone: a crash leaves the old one."""
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=file.parent, prefix=".new-")
    try:
        with os.fdopen(descriptor, "w", errors="surrogateescape") as opened:
            opened.write(text)
        os.replace(name, file)
    except BaseException:
        os.unlink(name)
        raise


def update_file(file: Path, content: bytes) -> None:
    """Replace a file with other content, as `write_text` does."""
    if not file.is_file() or file.read_bytes() != content:
        write_text(file, content.decode("utf-8", "surrogateescape"))


def read_json(file: Path) -> Any:
    """Return the content of a file, None if it does not exist or is not JSON."""
    try:
        return json.loads(file.read_text())
    except (FileNotFoundError, ValueError):
        return None
