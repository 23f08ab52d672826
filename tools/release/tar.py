"""Tar archives whose bytes depend on nothing but the files in them and the commit."""

from __future__ import annotations

import tarfile
from io import BytesIO
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


def write(archive: BinaryIO, files: Mapping[str, Path | bytes], time_s: int) -> None:
    """Write files, by their path in the archive, with their content or where it is."""
    with tarfile.open(fileobj=archive, mode="w", format=tarfile.USTAR_FORMAT) as made:
        for path in sorted(files):
            content = files[path]
            entry = tarfile.TarInfo(path)
            entry.mtime, entry.mode = time_s, 0o644
            if isinstance(content, bytes):
                entry.size = len(content)
                made.addfile(entry, BytesIO(content))
            else:
                entry.size = content.stat().st_size
                with content.open("rb") as file:
                    made.addfile(entry, file)
