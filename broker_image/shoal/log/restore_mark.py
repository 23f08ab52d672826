"""The file that a restore leaves in a data directory until a broker starts there.

It is written first, without `complete`, and replaced as the last step. So a restore that was
interrupted is found, and one that has ended is not repeated. The start of a broker removes it: from
then on the directory has data of its own, which no restore may replace.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shoal.log.storage import Storage

NAME = "restore.json"


class RestoreMark(NamedTuple):
    """Which restore it was, whether it has ended, and what it reported then."""

    id: str
    complete: bool = False
    report: Mapping[str, Any] = {}


def read(storage: Storage, directory: str) -> RestoreMark | None:
    """Return the mark of a data directory, None without one. A damaged one is not complete."""
    try:
        fields = json.loads(storage.read_file(f"{directory}/{NAME}"))
        return RestoreMark(fields["id"], fields["complete"], fields["report"])
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError):
        return RestoreMark("")


def write(storage: Storage, directory: str, mark: RestoreMark) -> None:
    """Replace the mark. Raises `OSError`."""
    data = json.dumps(mark._asdict(), sort_keys=True).encode()
    storage.replace_file(f"{directory}/{NAME}", data, sync=True)


def remove(storage: Storage, directory: str) -> None:
    """Remove the mark, if there is one. Raises `OSError`."""
    storage.remove(f"{directory}/{NAME}")
