"""How several test processes share the tests (`pytest -n 4`): file by file, the longest first.

A file's tests run in one process, in order, so they can share what a fixture of the file starts.
The folders in `ONE_PROCESS` run in one process as a whole, one after the other, since their tests
share what only one process may have: a JVM with a Spark session, or the Kubernetes cluster. A Spark
beside another one would leave a machine with two cores no time for either. While the first runs,
the images of the second are built.
"""

from __future__ import annotations

import functools
import os
from typing import TYPE_CHECKING

from xdist.scheduler.loadscope import LoadScopeScheduling

if TYPE_CHECKING:
    import pytest

ONE_PROCESS = ("tests/spark", "tests/e2e")
#: What is in these folders and needs neither.
_APART = ("tests/spark/reader/", "tests/e2e/test_chart.py")
_THEIR_SCOPE = " ".join(ONE_PROCESS)
#: Folders and files that take longest, in the order in which they begin. Attackers come before the
#: pods of Kubernetes, because they measure the broker's CPU time, which grows a little with load.
#: `make test` prints the times of its slowest tests.
LONGEST = (*ONE_PROCESS, "tests/hostile", "tests/sim", "tests/cluster", "tests/compat")

#: What others add to their niceness: beside a busy process of `ONE_PROCESS`, a third of its time.
NICENESS = 5


def find_scope(nodeid: str) -> str:
    """Return what runs in one process with this test: its file, or the folders of `ONE_PROCESS`."""
    file = nodeid.partition("::")[0]
    in_one_process = file.startswith(tuple(f"{folder}/" for folder in ONE_PROCESS))
    in_one_process = in_one_process and not file.startswith(_APART)
    return _THEIR_SCOPE if in_one_process else file


def give_way(nodeid: str) -> None:
    """Lower the priority of a test process, and of what it starts, for tests outside of
    `ONE_PROCESS`: those take longest of all, and Spark waits for a Python worker no longer than ten
    seconds, which needs one and a half of a core."""
    if "PYTEST_XDIST_WORKER" in os.environ and find_scope(nodeid) != _THEIR_SCOPE:
        _lower_priority()


@functools.cache
def _lower_priority() -> None:
    os.nice(NICENESS)


def put_longest_first(items: list[pytest.Item]) -> None:
    """Sort tests so that the longest files begin first, and others fill the gaps at the end."""

    def rank(item: pytest.Item) -> int:
        is_apart = item.nodeid.startswith(_APART)
        ranks = (at for at, path in enumerate(LONGEST) if item.nodeid.startswith(path))
        return len(LONGEST) if is_apart else next(ranks, len(LONGEST))

    items.sort(key=rank)


class FileScheduling(LoadScopeScheduling):  # type: ignore[misc]
    """Gives each process a file or folder at a time, in the order of collection."""

    def _split_scope(self, nodeid: str) -> str:
        return find_scope(nodeid)
