"""Work for the disk alone: files to make durable, which may be done in another thread."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from shoal.log.storage import File, Storage


class Sync:
    """Files that are to be made durable so that the recovery point may move to `end_offset`."""

    __slots__ = ("_done", "_files", "_names", "_paths", "_storage", "end_offset", "generation")

    def __init__(
        self,
        storage: Storage,
        end_offset: int,
        generation: int,
        files: Sequence[File],
        paths: Sequence[str],
        names: Sequence[str],
    ) -> None:
        self._storage = storage
        self._files = files
        #: Small files that are not held open, and directories.
        self._paths = paths
        self._names = names
        self._done = False
        self.end_offset = end_offset
        #: The log's generation when the work was set down.
        self.generation = generation

    def run(self, synced: set[str] | None = None) -> None:
        """Wait for the disk. May run in another thread. Raises `OSError`. Directories that are
        `synced` already, since all that is owed was done, are left out, and noted there."""
        for file in self._files:
            file.sync()
        for path in self._paths:
            # One that is gone again was replaced, and whoever did that owes the next sync.
            with contextlib.suppress(FileNotFoundError):
                file = self._storage.open(path)
                file.sync()
                file.close()
        for name in self._names:
            if synced is None:
                self._storage.sync_directory(name)
            elif name not in synced:
                self._storage.sync_directory(name)
                synced.add(name)
        self._done = True

    def run_once(self) -> None:
        """`run`, unless that has been done."""
        if not self._done:
            self.run()
