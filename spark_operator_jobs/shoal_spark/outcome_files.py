"""Files that carry outcomes of rows from a sink to the source, in a directory on the driver.

Sink and source of a query run in two Python processes on the driver and share only its disk. The
sink's commit writes one file of JSON lines under a temporary name and renames it, so that a file is
always complete. The source reads it when the batch has completed, and removes it once every offset
in it is settled. If two files have outcomes of one offset, the later file counts: it comes from the
replay of a batch.

Every writer to the directory decides which records are rejected. The default is in the
temporary folder, where everybody can create one of that name first. So both sides check its owner.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
import uuid
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from shoal_spark import ranges as sets
from shoal_spark.ranges import Range

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

#: Maximum age of a file in seconds. The source deletes older ones.
AGE_S_MAX = 7 * 24 * 3600
DELAY_MS_MAX = 3_600_000


class Kind(StrEnum):
    """The outcome of a row."""

    ACCEPT = "accept"
    RELEASE = "release"
    REJECT = "reject"


class Outcome(NamedTuple):
    """The outcome of a range of offsets; a release may be delayed up to `DELAY_MS_MAX`."""

    topic: str
    partition: int
    first: int
    last: int
    kind: Kind
    delay_ms: int = 0
    reason: str = ""

    @property
    def range(self) -> Range:
        return Range(*self[:4])


def joined(outcomes: Iterable[Outcome]) -> list[Outcome]:
    """Sort outcomes and merge adjacent ones that are equal."""
    found: list[Outcome] = []
    for one in sorted(outcomes):
        before = found[-1] if found else None
        if (
            before
            and before[:2] == one[:2]
            and before[4:] == one[4:]
            and (before.first <= one.first <= before.last + 1)
        ):
            found[-1] = before._replace(last=max(before.last, one.last))
        else:
            found.append(one)
    return found


def own_folder() -> Path:
    """Return the folder of this user in the temporary folder, for all default directories."""
    return Path(tempfile.gettempdir(), f"shoal-outcomes-{os.getuid()}")


def check_owner(directory: Path) -> None:
    """Raise `PermissionError` if somebody else than this user and root owns the directory, or the
    folder of this user in which it is."""
    own = own_folder()
    for place in (own, directory) if own in directory.parents else (directory,):
        try:
            owner = place.lstat().st_uid
        except FileNotFoundError:
            continue
        if owner not in (os.getuid(), 0):
            raise PermissionError(
                f"{place} belongs to another user ({owner}), who could decide which records are"
                " rejected. Remove it, or set the option outcomes.dir to a directory of your own."
            )


def write(directory: str, outcomes: Iterable[Outcome]) -> Path | None:
    """Write outcomes for the source; return None if there are none."""
    lines = [json.dumps(one._asdict()) + "\n" for one in joined(outcomes)]
    if not lines:
        return None
    place = Path(directory)
    check_owner(place)
    if (own := own_folder()) in place.parents:
        own.mkdir(mode=0o700, exist_ok=True)
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    check_owner(place)
    final = place / f"{time.time_ns():020d}-{uuid.uuid4().hex[:8]}.jsonl"
    part = final.with_suffix(".part")
    with part.open("w") as out:
        out.writelines(lines)
        out.flush()
        os.fsync(out.fileno())
    return part.rename(final)


class Inbox:
    """The source's outcomes that are not yet settled, by file, the oldest first."""

    def __init__(self, directory: str) -> None:
        self._directory = Path(directory)
        self._files: dict[Path, list[Outcome]] = {}

    def look(self) -> None:
        """Read new files. Raises `PermissionError` for a directory of another user."""
        check_owner(self._directory)
        for path in sorted(self._directory.glob("*.jsonl")):
            if path in self._files:
                continue
            try:
                if time.time() - path.stat().st_mtime > AGE_S_MAX:
                    path.unlink()
                    continue
                rows = [json.loads(line) for line in path.read_text().splitlines()]
            except FileNotFoundError:
                continue
            self._files[path] = [Outcome(**{**row, "kind": Kind(row["kind"])}) for row in rows]

    def of(self, ranges: Iterable[Range]) -> Iterator[tuple[Kind, int, list[Range]]]:
        """Yield the outcomes of these offsets by kind and delay; those without one are accepted."""
        left = list(ranges)
        for path in sorted(self._files, reverse=True):
            for outcome in self._files[path]:
                some, left = sets.split(left, [outcome.range])
                if some:
                    yield outcome.kind, outcome.delay_ms, some
        if left:
            yield Kind.ACCEPT, 0, left

    def settled(self, ranges: Iterable[Range]) -> None:
        """Drop the outcomes of these offsets, and remove files without remaining outcomes."""
        done = list(ranges)
        for path, outcomes in list(self._files.items()):
            left = [
                outcome._replace(first=r.first, last=r.last)
                for outcome in outcomes
                for r in sets.minus([outcome.range], done)
            ]
            if left:
                self._files[path] = left
            else:
                del self._files[path]
                path.unlink(missing_ok=True)
