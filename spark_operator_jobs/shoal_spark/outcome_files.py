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
import re
import socket
import tempfile
import time
import uuid
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from shoal.protocol.reasons import FailureReason

from shoal_spark import ranges as sets
from shoal_spark.ranges import OffsetRange

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

#: Maximum age of a file in seconds. The source deletes older ones.
AGE_S_MAX = 7 * 24 * 3600
DELAY_MS_MAX = 3_600_000
#: The source's column with the reason for which a record cannot be decoded, null for all others.
DECODE_ERROR = "decodeError"
#: A reason that begins with a class, whose name has a capital: `app.errors.NoAmount: why`.
_NAMED = re.compile(r"((?:[a-z_]\w*\.)*[A-Z]\w*): (.*)", re.DOTALL)


class OutcomeKind(StrEnum):
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
    kind: OutcomeKind
    delay_ms: int = 0
    reason: str = ""

    @property
    def range(self) -> OffsetRange:
        return OffsetRange(*self[:4])


def join(outcomes: Iterable[Outcome]) -> list[Outcome]:
    """Sort outcomes and merge adjacent ones that are equal."""
    joined: list[Outcome] = []
    for outcome in sorted(outcomes):
        before = joined[-1] if joined else None
        if (
            before
            and before[:2] == outcome[:2]
            and before[4:] == outcome[4:]
            and (before.first <= outcome.first <= before.last + 1)
        ):
            joined[-1] = before._replace(last=max(before.last, outcome.last))
        else:
            joined.append(outcome)
    return joined


def get_own_folder() -> Path:
    """Return the folder of this user in the temporary folder, for all default directories."""
    return Path(tempfile.gettempdir(), f"shoal-outcomes-{os.getuid()}")


def check_owner(directory: Path) -> None:
    """Raise `PermissionError` if somebody else than this user and root owns the directory, or the
    folder of this user in which it is."""
    own = get_own_folder()
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
    lines = [json.dumps(outcome._asdict()) + "\n" for outcome in join(outcomes)]
    if not lines:
        return None
    place = Path(directory)
    check_owner(place)
    if (own := get_own_folder()) in place.parents:
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

    def poll(self) -> None:
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
            self._files[path] = [
                Outcome(**{**row, "kind": OutcomeKind(row["kind"])}) for row in rows
            ]

    def iterate_outcomes(
        self, ranges: Iterable[OffsetRange]
    ) -> Iterator[tuple[OutcomeKind, int, str, list[OffsetRange]]]:
        """Yield the outcomes of these offsets by kind, delay and reason; those without one are
        accepted."""
        remaining = list(ranges)
        for path in sorted(self._files, reverse=True):
            for outcome in self._files[path]:
                matched, remaining = sets.split(remaining, [outcome.range])
                if matched:
                    yield outcome.kind, outcome.delay_ms, outcome.reason, matched
        if remaining:
            yield OutcomeKind.ACCEPT, 0, "", remaining

    def drop_settled(self, ranges: Iterable[OffsetRange]) -> None:
        """Drop the outcomes of these offsets, and remove files without remaining outcomes."""
        settled = list(ranges)
        for path, outcomes in list(self._files.items()):
            remaining = [
                outcome._replace(first=r.first, last=r.last)
                for outcome in outcomes
                for r in sets.subtract([outcome.range], settled)
            ]
            if remaining:
                self._files[path] = remaining
            else:
                del self._files[path]
                path.unlink(missing_ok=True)


def parse_reason(text: str) -> FailureReason:
    """Return the reason of an outcome; `ValueError: no amount` names the exception."""
    named = _NAMED.fullmatch(text)
    exception, message = named.groups() if named else ("", text)
    return FailureReason(exception, message, worker=socket.gethostname())
