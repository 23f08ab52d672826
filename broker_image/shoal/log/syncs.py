"""Files to make durable, a task that may run in another thread."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shoal.log.storage import File, Storage


class Sync:
    """The files that must be durable before the recovery point moves to `end_offset`."""

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
        #: Small files that are not open, and directories.
        self._paths = paths
        self._names = names
        self._done = False
        self.end_offset = end_offset
        #: The log's generation when this sync was created.
        self.generation = generation

    def run(self, synced: set[str] | None = None) -> None:
        """Sync all files. May run in another thread. Directories in `synced` are skipped, and those
        that this call syncs are added to it. Raises `OSError`."""
        for file in self._files:
            file.sync()
        for path in self._paths:
            # A missing file was replaced, and the next sync covers its replacement.
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
        """Call `run` unless it has succeeded before."""
        if not self._done:
            self.run()
