"""How several test processes share the tests (`pytest -n 4`): file by file, the longest first.

A file's tests run in one process, in order, so they can share what a fixture of the file starts.
The folders in `ONE_PROCESS` run in one process as a whole, since their tests share what only one
process may have: the Kubernetes cluster, or a JVM with a Spark session.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from xdist.scheduler.loadscope import LoadScopeScheduling

if TYPE_CHECKING:
    import pytest

ONE_PROCESS = ("tests/e2e", "tests/spark")
#: Folders and files that take longest, in the order in which they begin. `make test` prints the
#: times of its slowest tests.
LONGEST = ("tests/e2e", "tests/spark", "tests/sim", "tests/cluster", "tests/compat")


def find_scope(nodeid: str) -> str:
    """Return what runs in one process with this test: its file, or its folder."""
    file = nodeid.partition("::")[0]
    return next((folder for folder in ONE_PROCESS if file.startswith(f"{folder}/")), file)


def put_longest_first(items: list[pytest.Item]) -> None:
    """Sort tests so that the longest files begin first, and others fill the gaps at the end."""

    def rank(item: pytest.Item) -> int:
        ranks = (at for at, path in enumerate(LONGEST) if item.nodeid.startswith(path))
        return next(ranks, len(LONGEST))

    items.sort(key=rank)


class FileScheduling(LoadScopeScheduling):  # type: ignore[misc]
    """Gives each process a file or folder at a time, in the order of collection."""

    def _split_scope(self, nodeid: str) -> str:
        return find_scope(nodeid)
